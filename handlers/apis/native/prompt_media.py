"""Images and sounds at their places in native prompts: at the server's marker, or, in the older
form, at `[img-ID]`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.engine.errors import invalid_request
from specllama.handlers.running.media import MediaInput, UnresolvedParts, media_marker

_PLACE = re.compile(r"\[img-(\d{1,10})\]")


def at_markers(parts: Sequence[int | str], data: Sequence[str], where: str) -> UnresolvedParts:
    """`parts` with the elements of `data` in the places of the markers, in their order.

    Raises EngineError (invalid_request_error) unless there are as many of one as of the other.
    """
    found: UnresolvedParts = []
    media = [MediaInput(each, f"{where}[{index}]") for index, each in enumerate(data)]
    n_markers = 0
    for part in parts:
        if isinstance(part, int):
            found.append(part)
            continue
        for number, text in enumerate(part.split(media_marker())):
            if number:
                found += media[n_markers : n_markers + 1]
                n_markers += 1
            if text:
                found.append(text)
    if n_markers != len(media):
        raise invalid_request(
            f"{where}: {_numbered(len(media), 'element')} for {_numbered(n_markers, 'marker')} in "
            "prompt_string; media_marker of GET /props is the marker"
        )
    return found


def at_numbers(
    prompts: Sequence[UnresolvedParts], images: Sequence[Mapping[str, Any]]
) -> list[UnresolvedParts]:
    """`prompts` with `images` (`image_data`) in the places that have their numbers.

    Raises EngineError (invalid_request_error) for an image without a place, and for two of one
    number.
    """
    by_number: dict[int, MediaInput] = {}
    for index, image in enumerate(images):
        where, id = f"image_data[{index}]", int(image["id"])
        if id in by_number:
            raise invalid_request(f"{where}: there is another image with the id {id}")
        by_number[id] = MediaInput(image["data"], where, "image")
    used: set[int] = set()

    def placed(text: str) -> UnresolvedParts:
        found: UnresolvedParts = []
        rest = ""
        for number, piece in enumerate(_PLACE.split(text)):
            if number % 2 and (id := int(piece)) in by_number:
                found += [rest, by_number[id]] if rest else [by_number[id]]
                used.add(id)
                rest = ""
            else:
                rest += f"[img-{piece}]" if number % 2 else piece
        return [*found, rest] if rest or not found else found

    made: list[UnresolvedParts] = []
    for prompt in prompts:
        new: UnresolvedParts = []
        for part in prompt:
            new += placed(part) if isinstance(part, str) else [part]
        made.append(new)
    for id, medium in by_number.items():
        if id not in used:
            raise invalid_request(f"{medium.where}: no place in the prompt is marked [img-{id}]")
    return made


def _numbered(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
