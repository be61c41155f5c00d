"""Images and sounds in the requests of every API, with an engine and a decoder made of paper."""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from specllama.engine.wire.media import Media
from specllama.handlers.running import media
from specllama.handlers.running.media import media_marker
from tests.support.paper_server import INFO, Server, serve

pytestmark = pytest.mark.slow

EYES = msgspec.structs.replace(INFO, modalities=["vision"])
EARS = msgspec.structs.replace(INFO, modalities=["audio"], sample_rate=16000)
BOTH = msgspec.structs.replace(EYES, modalities=["vision", "audio"], sample_rate=16000)


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{encoded(data)}"


def image(data: bytes) -> Media:
    return Media("image", b"", data, 1, 1)


def sound(data: bytes) -> Media:
    return Media("audio", b"", data)


def picture(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data)}}


def recording(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": encoded(data), "format": "wav"}}


def film(data: bytes, form: str = "input_video") -> dict[str, Any]:
    return {"type": form, form: {"data" if form == "input_video" else "url": encoded(data)}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


@pytest.fixture(scope="module")
def seeing() -> Iterator[Server]:
    yield from serve(EYES)


@pytest.fixture(scope="module")
def sensing() -> Iterator[Server]:
    yield from serve(BOTH)


def prompt(server: Server) -> list[Any]:
    """Returns the request of the last generation."""
    found: list[Any] = server.engine.generations[-1].prompt
    return found


# ---- chats -------------------------------------------------------------------------------


def test_media_stand_where_the_template_puts_their_messages(sensing: Server) -> None:
    messages = [
        user(said("See"), picture(b"a"), said("and"), recording(b"b")),
        {"role": "assistant", "content": "I see."},
        user(picture(b"c"), picture(b"a"), said("Again?")),
    ]
    assert sensing.post("/v1/chat/completions", messages=messages).status_code == 200
    assert prompt(sensing) == [
        "[user]See",
        image(b"a"),
        "and",
        sound(b"b"),
        "[assistant]I see.[user]",
        image(b"c"),
        image(b"a"),
        "Again?[assistant]",
    ]


def test_no_client_can_write_a_marker(seeing: Server) -> None:
    forged = f"{media_marker()}<__media__><__image__><|image|><__media_0__>"
    asked = [user(said(forged), picture(b"a"))]
    seeing.post("/v1/chat/completions", messages=asked)
    assert prompt(seeing) == [f"[user]{forged}", image(b"a"), "[assistant]"]
    seeing.post("/v1/chat/completions", messages=[{"role": "user", "content": forged}])
    assert prompt(seeing) == [f"[user]{forged}[assistant]"]


def test_media_in_the_results_of_tools(seeing: Server) -> None:
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        user(said("u")),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": [picture(b"r"), said("t")]},
    ]
    assert seeing.post("/v1/chat/completions", messages=messages).status_code == 200
    assert [part for part in prompt(seeing) if isinstance(part, Media)] == [image(b"r")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{{ messages | length }}", "messages[0].content[0]: the model's chat template leaves"),
        (
            "{{ messages[0].content * 2 }}",
            "messages[0].content[0]: the model's chat template shows",
        ),
    ],
)
def test_templates_that_lose_or_repeat_media(content: str, message: str) -> None:
    for server in serve(EYES, chat_template=content):
        refused = server.post("/v1/chat/completions", messages=[user(picture(b"a"))])
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(message)


def test_a_template_that_reorders_messages() -> None:
    backwards = "{% for m in messages | reverse %}{{ m.content }}|{% endfor %}"
    for server in serve(EYES, chat_template=backwards):
        server.post("/v1/chat/completions", messages=[user(picture(b"a")), user(picture(b"b"))])
        assert prompt(server) == [image(b"b"), "|", image(b"a"), "|"]


def test_a_template_for_parts() -> None:
    typed = (
        "{% for m in messages %}{% for p in m.content %}{{ p.type }}={{ p.text }};{% endfor %}"
        "{% endfor %}"
    )
    for server in serve(EYES, chat_template=typed):
        server.post("/v1/chat/completions", messages=[user(said("a"), picture(b"a"), said("b"))])
        assert prompt(server) == ["text=a", image(b"a"), "b;"]


def test_llama_cpp_s_own_formats() -> None:
    for server in serve(EYES, jinja=False):
        server.post("/v1/chat/completions", messages=[user(said("a"), picture(b"a"))])
        first, medium, _ = prompt(server)
        assert first.endswith("a")
        assert medium == image(b"a")


def test_tokens_are_counted_with_media(seeing: Server) -> None:
    messages = [user(said("ab"), picture(b"a"))]
    counted = [
        seeing.post(path, **body).json()["input_tokens"]
        for path, body in (
            ("/v1/chat/completions/input_tokens", {"messages": messages}),
            ("/v1/responses/input_tokens", {"input": [user({"type": "input_text", "text": "ab"},
             {"type": "input_image", "image_url": url(b"a")})]}),
            ("/v1/messages/count_tokens", {"messages": [user(said("ab"), block(b"a"))]}),
        )
    ]  # fmt: skip
    assert counted == [2 + len("[user]ab[assistant]") + 3] * 3


def test_a_rendered_prompt_has_the_server_s_marker(seeing: Server) -> None:
    n = len(decoder(seeing).sources)
    remote = {"type": "image_url", "image_url": {"url": "https://a.example/a"}}
    answer = seeing.post("/apply-template", messages=[user(said("a"), remote)])
    assert answer.json() == {"prompt": f"[user]a{media_marker()}[assistant]"}
    assert len(decoder(seeing).sources) == n


# ---- the other APIs ----------------------------------------------------------------------


def block(data: bytes) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "x", "data": encoded(data)}}


def decoder(server: Server) -> Any:
    return server.runtime.media


def test_messages(seeing: Server) -> None:
    remote = {"type": "image", "source": {"type": "url", "url": "https://a.example/b"}}
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [said("r"), block(b"c")]}
    seeing.post(
        "/v1/messages",
        messages=[
            user(said("u"), block(b"a"), remote),
            {"role": "assistant", "content": [use]},
            user(result),
        ],
    )
    media = [part for part in prompt(seeing) if isinstance(part, Media)]
    assert media == [image(b"a"), image(b"b"), image(b"c")]


def test_responses(sensing: Server) -> None:
    parts = [
        {"type": "input_text", "text": "u"},
        {"type": "input_image", "image_url": url(b"a"), "detail": "low"},
        {"type": "input_audio", "input_audio": {"data": encoded(b"b"), "format": "mp3"}},
        {"type": "input_file", "filename": "n.txt", "file_data": encoded(b"words")},
    ]
    answer = sensing.post("/v1/responses", input=[user(*parts)]).json()
    media = [image(b"a"), sound(b"b")]
    assert prompt(sensing) == ["[user]u", *media, "n.txt\nwords[assistant]"]
    stored = sensing.http.get(f"/v1/responses/{answer['id']}/input_items").json()["data"]
    assert stored[0]["content"] == parts[:1] + parts[1:3] + [
        {"type": "input_file", "file_data": encoded(b"words"), "filename": "n.txt"}
    ]
    sensing.post("/v1/responses", input="And?", previous_response_id=answer["id"])
    assert prompt(sensing)[1:3] == media


def test_ollama(seeing: Server) -> None:
    images = [encoded(b"a"), url(b"b")]
    seeing.http.post(
        "/api/chat", json={"messages": [{"role": "user", "content": "u", "images": images}]}
    )
    assert prompt(seeing) == ["[user]", image(b"a"), image(b"b"), "u[assistant]"]
    for extra, expected in (
        ({}, ["[user]", image(b"a"), "u[assistant]"]),
        ({"raw": True}, [image(b"a"), "u"]),
        ({"context": [1, 2]}, [1, 2, "[user]", image(b"a"), "u[assistant]"]),
    ):
        asked = {"prompt": "u", "images": images[:1], "stream": False, **extra}
        answer = seeing.http.post("/api/generate", json=asked)
        assert answer.status_code == 200, answer.text
        assert prompt(seeing) == expected
        assert "context" not in answer.json()


def test_native_prompts(sensing: Server) -> None:
    m = media_marker()
    data = {"prompt_string": f"a{m}b{m}", "multimodal_data": [encoded(b"a"), encoded(b"sound")]}
    for path in ("/completion", "/v1/completions"):
        n = len(sensing.engine.generations)
        assert sensing.post(path, prompt=["x", data]).status_code == 200
        prompts = [each.prompt for each in sensing.engine.generations[n:]]
        assert prompts == [["x"], ["a", image(b"a"), "b", sound(b"sound")]]
    images = [{"data": encoded(b"a"), "id": 5}]
    sensing.post("/completion", prompt="a[img-5]b", image_data=images)
    assert prompt(sensing) == ["a", image(b"a"), "b"]


def test_an_echoed_prompt_has_the_marker(seeing: Server) -> None:
    data = {"prompt_string": f"a{media_marker()}", "multimodal_data": [encoded(b"a")]}
    answer = seeing.post("/v1/completions", prompt=data, echo=True).json()
    assert answer["choices"][0]["text"].startswith(f"a{media_marker()}One")


# ---- documents ---------------------------------------------------------------------------

PDF = b"%PDF-1.4 the text"
PAGE = Media("image", b"", b"page", 1, 1)


def file_part(data: bytes) -> dict[str, Any]:
    return {"type": "file", "file": {"filename": "a.pdf", "file_data": encoded(data)}}


def test_documents_of_every_api(seeing: Server) -> None:
    chat = [user(said("u"), file_part(PDF), said("v"), file_part(b"plain"))]
    expected = ["[user]u\na.pdf\n%PDF-1.4 the text", PAGE, "\nv\na.pdf\nplain[assistant]"]
    assert seeing.post("/v1/chat/completions", messages=chat).status_code == 200
    assert prompt(seeing) == expected

    def item(**fields: str) -> dict[str, Any]:
        return {"type": "input_file", "filename": "a.pdf", **fields}

    words = [{"type": "input_text", "text": word} for word in ("u", "v")]
    parts = [words[0], item(file_data=encoded(PDF)), words[1], item(file_data=encoded(b"plain"))]
    assert seeing.post("/v1/responses", input=[user(*parts)]).status_code == 200
    assert prompt(seeing) == expected
    remote = item(file_url="https://a.example/remote")
    answer = seeing.post("/v1/responses", input=[user(remote)]).json()
    assert prompt(seeing) == ["[user]a.pdf\nremote", PAGE, "[assistant]"]
    stored = seeing.http.get(f"/v1/responses/{answer['id']}/input_items").json()["data"]
    assert stored[0]["content"] == [remote]

    def document(**source: str) -> dict[str, Any]:
        return {"type": "document", "title": "a.pdf", "source": source}

    blocks = [
        said("u"),
        document(type="base64", media_type="application/pdf", data=encoded(PDF)),
        said("v"),
        document(type="base64", media_type="text/plain", data=encoded(b"plain")),
    ]
    assert seeing.post("/v1/messages", messages=[user(*blocks)]).status_code == 200
    assert prompt(seeing) == expected
    blocks = [document(type="url", url="https://a.example/remote")]
    assert seeing.post("/v1/messages", messages=[user(*blocks)]).status_code == 200
    assert prompt(seeing) == ["[user]a.pdf\nremote", PAGE, "[assistant]"]


def test_documents_on_a_model_for_texts() -> None:
    for server in serve():
        asked = [user(said("u"), file_part(PDF))]
        assert server.post("/v1/chat/completions", messages=asked).status_code == 200
        expected = "[user]u\na.pdf\n%PDF-1.4 the text[assistant]"
        assert prompt(server) == [expected]
        answer = server.post("/apply-template", messages=asked)
        assert answer.json() == {"prompt": expected}


@pytest.mark.parametrize(
    ("file", "status", "message"),
    [
        ({"file_data": encoded(b"\xff\xfe")}, 501, "PDF files and texts in UTF-8"),
        ({"file_data": "no base64!"}, 400, "base64"),
        ({"file_id": "f"}, 501, "keeps no files"),
        ({}, 400, "file_data is missing"),
    ],
)
def test_documents_that_are_refused(
    file: dict[str, str], status: int, message: str, seeing: Server
) -> None:
    part = {"type": "file", "file": file}
    refused = seeing.post("/v1/chat/completions", messages=[user(part)])
    assert refused.status_code == status
    assert message in refused.json()["error"]["message"]


def test_a_file_has_no_place_in_instructions(seeing: Server) -> None:
    source = {"type": "base64", "data": encoded(PDF)}
    block = {"type": "document", "source": source}
    answer = {"role": "assistant", "content": [block]}
    refused = seeing.post("/v1/messages", messages=[user(said("u")), answer, user(said("v"))])
    assert refused.status_code == 501
    assert "files are not supported here" in refused.json()["error"]["message"]


# ---- refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "part", "status", "message"),
    [
        (INFO, picture(b"a"), 501, "image input is not supported - hint: if this is unexpected"),
        (INFO, recording(b"a"), 501, "audio input is not supported - hint: if this is unexpected"),
        (EYES, recording(b"a"), 501, "audio input is not supported"),
        (EARS, picture(b"a"), 501, "image input is not supported"),
        (INFO, film(b"a"), 501, "video input is not supported - hint: if this is unexpected"),
        (EARS, film(b"a"), 501, "video input is not supported"),
        (EYES, {"type": "video_url", "video_url": {"url": "no base64!"}}, 400, "base64"),
        (EYES, {"type": "input_video", "input_video": {}}, 400, "neither a URL nor base64"),
        (EYES, {"type": "image_url", "image_url": {"url": "no base64!"}}, 400, "base64"),
        (EYES, {"type": "image_url", "image_url": {"url": "data:image/png"}}, 400, "comma"),
        (EYES, picture(b"bad"), 400, "this is no image"),
    ],
)
def test_unsupported_media(info: Any, part: Any, status: int, message: str) -> None:
    for server in serve(info):
        for stream in (False, True):
            refused = server.post(
                "/v1/chat/completions", messages=[user(said("a"), part)], stream=stream
            )
            assert refused.status_code == status
            message_of = refused.json()["error"]["message"]
            assert message_of.startswith("messages[0].content[1]: ")
            assert message in message_of
        assert not server.engine.generations


@pytest.mark.parametrize("form", ["input_video", "video_url"])
def test_videos(form: str, seeing: Server) -> None:
    asked = [user(said("See"), film(b"v", form), said("Who?"))]
    assert seeing.post("/v1/chat/completions", messages=asked).status_code == 200
    assert prompt(seeing) == [
        "[user]See",
        "Video:",
        image(b"v"),
        "[0m0.00s]",
        "Who?[assistant]",
    ]
    part = {"inlineData": {"mimeType": "video/mp4", "data": encoded(b"g")}}
    body = {"contents": [{"role": "user", "parts": [part]}]}
    answer = seeing.http.post("/v1beta/models/a:generateContent", json=body)
    assert answer.status_code == 200
    assert prompt(seeing) == ["[user]", "Video:", image(b"g"), "[0m0.00s]", "[assistant]"]


def test_videos_without_their_library(seeing: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "reads_videos", lambda: False)
    asked = [user(said("See"), film(b"v"))]
    refused = seeing.post("/v1/chat/completions", messages=asked)
    assert refused.status_code == 501
    message = refused.json()["error"]["message"]
    assert message.startswith("messages[0].content[1]: videos need an extra of this server")
    assert message.endswith('pip install "specllama[video]"')
    modalities = seeing.get("/props").json()["modalities"]
    assert modalities == {"vision": True, "audio": False, "video": False}


def test_native_media_on_a_model_for_texts() -> None:
    for server in serve():
        given = {"prompt_string": media_marker(), "multimodal_data": [encoded(b"a")]}
        refused = server.post("/completion", prompt=given)
        assert refused.status_code == 501
        assert "does not support multimodal requests" in refused.json()["error"]["message"]


def test_there_is_no_place_for_media_around_a_gap(seeing: Server) -> None:
    given = {"prompt_string": media_marker(), "multimodal_data": [encoded(b"a")]}
    assert seeing.post("/v1/completions", prompt=given, suffix="b").status_code == 400


# ---- properties of the server ------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "kinds"), [(INFO, []), (EYES, ["vision"]), (BOTH, ["vision", "audio"])]
)
def test_modalities(info: Any, kinds: list[str]) -> None:
    for server in serve(info):
        props = server.get("/props").json()
        shown = [kind for kind, is_there in props["modalities"].items() if is_there]
        assert shown == ([*kinds, "video"] if kinds else [])
        assert props["media_marker"] == media_marker()
        shown = server.http.post("/api/show", json={"model": "a"}).json()["capabilities"]
        assert [each for each in shown if each in ("vision", "audio")] == kinds
        models = server.get("/v1/models").json()
        [entry], [summary] = models["data"], models["models"]
        names = {"vision": "image", "audio": "audio"}
        expected = ["text", *(names[kind] for kind in kinds)]
        assert entry["architecture"]["input_modalities"] == expected
        assert ("multimodal" in summary["capabilities"]) == bool(kinds)


# ---- transcriptions ----------------------------------------------------------------------


def transcribed(server: Server, data: bytes = b"wav", **form: str) -> Any:
    return server.http.post(
        "/v1/audio/transcriptions", data=form, files={"file": ("a.wav", data, "audio/wav")}
    )


@pytest.fixture(scope="module")
def hearing() -> Iterator[Server]:
    yield from serve(EARS)


def test_a_transcription(hearing: Server) -> None:
    answer = hearing.checked(transcribed(hearing, model="any"), "/v1/audio/transcriptions").json()
    assert answer["text"] == "One zwei três 四\n"
    assert answer["type"] == "transcript.text.done"
    assert answer["usage"]["total_tokens"] == 12
    assert prompt(hearing) == ["[user]Transcribe audio to text", sound(b"wav"), "[assistant]"]


def test_the_question(hearing: Server) -> None:
    answer = transcribed(hearing, prompt="Listen", language="de", temperature="0.5", max_tokens="7")
    assert answer.status_code == 200
    assert prompt(hearing)[0] == "[user]Listen (language: de)"
    params = hearing.engine.generations[-1].params
    assert (params.temperature, params.n_predict, params.stream) == (0.5, 7, False)


def test_a_text_alone(hearing: Server) -> None:
    answer = transcribed(hearing, response_format="text")
    assert answer.text == "One zwei três 四\n"
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_stream(hearing: Server) -> None:
    answer = hearing.checked(transcribed(hearing, stream="true"), "/v1/audio/transcriptions")
    frames = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert frames[-1] == "[DONE]"
    *deltas, done = [msgspec.json.decode(frame) for frame in frames[:-1]]
    assert "".join(each["delta"] for each in deltas) == done["text"] == "One zwei três 四\n"


def test_a_recording_is_not_counted_as_json(hearing: Server) -> None:
    data = b'{"a":[,:]}' * 60_000
    assert transcribed(hearing, data=data).status_code == 200
    assert prompt(hearing)[1] == sound(data)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"temperature": "hot"}, 'temperature: "hot" is not a number'),
        ({"response_format": "srt"}, "response_format"),
        ({"stream": "perhaps"}, "stream"),
        ({"max_tokens": "1.5"}, "max_tokens"),
    ],
)
def test_forms_that_are_refused(hearing: Server, form: dict[str, str], message: str) -> None:
    refused = hearing.checked(transcribed(hearing, b"wav", **form), "/v1/audio/transcriptions")
    assert refused.status_code == 400
    assert message in refused.json()["error"]["message"]


def test_forms_without_a_recording(hearing: Server) -> None:
    path = "/v1/audio/transcriptions"
    for request, status in (
        ({"files": {"other": b"a"}}, 400),
        ({"files": {"file": (None, "text")}}, 400),
        ({"files": {"file": ("a.wav", b"")}}, 400),
        ({"json": {"file": "a"}}, 415),
        ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=b"}}, 400),
    ):
        answer = hearing.checked(hearing.http.post(path, **request), path)
        assert answer.status_code == status, (request, answer.text)


def test_a_model_that_does_not_hear() -> None:
    for server in serve(EYES):
        refused = server.checked(transcribed(server), "/v1/audio/transcriptions")
        assert refused.status_code == 501
        message = "The current model does not support audio input."
        assert refused.json()["error"]["message"].startswith(message)
