"""Reads the bodies of native completions, and prompts of texts, token ids and media.

Bodies have passed validation against the description.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from specllama.engine.chat.request import ReasoningFormat
from specllama.engine.errors import invalid_request
from specllama.engine.options import Options
from specllama.engine.wire.requests import Infill
from specllama.handlers.apis.generate import GenerationRequest, Prompts
from specllama.handlers.apis.parameters import (
    INT32_MAX,
    generation_params,
    is_token_id,
    ping_of,
    shows_queue,
)
from specllama.handlers.apis.probabilities import text_probabilities
from specllama.handlers.apis.wishes import wishes_in
from specllama.handlers.http import schemas
from specllama.handlers.running.choices import texts_per_prompt
from specllama.handlers.running.media import MediaInput, UnresolvedParts, media_marker


@dataclass(frozen=True, kw_only=True)
class CompletionRequest(GenerationRequest):
    """A request for a completion. `reasoning_format` is shown in the answer's settings. With
    `response_fields`, the answer has only those fields."""

    reasoning_format: ReasoningFormat
    response_fields: Sequence[str] = ()


def read_completion(body: schemas.CompletionRequest, options: Options) -> CompletionRequest:
    """Returns a request for completions of texts. Raises EngineError (invalid_request_error)."""
    prompts = Prompts(texts=parse_prompts(body["prompt"], images=body.get("image_data")))
    return _request(body, options, prompts)


def read_infill(body: schemas.InfillRequest, options: Options) -> CompletionRequest:
    """Returns a request to fill the gap between two texts. Raises EngineError
    (invalid_request_error)."""
    gap = Infill(
        prefix=parse_part(body["input_prefix"], "input_prefix"),
        suffix=parse_part(body["input_suffix"], "input_suffix"),
        middle=body.get("prompt") or "",
        extra=[
            (snippet.get("filename") or "tmp", snippet["text"])
            for snippet in body.get("input_extra") or ()
        ],
    )
    return _request(body, options, Prompts(gap=gap))


def _request(
    body: schemas.CompletionRequest | schemas.InfillRequest, options: Options, prompts: Prompts
) -> CompletionRequest:
    params = generation_params(body, options.engine.generation_defaults())
    n = texts_per_prompt(body, len(prompts.texts) or 1)
    params, probabilities = text_probabilities(body, params)
    return CompletionRequest(
        params=params,
        what=prompts,
        n=n,
        probabilities=probabilities,
        ping=ping_of(body, options),
        wishes=wishes_in(body),
        shows_queue=shows_queue(body),
        shows_prompt=True,
        reasoning_format=_reasoning_format(body, options),
        response_fields=body.get("response_fields") or (),
    )


def _reasoning_format(body: Mapping[str, Any], options: Options) -> ReasoningFormat:
    """Returns the request's value, or the server's for an unknown one: these operations don't parse
    their answers, so they accept any value."""
    for known in get_args(ReasoningFormat):
        if body.get("reasoning_format") == known:
            return cast(ReasoningFormat, known)
    return options.chat.reasoning_format


# ---- prompts -----------------------------------------------------------------------------

_PLACE = re.compile(r"\[img-(\d{1,10})\]")


def parse_prompts(
    prompt: Any, where: str = "prompt", images: Sequence[Mapping[str, Any]] | None = None
) -> list[UnresolvedParts]:
    """Returns the prompts of a request, each a list of token ids, texts and media. `where` is the
    field's name, `images` is the request's `image_data`.

    A list that contains a number is one prompt; any other list has one prompt per element, which
    may be a text, a list of ids and texts, or an object with `prompt_string`.

    Raises EngineError (invalid_request_error) for other shapes, for empty lists, and for media that
    don't match their markers.
    """
    if not isinstance(prompt, list) or any(type(e) in (int, float) for e in prompt):
        found = [_parse_prompt(prompt, where)]
    elif not prompt:
        raise invalid_request(f"{where}: the list is empty")
    else:
        found = [_parse_prompt(element, f"{where}[{i}]") for i, element in enumerate(prompt)]
    return at_numbers(found, images) if images else found


def parse_part(part: str | list[Any], where: str) -> list[int | str]:
    """Returns a text, or a list of token ids and texts, as a list, which may be empty.

    Raises EngineError (invalid_request_error) for values that are neither a text nor a token id.
    """
    return _tokens_and_texts(part, where) if part else []


def _parse_prompt(prompt: Any, where: str) -> UnresolvedParts:
    if isinstance(prompt, Mapping) and "prompt_string" in prompt:
        parts = _tokens_and_texts(prompt["prompt_string"], f"{where}.prompt_string")
        if data := prompt.get("multimodal_data"):
            return at_markers(parts, data, f"{where}.multimodal_data")
        return [*parts]
    return [*_tokens_and_texts(prompt, where)]


def _tokens_and_texts(prompt: Any, where: str) -> list[int | str]:
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise invalid_request(f"{where}: this is neither a text nor a list of tokens and texts")
    if not prompt:
        raise invalid_request(f"{where}: the list is empty")
    if set(map(type, prompt)) == {int} and min(prompt) >= 0 and max(prompt) <= INT32_MAX:
        return list(prompt)  # a long list of ids costs no Python loop
    return [e if isinstance(e, str) else _token_id(e, where) for e in prompt]


def _token_id(value: Any, where: str) -> int:
    if not is_token_id(value):
        raise invalid_request(f"{where}: there is no token {value!r}")
    return int(value)


# ---- places of media: the server's marker, or, in the older form, `[img-ID]` ---------------


def at_markers(parts: Sequence[int | str], data: Sequence[str], where: str) -> UnresolvedParts:
    """Returns `parts` with the elements of `data` in place of the markers, in their order.

    Raises EngineError (invalid_request_error) unless their numbers are equal.
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
    """Returns `prompts` with each of the `images` (`image_data`) in the places with its number.

    Raises EngineError (invalid_request_error) for an image without a place, and for two images with
    one number.
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
