"""Images, sounds and documents, of a model with a projector."""

from base64 import b64encode
from typing import Any

from contract_tests.kit.checks.media import png
from contract_tests.kit.provocations_of_media import recording
from contract_tests.peer.request import SMALL, Request, both_ways, get, post
from contract_tests.peer.servers import MARKER
from tests.support.pdf_files import pdf, words

_PATH = "/v1/chat/completions"
_RED = b64encode(png((255, 0, 0))).decode()
_BLUE = b64encode(png((0, 0, 255))).decode()
_SOUND = b64encode(recording()).decode()
_WORDS = {"type": "text", "text": "What is there?"}
_STAGE: dict[str, Any] = {"stage": "sensing"}


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _sound(data: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def _chat(*parts: dict[str, Any]) -> dict[str, Any]:
    return {**SMALL, "messages": [{"role": "user", "content": [*parts]}]}


def _prompt(text: str, *data: Any) -> dict[str, Any]:
    prompt = {"prompt_string": text, "multimodal_data": [*data]}
    return {"prompt": prompt, "n_predict": 8, "temperature": 0}


def _block(data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


_MESSAGE = {
    "model": "any",
    **SMALL,
    "messages": [{"role": "user", "content": [_block(_RED), _WORDS]}],
}
_PDF = b64encode(pdf(words("Llamas carry wool."))).decode()
_DOCUMENT = {
    **_MESSAGE,
    "messages": [{"role": "user", "content": [
        {"type": "document", "source": {
            "type": "base64", "media_type": "application/pdf", "data": _PDF}},
        _WORDS,
    ]}],
}  # fmt: skip
_URL = f"data:image/png;base64,{_RED}"
_REFUSED = {
    "no data": "data:image/png;base64,",
    "no image": f"data:image/png;base64,{b64encode(b'no image').decode()}",
    "half an image": f"data:image/png;base64,{_RED[:48]}",
    "no base64": "data:image/png;base64,!!!",
    "no comma": "data:image/png",
    "no base64 declared": "data:image/png,abc",
    "a path": "file:///etc/passwd",
    "an address without a server": "http://127.0.0.1:1/a.png",
}
REQUESTS: list[Request] = [
    *both_ways("an image", _PATH, _chat(_image(_URL), _WORDS), **_STAGE),
    post("bare base64", _PATH, _chat(_image(_RED), _WORDS), **_STAGE),
    post("two images", _PATH, _chat(_image(_URL), _WORDS, _image(_BLUE)), **_STAGE),
    post("a sound", _PATH, _chat(_sound(_SOUND), _WORDS), **_STAGE),
    *(
        post(f"refused, {name}", _PATH, _chat(_image(url), _WORDS), **_STAGE)
        for name, url in _REFUSED.items()
    ),
    post("refused, no sound", _PATH, _chat(_sound("AAAA"), _WORDS), **_STAGE),
    post("a marker in a text", _PATH, _chat({"type": "text", "text": MARKER}), **_STAGE),
    post("tokens", f"{_PATH}/input_tokens", _chat(_image(_URL), _WORDS), **_STAGE),
    post("tokens of a message", "/v1/messages/count_tokens", _MESSAGE, **_STAGE),
    post("a message", "/v1/messages", _MESSAGE, **_STAGE),
    post("native", "/completion", _prompt(f"See {MARKER} and", _RED), **_STAGE),
    post("native, no marker", "/completion", _prompt("See", _RED), **_STAGE),
    post("native, too many markers", "/completion", _prompt(MARKER * 2, _RED), **_STAGE),
    post("native, no image", "/completion", _prompt(MARKER, "AAAA"), **_STAGE),
    post("a rendered prompt", "/apply-template", _chat(_image(_URL), _WORDS), **_STAGE),
    post("a document", _PATH, _chat({"type": "file", "file": {"file_data": _PDF}}), **_STAGE),
    post("a document in a message", "/v1/messages", _DOCUMENT, **_STAGE),
    get("models", "/v1/models", **_STAGE),
    get("properties", "/props", **_STAGE),
]
