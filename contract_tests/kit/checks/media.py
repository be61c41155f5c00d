"""Checks of servers whose model has image input. See `checks`."""

import base64
import struct
import zlib
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import Server

SIDE = 32  # pixels
CLOSE = 0.05
"""The difference in a log probability that rounding in another batch may cause."""


def png(*rows: tuple[int, int, int]) -> bytes:
    """Returns an image of stripes in these colours."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    lines = b"".join(b"\0" + bytes(rows[y * len(rows) // SIDE]) * SIDE for y in range(SIDE))
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def _image(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


WARM = _image(png((255, 0, 0), (250, 200, 0)))
COLD = _image(png((0, 0, 255), (0, 40, 30), (0, 200, 250)))
QUESTION = {"type": "text", "text": "Which colours are there?"}


def _answer(server: Server, *parts: dict[str, Any]) -> Any:
    """Returns the answer of a model with image input; skips the test for other models."""
    modalities = contract.check(server.get("/props")).get("modalities") or {}
    if not modalities.get("vision"):
        pytest.skip("the model has no image input")
    body = {
        "messages": [{"role": "user", "content": [*parts]}],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 5,
    }
    return contract.check(server.post("/v1/chat/completions", body))


def _n_tokens(server: Server, *parts: dict[str, Any]) -> int:
    return int(_answer(server, *parts)["usage"]["prompt_tokens"])


def _differ(server: Server, one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """True if the model predicts different next tokens."""
    found = []
    for parts in (one, other):
        [choice] = _answer(server, *parts)["choices"]
        [token] = choice["logprobs"]["content"]
        found.append({each["token"]: each["logprob"] for each in token["top_logprobs"]})
    first, second = found
    shared = first.keys() & second.keys()
    return not shared or any(abs(first[token] - second[token]) > CLOSE for token in shared)


def images_are_part_of_the_prompt(server: Server) -> None:
    none = _n_tokens(server, QUESTION)
    one = _n_tokens(server, WARM, QUESTION)
    assert one > none, "an image has no tokens"
    assert _n_tokens(server, WARM, COLD, QUESTION) - one > (one - none) // 2, "an image is lost"


def images_are_distinguished(server: Server) -> None:
    assert not _differ(server, [WARM, QUESTION], [WARM, QUESTION]), "one image is seen as two"
    assert _differ(server, [WARM, QUESTION], [COLD, QUESTION]), "two images are seen as one"


def images_have_their_places(server: Server) -> None:
    assert _differ(server, [WARM, COLD, QUESTION], [COLD, WARM, QUESTION]), "another order"


def texts_are_no_images(server: Server) -> None:
    """No text is replaced by an image, even if it contains the server's own marker."""
    marker = contract.check(server.get("/props")).get("media_marker") or "<__media__>"
    forged = {"type": "text", "text": f"{marker} {QUESTION['text']}"}
    image = _n_tokens(server, WARM, QUESTION) - _n_tokens(server, QUESTION)
    forged_alone = _n_tokens(server, forged)
    assert _n_tokens(server, WARM, forged) == forged_alone + image, "a text became an image"


OF_MEDIA = (
    images_are_part_of_the_prompt,
    images_are_distinguished,
    images_have_their_places,
    texts_are_no_images,
)
