"""The handlers behind the real description and real sockets, with an engine made of paper."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from connexion.spec import Specification

from engine.errors import EngineError, ErrorInfo, invalid_request
from engine.options import Options
from engine.params import GenerationParams
from engine.protocol.messages import Delta, Finished, ModelInfo, Piece, SlotState, Timings, Tokens
from engine.shipped import MODEL_NAME
from handlers.http.application import serve_description
from handlers.http.schema import compile_schema
from handlers.slots import unused_slot
from tests.support.http_support import PaperPool, serving, small_runtime

DESCRIPTION = Path(__file__).parents[2] / "openapi" / "server.yaml"
WORDS = ["One ", "zwei ", "três", "", " 四\n"]
INFO = ModelInfo(
    vocab_type=2,
    n_vocab=300,
    n_ctx_train=64,
    n_embd=8,
    n_params=1000,
    size=4000,
    description="paper",
    bos_token="<s>",
    eos_token="</s>",
    add_bos=True,
    add_eos=False,
    chat_template=(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[{{ word | default('assistant') }}]{% endif %}"
    ),
    n_slots=2,
    n_ctx=64,
)


class PaperGeneration:
    """Says WORDS. A prompt `fail` fails at once, `late` after a word, `hang` never ends."""

    def __init__(self, prompt: list[int | str], params: GenerationParams) -> None:
        self.prompt = prompt
        self.params = params
        self.cancelled = threading.Event()
        self._events = self._make()

    def __aiter__(self) -> "PaperGeneration":
        return self

    async def __anext__(self) -> Delta | Finished:
        await asyncio.sleep(0)
        return await anext(self._events)

    async def result(self) -> Finished:
        async for event in self:
            if isinstance(event, Finished):
                return event
        raise AssertionError

    async def accepted(self) -> None:
        if self.prompt[0] == "fail":
            await anext(self._events)

    def cancel(self) -> None:
        self.cancelled.set()

    async def _make(self) -> AsyncIterator[Delta | Finished]:
        how = self.prompt[0]
        if how == "fail":
            message = "the prompt is too long"
            raise EngineError(
                ErrorInfo("exceed_context_size_error", message, n_prompt_tokens=99, n_ctx=64)
            )
        tokens = list(range(len(WORDS)))
        if self.params.stream:
            for token, word in enumerate(WORDS):
                timings = Timings(4, 3, 6.0, token + 1, 5.0 * token)
                yield Delta(1, word, [token], 1, timings)
                if how == "late":
                    raise invalid_request("late")
        if how == "hang":
            await asyncio.sleep(60)
        yield Finished(
            id=1,
            text="" if self.params.stream else "".join(WORDS),
            tokens=[] if self.params.stream else tokens,
            stop_type="limit",
            stopping_word="",
            truncated=False,
            has_new_line=True,
            id_slot=1,
            prompt="|".join(map(str, self.prompt)),
            n_prompt=7,
            n_decoded=len(WORDS),
            timings=Timings(4, 3, 6.0, len(WORDS), 20.0),
            params=self.params,
        )


class PaperEngine:
    info = INFO

    def __init__(self) -> None:
        self.generations: list[PaperGeneration] = []
        self.busy = False

    def generate(
        self,
        prompt: list[int | str],
        params: GenerationParams,
        *,
        echo_prompt: bool = False,
        confirm: bool = False,
    ) -> PaperGeneration:
        self.generations.append(PaperGeneration(prompt, params))
        return self.generations[-1]

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, with_pieces: bool
    ) -> Tokens:
        tokens = [int(add_special), int(parse_special), *text.encode()]
        return Tokens(1, tokens, [Piece(9, [195])] if with_pieces else None)

    async def detokenize(self, tokens: list[int]) -> str:
        if max(tokens, default=0) >= INFO.n_vocab:
            raise invalid_request("no such token")
        return bytes(tokens).decode()

    async def format_chat(
        self, template: str, messages: list[tuple[str, str]], add_generation_prompt: bool
    ) -> str:
        return f"{template}{messages}{add_generation_prompt}"

    async def slots(self) -> list[SlotState]:
        used = replace_struct(unused_slot(64), id=1, id_task=5, params=GenerationParams(seed=3))
        return [replace_struct(slot, is_processing=self.busy) for slot in (unused_slot(64), used)]


def replace_struct(slot: SlotState, **changes: Any) -> SlotState:
    return msgspec.structs.replace(slot, **changes)


class PaperSupervisor:
    state = "ready"
    failure = ""

    def __init__(self, engine: PaperEngine) -> None:
        self.options = Options(model=MODEL_NAME)
        self.info: ModelInfo | None = INFO
        self._engine = engine

    async def engine(self) -> PaperEngine:
        return self._engine


class Server:
    """A client of one served description, which checks all that it gets against it."""

    def __init__(self, engine: PaperEngine, supervisor: PaperSupervisor, url: str) -> None:
        self.engine = engine
        self.supervisor = supervisor
        self.http = httpx.Client(base_url=url, timeout=20)
        self._paths = Specification.load(DESCRIPTION).spec["paths"]

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return self._checked(self.http.get(path, params=parameters), path)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self._checked(self.http.post(path, json=body), path)

    def events(self, path: str, **body: Any) -> list[Any]:
        """The documents of a stream; the end marker stays a text."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        found = [line.removeprefix("data: ") for line in response.text.split("\n\n")[:-1]]
        return [data if data == "[DONE]" else json.loads(data) for data in found]

    def _checked(self, response: httpx.Response, path: str) -> httpx.Response:
        operation = self._paths[path][response.request.method.lower()]
        described = operation["responses"][str(response.status_code)]["content"]
        type_ = response.headers["content-type"].split(";")[0]
        if type_ == "application/json":
            compile_schema(described[type_]["schema"]).validate(response.json())
            return response
        events = response.text.split("\n\n")[:-1]
        schema = compile_schema(described[type_]["x-event-data-schema"])
        for event in events:
            if event != f"data: {described[type_].get('x-event-end')}":
                schema.validate(json.loads(event.removeprefix("data: ")))
        return response


def serve(**options: Any) -> Iterator[Server]:
    engine = PaperEngine()
    supervisor: Any = PaperSupervisor(engine)
    pool: Any = PaperPool(supervisor)
    current = replace(small_runtime(**options), pool=pool)

    @asynccontextmanager
    async def states(_: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"runtime": current}

    with serving(serve_description(DESCRIPTION, "", states)) as (host, port):
        server = Server(engine, supervisor, f"http://{host}:{port}")
        with server.http:
            yield server


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    yield from serve(alias="b,a")


@pytest.fixture
def server(shared_server: Server) -> Server:
    shared_server.engine.generations.clear()
    shared_server.engine.busy = False
    return shared_server


# ---- native completions ------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_completion(server: Server, path: str) -> None:
    answer = server.post(path, prompt="x", n_predict=5, seed=1).json()
    assert answer["content"] == "".join(WORDS)
    assert answer["tokens"] == []
    assert (answer["tokens_evaluated"], answer["tokens_cached"]) == (7, 4)
    assert answer["tokens_predicted"] == 5
    assert (answer["model"], answer["generation_settings"]["n_predict"]) == ("a", 5)
    [generation] = server.engine.generations
    assert generation.cancelled.is_set()


def test_tokens_on_request(server: Server) -> None:
    assert server.post("/completion", prompt="x", return_tokens=True).json()["tokens"]


def test_several_prompts_come_back_in_order(server: Server) -> None:
    answers = server.post("/completion", prompt=["x", [1, "y"], {"prompt_string": "z"}]).json()
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert [answer["prompt"] for answer in answers] == ["x", "1|y", "z"]


def test_a_stream(server: Server) -> None:
    *deltas, last = server.events("/completion", prompt="x")
    assert [delta["content"] for delta in deltas] == WORDS
    assert [delta["tokens"] for delta in deltas] == [[0], [1], [2], [3], [4]]
    assert [delta["tokens_predicted"] for delta in deltas] == [1, 2, 3, 4, 5]
    assert {(delta["tokens_evaluated"], delta["id_slot"]) for delta in deltas} == {(7, 1)}
    assert not any("timings" in delta or delta["stop"] for delta in deltas)
    assert last["stop"]
    assert last["content"] == ""
    assert last["timings"]["predicted_n"] == 5
    *deltas, _ = server.events("/completion", prompt="x", timings_per_token=True)
    assert [delta["timings"]["predicted_n"] for delta in deltas] == [1, 2, 3, 4, 5]


def test_a_stream_of_several_prompts(server: Server) -> None:
    events = server.events("/completion", prompt=["x", "y", "z"])
    for index in range(3):
        mine = [event for event in events if event["index"] == index]
        assert "".join(event["content"] for event in mine) == "".join(WORDS)
        assert [event["stop"] for event in mine] == [False] * 5 + [True]


def test_an_error_before_the_first_event_is_no_stream(server: Server) -> None:
    for stream in (False, True):
        for path in ("/completion", "/v1/completions"):
            response = server.post(path, prompt="fail", stream=stream)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["type"] == "exceed_context_size_error"
            assert (error["n_prompt_tokens"], error["n_ctx"]) == (99, 64)


def test_a_later_error_is_the_last_event(server: Server) -> None:
    first, last = server.events("/completion", prompt="late")
    assert first["content"] == WORDS[0]
    assert last["error"]["message"] == "late"


@pytest.mark.parametrize("stream", [False, True])
def test_one_failure_ends_all(server: Server, stream: bool) -> None:
    response = server.post("/completion", prompt=["hang", "fail"], stream=stream)
    assert response.status_code == 400
    assert "exceed_context_size_error" in response.text
    assert all(generation.cancelled.wait(5) for generation in server.engine.generations)


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
@pytest.mark.parametrize("prompt", ["hang", ["hang", "hang"]])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels(server: Server, path: str, prompt: Any, stream: bool) -> None:
    body = {"prompt": prompt, "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        server.http.post(path, json=body, timeout=0.5)
    assert len(server.engine.generations) == (1 if prompt == "hang" else 2)
    assert all(generation.cancelled.wait(5) for generation in server.engine.generations)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": []}, 400),
        ({"prompt": [[]]}, 400),
        ({"prompt": [1.5]}, 400),
        ({"prompt": [-1]}, 400),
        ({"prompt": None}, 400),
        ({}, 400),
        ({"prompt": "x", "logit_bias": [[1, 2, 3]]}, 400),
        ({"prompt": "x", "logit_bias": [[False, False]]}, 400),
        ({"prompt": ["x"] * 5, "n": 1000}, 400),
        ({"prompt": "x", "json_schema": {}, "grammar": "root ::= x"}, 400),
        ({"prompt": "x", "response_format": {"type": "json_schema"}}, 400),
    ],
)
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_refusals(server: Server, path: str, body: dict[str, Any], status: int) -> None:
    assert server.post(path, **body).status_code == status
    assert not server.engine.generations


# ---- OpenAI completions ------------------------------------------------------------------


def test_an_openai_completion(server: Server) -> None:
    answer = server.post("/v1/completions", prompt=["x", "y"], model="mine", max_tokens=5).json()
    assert [choice["text"] for choice in answer["choices"]] == ["".join(WORDS)] * 2
    assert answer["model"] == "mine"
    assert answer["usage"]["total_tokens"] == 24
    assert server.engine.generations[0].params.n_predict == 5


def test_an_openai_stream(server: Server) -> None:
    *chunks, last, done = server.events("/v1/completions", prompt="x")
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "".join(WORDS)
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 5


# ---- chat --------------------------------------------------------------------------------

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions"])
def test_a_chat(server: Server, path: str) -> None:
    answer = server.post(path, messages=MESSAGES).json()
    message = {"role": "assistant", "content": "".join(WORDS), "refusal": None}
    assert answer["choices"][0]["message"] == message
    assert answer["model"] == "a"
    assert server.engine.generations[0].prompt == ["[system]s[user]u[assistant]"]


def test_a_chat_stream(server: Server) -> None:
    options: dict[str, Any] = {"include_usage": True}
    first, *chunks, end, counts, done = server.events(
        "/v1/chat/completions", messages=MESSAGES, stream_options=options
    )
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == "".join(WORDS)
    assert end["choices"][0]["finish_reason"] == "length"
    assert counts["usage"]["total_tokens"] == 12
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({}, "[system]s[user]u[assistant]"),
        ({"add_generation_prompt": False}, "[system]s[user]u"),
        ({"chat_template_kwargs": {"word": "bot"}}, "[system]s[user]u[bot]"),
        ({"n_probs": 3}, "[system]s[user]u[assistant]"),
        (
            {"messages": [*MESSAGES, {"role": "assistant", "content": "Once"}]},
            "[system]s[user]u[assistant]Once",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "t"}] * 2}]},
            "[user]t\nt[assistant]",
        ),
        ({"messages": [{"role": "user", "content": "<s>"}]}, "[user]<s>[assistant]"),
        ({"messages": MESSAGES * 600}, "[system]s[user]u" * 600 + "[assistant]"),
    ],
)
def test_apply_template(server: Server, body: dict[str, Any], prompt: str) -> None:
    answer = server.post("/apply-template", **{"messages": MESSAGES, **body})
    assert answer.json() == {"prompt": prompt}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": []}, 400),
        ({"messages": [{"role": "user"}]}, 400),
        ({"messages": [{"role": "assistant", "content": "a"}] * 2}, 400),
        ({"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": "no"}}, 400),
        (
            {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f"}}] * 2},
            400,
        ),
        ({"messages": MESSAGES, "tool_choice": "required"}, 400),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://x"}}],
                    }
                ]
            },
            501,
        ),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template"])
def test_chat_refusals(server: Server, path: str, body: dict[str, Any], status: int) -> None:
    assert server.post(path, **body).status_code == status


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({"chat_template": "{{ bos_token }}!{{ messages[0].content }}"}, "!u"),
        ({"chat_template": "llama3"}, "llama3[('user', 'u')]True"),
        ({"jinja": False}, INFO.chat_template + "[('user', 'u')]True"),
        ({"chat_template_kwargs": {"word": "bot"}}, "[user]u[bot]"),
    ],
)
def test_template_options(options: dict[str, Any], prompt: str) -> None:
    for server in serve(**options):
        answer = server.post("/apply-template", messages=MESSAGES[1:])
        assert answer.json() == {"prompt": prompt}
        assert server.get("/props").json()["chat_template"]


def test_a_template_file_and_a_template_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ raise_exception('not with me') }}")
    for server in serve(chat_template_file=str(path)):
        response = server.post("/v1/chat/completions", messages=MESSAGES)
        assert response.status_code == 400
        assert "not with me" in response.json()["error"]["message"]
    path.write_text("{{ messages[0].content }}")


def test_an_invalid_template_leaves_props_alone() -> None:
    for server in serve(chat_template="{% if %}"):
        assert server.post("/v1/chat/completions", messages=MESSAGES).status_code == 500
        assert server.get("/props").json()["chat_template_caps"] == {}


# ---- the rest ----------------------------------------------------------------------------


def test_tokenize(server: Server) -> None:
    assert server.post("/tokenize", content="A").json() == {"tokens": [0, 1, 65]}
    flags = {"add_special": True, "parse_special": False}
    assert server.post("/tokenize", content="A", **flags).json() == {"tokens": [1, 0, 65]}
    pieces = server.post("/tokenize", content="A", with_pieces=True).json()
    assert pieces == {"tokens": [{"id": 9, "piece": [195]}]}


def test_detokenize(server: Server) -> None:
    assert server.post("/detokenize", tokens=[65, 66.0]).json() == {"content": "AB"}
    assert server.post("/detokenize", tokens=[]).json() == {"content": ""}
    assert server.post("/detokenize", tokens=[300]).status_code == 400


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_models(server: Server, path: str) -> None:
    [model] = server.get(path).json()["data"]
    assert (model["id"], model["aliases"]) == ("a", ["a", "b"])
    assert model["created"] <= time.time()
    assert model["meta"]["n_vocab"] == 300


def test_models_while_loading(server: Server) -> None:
    server.supervisor.info = None
    try:
        assert server.get("/models").json()["data"][0]["meta"] is None
    finally:
        server.supervisor.info = INFO


def test_props(server: Server) -> None:
    props = server.get("/props").json()
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["params"]["temperature"] == 0.800000011920929
    assert props["chat_template_caps"]["supports_system_role"]


def test_slots(server: Server) -> None:
    unused, used = server.get("/slots").json()
    assert (unused["id_task"], used["params"]["seed"]) == (-1, 3)
    assert server.get("/slots", fail_on_no_slot=1).status_code == 200
    server.engine.busy = True
    assert server.get("/slots").status_code == 200
    assert server.get("/slots", fail_on_no_slot=1).status_code == 503


def test_slots_show_texts_only_if_the_operator_wants_them(server: Server) -> None:
    private = {"stop", "grammar", "json_schema", "logit_bias", "dry_sequence_breakers"}
    for slot in server.get("/slots").json():
        assert not {"prompt", "generated"} & slot.keys()
        assert not private & slot["params"].keys()
    for telling in serve(slots_text=True):
        slot = telling.get("/slots").json()[0]
        assert {"prompt", "generated"} <= slot.keys()
        assert private <= slot["params"].keys()


def test_no_slots() -> None:
    for server in serve(slots=False):
        assert server.get("/slots").status_code == 501
        assert not server.get("/props").json()["endpoint_slots"]
