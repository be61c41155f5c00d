"""From a request's sources to media: limits, places in errors, and work that is done only once."""

import asyncio
import hashlib
import os
import signal
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.helpers.decode.decode_jobs import Decoded, DecodeJob
from specllama.engine.helpers.decode.decoder import Decoders
from specllama.engine.media import resolver as parent
from specllama.engine.media.resolver import MediaDecoder
from specllama.engine.media.source import MediaSource
from specllama.engine.options.tables.multimodal import MediaInputOptions
from specllama.engine.wire.media import Document, Media
from tests.support.media_files import (
    FILES,
    HEIGHT,
    IMAGES,
    RATE,
    SOUNDS,
    WIDTH,
    blank_png,
    picture,
    png_of_size,
    wav_file,
)
from tests.support.pdf_files import SCAN, encrypted, pdf, words
from tests.support.video_files import sound_file, video_file

pytestmark = pytest.mark.slow

PNG = MediaSource(IMAGES["PNG"], "image", "messages[0].content[1]")
PLAIN = MediaInputOptions()


class Counting(Decoders):
    """Counts decoded sources."""

    n_jobs = 0

    async def decode(self, job: DecodeJob) -> Decoded:
        self.n_jobs += 1
        return await super().decode(job)


class Lying(Decoders):
    """A process that something has taken over: it may say anything."""

    def __init__(self, says: Decoded) -> None:
        super().__init__()
        self._says = says

    async def decode(self, job: DecodeJob) -> Decoded:
        return self._says


def run(
    use: Callable[[MediaDecoder], Awaitable[None]], decoders: Callable[[], Decoders] = Decoders
) -> None:
    async def main() -> None:
        decoder = MediaDecoder(decoders())
        try:
            await use(decoder)
        finally:
            pids = decoder.pids
            await decoder.stop()
            assert not any(psutil.pid_exists(pid) for pid in pids)

    asyncio.run(main())


async def failure(decoding: Awaitable[object]) -> ErrorInfo:
    with pytest.raises(EngineError) as caught:
        await decoding
    return caught.value.info


def test_media_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(IMAGES["GIF"])
    sources = [MediaSource(data) for data in FILES.values()]
    sources.append(MediaSource("file://x.bin", "image"))

    async def use(decoder: MediaDecoder) -> None:
        options = MediaInputOptions(media_path=str(tmp_path))
        decoded = await decoder.decode(sources, options, sample_rate=RATE)
        found = [each for each in decoded if isinstance(each, Media)]
        assert [media.kind for media in found] == ["image"] * 5 + ["audio"] * 3 + ["image"]
        for media, data in zip(found, (*FILES.values(), IMAGES["GIF"]), strict=True):
            assert media.digest == hashlib.sha256(data).digest()
        assert found[1] == Media("image", found[1].digest, picture().tobytes(), WIDTH, HEIGHT)
        assert len(struct.unpack("<800f", found[5].data)) == 800
        assert found[2] == found[8]

    run(use)


def test_no_media_need_no_process() -> None:
    async def use(decoder: MediaDecoder) -> None:
        assert await decoder.decode([]) == []
        assert decoder.pids == []

    run(use)


@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        (b"", None, "it is empty"),
        (b"hello", None, "it is not one of JPEG, PNG, GIF, BMP, WebP, WAV, MP3 or FLAC"),
        (SOUNDS["WAV"], "image", "it is a WAV file where an image is expected"),
        (IMAGES["PNG"], "audio", "it is a PNG file where a sound is expected"),
        (b"OggS", "audio", "it is not one of JPEG, PNG, GIF, BMP, WebP, WAV, MP3 or FLAC"),
        (IMAGES["PNG"][:40], "image", "it is a damaged or incomplete PNG file"),
        (
            png_of_size(40_000, 2),
            "image",
            "it has 40000 x 2 pixels; the maximum of a side is 32768",
        ),
        ("ftp://a/b", "image", "its URL is neither http, https nor file"),
    ],
)
def test_errors_and_their_places(content: bytes | str, kind: str | None, reason: str) -> None:
    source = MediaSource(content, kind, "messages[3].content[0]")  # type: ignore[arg-type]

    async def use(decoder: MediaDecoder) -> None:
        info = await failure(decoder.decode([PNG, source], sample_rate=RATE))
        assert info == ErrorInfo("invalid_request_error", f"messages[3].content[0]: {reason}")

    run(use)


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("http://127.0.0.1/x", "--media-urls"),
        ("HTTPS://example.org/x", "--media-urls"),
        ("file://x", "--media-path"),
    ],
)
def test_disabled_features(url: str, option: str) -> None:
    async def use(decoder: MediaDecoder) -> None:
        info = await failure(decoder.decode([MediaSource(url, "image", "prompt")]))
        assert info.type == "not_supported_error"
        assert info.message.startswith("prompt: ")
        assert option in info.message
        assert decoder.pids == []

    run(use)


def test_media_that_the_model_does_not_support() -> None:
    async def use(decoder: MediaDecoder) -> None:
        sound = MediaSource(SOUNDS["WAV"], None, "prompt")
        info = await failure(decoder.decode([sound]))
        assert info.type == "not_supported_error"
        assert info.message == "prompt: audio input is not supported by this model"
        info = await failure(decoder.decode([PNG], images=False, sample_rate=RATE))
        assert info.type == "not_supported_error"
        assert "image input is not supported" in info.message

    run(use)


def test_placeholders_of_media() -> None:
    sources = [
        MediaSource("https://a.example/a.png", "image", "prompt", stand_in="[image]"),
        MediaSource(SOUNDS["WAV"], None, "prompt", stand_in="[sound]"),
        MediaSource(b"\xff\xfe", "document", "prompt", stand_in="[document]"),
        MediaSource(b"text", "document", "prompt", stand_in="[document]"),
    ]

    async def use(decoder: MediaDecoder) -> None:
        decoded = await decoder.decode(sources)
        assert decoded == [
            Document([text]) for text in ("[image]", "[sound]", "[document]", "text")
        ]
        damaged = MediaSource(b"bad", "image", "prompt", stand_in="[image]")
        info = await failure(decoder.decode([damaged]))
        assert info.type == "invalid_request_error"

    run(use)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (MediaInputOptions(media_max_count=1), "2 images, sounds and videos; the maximum is 1"),
        (
            MediaInputOptions(media_max_bytes=2 * len(IMAGES["PNG"]) - 1),
            r"content\[1\]: the images, sounds and videos have more than \d+ bytes together",
        ),
    ],
)
def test_limits_of_a_request(options: MediaInputOptions, reason: str) -> None:
    async def use(decoder: MediaDecoder) -> None:
        with pytest.raises(EngineError, match=reason):
            await decoder.decode([PNG, PNG], options)
        assert decoder.pids == []

    run(use)


def test_limits_of_all_bytes_hold_for_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(IMAGES["PNG"])
    size = len(IMAGES["PNG"])

    async def use(decoder: MediaDecoder) -> None:
        sources = [MediaSource("file://a.png")] * 3
        for n_bytes in (3 * size, 3 * size - 1):
            options = MediaInputOptions(media_path=str(tmp_path), media_max_bytes=n_bytes)
            if n_bytes == 3 * size:
                assert len(await decoder.decode(sources, options)) == 3
            else:
                assert "bytes together" in (await failure(decoder.decode(sources, options))).message

    run(use)


def test_decoded_media_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "MAX_DECODED", 1 << 20)
    large = MediaSource(blank_png(400, 400), None, "x")  # 480,000 bytes
    second = MediaSource(wav_file([0.1] * RATE))

    async def use(decoder: MediaDecoder) -> None:
        options = MediaInputOptions(media_max_seconds=2)
        found = await decoder.decode([large, large, PNG, second], options, sample_rate=RATE)
        assert len(found) == 4
        info = await failure(decoder.decode([PNG, large, large, large]))
        assert info.message == (
            "x: the images, sounds and videos have more than 1 MiB together after decoding"
        )
        assert len(await decoder.decode([second, second], options, sample_rate=RATE)) == 2
        info = await failure(decoder.decode([second] * 3, options, sample_rate=RATE))
        assert info.message == "the sounds take longer than --media-max-seconds together"

    run(use)


def test_recently_decoded_media_are_reused() -> None:
    decoders: list[Counting] = []

    def counting() -> Counting:
        decoders.append(Counting())
        return decoders[0]

    async def use(decoder: MediaDecoder) -> None:
        sound = MediaSource(SOUNDS["FLAC"])
        first = await decoder.decode([PNG, sound, PNG], sample_rate=RATE)
        assert await decoder.decode([PNG, sound, PNG], sample_rate=RATE) == first
        assert decoders[0].n_jobs == 2
        [slower] = await decoder.decode([sound], sample_rate=RATE // 2)
        assert decoders[0].n_jobs == 3
        assert slower != first[1]
        info = await failure(decoder.decode([MediaSource(IMAGES["PNG"], "audio")]))
        assert "PNG file where a sound" in info.message

    run(use, counting)


@pytest.mark.parametrize(
    "says", [Decoded(bytes(12), 2, 3), Decoded(b"", 0, 0), Decoded(bytes(12), -2, -2), Decoded(b"")]
)
def test_numbers_that_do_not_fit_the_pixels_are_never_believed(says: Decoded) -> None:
    async def use(decoder: MediaDecoder) -> None:
        assert "can't be decoded" in (await failure(decoder.decode([PNG]))).message

    run(use, lambda: Lying(says))


def test_nor_half_a_sample() -> None:
    async def use(decoder: MediaDecoder) -> None:
        sound = MediaSource(SOUNDS["WAV"])
        assert "can't be decoded" in (await failure(decoder.decode([sound], sample_rate=1))).message

    run(use, lambda: Lying(Decoded(bytes(7))))


# ---- videos ------------------------------------------------------------------------------

FILM = video_file()  # 20 pictures in 2 s
VIDEO = MediaSource(FILM, "video", "messages[0].content[2]")


def test_videos() -> None:
    decoders: list[Counting] = []

    def counting() -> Counting:
        decoders.append(Counting())
        return decoders[0]

    async def use(decoder: MediaDecoder) -> None:
        options = MediaInputOptions(video_fps=2.0, video_timestamp_interval=1000)
        [found, picture_, again] = await decoder.decode([VIDEO, PNG, VIDEO], options)
        assert isinstance(found, Document)
        assert isinstance(picture_, Media)
        assert again == found
        texts = [part if isinstance(part, str) else part.n_frames for part in found.parts]
        assert texts == ["Video:", 1, "[0m0.00s]", 2, "[0m1.00s]", 1]
        assert decoders[0].n_jobs == 2
        [faster] = await decoder.decode([VIDEO], sample_rate=RATE)
        assert isinstance(faster, Document)
        assert len(faster.parts) == 7
        assert decoders[0].n_jobs == 3
        assert await decoder.decode([VIDEO], options) == [found]
        assert decoders[0].n_jobs == 3

    run(use, counting)


def test_a_video_in_an_image_s_place_and_the_reverse() -> None:
    async def use(decoder: MediaDecoder) -> None:
        as_image, as_any = MediaSource(FILM, "image"), MediaSource(FILM)
        first, *others = await decoder.decode([VIDEO, as_image, as_any])
        assert isinstance(first, Document)
        assert others == [first, first]
        assert await decoder.decode([MediaSource(PNG.content, "video")]) == (
            await decoder.decode([PNG])
        )

    run(use)


@pytest.mark.parametrize(
    ("content", "options", "reason"),
    [
        (b"hello", {}, "it is not one of MP4, QuickTime, WebM, Matroska"),
        (SOUNDS["WAV"], {}, "it is a WAV file where a video is expected"),
        (sound_file(), {}, "it contains no video"),
        (FILM[:300], {}, "it is a damaged or incomplete MP4 file"),
        (FILM, {"video_max_frames": 7}, "7 frames that are allowed (--video-max-frames)"),
        (FILM, {"media_max_seconds": 1}, "longer than the 1 s that are allowed"),
    ],
)
def test_videos_that_are_refused(content: bytes, options: dict[str, Any], reason: str) -> None:
    async def use(decoder: MediaDecoder) -> None:
        source = MediaSource(content, "video", "here")
        info = await failure(
            decoder.decode([source], MediaInputOptions(**options), sample_rate=RATE)
        )
        assert info.type == "invalid_request_error"
        assert info.message.startswith("here: ")
        assert reason in info.message

    run(use)


def test_frames_are_counted_together() -> None:
    async def use(decoder: MediaDecoder) -> None:
        for most in (16, 15):
            options = MediaInputOptions(video_max_frames=most)
            if most == 16:
                assert len(await decoder.decode([VIDEO, VIDEO], options)) == 2
            else:
                info = await failure(decoder.decode([VIDEO, VIDEO], options))
                assert "the videos have more than the 15 frames" in info.message

    run(use)


def test_videos_for_a_server_or_a_model_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(decoder: MediaDecoder) -> None:
        info = await failure(decoder.decode([VIDEO], images=False, sample_rate=RATE))
        assert info.type == "not_supported_error"
        assert "video input is not supported by this model" in info.message
        monkeypatch.setattr(parent, "reads_videos", lambda: False)
        info = await failure(decoder.decode([VIDEO]))
        assert info.type == "not_supported_error"
        assert 'pip install "specllama[video]"' in info.message
        stood_in = MediaSource(FILM, "video", stand_in="[video]")
        assert await decoder.decode([stood_in]) == [Document(["[video]"])]
        assert decoder.pids == []

    run(use)


def test_a_deadline() -> None:
    async def use(decoder: MediaDecoder) -> None:
        await decoder.decode([PNG])
        [pid] = decoder.pids
        os.kill(pid, signal.SIGSTOP)
        now = asyncio.get_running_loop().time()
        other = MediaSource(IMAGES["GIF"])
        info = await failure(decoder.decode([other], deadline=now + 0.2))
        assert info.type == "unavailable_error"
        assert len(await decoder.decode([other])) == 1

    run(use)


def test_the_first_failure_ends_the_other_fetches(tmp_path: Path) -> None:
    async def use(decoder: MediaDecoder) -> None:
        waiting = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            waiting.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        options = MediaInputOptions(
            media_path=str(tmp_path),
            media_urls=True,
            media_private_addresses=True,
            media_timeout=600,
        )
        sources = [MediaSource(url, None, "a"), MediaSource("file://missing", None, "b")]
        info = await failure(decoder.decode(sources, options))
        assert info == ErrorInfo("invalid_request_error", "b: it does not exist, or can't be read")
        server.close()

    run(use)


def test_documents() -> None:
    scanned = pdf(words("One"), SCAN, b"", words("Four"))

    def source(data: bytes) -> MediaSource:
        return MediaSource(data, "document", "messages[0].content[1]")

    async def use(decoder: MediaDecoder) -> None:
        [found, plain] = await decoder.decode([source(scanned), source(b"Plain")])
        assert isinstance(found, Document)
        one, picture, four = found.parts
        assert (one, four) == ("One", "Four")
        assert isinstance(picture, Media)
        assert (picture.width, picture.height) == (417, 209)
        assert plain == Document(["Plain"])
        [again, other] = await decoder.decode([source(scanned), source(pdf(SCAN, SCAN))])
        assert again == found
        assert isinstance(other, Document)
        assert len({part.digest for part in other.parts if isinstance(part, Media)}) == 2
        [unseen] = await decoder.decode([source(scanned)], images=False)
        assert unseen == Document(["One", "Four"])
        one_image = MediaInputOptions(media_max_count=1)
        for wrong, options, images, word in (
            (b"", PLAIN, True, "it is empty"),
            (IMAGES["PNG"], PLAIN, True, "reads PDF files and texts in UTF-8"),
            (b"%PDF-1.7 damaged", PLAIN, True, "damaged or incomplete PDF"),
            (encrypted(), PLAIN, True, "encrypted"),
            (pdf(b""), PLAIN, True, "blank"),
            (pdf(SCAN), PLAIN, False, "support images"),
            (pdf(SCAN, SCAN), one_image, True, "count as images"),
        ):
            info = await failure(decoder.decode([source(wrong)], options, images=images))
            assert info.message.startswith("messages[0].content[1]: ")
            assert word in info.message

    run(use)


def test_pages_are_not_trusted() -> None:
    async def use(decoder: MediaDecoder) -> None:
        source = MediaSource(pdf(words("a")), "document")
        assert "can't be decoded" in (await failure(decoder.decode([source]))).message

    run(use, lambda: Lying(Decoded(b"\xff")))
