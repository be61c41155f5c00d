"""Takes frames from a video at equal distances in time, with FFmpeg's libraries (PyAV).

FFmpeg gets the bytes of the file and the name of one container format. It opens nothing else, and
only the listed decoders are used. Sound, subtitles and attachments are not decoded.
"""

import io
import math
from collections.abc import Iterator
from typing import Final, cast

import av
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from specllama.engine.helpers.decode.decode_jobs import Decoded, DecodeRefused, Sample
from specllama.engine.wire.media import VideoFormat

MAX_SIDE: Final = 16384  # pixels of a frame in the file
MAX_RATE: Final = 120.0  # frames per second

DEMUXERS: Final[dict[VideoFormat, str]] = {
    "MP4": "mov",
    "Matroska": "matroska",
    "AVI": "avi",
    "MPEG-TS": "mpegts",
    "MPEG": "mpeg",
    "FLV": "flv",
    "Ogg": "ogg",
    "ASF": "asf",
}
DECODERS: Final = (
    *("av1", "libdav1d", "vp8", "libvpx", "vp9", "libvpx-vp9", "h263", "h264", "hevc"),
    *("mpeg1video", "mpeg2video", "mpeg4", "msmpeg4", "msmpeg4v2", "mjpeg", "prores", "theora"),
    *("flv", "vc1", "wmv1", "wmv2", "wmv3"),
)
"""FFmpeg's names of the decoders that may be used."""
_NEAREST: Final = 0.5  # times are rounded to the nearest frame, as by FFmpeg's filter `fps`


def warm_up() -> None:
    """Takes a frame from a small video, because libraries load code at its first use, when the
    process can't open files any more."""
    file = io.BytesIO()
    with av.open(file, "w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuv420p"
        frame = VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8))
        container.mux([*stream.encode(frame), *stream.encode(None)])
    sample_video(Sample(file.getvalue(), "AVI", 4.0, 4, 9.0, 1 << 16, 1 << 12))


def sample_video(job: Sample) -> Decoded | DecodeRefused:
    """Returns the frames, all of the first one's size. Raises any exception of the library for
    damaged files, MemoryError among them."""
    with _opened(job) as container:
        stream = _video_of(container)
        if stream is None:
            return DecodeRefused("it contains no video")
        if reason := _unsuitable(stream, job):
            return DecodeRefused(reason)
        own = stream.average_rate or stream.guessed_rate
        fps = min(MAX_RATE, job.fps if job.fps > 0 else float(own or 0))
        if fps <= 0:
            return DecodeRefused("it doesn't say how many frames per second it has")
        seconds = _seconds(container, stream, fps)
    if seconds > job.max_seconds:
        return DecodeRefused(_too_long(job))
    n_frames = max(1, math.floor(seconds * fps + _NEAREST))
    if n_frames > job.max_frames:
        return DecodeRefused(_too_many(job, fps))
    with _opened(job) as container:  # seeking back isn't reliable in all formats
        stream = cast(VideoStream, _video_of(container))
        stream.codec_context.options = _limits(job)
        stream.codec_context.thread_count = 1
        frames = _Frames(job, fps, n_frames)
        reason = frames.read(container, stream)
    if not frames.data:
        return DecodeRefused(reason or "its frames can't be decoded")
    if reason:
        return DecodeRefused(reason)
    return Decoded(bytes(frames.data), frames.width, frames.height, fps, frames.is_reduced)


def _opened(job: Sample) -> InputContainer:
    options = {"protocol_whitelist": "", "codec_whitelist": ",".join(DECODERS)}
    return av.open(
        io.BytesIO(job.data), "r", format=DEMUXERS[job.format], options=options | _limits(job)
    )


def _limits(job: Sample) -> dict[str, str]:
    """FFmpeg's options for decoders. It checks the size of each frame, with its padding, before it
    allocates it."""
    return {"max_pixels": str(2 * job.max_pixels), "threads": "1"}


def _video_of(container: InputContainer) -> VideoStream | None:
    """Returns the first video that isn't the picture of a cover."""
    for stream in container.streams.video:
        if not int(stream.disposition) & int(av.stream.Disposition.attached_pic):
            return stream
    return None


def _unsuitable(stream: VideoStream, job: Sample) -> str:
    """Returns why the video isn't decoded; "" if it is."""
    codec = cast("av.CodecContext | None", stream.codec_context)
    if codec is None or codec.name not in DECODERS:
        return f"its codec, {codec.name if codec else 'an unknown one'}, is not supported"
    width, height = stream.width, stream.height
    if width <= 0 or height <= 0:
        return "it has no pixels"
    if max(width, height) > MAX_SIDE or width * height > job.max_pixels:
        return (
            f"its frames have {width} x {height} pixels; the maximum is {job.max_pixels}, and "
            f"{MAX_SIDE} a side"
        )
    return ""


def _seconds(container: InputContainer, stream: VideoStream, fps: float) -> float:
    """Returns the duration of the video by its packets, as headers lie or say nothing."""
    first, last, n_packets = math.inf, -math.inf, 0
    for packet in container.demux(stream):
        n_packets += packet.size > 0
        time = packet.pts if packet.pts is not None else packet.dts
        if time is not None and packet.time_base:
            begin = float(time * packet.time_base)
            first = min(first, begin)
            last = max(last, begin + float((packet.duration or 0) * packet.time_base))
    if first < last:
        return last - first
    return n_packets / float(stream.average_rate or fps)


class _Frames:
    """The frames taken so far. `data` has their RGB rows."""

    def __init__(self, job: Sample, fps: float, n_expected: int) -> None:
        self.data = bytearray()
        self.width = self.height = 0
        self.is_reduced = False
        self._job = job
        self._fps = fps
        self._n_expected = n_expected
        self._n = 0
        self._turns = 0  # quarter turns to the left
        self._size = (0, 0)  # before the turns
        self._shown: VideoFrame | None = None
        self._rows = b""  # of the shown frame; empty until they are needed

    def read(self, container: InputContainer, stream: VideoStream) -> str:
        """Decodes the video. A picture is shown from its time until that of the next one, and frame
        n is the picture at n / fps seconds, all rounded to frames. Returns why the video is
        refused; "" if it isn't."""
        first = time = None
        step = 1 / float(stream.average_rate or self._fps)
        for frame in _pictures(container, stream):
            now = frame.time if frame.pts is not None else None
            if first is None or time is None:
                first = time = now or 0.0
            else:
                time = max(time, now if now is not None else time + step)
            if time - first > self._job.max_seconds:
                return _too_long(self._job)
            if reason := self._take(math.floor((time - first) * self._fps + _NEAREST)):
                return reason
            self._shown, self._rows = frame, b""
            if frame.duration and frame.time_base:
                step = float(frame.duration * frame.time_base)
        if first is None or time is None:
            return ""
        step = min(step, self._job.max_seconds)
        end = math.floor((time + step - first) * self._fps + _NEAREST)
        return self._take(max(end, self._n, 1))

    def _take(self, end: int) -> str:
        """Takes the shown picture for all frames before `end`. Returns as `read` does."""
        while self._shown is not None and self._n < end:
            if self._n >= self._job.max_frames:
                return _too_many(self._job, self._fps)
            self._rows = self._rows or self._rgb(self._shown)
            if len(self.data) + len(self._rows) > self._job.max_bytes:
                return f"its frames have more than {self._job.max_bytes >> 20} MiB"
            self.data += self._rows
            self._n += 1
        return ""

    def _rgb(self, frame: VideoFrame) -> bytes:
        if not self._n:
            self._turns = round(frame.rotation / 90) % 4
            self._size = self._fitting(frame.width, frame.height)
            self.width, self.height = self._size if self._turns % 2 == 0 else self._size[::-1]
        width, height = self._size
        plain = frame.reformat(width=width, height=height, format="rgb24", threads=1)
        return np.rot90(plain.to_ndarray(), self._turns).tobytes()

    def _fitting(self, width: int, height: int) -> tuple[int, int]:
        """Returns the size at which all expected frames fit into the memory."""
        most = self._job.max_bytes // (3 * self._n_expected)
        if width * height <= most:
            return width, height
        scale = math.sqrt(most / (width * height))
        size = max(1, int(width * scale)), max(1, int(height * scale))
        self.is_reduced = True
        return size


def _pictures(container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    """Returns all pictures that can be decoded, as damaged ones in between are left out."""
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
            if packet is None:
                return
            pictures = packet.decode()
        except MemoryError:
            raise
        except av.FFmpegError as e:
            if isinstance(e, av.EOFError):
                return
            continue
        yield from pictures


def _too_long(job: Sample) -> str:
    return f"it is longer than the {job.max_seconds:g} s that are allowed (--media-max-seconds)"


def _too_many(job: Sample, fps: float) -> str:
    return (
        f"it has more than the {job.max_frames} frames that are allowed (--video-max-frames), "
        f"with {fps:g} per second (--video-fps)"
    )
