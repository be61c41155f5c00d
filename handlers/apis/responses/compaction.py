"""Compaction: one sealed item takes the place of a long conversation.

The model summarizes the conversation. If it can't, the oldest turns are left out instead. The item
has system messages and the newest turns unchanged. Facts: OpenAI's guide to compaction, and the
specification of Open Responses.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import cast

import msgspec

from specllama.engine.chat.request import ChatRequest, Message, ThinkingBudget, truncated
from specllama.engine.errors import invalid_request
from specllama.engine.models.client import EngineClient
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Finished
from specllama.engine.wire.requests import Terms
from specllama.handlers.apis.responses.items import Item, input_items, new_id
from specllama.handlers.apis.responses.messages import messages
from specllama.handlers.apis.thinking import template_variables
from specllama.handlers.apis.wishes import with_headers
from specllama.handlers.http import schemas
from specllama.handlers.http.log_fields import warn_ignored
from specllama.handlers.running.chat_batch import (
    ChatAnswer,
    ChatBatch,
    count_tokens,
    finish_reason,
    prepare,
)
from specllama.handlers.running.resolve_model import ResolvedModel
from specllama.handlers.running.run_in_thread import run_in_thread
from specllama.handlers.running.sealing import MAX_BYTES, Seal, Sealing
from specllama.handlers.running.terms import NO_WISHES

KIND = "compaction"
"""The type of the item, and the kind of its sealed content."""
MAX_SUMMARY = 1024
"""Tokens of a summary, but at most a quarter of the context."""
MAX_PASSES = 32
"""Summaries of one request. The oldest turns of a conversation that needs more are left out."""
_SYSTEM = ("system", "developer")

SUMMARIZE = (
    "Summarize our conversation so far, so that it can be continued from the summary alone. Keep "
    "goals, facts, names, numbers, decisions and open tasks. Write only the summary."
)
"""The request for a summary, unless the client's `instructions` replace it."""
RECALL = "What have we talked about so far?"
LEFT_OUT = "The beginning of our conversation is no longer available to me (%d turns)."


class Compacted(msgspec.Struct, omit_defaults=True):
    """A compacted conversation: system messages (`head`), a `summary` of the turns between, and the
    newest turns (`tail`). `left_out`: how many of the oldest turns nothing stands for."""

    head: list[Item] = []
    summary: str = ""
    tail: list[Item] = []
    left_out: int = 0

    def items(self) -> list[Item]:
        """Returns the conversation as the model reads it."""
        said = self.summary or (LEFT_OUT % self.left_out if self.left_out else "")
        given: schemas.ResponseInput = [
            {"role": role, "content": text} for role, text in _recalled(said)
        ]
        return [*self.head, *cast(list[Item], input_items(given)), *self.tail]


def recall(summary: str) -> list[Message]:
    """Returns the messages for a `summary`; none if it is empty."""
    return [{"role": role, "content": text} for role, text in _recalled(summary)]


def _recalled(summary: str) -> list[tuple[str, str]]:
    """Returns the summary as an answer to a question, so that user and assistant alternate, as some
    templates require."""
    return [("user", RECALL), ("assistant", summary)] if summary else []


# ---- the item


def sealed_item(compacted: Compacted, seal: Seal) -> schemas.ResponseCompaction:
    """Returns the item for a compacted conversation. Raises EngineError (invalid_request_error) if
    it is too large."""
    payload = msgspec.json.encode(compacted)
    if len(payload) > MAX_BYTES:
        raise invalid_request(f"the conversation has more than {MAX_BYTES} bytes")
    return {
        "id": new_id("cmp"),
        "type": "compaction",
        "status": "completed",
        "encrypted_content": seal.seal(KIND, payload),
        "left_out": compacted.left_out,
    }


async def expanded(items: Sequence[Item], sealing: Sealing) -> list[Item]:
    """Returns a conversation without compaction items: the last one is replaced by its content, and
    the items before it are dropped, except system messages.

    Raises EngineError (invalid_request_error) if another server has made the last one.
    """
    last = max((i for i, item in enumerate(items) if item["type"] == "compaction"), default=None)
    if last is None:
        return [*items]
    item = items[last]
    assert item["type"] == "compaction"
    seal = await sealing.get()
    payload = await run_in_thread(seal.open, KIND, item["encrypted_content"])
    if payload is None:
        raise invalid_request(
            f"input: the compaction {item['id'][:100]!r} can't be read: it has changed, or another "
            "server has made it"
        )
    compacted = await run_in_thread(partial(msgspec.json.decode, type=Compacted), payload)
    before = [each for each in items[:last] if _is_system(each)]
    known = {each["id"] for each in compacted.head}
    before = [each for each in before if each["id"] not in known]
    return [*before, *compacted.items(), *items[last + 1 :]]


def _is_system(item: Item) -> bool:
    return item["type"] == "message" and item["role"] in _SYSTEM


# ---- compacting


class Compactor:
    """Compacts conversations with `model`, which `engine` has loaded. `terms` are those of the
    client's request. `request` is the conversation for a summary, without messages, and `params`
    are its parameters."""

    def __init__(
        self,
        model: ResolvedModel,
        engine: EngineClient,
        terms: Terms,
        params: GenerationParams,
        request: ChatRequest,
    ) -> None:
        n_ctx = engine.info.n_ctx
        self._model = model
        self._engine = engine
        self._terms = terms
        self._n_ctx = n_ctx
        n_max = max(1, min(MAX_SUMMARY, n_ctx // 4))
        self._room = n_ctx - n_max
        self._params = msgspec.structs.replace(params, n_predict=n_max, stream=False)
        self._request = request
        self.finished: list[Finished] = []
        """The end of each summary's generation."""

    @classmethod
    def of(
        cls,
        model: ResolvedModel,
        engine: EngineClient,
        kwargs: schemas.ChatTemplateKwargs | None = None,
    ) -> "Compactor":
        """Returns the compactor for the current request. Its summaries are deterministic, and the
        model doesn't think before them if its template allows that."""
        options = model.options
        request = ChatRequest(
            messages=[],
            reasoning_format=options.chat.reasoning_format,
            thinking_budget=ThinkingBudget(0, options.chat.reasoning_budget_message),
            prefill=False,
            template_variables=template_variables(options, kwargs, effort="none"),
        )
        defaults = options.engine.generation_defaults()
        params = msgspec.structs.replace(defaults, temperature=0.0)
        return cls(model, engine, model.terms(with_headers(NO_WISHES)), params, request)

    async def compact(
        self, items: Sequence[Item], instructions: str = "", *, n_kept: int = 0
    ) -> Compacted:
        """Returns `items`, a whole conversation, compacted. The last `n_kept` items stay as they
        are. Raises EngineError as a request for an answer does."""
        head = [item for item in items if _is_system(item)]
        rest = [item for item in items if not _is_system(item)]
        split = len(rest) - min(n_kept, len(rest))
        old, tail = rest[:split], rest[split:]
        if not old:
            return Compacted(head=head, tail=tail)
        summary, n_lost = await self._summarized(messages(head), messages(old), instructions)
        if summary:
            return Compacted(head=head, summary=summary, tail=tail, left_out=n_lost)
        warn_ignored("the model has written no summary, so the oldest turns are left out")
        return await self._without_oldest(head, old, tail)

    async def _summarized(
        self, head: list[Message], old: list[Message], instructions: str
    ) -> tuple[str, int]:
        """Returns a summary of the messages `old`, and the number of turns that are left out. If
        they are longer than the context, each summary includes the one before it. The summary is
        empty if one of them is empty or was cut off."""
        question: Message = {"role": "user", "content": instructions or SUMMARIZE}
        starts = [0, *(i for i, each in enumerate(old) if i and each["role"] == "user"), len(old)]
        n_turns = len(starts) - 1
        begin = await self._first_turn([*head, question], old, starts)
        summary, n_lost, at = "", begin, begin
        while at < n_turns:
            before = [*head, *recall(summary)]

            async def fits(n: int, before: list[Message] = before, at: int = at) -> bool:
                turns = old[starts[at] : starts[at + n]]
                return await self._count([*before, *turns, question]) <= self._room

            if n := await _most(n_turns - at, fits):
                turns = old[starts[at] : starts[at + n]]
                if not (summary := await self._summary([*before, *turns, question])):
                    return "", 0
                at += n
            elif summary:
                summary, n_lost = "", at  # it is too long for another turn
            else:
                at, n_lost = at + 1, n_lost + 1  # the turn is longer than the context
        return summary, n_lost

    async def _first_turn(
        self, frame: list[Message], old: list[Message], starts: Sequence[int]
    ) -> int:
        """Returns the number of oldest turns without which the rest needs about `MAX_PASSES`
        summaries. `frame` are the messages of each of them besides the turns and a summary."""
        net = max(1, self._room - self._params.n_predict - await self._count(frame))
        fitting = await truncated(self._chat(old), MAX_PASSES * net, self._count_chat)
        n_dropped = len(old) - len(fitting.messages)
        return sum(1 for start in starts[:-1] if start < n_dropped)

    def _chat(self, made: list[Message]) -> ChatRequest:
        return msgspec.structs.replace(self._request, messages=made)

    async def _count_chat(self, chat: ChatRequest) -> int:
        return await count_tokens(self._model, self._engine, chat)

    async def _count(self, made: list[Message]) -> int:
        return await self._count_chat(self._chat(made))

    async def _summary(self, made: list[Message]) -> str:
        """Returns the model's answer to `made`; "" if it is empty or was cut off."""
        prepared = await prepare(self._model, self._engine, self._chat(made), self._params)
        async with ChatBatch(self._engine, prepared, terms=self._terms) as batch:
            [answer] = await batch.results()
        self.finished.append(answer.finished)
        return _text(answer)

    async def _without_oldest(
        self, head: list[Item], old: Sequence[Item], tail: Sequence[Item]
    ) -> Compacted:
        """Returns the conversation with the newest turns that half of the context holds."""
        starts = [
            i for i, item in enumerate(old) if item["type"] == "message" and item["role"] == "user"
        ]

        async def fits(n: int) -> bool:
            kept = [*head, *old[starts[-n] :], *tail]
            return await self._count(messages(kept)) <= self._n_ctx // 2

        n = await _most(len(starts), fits)
        kept = old[starts[-n] :] if n else []
        return Compacted(head=head, tail=[*kept, *tail], left_out=len(starts) - n)


async def _most(n_max: int, fits: Callable[[int], Awaitable[bool]]) -> int:
    """Returns the largest number up to `n_max` that fits; 0 if no positive one does. If a number
    fits, all lower ones do."""
    low, high = 0, n_max
    while low < high:
        middle = high if (low, high) == (0, n_max) else (low + high + 1) // 2
        if await fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _text(answer: ChatAnswer) -> str:
    """Returns the text of a complete answer, otherwise ""."""
    if finish_reason(answer.message, answer.finished) != "stop":
        return ""
    return answer.message.content.strip()


class AutoCompaction:
    """The compaction of one request's conversation, if its prompt has more than `threshold` tokens;
    None: three quarters of the context. The newest turn stays as it is. `item` is the compaction
    item, if there was one."""

    def __init__(
        self,
        items: Sequence[Item],
        threshold: int | None,
        chat: Callable[[Sequence[Item]], ChatRequest],
        compactor: Callable[[ResolvedModel, EngineClient], Compactor],
        seal: Seal,
    ) -> None:
        self._items = items
        self._threshold = threshold
        self._chat = chat
        self._compactor = compactor
        self._seal = seal
        self.item: schemas.ResponseCompaction | None = None

    async def __call__(self, model: ResolvedModel, engine: EngineClient) -> ChatRequest:
        """Returns the conversation for the model, compacted if it is too long."""
        chat = self._chat(self._items)
        most = engine.info.n_ctx * 3 // 4 if self._threshold is None else self._threshold
        n_kept = newest_turn(self._items)
        if n_kept == len(self._items) or await count_tokens(model, engine, chat) <= most:
            return chat
        compactor = self._compactor(model, engine)
        compacted = await compactor.compact(self._items, n_kept=n_kept)
        self.item = await run_in_thread(sealed_item, compacted, self._seal)
        return self._chat(compacted.items())


def newest_turn(items: Sequence[Item]) -> int:
    """Returns the number of items of the newest turn, which begins with the user's last message."""
    places = [
        i for i, item in enumerate(items) if item["type"] == "message" and item["role"] == "user"
    ]
    return len(items) - places[-1] if places else 0
