"""Which addresses are public: only those lead to other people's servers.

All others could be this machine, a network that only it reaches, or what a provider of machines
tells each of them about itself.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address

_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared with a provider
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a provider's service on each of its machines
        "169.254.0.0/16",  # link-local, and the metadata of machines
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocols
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # measurements
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
_GLOBAL_6: Final = IPv6Network("2000::/3")
"""All others are private, local, multicast, or forms of IPv4 addresses (mapped, translated)."""
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocols, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address
        "2620:4f:8000::/48",  # names of private addresses
        "3fff::/20",  # documentation
    )
)


def is_public(address: Address) -> bool:
    """True if the address is that of a host in the internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return (
        address.scope_id is None
        and address in _GLOBAL_6
        and not any(address in network for network in _NOT_PUBLIC_6)
    )


def parsed(texts: Iterable[str]) -> list[Address]:
    """The addresses, each once. Raises ValueError for a text that is none."""
    return list(dict.fromkeys(ip_address(text) for text in texts))
