"""Frames of videos, and errors for videos that can't be decoded or exceed a limit."""

import asyncio
from pathlib import Path

import av
import numpy as np
import pytest

from specllama.engine.errors import EngineError
from specllama.engine.helpers.decode import video
from specllama.engine.helpers.decode.decode_jobs import Decoded, DecodeRefused, Sample
from specllama.engine.helpers.decode.decode_main import answer
from specllama.engine.helpers.decode.decoder import Decoders
from specllama.engine.wire.media import VideoFormat, format_of, kind_of
from tests.engine.helpers.decode.test_decoder import mutated
from tests.support.video_files import (
    CONTAINERS,
    HEIGHT,
    N_PICTURES,
    RATE,
    WIDTH,
    grey,
    sound_file,
    video_file,
)

FRAME = WIDTH * HEIGHT * 3
NEAR = 12  # of 255: what codecs change


def job(
    data: bytes,
    format: VideoFormat | None = None,
    *,
    fps: float = 4.0,
    frames: int = 100,
    seconds: float = 60.0,
    pixels: int = 1 << 20,
    n_bytes: int = 1 << 26,
) -> Sample:
    found = format or format_of(data)
    assert found is not None
    assert kind_of(found) == "video"
    return Sample(data, found, fps, frames, seconds, pixels, n_bytes)  # type: ignore[arg-type]


def decoded(wanted: Sample) -> Decoded:
    found = answer(wanted)
    assert isinstance(found, Decoded), found
    return found


def reason(wanted: Sample) -> str:
    found = answer(wanted)
    assert isinstance(found, DecodeRefused)
    return found.reason


def greys(found: Decoded) -> list[int]:
    """The middle pixel of each frame."""
    size = 3 * found.width * found.height
    assert len(found.data) % size == 0
    rows = np.frombuffer(found.data, np.uint8).reshape(-1, found.height, found.width, 3)
    return [int(value) for value in rows[:, found.height // 2, found.width // 2, 0]]


def check_greys(found: Decoded, expected: list[int]) -> None:
    values = greys(found)
    assert len(values) == len(expected)
    assert max(abs(a - b) for a, b in zip(values, expected, strict=True)) <= NEAR


# ---- frames ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_container(name: str) -> None:
    container, codec = CONTAINERS[name]
    found = decoded(job(video_file(container, codec, n_pictures=50, rate=25), fps=5))
    assert (found.width, found.height, found.fps, found.is_reduced) == (WIDTH, HEIGHT, 5, False)
    values = greys(found)
    assert len(values) == 10
    assert values == sorted(values)
    assert values[0] <= NEAR
    assert values[-1] > 180


@pytest.mark.parametrize(
    ("fps", "expected"),
    [
        (RATE, [*range(N_PICTURES)]),
        (0, [*range(N_PICTURES)]),
        (-1, [*range(N_PICTURES)]),
        (2 * RATE, [number // 2 for number in range(2 * N_PICTURES)]),
        (RATE / 5, [2, 7, 12, 17]),  # the last pictures whose times round to the frame's
        (0.01, [N_PICTURES - 1]),
    ],
)
def test_the_number_of_frames_per_second(fps: float, expected: list[int]) -> None:
    found = decoded(job(video_file(), fps=fps))
    assert found.fps == (fps if fps > 0 else RATE)
    check_greys(found, [grey(number) for number in expected])


def test_a_rate_that_changes() -> None:
    """A picture is shown until the next one."""
    file = video_file("matroska", n_pictures=4, times=[0, 100, 1000, 2000])
    found = decoded(job(file, fps=10))
    values = [grey(number, 4) for number in (0, *[1] * 9, *[2] * 10)]
    check = greys(found)
    assert len(check) >= 21
    assert max(abs(a - b) for a, b in zip(check, values, strict=False)) <= NEAR
    assert all(abs(value - grey(3, 4)) <= NEAR for value in check[20:])


@pytest.mark.parametrize("first", [-450, 0, 5_000_000])
def test_times_that_begin_anywhere(first: int) -> None:
    times = [first + 100 * number for number in range(10)]
    options = {"avoid_negative_ts": "disabled"}
    file = video_file("asf", "wmv2", n_pictures=10, times=times, options=options)
    check_greys(decoded(job(file, fps=10)), [grey(number, 10) for number in range(10)])


def test_one_picture() -> None:
    assert len(greys(decoded(job(video_file(n_pictures=1))))) == 1
    assert len(greys(decoded(job(video_file("webm", "libvpx", n_pictures=1), fps=0.1)))) == 1


@pytest.mark.parametrize(("rotation", "turns"), [(90, 1), (180, 2), (-90, 3)])
def test_a_camera_that_was_turned(rotation: int, turns: int) -> None:
    rows = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    rows[: HEIGHT // 2, : WIDTH // 2] = 255  # top left
    found = decoded(job(video_file(pictures=[rows] * 4, rotation=rotation)))
    expected = np.rot90(rows, turns)
    assert (found.height, found.width) == expected.shape[:2]
    first = np.frombuffer(found.data[:FRAME], np.uint8).reshape(expected.shape)
    assert np.abs(first.astype(int) - expected).mean() < NEAR


def test_frames_are_reduced_to_fit() -> None:
    found = decoded(job(video_file(), n_bytes=2 * FRAME))
    assert found.is_reduced
    assert len(greys(found)) == 8
    assert FRAME < len(found.data) <= 2 * FRAME
    assert abs(found.width / found.height - WIDTH / HEIGHT) < 0.1


def test_sound_is_left_out_and_videos_need_pictures() -> None:
    for container, codec in (("mp4", "aac"), ("ogg", "libopus"), ("webm", "libopus")):
        assert reason(job(sound_file(container, codec))) == "it contains no video"


# ---- limits ------------------------------------------------------------------------------


def test_limits() -> None:
    file = video_file()  # 2 s
    assert "more than the 7 frames that are allowed (--video-max-frames)" in reason(
        job(file, frames=7)
    )
    assert decoded(job(file, frames=8))
    assert "longer than the 1.5 s that are allowed" in reason(job(file, seconds=1.5))
    assert "64 x 48 pixels; the maximum is 3000" in reason(job(file, pixels=3000))
    assert "frames have more than 0 MiB" in reason(job(file, n_bytes=10))
    wide = video_file(codec="mjpeg", container="matroska", size=(video.MAX_SIDE + 16, 16))
    assert f"and {video.MAX_SIDE} a side" in reason(job(wide))


@pytest.mark.parametrize("gap", [10_000, 2_000_000_000])
def test_a_jump_in_time_takes_no_work(gap: int) -> None:
    file = video_file("matroska", n_pictures=3, times=[0, 100, gap])
    assert "are allowed" in reason(job(file, seconds=60 if gap > 10_000 else 1e9, frames=30))


def test_times_that_wrap() -> None:
    """Negative times in a format without signs: a jump of 25 days."""
    times = [100 * number - 450 for number in range(10)]
    options = {"avoid_negative_ts": "disabled"}
    file = video_file("flv", "flv", n_pictures=10, times=times, options=options)
    assert "longer than the 60 s that are allowed" in reason(job(file))


# ---- hostile files -----------------------------------------------------------------------


def test_other_codecs_are_not_used() -> None:
    assert reason(job(video_file("matroska", "ffv1"))) == "its codec, ffv1, is not supported"


@pytest.mark.parametrize("format", video.DEMUXERS)
def test_files_that_name_others(format: VideoFormat, tmp_path: Path) -> None:
    (tmp_path / "v.mp4").write_bytes(video_file())
    for text in (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{tmp_path}/v.mp4\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile '{tmp_path}/v.mp4'\n",
        f"<MPD><BaseURL>{tmp_path}/v.mp4</BaseURL></MPD>",
    ):
        assert format_of(text.encode()) is None
        assert isinstance(answer(job(text.encode(), format)), DecodeRefused)


def test_not_even_a_playlist_opens_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format that opens other files is never chosen. If it were, FFmpeg couldn't open them."""
    segment = tmp_path / "v.ts"
    segment.write_bytes(video_file("mpegts", "mpeg2video"))
    text = f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:2,\n{segment}\n#EXT-X-ENDLIST\n"
    playlist = tmp_path / "list.m3u8"
    playlist.write_text(text)
    with av.open(str(playlist), format="hls") as container:
        assert next(container.decode(video=0))
    monkeypatch.setitem(video.DEMUXERS, "MP4", "hls")
    assert isinstance(answer(job(text.encode(), "MP4")), DecodeRefused)


@pytest.mark.parametrize("name", CONTAINERS)
def test_cut_files(name: str) -> None:
    """A cut file has the frames before the cut, or none."""
    file = video_file(*CONTAINERS[name])
    format = format_of(file)
    for length in (0, 1, 8, 64, len(file) // 2, len(file) - 8):
        found = answer(job(file[:length], format))  # type: ignore[arg-type]
        if isinstance(found, Decoded):
            assert len(greys(found)) <= 9
        else:
            assert found.reason
            assert not found.exhausted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mp4", "webm", "avi", "transport stream", "flv"])
def test_damaged_files_do_no_harm(name: str) -> None:
    """The process answers each of them, and decodes a good file after them as before."""
    file = video_file(*CONTAINERS[name])
    plain = job(file)

    async def outcome(decoders: Decoders, wanted: Sample) -> Decoded | str:
        try:
            return await decoders.decode(wanted)
        except EngineError as e:
            if e.info.type != "invalid_request_error":
                raise
            return e.info.message

    async def main() -> None:
        decoders = Decoders()
        try:
            good = await decoders.decode(plain)
            for seed in range(40):
                found = await outcome(decoders, job(mutated(file, seed), plain.format))
                assert found
                if isinstance(found, Decoded):
                    assert greys(found)
            assert await decoders.decode(plain) == good
        finally:
            await decoders.stop()

    asyncio.run(main())


@pytest.mark.slow
def test_a_video_has_a_process_of_its_own() -> None:
    async def main() -> None:
        decoders = Decoders(processor_limit=0.05)
        try:
            assert isinstance(await decoders.decode(job(video_file())), Decoded)
            [pid] = decoders.pids
            huge = video_file(size=(1920, 1080), n_pictures=400, rate=4)
            with pytest.raises(EngineError, match="decoding it takes too long"):
                await decoders.decode(job(huge, frames=1000, seconds=1000, pixels=1 << 22))
            assert pid not in decoders.pids
            assert isinstance(await decoders.decode(job(video_file())), Decoded)
        finally:
            await decoders.stop()

    asyncio.run(main())
