"""Images and sounds over real sockets, from official clients, for tiny models with media input."""

import base64
import io
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import numpy as np
import ollama
import openai
import pytest
from PIL import Image

from contract_tests.kit import contract
from contract_tests.kit.chats import test_open_responses
from contract_tests.kit.provocations_of_media import recording
from contract_tests.kit.server import SECONDS, Launcher, OwnServer, Start
from tests.support.pdf_files import SCAN, encrypted, pdf, words
from tests.support.video_files import sound_file, video_file

SHORT = {"max_tokens": 8, "temperature": 0}
MODEL = "any"


def picture(seed: int, form: str = "PNG") -> bytes:
    """Returns squares in colours, different ones for each `seed`."""
    colours = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours.repeat(8, axis=0).repeat(8, axis=1)).save(file, form)
    return file.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{encoded(data)}"


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data)}}


def sound(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": encoded(data), "format": "wav"}}


def film(data: bytes, form: str = "input_video") -> dict[str, Any]:
    return {"type": form, form: {"data" if form == "input_video" else "url": encoded(data)}}


def film_at(address: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": address}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="module")
def server(module_server: Start, launcher: Launcher, directory: Path) -> OwnServer:
    """A server with image and audio input."""
    (directory / "a.png").write_bytes(picture(1))
    model, projector = map(launcher.model_file, ("tiny-window", "tiny-mmproj-both"))
    options = ("-m", model, "--mmproj", projector, "--media-path", str(directory))
    return module_server(*options, "--alias", "specllama-tiny", named=True)


@pytest.fixture(scope="module")
def seeing(module_server: Start, launcher: Launcher) -> OwnServer:
    """A server with image input only."""
    model, eyes = map(launcher.model_file, ("tiny-window", "tiny-mmproj"))
    return module_server("-m", model, "--mmproj", eyes, named=True)


def chat(server: OwnServer, *messages: Any, **fields: Any) -> Any:
    body = {"messages": [*messages], **SHORT, **fields}
    return contract.check(server.post("/v1/chat/completions", body))


def said(server: OwnServer, *messages: Any, **fields: Any) -> str:
    return str(chat(server, *messages, **fields)["choices"][0]["message"]["content"])


# ---- official clients --------------------------------------------------------------------


@pytest.fixture(scope="module")
def openai_client(server: OwnServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=SECONDS
    ) as client:
        yield client


def test_openai(openai_client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        messages: Any = [user(text("See"), image(picture(seed)))]
        answer = openai_client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=8, temperature=0
        )
        return answer.choices[0].message.content or ""

    first, other = ask(1), ask(2)
    assert first != other
    assert ask(1) == first


def test_openai_responses(openai_client: openai.OpenAI, server: OwnServer) -> None:
    parts = [
        {"type": "input_text", "text": "See"},
        {"type": "input_image", "image_url": url(picture(1)), "detail": "auto"},
    ]
    items: Any = [{"role": "user", "content": parts}]
    more: Any = {"model": MODEL, "max_output_tokens": 8, "temperature": 0}
    answer = openai_client.responses.create(input=items, **more)
    assert answer.output_text == said(server, user(text("See"), image(picture(1))))
    after = openai_client.responses.create(input="And now?", previous_response_id=answer.id, **more)
    assert after.usage is not None
    assert answer.usage is not None
    assert after.usage.input_tokens > answer.usage.input_tokens
    [kept] = openai_client.responses.input_items.list(answer.id).data
    contract.check(server.get(f"/v1/responses/{answer.id}/input_items"))
    assert kept.type == "message"


def test_the_image_of_open_responses(server: OwnServer) -> None:
    """The kit's own server reads no images, so the kit skips this test there."""
    test_open_responses.test_image_input(server)


def test_openai_transcriptions(openai_client: openai.OpenAI) -> None:
    file = ("speech.wav", recording())
    asked: Any = {"model": MODEL, "file": file, "temperature": 0}
    whole = openai_client.audio.transcriptions.create(**asked, extra_body={"max_tokens": 8})
    assert whole.text
    events = openai_client.audio.transcriptions.create(
        **asked, stream=True, extra_body={"max_tokens": 8}
    )
    stream: Any = events
    *deltas, done = list(stream)
    assert done.type == "transcript.text.done"
    pieces = [each.delta for each in deltas if each.type == "transcript.text.delta"]
    assert "".join(pieces) == done.text == whole.text


def test_anthropic(server: OwnServer) -> None:
    source: Any = {"type": "base64", "media_type": "image/png", "data": encoded(picture(1))}
    content: Any = [text("See"), {"type": "image", "source": source}]
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=SECONDS
    ) as client:
        messages: Any = [{"role": "user", "content": content}]
        asked: Any = {"model": MODEL, "max_tokens": 8, "messages": messages}
        answer = client.messages.create(**asked, extra_body={"temperature": 0})
        counted = client.messages.count_tokens(model=MODEL, messages=messages)
    [block] = answer.content
    assert block.type == "text"
    assert block.text == said(server, user(text("See"), image(picture(1))))
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_ollama(server: OwnServer) -> None:
    client = ollama.Client(host=server.url, timeout=SECONDS)
    options = {"num_predict": 8, "temperature": 0}
    message = {"role": "user", "content": "See", "images": [picture(1)]}
    answer = client.chat(MODEL, [message], options=options)
    generated = client.generate(MODEL, "See", images=[picture(1)], options=options)
    expected = said(server, user(image(picture(1)), text("See")))
    assert answer.message.content == generated.response == expected
    assert {"vision", "audio"} <= {*(client.show(MODEL).capabilities or ())}


# ---- videos ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filming(module_server: Start, launcher: Launcher, directory: Path) -> OwnServer:
    """A server with image input that merges two successive frames."""
    (directory / "v.mp4").write_bytes(video_file(n_pictures=40))  # 4 s
    (directory / "longer.mp4").write_bytes(video_file(n_pictures=80))
    model, projector = map(launcher.model_file, ("tiny-mrope", "tiny-mmproj-mrope"))
    options = ("--mmproj", projector, "--media-path", str(directory), "--video-max-frames", "20")
    return module_server("-m", model, *options, named=True)


def test_videos_of_every_form(filming: OwnServer, directory: Path) -> None:
    data = (directory / "v.mp4").read_bytes()
    whole = chat(filming, user(text("See"), film(data)))
    expected = whole["choices"][0]["message"]["content"]
    shown = f"data:video/mp4;base64,{encoded(data)}"
    for part in (
        film(data, "video_url"),
        film_at("file://v.mp4"),
        {"type": "image_url", "image_url": {"url": shown}},
    ):
        assert said(filming, user(text("See"), part)) == expected
    parts = [{"text": "See"}, {"inlineData": {"mimeType": "video/mp4", "data": encoded(data)}}]
    body = {"contents": [{"role": "user", "parts": parts}],
            "generationConfig": {"maxOutputTokens": 8, "temperature": 0}}  # fmt: skip
    answer = contract.check(filming.post("/v1beta/models/any:generateContent", body))
    [candidate] = answer["candidates"]
    assert "".join(part["text"] for part in candidate["content"].get("parts", ())) == expected
    streamed = filming.post(
        "/v1/chat/completions",
        {"messages": [user(text("See"), film(data))], **SHORT, "stream": True},
    )
    contract.check(streamed)


def test_a_video_is_its_frames_with_times(filming: OwnServer, directory: Path) -> None:
    """The tokens are those of the texts and of an image for each pair of frames."""
    data = (directory / "v.mp4").read_bytes()
    native = contract.check(filming.get("/props"))["media_marker"]
    prompt = {"prompt_string": native, "multimodal_data": [encoded(data)]}
    whole = contract.check(
        filming.post("/completion", {"prompt": prompt, "n_predict": 1, "cache_prompt": False})
    )
    assert whole["prompt"].count("<__media__>") == 9  # 1, and 15 in pairs
    rows = Image.new("RGB", (64, 48))
    file = io.BytesIO()
    rows.save(file, "PNG")
    single = {"prompt_string": native, "multimodal_data": [encoded(file.getvalue())]}

    def n_tokens(given: Any) -> int:
        body = {"prompt": given, "n_predict": 1, "cache_prompt": False}
        return int(contract.check(filming.post("/completion", body))["tokens_evaluated"])

    n_text = sum(
        len(contract.check(filming.post("/tokenize", {"content": each}))["tokens"])
        for each in ("Video:", "[0m0.00s]")
    )
    assert n_tokens(prompt) == 9 * n_tokens(single) + n_text


@pytest.mark.parametrize(
    ("part", "status", "word"),
    [
        (film(b""), 400, "it is empty"),
        (film(b"#EXTM3U\n/etc/passwd\n"), 400, "it is not one of MP4"),
        (film(recording()), 400, "WAV file where a video is expected"),
        (film(sound_file()), 400, "it contains no video"),
        (film(video_file()[:200]), 400, "damaged or incomplete MP4 file"),
        (film(video_file("matroska", "ffv1")), 400, "ffv1, is not supported"),
        (film_at("http://localhost:1/a.mp4"), 501, "--media-urls"),
        (film_at("file://longer.mp4"), 400, "more than the 20 frames that are allowed"),
    ],
)
def test_videos_that_are_refused(
    part: dict[str, Any], status: int, word: str, filming: OwnServer
) -> None:
    assert word in refused(filming, part, status)
    assert said(filming, user(text("See"), film(video_file())))


def test_embeddings_of_videos(embedding: OwnServer) -> None:
    short, other = video_file(n_pictures=4), video_file(n_pictures=4, rate=2)
    contents = [
        [text("See"), film(short)],
        [text("See"), film(short, "video_url")],
        [text("See"), film(other)],
    ]
    first, same, different = vectors(embedding, *contents)
    np.testing.assert_allclose(first, same, atol=1e-4)
    assert np.abs(first - different).max() > 1e-3


# ---- documents ---------------------------------------------------------------------------


def test_documents_of_every_api(
    openai_client: openai.OpenAI, server: OwnServer, directory: Path
) -> None:
    data = encoded(pdf(words("Llamas carry wool."), SCAN))
    (directory / "c.pdf").write_bytes(pdf(words("Llamas carry wool."), SCAN))
    file: Any = {"filename": "c.pdf", "file_data": f"data:application/pdf;base64,{data}"}
    expected = said(server, user({"type": "file", "file": file}))
    assert expected != said(server, user(text("c.pdf\nLlamas carry wool.")))
    parts = [{"type": "input_file", **file}]
    for given in (parts, [{"type": "input_file", "filename": "c.pdf", "file_url": "file://c.pdf"}]):
        items: Any = [{"role": "user", "content": given}]
        more: Any = {"model": MODEL, "max_output_tokens": 8, "temperature": 0}
        assert openai_client.responses.create(input=items, **more).output_text == expected
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=SECONDS
    ) as client:
        block: Any = {"type": "document", "source": source, "title": "c.pdf"}
        messages: Any = [{"role": "user", "content": [block]}]
        asked: Any = {"model": MODEL, "max_tokens": 8, "messages": messages}
        [answer] = client.messages.create(**asked, extra_body={"temperature": 0}).content
    assert answer.type == "text"
    assert answer.text == expected


def test_the_text_of_a_document_is_a_text(seeing: OwnServer) -> None:
    data = encoded(pdf(words("Llamas carry wool.")))
    file = {"type": "file", "file": {"filename": "c.pdf", "file_data": data}}
    as_text = chat(seeing, user(text("See\nc.pdf\nLlamas carry wool.")))
    as_file = chat(seeing, user(text("See"), file))
    assert as_file["choices"] == as_text["choices"]
    assert as_file["usage"]["prompt_tokens"] == as_text["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("data", "status", "word"),
    [
        (b"%PDF-1.7 and nothing", 400, "damaged or incomplete PDF file"),
        (encrypted(), 400, "encrypted"),
        (pdf(b""), 400, "blank"),
        (b"PK\x03\x04\xff\x00", 501, "reads PDF files and texts in UTF-8"),
    ],
)
def test_documents_that_can_t_be_read(
    data: bytes, status: int, word: str, server: OwnServer
) -> None:
    part = {"type": "file", "file": {"file_data": encoded(data)}}
    assert word in refused(server, part, status)
    assert said(server, user(text("See"), image(picture(1))))


# ---- embeddings --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedding(module_server: Start, launcher: Launcher) -> OwnServer:
    """A server for embeddings of images."""
    model, eyes = map(launcher.model_file, ("tiny-window", "tiny-mmproj"))
    options = ("--embeddings", "--pooling", "mean", "-ub", "512")
    return module_server("-m", model, "--mmproj", eyes, *options, named=True)


def vectors(server: OwnServer, *contents: Any) -> Any:
    body = {"input": [{"content": [*parts]} for parts in contents]}
    answer = contract.check(server.post("/v1/embeddings", body))
    return np.array([each["embedding"] for each in answer["data"]])


def test_embeddings_of_images(embedding: OwnServer) -> None:
    contents = [
        [text("See"), image(picture(1))],
        [text("See"), image(picture(2))],
        [image(picture(1)), text("See")],
        [text("See")],
    ]
    together = vectors(embedding, *contents)
    for row, other in itertools.combinations(together, 2):
        assert not np.allclose(row, other, atol=1e-4)
    for row, parts in zip(together, contents, strict=True):
        np.testing.assert_allclose(vectors(embedding, parts)[0], row, atol=1e-4)
    marker = contract.check(embedding.get("/props"))["media_marker"]
    data = {"prompt_string": f"See{marker}", "multimodal_data": [encoded(picture(1))]}
    for path in ("/embedding", "/embeddings"):
        [native] = contract.check(embedding.post(path, {"content": data}))
        np.testing.assert_allclose(native["embedding"][0], together[0], atol=1e-4)


def test_embeddings_of_invalid_images(embedding: OwnServer) -> None:
    for part, status in ((image(b"no image"), 400), (sound(recording()), 501)):
        body = {"input": [{"content": [text("See"), part]}]}
        contract.check(embedding.post("/v1/embeddings", body), status)


# ---- forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "WEBP", "JPEG"])
def test_formats_of_images(form: str, server: OwnServer) -> None:
    data = picture(1, form)
    answer = chat(server, user(text("See"), image(data)))
    assert answer["usage"]["prompt_tokens"] > 16


def test_an_image_by_its_file_and_in_bare_base64(server: OwnServer) -> None:
    expected = said(server, user(text("See"), image(picture(1))))
    for where in ("file://a.png", encoded(picture(1)), encoded(picture(1)).rstrip("=")):
        part = {"type": "image_url", "image_url": {"url": where}}
        assert said(server, user(text("See"), part)) == expected


def test_several_turns_and_the_results_of_tools(server: OwnServer) -> None:
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        user(image(picture(1)), text("See"), image(picture(2))),
        {"role": "assistant", "content": "I see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": [image(picture(3))]},
        user(text("And?"), sound(recording())),
    ]
    first = chat(server, *messages)
    again = chat(server, *messages)
    assert again["choices"] == first["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    changed = chat(server, user(image(picture(4)), text("See"), image(picture(2))), *messages[1:])
    assert changed["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]


def test_native_prompts(server: OwnServer) -> None:
    marker = contract.check(server.get("/props"))["media_marker"]
    data = [encoded(picture(1)), encoded(recording())]
    prompt = {"prompt_string": f"See {marker} and {marker}", "multimodal_data": data}
    body = {"prompt": [prompt, "text"], "n_predict": 8, "temperature": 0}
    both = contract.check(server.post("/completion", body))
    assert len(both) == 2
    body = {"n_predict": 8, "temperature": 0, "prompt": "See [img-7] and"}
    body["image_data"] = [{"id": 7, "data": encoded(picture(1))}]
    old = contract.check(server.post("/completion", body))
    one = {"prompt_string": f"See {marker} and", "multimodal_data": data[:1]}
    new = contract.check(
        server.post("/completion", {"prompt": one, "n_predict": 8, "temperature": 0})
    )
    assert new["content"] == old["content"]
    for n in (0, 2):
        wrong = {"prompt_string": marker * n, "multimodal_data": data[:1]}
        contract.check(server.post("/completion", {"prompt": wrong}), 400)


def test_a_rendered_prompt_can_be_completed(server: OwnServer) -> None:
    messages = [user(text("See"), image(picture(1)))]
    rendered = contract.check(server.post("/apply-template", {"messages": messages}))
    prompt = {"prompt_string": rendered["prompt"], "multimodal_data": [encoded(picture(1))]}
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0}
    answer = contract.check(server.post("/completion", body))
    assert answer["content"] == said(server, *messages)


def test_a_marker_in_a_text_is_text(server: OwnServer) -> None:
    marker = contract.check(server.get("/props"))["media_marker"]
    for phrase in (marker, "<__media__>", "<|image|>", "<__image__>", "[img-1]"):
        alone = chat(server, user(text(phrase)))["usage"]["prompt_tokens"]
        seen = chat(server, user(text(phrase), image(picture(1))))["usage"]["prompt_tokens"]
        assert seen == alone + 16


def test_tokens_are_counted_as_they_are_used(server: OwnServer) -> None:
    messages = [user(text("See"), image(picture(5)), sound(recording()))]
    counted = contract.check(
        server.post("/v1/chat/completions/input_tokens", {"messages": messages})
    )
    assert counted["input_tokens"] == chat(server, *messages)["usage"]["prompt_tokens"]


def test_streams(server: OwnServer) -> None:
    messages = [user(text("See"), image(picture(1)))]
    body = {"messages": messages, **SHORT}
    with server.stream("/v1/chat/completions", body) as (_, events):
        documents = contract.check_stream(
            contract.operations()["create_chat_completion"], [*events]
        )
    pieces = [
        each["choices"][0]["delta"].get("content") or "" for each in documents if each["choices"]
    ]
    assert "".join(pieces) == said(server, *messages)


def test_many_at_the_same_time(server: OwnServer) -> None:
    alone = [said(server, user(text("See"), image(picture(seed)))) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = pool.map(
            lambda seed: said(server, user(text("See"), image(picture(seed)))), range(8)
        )
        assert [*together] == alone


# ---- mistakes -----------------------------------------------------------------------


def refused(server: OwnServer, part: Any, status: int) -> str:
    body = {"messages": [user(text("See"), part)], **SHORT}
    answers = [
        server.post("/v1/chat/completions", {**body, "stream": stream}) for stream in (False, True)
    ]
    [message] = {contract.check(each, status)["error"]["message"] for each in answers}
    assert message.startswith("messages[0].content[1]: ")
    return str(message)


@pytest.mark.parametrize(
    ("given", "status", "word"),
    [
        ("data:image/png;base64,", 400, "empty"),
        (url(picture(1)[:40]), 400, "damaged"),
        (url(b"no image"), 400, "not one of"),
        (url(recording()), 400, "an image is expected"),
        ("no base64!", 400, "base64"),
        ("data:image/png", 400, "comma"),
        ("file:///etc/passwd", 400, ""),
        ("file://../a.png", 400, ""),
        ("file://nothing.png", 400, ""),
        ("http://localhost:1/a.png", 501, "--media-urls"),
        ("HTTPS://user:secret@a.example/a.png?token=1", 501, "--media-urls"),
    ],
)
def test_bad_images(given: str, status: int, word: str, server: OwnServer) -> None:
    message = refused(server, {"type": "image_url", "image_url": {"url": given}}, status)
    assert word in message
    assert "secret" not in message
    assert said(server, user(text("See"), image(picture(1))))


def test_sounds_for_a_model_that_only_sees(seeing: OwnServer) -> None:
    assert "audio input is not supported" in refused(seeing, sound(recording()), 501)
    marker = contract.check(seeing.get("/props"))["media_marker"]
    prompt = {"prompt_string": marker, "multimodal_data": [encoded(recording())]}
    contract.check(seeing.post("/completion", {"prompt": prompt}), 501)
    assert said(seeing, user(text("See"), image(picture(1))))


def test_a_hundred(server: OwnServer) -> None:
    body = {"messages": [user(*[image(picture(1))] * 100)]}
    message = contract.check(server.post("/v1/chat/completions", body), 400)["error"]["message"]
    assert "100 images" in message
    assert said(server, user(*[image(picture(seed)) for seed in range(11)]))


def test_properties_of_the_server(server: OwnServer, seeing: OwnServer) -> None:
    for each, kinds in ((server, ["image", "audio"]), (seeing, ["image"])):
        modalities = contract.check(each.get("/props"))["modalities"]
        assert modalities == {"vision": True, "audio": "audio" in kinds, "video": True}
        models = contract.check(each.get("/v1/models"))
        assert models["data"][0]["architecture"]["input_modalities"] == ["text", *kinds]
        assert "multimodal" in models["models"][0]["capabilities"]
