"""Fetches and decodes the media of requests.

The bytes are not trusted: a process without a network decodes them, and another one fetches URLs.
In this process they are only compared and hashed.
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError, invalid_request, not_supported, unavailable
from specllama.engine.helpers.decode.decode_jobs import (
    Decode,
    Decoded,
    Draw,
    Read,
    Sample,
    pages_decoder,
)
from specllama.engine.helpers.decode.decoder import Decoders, reads_videos
from specllama.engine.helpers.fetch.fetch_jobs import Rules
from specllama.engine.helpers.fetch.fetcher import Fetcher
from specllama.engine.media.frames import frame_parts, video_digest
from specllama.engine.media.kept import KEEP_SECONDS, Kept
from specllama.engine.media.source import MediaSource, SourceKind
from specllama.engine.options.tables.multimodal import MediaInputOptions
from specllama.engine.wire.media import (
    MAX_CHARACTERS,
    MAX_PAGES,
    NAMES,
    NO_VIDEOS,
    NOT_READ,
    VIDEO_NAMES,
    Document,
    Format,
    FormatKind,
    Media,
    MediaKind,
    Page,
    VideoFormat,
    format_of,
    is_pdf,
    kind_of,
    page_digest,
    text_of,
    to_draw,
)

log = logging.getLogger("specllama.engine.media")

MAX_PIXELS: Final = 1 << 26  # of an image
MAX_FRAME_PIXELS: Final = 1 << 25  # of a frame in a video file; 8K has fewer
MAX_VIDEO: Final = 256 << 20  # bytes of the frames of a video, which are reduced to fit
MAX_DECODED: Final = 512 << 20  # bytes of all media of a request, sent to the engine in one frame
FETCHES: Final = 4  # simultaneous fetches of one request
LARGE: Final = 1 << 18  # bytes; larger files are hashed in a thread

_NOUNS: Final[dict[SourceKind, str]] = {"image": "an image", "audio": "a sound", "video": "a video"}
_NO_RULES: Final = MediaInputOptions()


class MediaDecoder:
    """Fetches and decodes the media of requests."""

    def __init__(self, decoders: Decoders | None = None, fetcher: Fetcher | None = None) -> None:
        self._decoders = decoders or Decoders()
        self._fetcher = fetcher or Fetcher()
        self._kept = Kept(system.now)
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [*self._decoders.pids, *self._fetcher.pids]

    async def decode(
        self,
        sources: Sequence[MediaSource],
        options: MediaInputOptions = _NO_RULES,
        *,
        images: bool = True,
        sample_rate: int = 0,
        deadline: float | None = None,
    ) -> list[Media | Document]:
        """Returns all media and documents of one request, in order: a source of the kind "document"
        and a video become a `Document`, any other a `Media`. A source with a `stand_in` becomes
        a `Document` of that text if this server doesn't support it.

        `images` and `sample_rate` describe the model's projector; without a rate, it doesn't
        support sound. `deadline` is a time of the event loop. Cancelling ends the work.

        Raises EngineError with the place: invalid_request_error for media that can't be fetched or
        decoded within the limits, not_supported_error for media that are disabled or not supported
        by this model, unavailable_error after the deadline or `stop`.
        """
        try:
            async with asyncio.timeout_at(deadline):
                _check(sources, options)
                files = await self._files(sources, options)
                request = _Request(options, images=images, sample_rate=sample_rate)
                request.n_left -= sum(each.kind != "document" for each in sources)
                return [
                    await self._decoded(source, data, request)
                    for source, data in zip(sources, files, strict=True)
                ]
        except TimeoutError:
            raise unavailable("fetching and decoding the media takes too long") from None

    async def stop(self) -> None:
        """Ends all processes; open jobs fail."""
        if self._expiry is not None:
            self._expiry.cancel()
        await asyncio.gather(self._decoders.stop(), self._fetcher.stop())

    async def _files(
        self, sources: Sequence[MediaSource], options: MediaInputOptions
    ) -> list[bytes | None]:
        """Returns the bytes of all sources; None for a source that is replaced by its
        `stand_in`."""
        rules = Rules(
            urls=options.media_urls,
            domains=options.media_domains,
            private=options.media_private_addresses,
            directory=options.media_path,
            max_bytes=options.media_max_bytes,
            seconds=options.media_timeout,
        )
        turns = asyncio.Semaphore(FETCHES)
        there = sum(len(each.content) for each in sources if isinstance(each.content, bytes))

        async def file(source: MediaSource) -> bytes | None:
            nonlocal there
            if isinstance(source.content, bytes):
                return source.content
            if _forbidden(source.content, options):
                return None
            async with turns:
                try:
                    data = await self._fetcher.fetch(source.content, rules)
                except EngineError as e:
                    if _has_stand_in(source, e):
                        return None
                    raise _placed(e, source) from e
            there += len(data)
            if there > options.media_max_bytes:
                raise _placed(_too_many_bytes(options), source)
            return data

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(file(source)) for source in sources]
        except (
            ExceptionGroup
        ) as errors:  # before Python 3.11.4, `except*` wraps exceptions in groups
            failures, others = errors.split(EngineError)
            if failures is None or others is not None:
                raise
            raise _first(failures) from None
        return [task.result() for task in tasks]

    async def _decoded(
        self, source: MediaSource, data: bytes | None, request: "_Request"
    ) -> Media | Document:
        if data is None:
            return Document([source.stand_in])
        try:
            if source.kind == "document":
                return await self._document(data, request)
            format = _format(data, source.kind)
            kind = kind_of(format)
            if not request.takes(kind):
                raise not_supported(f"{kind} input is not supported by this model")
            if kind == "video":
                return await self._video(data, cast(VideoFormat, format), request)
            digest = await _digest(data)
            job = Decode(data, format, MAX_PIXELS, request.sample_rate, request.seconds_left)
            return await self._media(job, digest, kind, request)
        except EngineError as e:
            if _has_stand_in(source, e):
                return Document([source.stand_in])
            raise _placed(e, source) from e

    async def _document(self, data: bytes, request: "_Request") -> Document:
        pages = await self._pages(data)
        drawn = to_draw(pages, images=request.takes("image"))
        request.count_pages(len(drawn))
        n_unseen = sum(page.shows and not page.text for page in pages) - len(drawn)
        if n_unseen:
            log.warning("the model doesn't get %d pages of a document: they have no text", n_unseen)
        digest = await _digest(data) if drawn else b""
        parts: list[str | Media] = []
        for number, page in enumerate(pages):
            if number in drawn:
                job = Draw(data, number)
                parts.append(await self._media(job, page_digest(digest, number), "image", request))
            elif page.text:
                parts.append(page.text)
        return Document(parts)

    async def _pages(self, data: bytes) -> list[Page]:
        if not data:
            raise invalid_request("it is empty")
        if not is_pdf(data):
            if (text := text_of(data)) is None:
                raise not_supported(NOT_READ)
            return [Page(text, shows=False)]
        found = await self._decoders.decode(Read(data, MAX_PAGES, MAX_CHARACTERS))
        try:
            return pages_decoder.decode(found.data)
        except msgspec.DecodeError:
            raise invalid_request("it can't be decoded") from None

    async def _video(self, data: bytes, format: VideoFormat, request: "_Request") -> Document:
        if not reads_videos():
            raise not_supported(NO_VIDEOS)
        fps, interval = request.options.video_fps, request.options.video_timestamp_interval
        digest = video_digest(await _digest(data), max(0.0, fps), max(0, interval))
        video = self._kept.get(digest, 0)
        if video is None:
            job = Sample(
                data,
                format,
                fps,
                max(1, request.frames_left),
                float(request.options.media_max_seconds),
                MAX_FRAME_PIXELS,
                MAX_VIDEO,
            )
            decoded = await self._decoders.decode(job)
            if decoded.is_reduced:
                size = decoded.width, decoded.height
                log.warning("the frames of a video are reduced to %d x %d pixels", *size)
            video = await asyncio.to_thread(frame_parts, decoded, job, digest, interval)
            self._kept.put(video, 0)
            self._expire_later()
        assert isinstance(video, Document)
        request.count_video(video)
        return video

    async def _media(
        self, job: Decode | Draw, digest: bytes, kind: MediaKind, request: "_Request"
    ) -> Media:
        media = self._kept.get(digest, request.sample_rate)
        if not isinstance(media, Media):
            media = _checked(await self._decoders.decode(job), digest, kind)
            self._kept.put(media, request.sample_rate)
            self._expire_later()
        request.count(media)
        return media

    def _expire_later(self) -> None:
        """Schedules the removal of expired media, so that their memory is freed even if no more
        media arrive."""
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(KEEP_SECONDS + 1, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._kept.expire()
        if len(self._kept):
            self._expire_later()


class _Request:
    """The remaining limits of a request."""

    def __init__(self, options: MediaInputOptions, *, images: bool, sample_rate: int) -> None:
        self.options = options
        self.sample_rate = sample_rate
        self.seconds_left = float(options.media_max_seconds)
        self.frames_left = options.video_max_frames
        self.n_left = self._n_most = options.media_max_count
        self._bytes_left = MAX_DECODED
        self._images = images

    def takes(self, kind: FormatKind) -> bool:
        return self.sample_rate > 0 if kind == "audio" else self._images

    def count_pages(self, n: int) -> None:
        """Raises EngineError if the model would get too many pages."""
        self.n_left -= n
        if self.n_left < 0:
            raise invalid_request(
                f"{n} of its pages have no text and count as images; the maximum of a request is "
                f"{self._n_most}"
            )

    def count_video(self, video: Document) -> None:
        """Raises EngineError if the video exceeds a limit."""
        images = [part for part in video.parts if isinstance(part, Media)]
        self.frames_left -= sum(image.n_frames for image in images)
        if self.frames_left < 0:
            raise invalid_request(
                f"the videos have more than the {self.options.video_max_frames} frames that are "
                "allowed (--video-max-frames)"
            )
        for image in images:
            self.count(image)

    def count(self, media: Media) -> None:
        """Raises EngineError if the medium exceeds a limit."""
        self._bytes_left -= len(media.data)
        if media.kind == "audio":
            self.seconds_left -= len(media.data) / 4 / self.sample_rate
        if self.seconds_left < 0:
            raise invalid_request("the sounds take longer than --media-max-seconds together")
        if self._bytes_left < 0:
            raise invalid_request(
                f"the images, sounds and videos have more than {MAX_DECODED >> 20} MiB together "
                "after decoding"
            )


def _has_stand_in(source: MediaSource, error: EngineError) -> bool:
    return bool(source.stand_in) and error.info.type == "not_supported_error"


def _check(sources: Sequence[MediaSource], options: MediaInputOptions) -> None:
    """Raises EngineError for limits that can be checked before fetching."""
    if len(sources) > options.media_max_count:
        raise invalid_request(
            f"the request has {len(sources)} images, sounds and videos; the maximum is "
            f"{options.media_max_count}"
        )
    n_bytes = 0
    for source in sources:
        if isinstance(source.content, bytes):
            n_bytes += len(source.content)
            if n_bytes > options.media_max_bytes:
                raise _placed(_too_many_bytes(options), source)
            continue
        if _scheme(source.content) not in ("file", "http", "https"):
            raise _placed(invalid_request("its URL is neither http, https nor file"), source)
        if (reason := _forbidden(source.content, options)) and not source.stand_in:
            raise _placed(not_supported(reason), source)


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


def _forbidden(url: str, options: MediaInputOptions) -> str:
    """Returns why the server must not fetch from this URL; "" if it may."""
    if _scheme(url) == "file":
        if options.media_path:
            return ""
        return "file:// URLs are not allowed unless --media-path is specified"
    if options.media_urls:
        return ""
    return "the server fetches nothing from URLs unless --media-urls is specified"


def _format(data: bytes, wanted: SourceKind | None) -> Format:
    """Returns the format of a file of kind `wanted`. Raises EngineError."""
    if not data:
        raise invalid_request("it is empty")
    format = format_of(data)
    if format is None or (wanted == "audio" and kind_of(format) == "video"):
        names = VIDEO_NAMES if wanted == "video" else NAMES
        raise invalid_request(f"it is not one of {names}")
    # As in llama-server, a video may be in an image's place, and an image in a video's.
    if wanted is not None and (wanted == "audio") != (kind_of(format) == "audio"):
        raise invalid_request(f"it is a {format} file where {_NOUNS[wanted]} is expected")
    return format


async def _digest(data: bytes) -> bytes:
    if len(data) < LARGE:
        return hashlib.sha256(data).digest()
    return (await asyncio.to_thread(hashlib.sha256, data)).digest()


def _checked(decoded: Decoded, digest: bytes, kind: MediaKind) -> Media:
    """Returns the medium. Raises EngineError if its size is wrong: later code relies on the size,
    and the decoding process isn't trusted."""
    width, height, n_bytes = decoded.width, decoded.height, len(decoded.data)
    if kind == "image" and (min(width, height) <= 0 or n_bytes != width * height * 3):
        raise invalid_request("it can't be decoded")
    if kind == "audio" and (n_bytes == 0 or n_bytes % 4):
        raise invalid_request("it can't be decoded")
    return Media(kind, digest, decoded.data, width, height)


def _placed(error: EngineError, source: MediaSource) -> EngineError:
    if not source.place:
        return error
    message = f"{source.place}: {error.info.message}"
    return EngineError(msgspec.structs.replace(error.info, message=message))


def _too_many_bytes(options: MediaInputOptions) -> EngineError:
    return invalid_request(
        f"the images, sounds and videos have more than {options.media_max_bytes} bytes together"
    )


def _first(errors: BaseExceptionGroup[EngineError]) -> EngineError:
    for error in errors.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("a group has an error")
