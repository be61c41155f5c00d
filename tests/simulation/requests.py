"""Random models and random requests, and what is known of their texts beforehand."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import msgspec

from specllama.engine.errors import ErrorInfo
from specllama.engine.options import Options
from specllama.engine.params import GenerationParams, GrammarTrigger, Speculative
from specllama.engine.wire.replies import Finished
from tests.simulation.alone import ADAPTERS, Alone
from tests.simulation.library import ModelShape
from tests.simulation.memory import Kind
from tests.support.options_support import model_options
from tools.models.build import ensure_adapter

WORDS = ("river", "stone", "light", "engine", "paper", "window", "garden", "number")
GENERATING = 40
ASKED = (
    "n_predict",
    "temperature",
    "seed",
    "stop",
    "ignore_eos",
    "lora",
    "json_schema",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
)
"""The parameters that a text depends on."""
ALSO_SET = ("stream", "cache_prompt", "n_probs", "id_slot", "n_cache_reuse", "jump_forward")
MOST_CHARACTERS = 600
SLOT_CONTEXT = 256
SCHEMAS = (
    '{"type":"object","properties":{"answer":{"enum":["river","stone"]},"n":{"type":"integer"}},'
    '"required":["answer"]}',
    '{"type":"array","items":{"type":"string","maxLength":5},"maxItems":3}',
    '{"const":"a long text that needs no choice at all, and is forced as a whole"}',
)
GRAMMARS = ('root ::= ("river " | "stone ")+ "end"', "root ::= [a-z ]+")
WRONG = ("root ::= (", "root ::= missing")
TYPES = ("radix", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


@dataclass(frozen=True)
class Choice:
    """A model of a history, with the options of its engine."""

    shape: ModelShape
    options: dict[str, Any]

    @property
    def slot_context(self) -> int:
        """Tokens that one text may have."""
        n: int = self.options["ctx_size"]
        return n if self.options["kv_unified"] else SLOT_CONTEXT

    @property
    def has_adapters(self) -> bool:
        return bool(self.options.get("lora"))

    @property
    def types(self) -> list[str]:
        """What may be asked of it to propose."""
        types = [*self.options["spec_type"]]
        types += ["draft-simple"] if self.options["model_draft"] else []
        return [*types, ",".join(types)] if types else ["none"]

    def all_options(self, name: str, path: Path) -> Options:
        return model_options(alias=name, model=str(path), threads=1, **self.options)


def any_model(random: random.Random, folder: Path) -> Choice:
    """A model of any kind with any options; its files are in `folder`."""
    choose = random.choice
    kind: Kind = choose(get_args(Kind))
    shape = ModelShape(kind, n_ctx_train=2048, window=choose([16, 48]) if kind == "window" else 0)
    n_slots, unified = random.randint(1, 4), choose([True, False])
    lora = tuple((str(ensure_adapter(name)), choose([1.0, 0.0])) for name in ADAPTERS)
    has_disk = choose([True, False, False])
    return Choice(
        shape,
        {
            "parallel": n_slots,
            "kv_unified": unified,
            "ctx_size": choose([256, 256, 1024]) if unified else SLOT_CONTEXT * n_slots,
            "batch_size": (batch := choose([16, 64, 256])),
            "ubatch_size": choose([16, batch]),
            "cache_ram": choose([0, 1, -1, -1]),
            "cache_disk": str(folder) if has_disk else "",
            "cache_disk_size": choose([1, 100]),
            "slot_save_path": str(folder) if choose([True, False]) else "",
            "ctx_checkpoints": choose([0, 2, 8]),
            "context_shift": kind == "dense" and choose([True, False]),
            "spec_type": tuple(random.sample(TYPES, 2)) if choose([True, False]) else (),
            "model_draft": str(folder / "draft.gguf") if choose([True, False, False]) else "",
            "lora": lora if choose([True, False, False]) else (),
            "target_itl_ms": choose([0, 20, 100]),
            "warmup": choose([True, False]),
            "sleep_idle_seconds": choose([-1, -1, 2]),
        },
    )


@dataclass
class Asked:
    """A request of a history: what it has got, and its end."""

    number: int
    model: str
    prompt: str
    params: GenerationParams
    owner: int = 0
    private: bool = False
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    end: Finished | ErrorInfo | None = None
    is_cancelled: bool = False

    def __str__(self) -> str:
        chosen = {
            name: value
            for name in (*ASKED, *ALSO_SET)
            if (value := getattr(self.params, name)) != getattr(_DEFAULT, name)
        }
        owner = f", owner {self.owner}" if self.owner else ""
        return f"request {self.number} to {self.model}: {self.prompt!r} {chosen}{owner}"


_DEFAULT = GenerationParams()


class Requests:
    """Makes requests for the models `choices`, and checks their texts."""

    def __init__(self, random: random.Random, choices: dict[str, Choice]) -> None:
        self.random = random
        self.choices = choices
        self.all: list[Asked] = []
        self._common = [self._words(random.choice([2, 20, 40, 90])) for _ in range(3)]
        self._alone: dict[str, Alone] = {}

    def _words(self, n: int) -> str:
        return " ".join(self.random.choices(WORDS, k=n))

    def new(self) -> list[Asked]:
        """A request of one text, or of several that differ in their seeds."""
        choose, chance = self.random.choice, self.random.random
        prompt = f"{choose(self._common)} {self._words(self.random.randint(1, 10))}"
        if self.all and chance() < 0.3:  # a conversation goes on
            before = choose(self.all)
            prompt = f"{before.prompt}{before.text} {self._words(self.random.randint(1, 5))}"
            prompt = prompt[-MOST_CHARACTERS:]
        model = choose([*self.choices])
        choice = self.choices[model]
        params = GenerationParams(
            n_predict=choose([0, 1, 2, 5, 10, GENERATING, GENERATING, 3 * GENERATING]),
            temperature=choose([0.0, 0.0, 0.8]),
            seed=self.random.randrange(3),
            stop=choose([[], [], ["e"], ["th", "in"]]),
            cache_prompt=chance() < 0.9,
            ignore_eos=choose([True, False]),
            stream=choose([True, False]),
            n_probs=choose([0, 0, 2]),
            id_slot=self.random.randrange(choice.options["parallel"]) if chance() < 0.1 else -1,
            n_cache_reuse=4 if chance() < 0.05 else 0,
            jump_forward=chance() < 0.8,
            speculative=Speculative(types=choose(choice.types), n_max=8),
        )
        if choice.has_adapters:
            params.lora = choose([[(0, 1.0)], [(1, 0.5)], [(0, 0.5), (1, 1.0)], [(0, 0.0)]])
        if choice.options["context_shift"] and chance() < 0.1:
            params.n_predict = SLOT_CONTEXT
        if chance() < 0.25:
            self._constrain(params)
        owner = choose([0, 0, 1, 2])
        private = bool(owner) and choose([True, False])
        group = []
        for i in range(choose([1, 1, 1, 1, 3])):
            slot = params.id_slot if i == 0 else -1
            own = msgspec.structs.replace(params, seed=params.seed + i, id_slot=slot)
            number = len(self.all) + 1 + i
            group.append(Asked(number, model, prompt, own, owner=owner, private=private))
        self.all += group
        return group

    def _constrain(self, params: GenerationParams) -> None:
        params.ignore_eos = False
        kind = self.random.random()
        if kind < 0.5:
            params.json_schema = self.random.choice(SCHEMAS)
        elif kind < 0.9:
            params.grammar = self.random.choice(GRAMMARS)
            if self.random.random() < 0.3:
                params.grammar_lazy = True
                params.grammar_triggers = [GrammarTrigger(text=self.random.choice("ert"))]
        else:
            params.grammar = self.random.choice(WRONG)

    # ---- the truth -----------------------------------------------------------------------

    def wrong(self, asked: Asked) -> str:
        """What is wrong with the text of `asked`, as far as it goes; "" if nothing is."""
        if not (asked.tokens or asked.text or isinstance(asked.end, Finished)):
            return ""
        truth, text = self.alone(asked)
        n = self._n_exact(asked, truth)
        if n is None:
            return ""
        tokens = asked.tokens[:n]
        if truth[: len(tokens)] != tokens:
            return f"it has {asked.tokens} in the place of {truth}"
        if n < len(asked.tokens):  # what comes behind a shift is another text
            return ""
        if not text.startswith(asked.text):
            return f"it has {asked.text!r} in the place of {text!r}"
        if isinstance(asked.end, Finished) and (asked.tokens, asked.text) != (truth, text):
            return f"it has {len(asked.tokens)} tokens of {len(truth)}"
        return ""

    def _n_exact(self, asked: Asked, truth: list[int]) -> int | None:
        """How many tokens of `asked` are certain; None if none of them are.

        `n_cache_reuse` and a shift of the context approximate a text, by design.
        """
        if asked.params.n_cache_reuse:
            return None
        choice = self.choices[asked.model]
        if not choice.options["context_shift"]:
            return max(len(truth), len(asked.tokens))
        n_prompt = asked.end.n_prompt if isinstance(asked.end, Finished) else len(asked.prompt)
        return max(0, choice.slot_context - n_prompt)

    def is_refused(self, asked: Asked) -> bool:
        """True if the request gets no text alone, either."""
        return not self.alone(asked)[0]

    def alone(self, asked: Asked) -> tuple[list[int], str]:
        """The tokens and the text that the request gets in an engine of its own."""
        choice = self.choices[asked.model]
        if (engine := self._alone.get(asked.model)) is None:
            engine = Alone(
                choice.shape,
                choice.slot_context,
                choice.options["lora"],
                shifts=choice.options["context_shift"],
            )
            self._alone[asked.model] = engine
        chosen = {name: getattr(asked.params, name) for name in ASKED}
        return engine.answer(asked.prompt, chosen)

    def close(self) -> None:
        for engine in self._alone.values():
            engine.close()
