"""PDF files of various programs: texts, images, and hostile files."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.helpers.decode.decode_jobs import Decoded, DecodeRefused, Draw, Read
from specllama.engine.helpers.decode.decoder import Decoders
from specllama.engine.helpers.decode.documents import MAX_SIDE, draw_page, read_pages
from specllama.engine.wire.media import Page
from tests.support.pdf_files import SCAN, assembled, bomb, encrypted, pdf, words

pytestmark = pytest.mark.slow


def pages(data: bytes, max_pages: int = 9, max_characters: int = 99) -> list[Page] | str:
    found = read_pages(data, max_pages, max_characters)
    if isinstance(found, DecodeRefused):
        return found.reason
    return msgspec.msgpack.decode(found.data, type=list[Page])


def test_texts_pictures_and_blank_pages() -> None:
    found = pages(pdf(words("One"), SCAN, b"", words("Four")))
    assert found == [Page("One", True), Page("", True), Page("", False), Page("Four", True)]


def test_a_picture_of_a_page() -> None:
    found = draw_page(pdf(words("a"), SCAN), 1)
    assert (found.width, found.height) == (417, 209)  # 200 x 100 points, 150 pixels an inch
    assert len(found.data) == found.width * found.height * 3
    assert found.data[:3] == b"\xff\xff\xff"
    assert b"\x00\x00\x00" in found.data


def test_a_huge_page_is_drawn_small() -> None:
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 14000 2]>>"
    root, kids = b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>"
    found = draw_page(assembled([root, kids, page]), 0)
    assert max(found.width, found.height) <= MAX_SIDE
    assert found.height >= 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pdf(*[words("a")] * 10), "it has 10 pages, more than the 9 that are allowed"),
        (pdf(*[words("a" * 28)] * 4), "its text is longer than allowed in a request"),
        (encrypted(), "it is encrypted, and can't be read without its password"),
    ],
)
def test_rejected_files(data: bytes, reason: str) -> None:
    assert pages(data) == reason


def run(use: Callable[[Decoders], Awaitable[None]]) -> None:
    async def main() -> None:
        decoders = Decoders(processor_limit=5)
        try:
            await use(decoders)
        finally:
            await decoders.stop()

    asyncio.run(main())


async def outcome(decoders: Decoders, job: Read | Draw) -> Decoded | str:
    """Returns the result, or the message of an error, which is the request's own."""
    try:
        return await decoders.decode(job)
    except EngineError as e:
        if e.info.type != "invalid_request_error":
            raise
        return e.info.message


def test_in_a_process_of_its_own() -> None:
    async def use(decoders: Decoders) -> None:
        data = pdf(words("One"), SCAN)
        found = await decoders.decode(Read(data, 9, 99))
        assert msgspec.msgpack.decode(found.data, type=list[Page])[0].text == "One"
        assert await decoders.decode(Draw(data, 0)) == draw_page(data, 0)
        broken = "it is a damaged or incomplete PDF file"
        assert await outcome(decoders, Read(b"%PDF-1.4 and nothing", 9, 99)) == broken
        assert await outcome(decoders, Draw(data, 2)) == broken
        await outcome(decoders, Read(bomb(), 9, 99))
        await outcome(decoders, Draw(bomb(), 0))
        assert await decoders.decode(Read(data, 9, 99)) == found

    run(use)


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_files(data: st.DataObject) -> None:
    file = bytearray(pdf(words("One"), SCAN))
    for _ in range(data.draw(st.integers(1, 8))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))

    async def use() -> None:
        for job in (Read(bytes(file), 9, 99), Draw(bytes(file), 1)):
            await outcome(SHARED[0], job)

    LOOP.run_until_complete(use())


LOOP = asyncio.new_event_loop()
SHARED: list[Decoders] = []


@pytest.fixture(autouse=True, scope="module")
def _shared() -> Iterator[None]:
    SHARED.append(Decoders())
    yield
    LOOP.run_until_complete(SHARED.pop().stop())
    LOOP.close()
