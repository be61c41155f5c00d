"""The handlers with the real description and real sockets, and a fake engine."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import msgspec
from connexion.spec import Specification

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import EngineError, ErrorInfo, invalid_request
from specllama.engine.formats.schema_check import compile_schema
from specllama.engine.media.source import MediaSource
from specllama.engine.options.tables.multimodal import MediaInputOptions
from specllama.engine.params import GenerationParams
from specllama.engine.shipped import MODEL_NAME
from specllama.engine.wire.media import Document, Media, MediaKind
from specllama.engine.wire.replies import (
    Begun,
    Delta,
    Finished,
    ModelInfo,
    Slots,
    SlotState,
    Timings,
    Tokens,
    WaitingState,
)
from specllama.engine.wire.requests import PromptParts, Submit
from specllama.engine.wire.stats import MissReason, Stats
from specllama.handlers.binding.application import serve_description
from specllama.handlers.running.runtime import Runtime
from specllama.handlers.slots import unused_slot
from tests.support.factories import model_info
from tests.support.http_support import PaperPool, serving, small_runtime
from tests.support.options_support import model_options

DESCRIPTION = Path(__file__).parents[2] / "openapi" / "server.yaml"
WORDS = ["One ", "zwei ", "três", "", " 四\n"]
INFO = model_info(
    chat_template=(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[{{ word | default('assistant') }}]{% endif %}"
    ),
)


class PaperGeneration:
    """Generates `words`, and ends after them unless they are WORDS. The prompt `fail` fails at
    once, `late` after a word, and `hang` never ends."""

    def __init__(
        self, prompt: PromptParts, params: GenerationParams, words: Sequence[str] = WORDS
    ) -> None:
        self.words = words
        self.request = Submit(1, prompt, params)
        self.prompt = prompt
        self.params = params
        self.cancelled = threading.Event()
        self.relaxed: list[str] = []
        self._over = False
        self._events = self._make()

    @property
    def ready(self) -> bool:
        return self._over

    def __aiter__(self) -> "PaperGeneration":
        return self

    async def __anext__(self) -> Delta | Finished:
        await asyncio.sleep(0)
        event = await anext(self._events)
        self._over = isinstance(event, Finished)
        return event

    async def result(self) -> Finished:
        async for event in self:
            if isinstance(event, Finished):
                return event
        raise AssertionError

    async def accepted(self) -> None:
        if self.prompt[0] == "fail":
            await anext(self._events)

    async def begun(self) -> Begun:
        await self.accepted()
        return Begun(1)

    def cancel(self) -> None:
        self.cancelled.set()

    async def _make(self) -> AsyncIterator[Delta | Finished]:
        how = self.prompt[0]
        if how == "fail":
            message = "the prompt is too long"
            raise EngineError(
                ErrorInfo("exceed_context_size_error", message, n_prompt_tokens=99, n_ctx=64)
            )
        tokens = list(range(len(self.words)))
        if self.params.stream:
            for token, word in enumerate(self.words):
                timings = Timings(4, 3, 6.0, token + 1, 5.0 * token)
                yield Delta(1, word, [token], 1, timings)
                if how == "late":
                    raise invalid_request("late")
        if how == "hang":
            await asyncio.Event().wait()
        yield Finished(
            id=1,
            text="" if self.params.stream else "".join(self.words),
            tokens=[] if self.params.stream else tokens,
            stop_type="limit" if self.words is WORDS else "eos",
            stopping_word="",
            truncated=False,
            has_new_line=True,
            id_slot=1,
            prompt="|".join(map(str, self.prompt)),
            n_prompt=7,
            n_decoded=len(tokens),
            timings=Timings(4, 3, 6.0, len(tokens), 20.0),
            params=self.params,
        )


class PaperEngine:
    info = INFO

    def __init__(self) -> None:
        self.generations: list[PaperGeneration] = []
        self.says: str | None = None  # the next generations, a character at a time
        self.owners: list[tuple[int, bool]] = []  # and whether they share nothing
        self.busy = False
        self.missed: MissReason | None = None
        self.waiting: list[WaitingState] = []
        self.counts = Stats()

    async def stats(self) -> Stats:
        return self.counts

    def generate(
        self,
        prompt: PromptParts,
        params: GenerationParams,
        *,
        echo_prompt: bool = False,
        confirm: bool = False,
    ) -> PaperGeneration:
        words = WORDS if self.says is None else list(self.says)
        self.generations.append(PaperGeneration(prompt, params, words))
        return self.generations[-1]

    def generate_all(
        self, prompt: PromptParts, variants: Sequence[GenerationParams], **options: Any
    ) -> list[PaperGeneration]:
        options.pop("group")
        options.pop("prompt_probs")
        options.pop("terms", None)
        options.pop("meter", None)
        options.pop("on_begun")()
        self.owners.append((options.pop("owner"), options.pop("private")))
        return [self.generate(prompt, params, **options) for params in variants]

    async def tokenize(
        self, content: list[Any], *, add_special: bool, parse_special: bool, with_pieces: bool
    ) -> Tokens:
        tokens = [int(add_special), int(parse_special)]
        for part in content:
            tokens += [-1, -1, -1] if isinstance(part, Media) else part.encode()
        return Tokens(1, tokens, {token: [195] for token in tokens} if with_pieces else None)

    async def detokenize(self, tokens: list[int]) -> str:
        if max(tokens, default=0) >= INFO.n_vocab:
            raise invalid_request("no such token")
        return bytes(tokens).decode()

    async def format_chat(
        self, template: str, messages: list[tuple[str, str]], add_generation_prompt: bool
    ) -> str:
        return f"{template}{messages}{add_generation_prompt}"

    async def slots_and_queue(self) -> Slots:
        return Slots(0, await self.slots(), self.waiting, len(self.waiting))

    async def slots(self) -> list[SlotState]:
        used = replace_struct(
            unused_slot(64),
            id=1,
            id_task=5,
            params=GenerationParams(seed=3),
            n_prompt_tokens_cache=4,
            cache_miss_reason=self.missed,
            key_name="bob",
        )
        return [replace_struct(slot, is_processing=self.busy) for slot in (unused_slot(64), used)]


def replace_struct(slot: SlotState, **changes: Any) -> SlotState:
    return msgspec.structs.replace(slot, **changes)


class PaperSupervisor:
    state = "ready"
    failure = ""

    def __init__(self, engine: PaperEngine) -> None:
        self.options = model_options(model=MODEL_NAME)
        self.info: ModelInfo | None = INFO
        self._engine = engine

    async def engine(self) -> PaperEngine:
        return self._engine

    def awake_engine(self) -> PaperEngine:
        return self._engine

    def sleeping_snapshot(self) -> None:
        return None


@cache
def described_paths() -> Mapping[str, Any]:
    paths: Mapping[str, Any] = Specification.load(DESCRIPTION).spec["paths"]
    return paths


class DescribedServer:
    """A client of a server, which checks all answers against the description."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=SECONDS)
        self._paths = described_paths()

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return self.checked(self.http.get(path, params=parameters), path)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.checked(self.http.post(path, json=body), path)

    @contextmanager
    def asking(self, path: str, **body: Any) -> Iterator[socket.socket]:
        """Sends a request, yields the connection, and closes it at the end, even with unread
        data."""
        content, url = json.dumps(body).encode(), self.http.base_url
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        address = (url.host, url.port or 80)
        with socket.create_connection(address, timeout=SECONDS) as connection:
            connection.sendall(head.encode() + content)
            yield connection

    def events(self, path: str, **body: Any) -> list[Any]:
        """Returns the documents of a stream; the end marker stays a text."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        found = [line.removeprefix("data: ") for line in response.text.split("\n\n")[:-1]]
        return [data if data == "[DONE]" else json.loads(data) for data in found]

    def checked(self, response: httpx.Response, path: str) -> httpx.Response:
        operation = self._paths[path][response.request.method.lower()]
        described = operation["responses"][str(response.status_code)]["content"]
        type_ = response.headers["content-type"].split(";")[0]
        if type_ == "application/json":
            compile_schema(described[type_]["schema"]).validate(response.json())
            return response
        events = response.text.split("\n\n")[:-1]
        schema = compile_schema(described[type_]["x-event-data-schema"])
        for event in events:
            data = event.partition("data: ")[2]
            if data != described[type_].get("x-event-end"):
                schema.validate(json.loads(data))
        return response


class Server(DescribedServer):
    """A client of a server with a `PaperEngine`."""

    def __init__(
        self, engine: PaperEngine, supervisor: PaperSupervisor, runtime: Runtime, url: str
    ) -> None:
        super().__init__(url)
        self.engine = engine
        self.runtime = runtime
        self.supervisor = supervisor


class PaperDecoder:
    """Accepts any bytes as the expected medium, or as an image; the end of an address is its
    content. A document has a page of text, and one that is only an image. A video has a frame."""

    def __init__(self) -> None:
        self.sources: list[MediaSource] = []
        self.draws = False

    async def decode(
        self,
        sources: Sequence[MediaSource],
        options: MediaInputOptions,
        *,
        images: bool,
        sample_rate: int,
    ) -> list[Media | Document]:
        self.sources += sources
        self.draws = images
        return [self._decoded(each) for each in sources]

    def _decoded(self, source: MediaSource) -> Media | Document:
        data = source.content
        if isinstance(data, str):
            data = data.rpartition("/")[2].encode()
        if data == b"bad":
            raise invalid_request(f"{source.place}: this is no image")
        if source.kind == "document":
            page = Media("image", b"", b"page", 1, 1)
            return Document([data.decode(), page] if self.draws else [data.decode()])
        if source.kind == "video":
            return Document(["Video:", Media("image", b"", data, 1, 1), "[0m0.00s]"])
        kind: MediaKind = source.kind or ("audio" if data == b"sound" else "image")
        return Media(kind, b"", data, *((0, 0) if kind == "audio" else (1, 1)))


def serve(info: ModelInfo = INFO, **options: Any) -> Iterator[Server]:
    engine = PaperEngine()
    engine.info = info
    supervisor: Any = PaperSupervisor(engine)
    supervisor.info = info
    pool: Any = PaperPool(supervisor)
    decoder: Any = PaperDecoder()
    current = replace(small_runtime(**options), pool=pool, media=decoder)

    @asynccontextmanager
    async def states(_: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"runtime": current}

    with serving(serve_description(DESCRIPTION, "", states)) as (host, port):
        server = Server(engine, supervisor, current, f"http://{host}:{port}")
        with server.http:
            yield server
