"""The bytes of a body before parsing: compressed, with a byte order mark, cut inside an emoji."""

import gzip
import json
import zlib
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import BODIES, body, path
from contract_tests.kit.server import OwnServer, Server


def post(server: Server, name: str, content: bytes, **headers: str) -> httpx.Response:
    headers = {"content-type": "application/json", **headers}
    return server.post(path(name), content=content, headers=headers)


@pytest.mark.parametrize("name", ["create_chat_completion", "create_message", "tokenize"])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_body_is_read(name: str, coding: str, server: OwnServer) -> None:
    compress = gzip.compress if coding == "gzip" else zlib.compress
    content = compress(json.dumps(BODIES[name]).encode())
    contract.check(post(server, name, content, **{"content-encoding": coding}))


def test_the_size_of_an_uncompressed_body_is_bounded(server: OwnServer) -> None:
    content = gzip.compress(b'{"content": "%s"}' % (b"a" * (17 << 20)))
    assert len(content) < 1 << 20
    contract.check(post(server, "tokenize", content, **{"content-encoding": "gzip"}), 413)


def test_values_of_a_compressed_body_are_counted(server: OwnServer) -> None:
    content = gzip.compress(b'{"unknown": [%s0], "content": ""}' % (b"[]," * 1_200_000))
    contract.check(post(server, "tokenize", content, **{"content-encoding": "gzip"}), 413)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress"])
def test_other_codings_are_refused_by_name(coding: str, server: OwnServer) -> None:
    answer = post(server, "tokenize", b"{}", **{"content-encoding": coding})
    assert coding in contract.check(answer, 415)["error"]["message"]
    assert answer.headers["accept-encoding"] == "gzip, deflate"


def test_a_wrong_compression_is_refused(server: OwnServer) -> None:
    whole = gzip.compress(b'{"content": "a"}')
    for content in (b'{"content": "a"}', whole[:-4], whole + b"more"):
        answer = post(server, "tokenize", content, **{"content-encoding": "gzip"})
        assert "gzip" in contract.check(answer, 400)["error"]["message"]


@pytest.mark.parametrize("half", [rb"\ud83d", rb"\ude00", rb"\ud83dx", rb"\ud83d\ud83d\ude00"])
def test_half_of_an_emoji_is_the_replacement_character(half: bytes, server: OwnServer) -> None:
    answer = post(server, "tokenize", b'{"content": "a%s"}' % half)
    text = server.ask("/detokenize", contract.check(answer))["content"]
    assert text.startswith("a\ufffd")


def test_a_conversation_with_half_of_an_emoji_goes_on(server: OwnServer) -> None:
    messages = [{"role": "user", "content": "HALF"}]
    raw = json.dumps(body("create_chat_completion", messages=messages)).encode()
    contract.check(post(server, "create_chat_completion", raw.replace(b"HALF", rb"\ud83d")))


def test_a_byte_order_mark_is_passed_over(server: OwnServer) -> None:
    wanted: Any = server.ask("/tokenize", {"content": "a"})
    answer = post(server, "tokenize", b"\xef\xbb\xbf" + b'{"content": "a"}')
    assert contract.check(answer) == wanted
