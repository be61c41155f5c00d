"""The questions to an engine process that have one answer each."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeVar

from specllama.engine.params import GenerationParams
from specllama.engine.wire.media import Media
from specllama.engine.wire.replies import (
    Adapter,
    Adapters,
    Blocks,
    Digest,
    SlotDone,
    Slots,
    SlotState,
    StatsReply,
    Text,
    Tokens,
)
from specllama.engine.wire.requests import (
    Detokenize,
    FormatChat,
    GetAdapters,
    GetBlocks,
    GetDigest,
    GetSlots,
    GetStats,
    Prompt,
    SetAdapters,
    SlotAction,
    Tokenize,
)
from specllama.engine.wire.stats import Stats

Question = (
    Tokenize
    | Detokenize
    | FormatChat
    | GetSlots
    | SlotAction
    | GetAdapters
    | SetAdapters
    | GetStats
    | GetDigest
    | GetBlocks
)
R = TypeVar("R", Tokens, Text, Slots, SlotDone, Adapters, StatsReply, Digest, Blocks)


class Questions(ABC):
    """Asks the questions. Each method raises the `EngineError` of an engine that has ended."""

    @abstractmethod
    def _new_id(self) -> int:
        """Returns an id for a message."""

    @abstractmethod
    async def _ask(self, message: Question, kind: type[R]) -> R:
        """Returns the answer, of the type `kind`. Cancelling the wait withdraws the question."""

    async def tokenize(
        self,
        content: Sequence[int | str | Media],
        *,
        add_special: bool,
        parse_special: bool,
        with_pieces: bool,
    ) -> Tokens:
        """Returns the tokens of `content`; `engine.wire.requests.Tokenize` describes the arguments.

        Raises `EngineError` if a token id is not in the vocabulary.
        """
        message = Tokenize(self._new_id(), [*content], add_special, parse_special, with_pieces)
        return await self._ask(message, Tokens)

    async def detokenize(self, tokens: list[int]) -> str:
        """Returns the text of `tokens`. Raises `EngineError` if one is not in the vocabulary."""
        return (await self._ask(Detokenize(self._new_id(), tokens), Text)).text

    async def format_chat(
        self, template: str, messages: list[tuple[str, str]], add_generation_prompt: bool
    ) -> str:
        """Returns the prompt that llama.cpp's own formatting makes of `messages`. Raises
        `EngineError` if llama.cpp has no format for `template`."""
        message = FormatChat(self._new_id(), template, messages, add_generation_prompt)
        return (await self._ask(message, Text)).text

    async def slots(self) -> list[SlotState]:
        return (await self.slots_and_queue()).slots

    async def slots_and_queue(self) -> Slots:
        return await self._ask(GetSlots(self._new_id()), Slots)

    async def slot_action(
        self, slot: int, action: Literal["save", "restore", "erase"], filename: str = ""
    ) -> SlotDone:
        """Waits until the slot is idle. Cancelling the wait withdraws the action.

        Raises `EngineError` if the slot doesn't exist, or if the file can't be used.
        """
        return await self._ask(SlotAction(self._new_id(), slot, action, filename), SlotDone)

    async def adapters(self) -> list[Adapter]:
        return (await self._ask(GetAdapters(self._new_id()), Adapters)).adapters

    async def set_adapters(self, scales: list[tuple[int, float]]) -> list[Adapter]:
        return (await self._ask(SetAdapters(self._new_id(), scales), Adapters)).adapters

    async def stats(self) -> Stats:
        return (await self._ask(GetStats(self._new_id()), StatsReply)).stats

    async def digest(self, max_blocks: int) -> Digest:
        """Returns the hashes of at most `max_blocks` blocks of cached texts, and the load."""
        return await self._ask(GetDigest(self._new_id(), max_blocks), Digest)

    async def blocks(
        self, prompt: Prompt, params: GenerationParams, *, owner: int = 0, private: bool = False
    ) -> Blocks:
        """Returns the hashes of the blocks that a request with these arguments would have, and the
        number of its prompt's tokens; `engine.wire.requests.GetBlocks` describes the arguments.

        Raises `EngineError` as the request would: if the prompt doesn't fit the context, contains
        unknown tokens or media that the model doesn't support, or if the engine embeds.
        """
        message = GetBlocks(self._new_id(), prompt, params, owner, private)
        return await self._ask(message, Blocks)
