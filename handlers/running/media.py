"""Images, sounds, videos and documents, from a request's body to the prompt.

A chat template gets a marker in place of each medium. The marker is random for each request, so
that no text can contain it by chance or by intention.
"""

import asyncio
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

from specllama.engine.chat.request import Message, MessagePart
from specllama.engine.errors import invalid_request, not_supported
from specllama.engine.helpers.decode.decoder import reads_videos
from specllama.engine.media.source import MediaSource, SourceKind, is_address
from specllama.engine.models.client import EngineClient
from specllama.engine.wire.media import NO_VIDEOS, NOT_READ, Document, Media, is_pdf, text_of
from specllama.engine.wire.replies import ModelInfo
from specllama.engine.wire.requests import PromptParts
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.running.resolve_model import ResolvedModel
from specllama.handlers.running.runtime import runtime

Kind = SourceKind
PART: Final = "media"
"""The type of a content's part that is an image, a sound, a video or a document."""

_HINT = "hint: if this is unexpected, you may need to provide the mmproj"
_MODALITIES = {"image": "vision", "audio": "audio", "video": "vision"}
_SMALL = 1 << 16  # characters; longer texts are decoded in a thread
_LINE = 256  # characters


@cache
def media_marker() -> str:
    """Returns the marker with which clients mark the places of media in native prompts. It is
    random for each server, so that no text contains it by chance; `LLAMA_MEDIA_MARKER` sets it."""
    return os.environ.get("LLAMA_MEDIA_MARKER") or f"<__media_{secrets.token_hex(16)}__>"


class MediaInput(msgspec.Struct, frozen=True):
    """An image, a sound, a video or a document from a request: a URL, base64, or its bytes.

    `where` is its place in the request, for errors. Without a `kind`, the bytes determine it.
    `heading` is a line before a document. If this server doesn't support a medium, its `stand_in`
    replaces it in the prompt; without a `stand_in`, the request is refused.
    """

    given: str | bytes
    where: str
    kind: Kind | None = None
    heading: str = ""
    stand_in: str = ""


UnresolvedParts: TypeAlias = "list[int | str | MediaInput]"
"""A prompt whose media are neither fetched nor decoded."""


def media_part(given: Any, where: str, kind: Kind | None = None) -> MessagePart:
    """Returns a part of a message's content. Raises EngineError (invalid_request_error) unless
    `given` is a text."""
    if not isinstance(given, str):
        raise invalid_request(f"{where}: the {kind} has neither a URL nor base64")
    return {"type": PART, "media": MediaInput(given, where, kind)}


def unshown(kind: str, name: str | None = None) -> MessagePart:
    """Returns the text part that replaces a medium in a tool's result: `[kind] name`."""
    line = " ".join(f"[{kind}] {name or ''}".split())
    return {"type": "text", "text": line if len(line) <= _LINE else line[: _LINE - 1] + "…"}


# ---- conversations -----------------------------------------------------------------------


class Marked(msgspec.Struct, frozen=True):
    """Messages with a marker in place of each medium."""

    messages: list[Message]
    media: Sequence[MediaInput] = ()
    secret: str = ""

    def split(self, prompt: str) -> UnresolvedParts:
        """Returns the rendered prompt of the messages, split at the markers.

        Raises EngineError (invalid_request_error) if it doesn't contain each marker once.
        """
        if not self.media:
            return [prompt]
        pieces = re.split(re.escape(self.secret) + r"_(\d+)__>", prompt)
        places = [int(number) for number in pieces[1::2]]
        for index, medium in enumerate(self.media):
            if (n := places.count(index)) != 1:
                does = f"shows this {n} times" if n else "leaves this out"
                raise invalid_request(f"{medium.where}: the model's chat template {does}")
        found: UnresolvedParts = []
        for number, piece in enumerate(pieces):
            if number % 2:
                found.append(self.media[int(piece)])
            elif piece:
                found.append(piece)
        return found


def marked(messages: Sequence[Message]) -> Marked:
    """Returns `messages` for a template. A content with media becomes one text, even if the
    template supports parts: its texts and documents are lines, and no text is added around a
    marker."""
    secret = f"<__media_{secrets.token_hex(16)}"
    media: list[MediaInput] = []

    def joined(content: Sequence[MessagePart]) -> str:
        text, after_medium = "", True
        for part in content:
            is_medium = part["type"] == PART
            piece = f"{secret}_{len(media)}__>" if is_medium else part["text"]
            if is_medium:
                media.append(part["media"])
            if is_medium and part["media"].kind != "document":
                text += piece
                after_medium = True
            else:
                text += piece if after_medium or not text else f"\n{piece}"
                after_medium = False
        return text

    made = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(part["type"] == PART for part in content):
            message = {**message, "content": joined(content)}
        made.append(message)
    return Marked(made, media, secret)


def with_results_shown(messages: Sequence[Message], info: ModelInfo) -> list[Message]:
    """Returns `messages` with a line of text for each unsupported medium in a tool's result. Such a
    medium isn't refused, because a tool doesn't choose its results for the model, and the client
    sends them with every request."""

    def shown(part: MessagePart) -> MessagePart:
        if part["type"] != PART:
            return part
        medium: MediaInput = part["media"]
        kind = medium.kind or "file"
        line = unshown(kind, medium.heading or _address(medium.given))
        if kind not in ("document", "file") and _lacking(kind, info):
            return line
        return {**part, "media": msgspec.structs.replace(medium, stand_in=line["text"])}

    made: list[Message] = []
    for message in messages:
        if message["role"] == "tool" and isinstance(content := message["content"], list):
            made.append({**message, "content": [shown(part) for part in content]})
        else:
            made.append(message)
    return made


def _address(given: str | bytes) -> str:
    """Returns the URL of a medium; "" if its data are in the request."""
    return given if isinstance(given, str) and is_address(given) else ""


def without_media(parts: UnresolvedParts) -> list[int | str]:
    """Returns a prompt without media. Raises EngineError (invalid_request_error) if it has any."""
    for part in parts:
        if isinstance(part, MediaInput):
            raise invalid_request(f"{part.where}: media can't be combined with suffix")
    return [part for part in parts if not isinstance(part, MediaInput)]


def with_marker(parts: UnresolvedParts, marker: str) -> str:
    """Returns a prompt's texts, with `marker` in place of each medium."""
    return "".join(
        marker if isinstance(part, MediaInput) else part
        for part in parts
        if not isinstance(part, int)
    )


# ---- from sources to media ---------------------------------------------------------------


def check_media(info: ModelInfo, media: Sequence[MediaInput]) -> None:
    """Raises EngineError (not_supported_error) if the model doesn't support one of `media`."""
    for medium in media:
        if medium.kind == "document":
            continue
        if medium.kind is None:
            if not info.modalities:
                raise not_supported(
                    f"{medium.where}: Multimodal data provided, but model does not support "
                    "multimodal requests."
                )
        elif lacking := _lacking(medium.kind, info):
            raise not_supported(f"{medium.where}: {lacking}")


def _lacking(kind: str, info: ModelInfo) -> str:
    """Returns why media of the kind aren't accepted; "" if they are."""
    if _MODALITIES.get(kind) not in info.modalities:
        return f"{kind} input is not supported - {_HINT}"
    return NO_VIDEOS if kind == "video" and not reads_videos() else ""


def accepts_videos(info: ModelInfo) -> bool:
    """Returns whether requests may contain videos: their frames are images."""
    return not _lacking("video", info)


async def resolved(
    model: ResolvedModel,
    engine: EngineClient,
    prompts: Sequence[UnresolvedParts],
    *,
    watch: bool = True,
) -> list[PromptParts]:
    """Returns `prompts` with their media fetched and decoded, all concurrently. With `watch`, this
    ends when the client disconnects; no other task may read `receive` meanwhile.

    Raises EngineError: not_supported_error for kinds that the model doesn't support and for
    addresses that this server doesn't fetch, invalid_request_error for data that are no image,
    sound or video.
    """
    media = [part for prompt in prompts for part in prompt if isinstance(part, MediaInput)]
    check_media(engine.info, media)
    if not media:
        return [[*without_media(each)] for each in prompts]
    work = _decoded(model, engine.info, media)
    decoded = iter(await (until_disconnect(work) if watch else work))
    return [_filled(prompt, decoded) for prompt in prompts]


async def with_documents(
    model: ResolvedModel, engine: EngineClient, prompt: UnresolvedParts
) -> UnresolvedParts:
    """Returns `prompt` with the texts of its documents; images and sounds are not decoded. Raises
    EngineError as `resolved` does, and for documents without a text."""
    documents = [
        part for part in prompt if isinstance(part, MediaInput) and part.kind == "document"
    ]
    if not documents:
        return prompt
    work = _decoded(model, engine.info, documents, images=False)
    decoded = iter(await until_disconnect(work))
    filled: UnresolvedParts = []
    for part in prompt:
        if isinstance(part, MediaInput) and part.kind == "document":
            filled += [each for each in _parts(part, next(decoded)) if isinstance(each, str)]
        else:
            filled.append(part)
    return filled


def _filled(prompt: UnresolvedParts, decoded: Iterator[Media | Document]) -> PromptParts:
    """Returns `prompt` with its `decoded` media."""
    made: PromptParts = []
    joins = False  # a document and the texts around it become one text, and are tokenized together
    for part in prompt:
        is_document = isinstance(part, MediaInput) and part.kind == "document"
        joins = joins or is_document
        for each in _parts(part, next(decoded)) if isinstance(part, MediaInput) else [part]:
            if joins and isinstance(each, str) and made and isinstance(made[-1], str):
                made[-1] += each
            else:
                made.append(each)
        joins = is_document
    return made


def _parts(given: MediaInput, found: Media | Document) -> list[str | Media]:
    """Returns the parts that replace `given`; a document's heading and texts are lines."""
    parts: list[str | Media] = [given.heading] if given.heading else []
    for part in found.parts if isinstance(found, Document) else [found]:
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += f"\n{part}"
        else:
            parts.append(part)
    return parts


async def _decoded(
    model: ResolvedModel, info: ModelInfo, media: Sequence[MediaInput], *, images: bool = True
) -> list[Media | Document]:
    sources = [await _source(medium) for medium in media]
    return await runtime().media.decode(
        sources,
        model.options.media,
        images=images and "vision" in info.modalities,
        sample_rate=info.sample_rate if "audio" in info.modalities else 0,
    )


async def _source(medium: MediaInput) -> MediaSource:
    given, kind, where = medium.given, medium.kind, medium.where
    if isinstance(given, bytes):
        source = MediaSource(given, kind, where)
    elif len(given) <= _SMALL:
        source = MediaSource.from_text(given, kind, where)
    else:
        source = await asyncio.to_thread(MediaSource.from_text, given, kind, where)
    return replace(source, stand_in=medium.stand_in)


# ---- documents in messages of any API ----------------------------------------------------


def document_part(given: str, where: str, heading: str = "") -> MessagePart:
    """Returns a part of a content: a text, or, for PDF files and URLs, a document. `heading` is a
    line before it.

    `given` is a URL or base64. Raises EngineError: invalid_request_error if it is neither,
    not_supported_error for a file that is neither a PDF nor a text.
    """
    content = MediaSource.from_text(given, "document", where).content
    if isinstance(content, str) or is_pdf(content):
        return {"type": PART, "media": MediaInput(content, where, "document", heading)}
    if (text := text_of(content)) is None:
        raise not_supported(f"{where}: {NOT_READ}")
    return {"type": "text", "text": f"{heading}\n{text}" if heading else text}
