"""A stand-in for an engine process, with answers that a test has written.

python -m tests.support.stand_in_engine FOLDER        (as `specllama.engine.worker`, by its pipes)

It speaks the protocol of a real engine process, and sends the same events in the same order. There
is no model: a token is a byte, and the text of each request is the next turn of the `Script` in
FOLDER. It has one slot; requests wait for it in the order of their arrival.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import cycle, takewhile
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo, invalid_request, not_supported
from specllama.engine.wire.engine_log import send_log
from specllama.engine.wire.link import Link, take_over
from specllama.engine.wire.media import Media
from specllama.engine.wire.replies import (
    Accepted,
    Adapters,
    Begun,
    Delta,
    Ended,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Progress,
    PromptProgress,
    Ready,
    Relaxed,
    Slots,
    SlotState,
    StatsReply,
    Step,
    StopType,
    Text,
    Timings,
    Tokens,
    ToServer,
)
from specllama.engine.wire.requests import (
    Cancel,
    Detokenize,
    EndThoughts,
    GetAdapters,
    GetSlots,
    GetStats,
    Infill,
    Load,
    MeasureMemory,
    Pause,
    PromptParts,
    Resume,
    SetAdapters,
    Submit,
    ToEngine,
    Tokenize,
    apart,
    to_engine_decoder,
)
from specllama.engine.wire.stats import Stats
from specllama.engine.worker.generation.request import TextStream
from tests.support.factories import model_info

START, END = 256, 257  # tokens; all others are bytes
N_CTX = 1 << 20  # tokens
MEDIUM = [-1, -1, -1]  # the tokens of each image or sound
STEPS = (1, 2, 3)  # tokens of successive steps, as from an engine that speculates
INFO = model_info(
    n_vocab=END + 1,
    n_ctx=N_CTX,
    n_ctx_train=N_CTX,
    n_slots=1,
    chat_template=(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
)


class Turn(msgspec.Struct, frozen=True):
    """The model's answer to one request. With an `error`, the request fails after this text; with
    `dies`, the process ends there. If the text is empty, this happens before the request begins."""

    text: str = ""
    error: ErrorInfo | None = None
    dies: bool = False


class Script:
    """The remaining turns and the received prompts, in files of a folder. A test writes turns only
    while no request runs."""

    def __init__(self, folder: Path) -> None:
        self._turns = folder / "turns.json"
        self._prompts = folder / "prompts.json"

    @property
    def turns(self) -> list[Turn]:
        return msgspec.json.decode(self._turns.read_bytes(), type=list[Turn])

    @property
    def prompts(self) -> list[str]:
        return msgspec.json.decode(self._prompts.read_bytes(), type=list[str])

    def begin(self, *turns: Turn) -> None:
        """Writes the turns of a session, and clears the received prompts."""
        self._turns.write_bytes(msgspec.json.encode(turns))
        self._prompts.write_bytes(b"[]")

    def take(self, prompt: str) -> Turn:
        """Returns the turn that answers `prompt`. Raises `EngineError` if there is no more turn."""
        self._prompts.write_bytes(msgspec.json.encode([*self.prompts, prompt]))
        if not (turns := self.turns):
            raise invalid_request("the script has no turn for this request")
        self._turns.write_bytes(msgspec.json.encode(turns[1:]))
        return turns[0]


def tokens_of(prompt: PromptParts, *, add_special: bool) -> list[int]:
    tokens = [START] if add_special and prompt and isinstance(prompt[0], str) else []
    for part in prompt:
        if isinstance(part, str):
            tokens += part.encode()
        else:
            tokens += MEDIUM if isinstance(part, Media) else [part]
    return tokens


def text_of(tokens: list[int]) -> str:
    """Returns the text of tokens. Raises `EngineError` if a token is not in the vocabulary."""
    if not all(0 <= token <= END for token in tokens):
        raise invalid_request("a token is not in the vocabulary")
    return bytes(token for token in tokens if token < START).decode("utf-8", "replace")


def n_shared(one: list[int], other: list[int]) -> int:
    """Returns the length of the longest common prefix."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


class Answer:
    """One running request: `turn` answers `prompt`, of which the first `n_cached` tokens needn't be
    evaluated."""

    def __init__(self, submit: Submit, turn: Turn, prompt: list[int], n_cached: int) -> None:
        self.id = submit.id
        self.turn = turn
        self.prompt = prompt
        self.said: list[int] = []
        self.is_paused = False
        self._submit = submit
        self._params = submit.params
        self._n_cached = n_cached
        answer = submit.params.answer
        self._stream = TextStream(submit.params.stop, answer.stops if answer else None)
        self._pending = ""  # text that no event has carried
        self._text = ""  # all
        self._n_sent = 0
        self._sizes = cycle(STEPS)
        self._events = self._make()
        self._began = time.perf_counter()

    def queued(self) -> list[Event]:
        """Returns the events of a valid request before it gets the slot."""
        rules = self._params.answer
        events: list[Event] = []
        if rules is not None and rules.relaxed:
            events.append(Relaxed(self.id, rules.relaxed))
        if self._submit.confirm or self.is_metered:
            n_predict = self._params.n_predict
            room = N_CTX - len(self.prompt) if n_predict < 0 else n_predict
            events.append(Accepted(self.id, len(self.prompt) - self._n_cached + room))
        return events

    @property
    def is_metered(self) -> bool:
        return self._submit.terms.is_metered

    def step(self) -> list[Event] | None:
        """Returns the events of one step; None after the end."""
        return next(self._events, None)

    def _make(self) -> Iterator[list[Event]]:
        reports = self._params.stream and self._params.return_progress
        yield [Begun(self.id), *([self._progress(self._n_cached)] if reports else [])]
        if reports:
            yield [self._progress(len(self.prompt))]
        tokens = [*self.turn.text.encode(), END]
        if self.turn.error is not None or self.turn.dies:
            tokens.pop()
        if self._params.n_predict == 0:
            yield self._finish("limit")
            return
        while tokens:
            events: list[Event] = []
            for token in [tokens.pop(0) for _ in tokens[: next(self._sizes)]]:
                stop = self._accept(token)
                if stop != "none":
                    yield [*events, *self._finish(stop)]
                    return
                if self._params.stream and (self._pending or self._stream.is_whole):
                    events.append(self._delta())
            yield events
        if self.turn.dies:
            system.leave(1)
        if self.turn.error is not None:
            yield [Failed(self.id, self.turn.error, self.timings if self.is_metered else None)]

    def _accept(self, token: int) -> StopType:
        """Adds `token` to the answer. Returns the reason if the text ends with it."""
        self.said.append(token)
        self._show(self._stream.feed(bytes([token]) if token < START else b""))
        if self._stream.stopping_word:
            return "word"
        if token == END:
            return "eos"
        n = len(self.said)
        return "limit" if n == self._params.n_predict or len(self.prompt) + n >= N_CTX else "none"

    def _show(self, text: str) -> None:
        self._pending += text
        self._text += text

    def _finish(self, stop: StopType) -> list[Event]:
        if not self._stream.stopping_word:
            self._show(self._stream.finish())
        stop = "word" if self._stream.stopping_word else stop
        streams = self._params.stream
        rest: list[Event] = []
        if streams and (self._pending or self._n_sent < len(self.said)):
            rest = [self._delta()]
        parts = self._submit.prompt
        echoes = self._submit.echo_prompt and not isinstance(parts, Infill)
        finished = Finished(
            id=self.id,
            text="" if streams else self._text,
            tokens=[] if streams else self.said,
            stop_type=stop,
            stopping_word=self._stream.stopping_word,
            truncated=stop == "limit" and len(self.prompt) + len(self.said) >= N_CTX,
            has_new_line="\n" in self._text,
            id_slot=0,
            prompt=text_of(self.prompt) if echoes else "",
            n_prompt=len(self.prompt),
            n_decoded=len(self.said),
            timings=self.timings,
            params=self._params,
        )
        return [*rest, finished]

    def _delta(self) -> Delta:
        """Returns an event with the text and tokens that no earlier event had."""
        text, self._pending = self._pending, ""
        tokens = self.said[self._n_sent :]
        self._n_sent = len(self.said)
        return Delta(self.id, text, tokens, 0, self.timings)

    def _progress(self, processed: int) -> Delta:
        seconds = time.perf_counter() - self._began
        progress = PromptProgress(len(self.prompt), self._n_cached, processed, 1e3 * seconds)
        return Delta(self.id, "", [], 0, self.timings, progress=progress)

    @property
    def timings(self) -> Timings:
        ms = 1e3 * (time.perf_counter() - self._began)
        return Timings(self._n_cached, len(self.prompt) - self._n_cached, ms, len(self.said), ms)


class StandIn:
    """The loop of the process: receive, step, emit."""

    def __init__(self, link: Link[ToEngine, ToServer], script: Script) -> None:
        self._link = link
        self._script = script
        self._inbox: SimpleQueue[ToEngine | None] = SimpleQueue()
        self._answers: list[Answer] = []  # the first one that isn't paused has the slot
        self._cached: list[int] = []  # the text that was evaluated last

    def run(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            answer = next((each for each in self._answers if not each.is_paused), None)
            try:
                message = self._inbox.get(block=answer is None)
            except Empty:
                if answer is not None:
                    self._step(answer)
                continue
            if message is None:
                return
            self._take(message)

    def _read(self) -> None:
        while messages := self._link.receive():
            for message in messages:
                self._inbox.put(message)
        self._inbox.put(None)

    def _step(self, answer: Answer) -> None:
        events = answer.step()
        if events is None:
            self._answers.remove(answer)
        elif events:
            self._cached = answer.prompt + answer.said
            self._link.send(Step([*events]))

    def _take(self, message: ToEngine) -> None:
        match message:
            case Submit():
                for each in apart(message, message.prompt):
                    self._submit(each)
            case Cancel(id=id):
                for answer in [each for each in self._answers if each.id == id]:
                    self._answers.remove(answer)
                    if answer.is_metered:
                        self._link.send(Step([Ended(id, answer.timings)]))
            case Pause(id=id) | Resume(id=id):
                for answer in self._answers:
                    if answer.id == id:
                        answer.is_paused = isinstance(message, Pause)
            case EndThoughts() | Load() | MeasureMemory():
                pass
            case _:
                try:
                    self._link.send(self._reply(message))
                except EngineError as error:
                    self._link.send(Failed(message.id, error.info))

    def _submit(self, submit: Submit) -> None:
        try:
            answer = self._answer(submit)
        except EngineError as error:
            self._link.send(Failed(submit.id, error.info))
            return
        self._answers.append(answer)
        if events := answer.queued():
            self._link.send(Step([*events]))

    def _answer(self, submit: Submit) -> Answer:
        """Begins the answer to a request. Raises `EngineError` if it is invalid or unsupported."""
        if isinstance(submit.prompt, Infill) or submit.params.n_probs:
            raise not_supported("this stand-in neither fills gaps nor knows probabilities")
        tokens = tokens_of(submit.prompt, add_special=INFO.add_bos)
        turn = self._script.take("".join(map(str, submit.prompt)))
        if turn.dies and not turn.text:
            system.leave(1)
        if turn.error is not None and not turn.text:
            raise EngineError(turn.error)
        return Answer(submit, turn, tokens, n_shared(self._cached, tokens[:-1]))

    def _reply(self, message: ToEngine) -> ToServer:
        """Returns the reply to a message. Raises `EngineError` if it needs a real model."""
        match message:
            case Tokenize(id=id, content=content):
                tokens = tokens_of(content, add_special=message.add_special)
                pieces = {t: [t] if 128 <= t < START else text_of([t]) for t in tokens if t >= 0}
                return Tokens(id, tokens, pieces if message.with_pieces else None)
            case Detokenize(id=id, tokens=tokens):
                return Text(id, text_of(tokens))
            case GetSlots(id=id):
                return Slots(id, [SlotState(id=0, n_ctx=N_CTX, is_processing=bool(self._answers))])
            case GetAdapters(id=id) | SetAdapters(id=id):
                return Adapters(id, [])
            case GetStats(id=id):
                return StatsReply(id, Stats(n_processing=len(self._answers)))
        raise not_supported("this stand-in has no model")


def beat(link: Link[ToEngine, ToServer]) -> None:
    while True:
        time.sleep(1)
        try:
            link.send(Heartbeat())
        except OSError:  # the server is gone
            os._exit(0)


def main(folder: Path) -> int:
    link: Link[ToEngine, ToServer] = take_over(to_engine_decoder)
    match link.receive():
        case [Load() as load]:
            send_log(load.log_level)
        case _:
            return 2
    threading.Thread(target=beat, args=(link,), daemon=True).start()
    link.send(Progress(1.0))
    link.send(Ready(INFO))
    StandIn(link, Script(folder)).run()
    return 0


if __name__ == "__main__":
    system.leave(main(Path(sys.argv[1])))
