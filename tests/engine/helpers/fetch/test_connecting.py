"""Only addresses of hosts in the internet are public."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.helpers.fetch.connecting import is_public, parsed

PUBLIC = ["8.8.8.8", "1.1.1.1", "100.63.255.255", "172.15.0.1", "223.255.255.255", "2606:4700::1"]
_NOT_PUBLIC = """
0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 127.0.0.1 127.255.255.254 168.63.129.16 169.254.0.1
169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.170 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1
198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:8.8.8.8 64:ff9b::7f00:1 64:ff9b::808:808
64:ff9b:1::1 100::1 2001::1 2001:0:808:808::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::
2002:808:808:: 3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 2606:4700::1%1
fec0::1 ff02::1 ff0e::1
"""


@pytest.mark.parametrize("text", PUBLIC)
def test_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", _NOT_PUBLIC.split())
def test_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@given(st.integers(0, 2**32 - 1).map(IPv4Address) | st.integers(0, 2**128 - 1).map(IPv6Address))
def test_at_least_as_strict_as_the_library(address: IPv4Address | IPv6Address) -> None:
    if is_public(address):
        assert address.is_global
        kinds = (address.is_multicast, address.is_reserved, address.is_unspecified)
        assert not any(kinds)


def test_each_once() -> None:
    assert parsed(["::1", "0:0:0:0:0:0:0:1", "127.0.0.1"]) == [
        IPv6Address("::1"),
        IPv4Address("127.0.0.1"),
    ]
    with pytest.raises(ValueError, match="example"):
        parsed(["example.org"])
