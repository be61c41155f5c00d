"""Compressed bodies of requests."""

import asyncio
import gzip
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from specllama.handlers.http.bodies import PIECE, Inflated, coding_of
from specllama.handlers.http.errors import RequestError

LIMIT = 1 << 22


def raw(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


FORMS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw": ("deflate", raw),
    "two members": ("gzip", lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:])),
}


def read(parts: Iterable[bytes], coding: str, limit: int = LIMIT) -> list[bytes]:
    """The pieces of a body that comes in these parts."""
    rest = [*parts]

    async def receive() -> Message:
        if not rest:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": rest.pop(0), "more_body": bool(rest)}

    async def all_of_it() -> list[bytes]:
        inflated = Inflated(receive, coding, limit)
        pieces = []
        more = True
        while more:
            message = await inflated.receive()
            pieces.append(message["body"])
            more = message["more_body"]
        assert (await inflated.receive())["type"] == "http.disconnect"
        return pieces

    return asyncio.run(all_of_it())


@pytest.mark.parametrize("form", FORMS)
@given(st.binary(max_size=3000), st.integers(2, 500))
def test_compressed_data_is_restored(form: str, data: bytes, size: int) -> None:
    coding, compress = FORMS[form]
    sent = compress(data)
    parts = [sent[i : i + size] for i in range(0, len(sent), size)]
    assert b"".join(read(parts, coding)) == data


def test_a_bomb_comes_in_pieces() -> None:
    pieces = read([gzip.compress(bytes(10 * PIECE))], "gzip")
    assert sum(map(len, pieces)) == 10 * PIECE
    assert max(map(len, pieces)) == PIECE


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@given(data=st.binary(min_size=1, max_size=200))
def test_anything_else_is_refused(coding: str, data: bytes) -> None:
    with suppress(RequestError):
        read([data], coding)


@pytest.mark.parametrize(
    ("sent", "coding", "reason"),
    [
        (gzip.compress(b"text")[:-3], "gzip", "incomplete"),
        (b"{}", "gzip", "incorrect header check"),
        (zlib.compress(b"text") + b"more", "deflate", "bytes after its end"),
    ],
    ids=["cut", "plain", "more"],  # a text of gzip has the time in it
)
def test_the_reason_is_reported(sent: bytes, coding: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read([sent], coding)


def test_bytes_that_mean_nothing_are_bounded() -> None:
    empty = zlib.compressobj(wbits=-zlib.MAX_WBITS).flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(RequestError, match="larger than 1000 bytes"):
        read([empty] * 1000, "deflate", limit=1000)


def test_names_of_codings() -> None:
    assert [coding_of(name) for name in (b"", b"identity", b"GZIP", b"x-gzip", b"deflate")] == [
        *("", "", "gzip", "gzip", "deflate")
    ]
    for name in (b"br", b"zstd", b"gzip, deflate", b"gzip,gzip", b"x" * 5000):
        with pytest.raises(RequestError, match="gzip, deflate are") as refused:
            coding_of(name)
        assert refused.value.failure.status == 415
