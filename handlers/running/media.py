"""Images, sounds and documents of a request, from where its client put them to their places in a
prompt.

A chat template sees a marker in the place of each medium. It is drawn for the request, so that no
text can have it by chance or by intention.
"""

import asyncio
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import msgspec

from specllama.engine.chat.request import Message, MessagePart
from specllama.engine.errors import invalid_request, not_supported
from specllama.engine.media.source import MediaSource, SourceKind, is_address
from specllama.engine.models.client import EngineClient
from specllama.engine.wire.media import NOT_READ, Document, Media, is_pdf, text_of
from specllama.engine.wire.replies import ModelInfo
from specllama.engine.wire.requests import PromptParts
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.running.resolve_model import ResolvedModel
from specllama.handlers.running.runtime import runtime

Kind = Literal["image", "audio", "video", "document"]
PART: Final = "media"
"""The type of a content's part that is an image, a sound or a document."""

_HINT = "hint: if this is unexpected, you may need to provide the mmproj"
_MODALITIES = {"image": "vision", "audio": "audio"}
_SMALL = 1 << 16  # characters that are decoded in a moment
_LINE = 256  # characters


@cache
def media_marker() -> str:
    """The marker of prompts that clients mark themselves. It is drawn once, so that no text has it
    by chance; `LLAMA_MEDIA_MARKER` sets it."""
    return os.environ.get("LLAMA_MEDIA_MARKER") or f"<__media_{secrets.token_hex(16)}__>"


class MediaInput(msgspec.Struct, frozen=True):
    """An image, a sound or a document as a client sent it: a URL or base64, or its bytes.

    `where` is its place in the request, for errors. Without a `kind` its bytes tell. `heading`
    stands in front of a document. A medium with a `stand_in` is never refused because this server
    can't take it: the model reads that text in its place.
    """

    given: str | bytes
    where: str
    kind: Kind | None = None
    heading: str = ""
    stand_in: str = ""

    @property
    def decoded_kind(self) -> SourceKind | None:
        """The kind that the decoder knows."""
        return None if self.kind == "video" else self.kind


UnresolvedParts: TypeAlias = "list[int | str | MediaInput]"
"""A prompt whose media are still as they came."""


def media_part(given: Any, where: str, kind: Kind | None = None) -> MessagePart:
    """A part of a message's content. Raises EngineError (invalid_request_error) if `given` is no
    text, which no address and no data could be."""
    if not isinstance(given, str):
        raise invalid_request(f"{where}: there is neither a URL nor base64 for the {kind}")
    return {"type": PART, "media": MediaInput(given, where, kind)}


def unshown(kind: str, name: str | None = None) -> MessagePart:
    """The part of a tool's result that says what the tool returned and the model can't see."""
    line = " ".join(f"[{kind}] {name or ''}".split())
    return {"type": "text", "text": line if len(line) <= _LINE else line[: _LINE - 1] + "…"}


# ---- conversations -----------------------------------------------------------------------


class Marked(msgspec.Struct, frozen=True):
    """Messages with a marker in the place of each medium."""

    messages: list[Message]
    media: Sequence[MediaInput] = ()
    secret: str = ""

    def split(self, prompt: str) -> UnresolvedParts:
        """A prompt that a template has made of the messages, taken apart at the markers.

        Raises EngineError (invalid_request_error) if it doesn't have each of them once.
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
    """`messages` for a template. A content with media becomes one text, whatever the template
    knows of parts: its texts and documents are lines, and nothing is put around a marker."""
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
    """`messages` with a line of text for each medium in a tool's result that the model can't take.
    A tool can't know what the model takes, and its client sends the result with each request."""

    def shown(part: MessagePart) -> MessagePart:
        if part["type"] != PART:
            return part
        medium: MediaInput = part["media"]
        kind = medium.kind or "file"
        line = unshown(kind, medium.heading or _address(medium.given))
        if kind not in ("document", "file") and _MODALITIES.get(kind) not in info.modalities:
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
    """The URL that a medium is at; empty if it came with the request."""
    return given if isinstance(given, str) and is_address(given) else ""


def without_media(parts: UnresolvedParts) -> list[int | str]:
    """A prompt that has no media. Raises EngineError (invalid_request_error) for one that has."""
    for part in parts:
        if isinstance(part, MediaInput):
            raise invalid_request(f"{part.where}: there is no place for media around a gap")
    return [part for part in parts if not isinstance(part, MediaInput)]


def with_marker(parts: UnresolvedParts, marker: str) -> str:
    """A prompt's texts, with `marker` in the place of each medium."""
    return "".join(
        marker if isinstance(part, MediaInput) else part
        for part in parts
        if not isinstance(part, int)
    )


# ---- from sources to media ---------------------------------------------------------------


def check_media(info: ModelInfo, media: Sequence[MediaInput]) -> None:
    """Raises EngineError (not_supported_error) if the model can't take one of `media`."""
    for medium in media:
        if medium.kind == "document":
            continue
        if medium.kind is None:
            if not info.modalities:
                raise not_supported(
                    f"{medium.where}: Multimodal data provided, but model does not support "
                    "multimodal requests."
                )
        elif _MODALITIES.get(medium.kind) not in info.modalities:
            raise not_supported(f"{medium.where}: {medium.kind} input is not supported - {_HINT}")


async def resolved(
    model: ResolvedModel,
    engine: EngineClient,
    prompts: Sequence[UnresolvedParts],
    *,
    watch: bool = True,
) -> list[PromptParts]:
    """`prompts` with their media fetched and decoded, all at the same time. With `watch` that ends
    when the client goes; nobody else may look for that meanwhile.

    Raises EngineError: not_supported_error for what the model can't take and for addresses that
    this server doesn't fetch from, invalid_request_error for what is no image or no sound.
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
    """`prompt` with the texts of its documents; images and sounds stay as they came. Raises
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
    """`prompt` with what its media have become."""
    made: PromptParts = []
    joins = False  # a document is one text with what is around it: they are tokenized together
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
    """What stands in the place of `given`; the heading and the texts of a document are lines."""
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
    given, kind, where = medium.given, medium.decoded_kind, medium.where
    if isinstance(given, bytes):
        source = MediaSource(given, kind, where)
    elif len(given) <= _SMALL:
        source = MediaSource.from_text(given, kind, where)
    else:
        source = await asyncio.to_thread(MediaSource.from_text, given, kind, where)
    return replace(source, stand_in=medium.stand_in)


# ---- Documents in messages, whichever API they come by.


def document_part(given: str, where: str, heading: str = "") -> MessagePart:
    """A part of a content: a text, or, for PDF files and what has to be fetched first, a document
    (`handlers.running.media`). `heading` stands in a line in front of it.

    `given` is a URL or base64. Raises EngineError: invalid_request_error if it is neither,
    not_supported_error for a file that is neither a PDF nor a text.
    """
    content = MediaSource.from_text(given, "document", where).content
    if isinstance(content, str) or is_pdf(content):
        return {"type": PART, "media": MediaInput(content, where, "document", heading)}
    if (text := text_of(content)) is None:
        raise not_supported(f"{where}: {NOT_READ}")
    return {"type": "text", "text": f"{heading}\n{text}" if heading else text}
