"""Random requests, and the known parts of their texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import numpy as np

from specllama.engine.errors import ErrorInfo
from specllama.engine.params import (
    GenerationParams,
    GrammarTrigger,
    Speculative,
    ThinkingRules,
    Thoughts,
)
from specllama.engine.wire.media import Media
from specllama.engine.wire.replies import Finished, Timings, Vectors
from specllama.engine.wire.requests import NO_TERMS, PromptParts, Terms
from specllama.engine.wire.stats import Stats
from specllama.engine.worker.tokens import TokenArray
from tests.simulation.alone import Alone, shared_model
from tests.simulation.models import SLOT_CONTEXT, Choice, image
from tests.simulation.terms import LATE, TermsHabits

WORDS = ("river", "stone", "light", "engine", "paper", "window", "garden", "number")
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
    "thinking",
)
"""The parameters that a text depends on."""
ALSO_SET = (
    "stream",
    "cache_prompt",
    "n_probs",
    "id_slot",
    "n_cache_reuse",
    "jump_forward",
    "speculative",
)
MOST_CHARACTERS = 600
NEAR = 4
"""The number of last texts, most of which are in a slot."""
SCHEMAS = (
    '{"type":"object","properties":{"answer":{"enum":["river","stone"]},"n":{"type":"integer"}},'
    '"required":["answer"]}',
    '{"type":"array","items":{"type":"string","maxLength":5},"maxItems":3}',
    '{"const":"a long text that needs no choice at all, and is forced as a whole"}',
)
GRAMMARS = ('root ::= ("river " | "stone ")+ "end"', "root ::= [a-z ]+")
THOUGHTS = (
    Thoughts("", "e", open=True),
    Thoughts("r", "e", open=False),
    Thoughts("t", "th", open=True, other_ends=["n"]),
)
WRONG = ("root ::= (", "root ::= missing")
_DEFAULT = GenerationParams()


@dataclass
class Asked:
    """A history's request for one text: its received data, and its end."""

    number: int
    model: str
    prompt: PromptParts
    params: GenerationParams
    owner: int = 0
    private: bool = False
    terms: Terms = NO_TERMS
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    end: Finished | ErrorInfo | None = None
    is_cancelled: bool = False
    number_in_process: int = 0
    sent: float = 0.0
    ended: float = 0.0
    """When the last event of a text arrived."""
    relaxed: bool = False
    """Whether the answer reported that keywords of the schema are not enforced."""

    def __str__(self) -> str:
        chosen = {
            name: value
            for name in (*ASKED, *ALSO_SET)
            if (value := getattr(self.params, name)) != getattr(_DEFAULT, name)
        }
        parts = [part if isinstance(part, str) else _name(part) for part in self.prompt]
        whose = f" of owner {self.owner}{', private' * self.private}" if self.owner else ""
        limits = (self.terms.prompt_ms, self.terms.timeout_ms)
        late = f" within {limits} ms" if any(limits) else ""
        rank = f" of priority {self.terms.priority}" if self.terms.priority else ""
        return f"request {self.number}{whose}{rank} to {self.model}{late}: {parts} {chosen}"

    @property
    def is_too_late(self) -> bool:
        """True if the text has ended long after its time limit."""
        seconds = 1e-3 * self.terms.timeout_ms + LATE
        return bool(self.terms.timeout_ms) and self.ended > self.sent + seconds

    @property
    def deadline(self) -> str:
        """The time limit that has ended the text; "" if another reason did."""
        return self.end.deadline if isinstance(self.end, Finished) else ""


@dataclass
class AskedVectors:
    """A request for vectors."""

    number: int
    model: str
    inputs: list[str]
    vectors: list[Vectors] = field(default_factory=list)
    end: ErrorInfo | None = None
    is_cancelled: bool = False
    is_finished: bool = False

    def __str__(self) -> str:
        return f"request {self.number} to {self.model}: vectors of {self.inputs}"


def wrong_stats(stats: Stats, texts: Sequence[Asked]) -> str:
    """Returns what is wrong with the counts of an engine that had these requests, all of which have
    ended; "" if they are right."""
    # The cached tokens of a prompt count when it is evaluated completely.
    ends = [a.end for a in texts if isinstance(a.end, Finished) and not a.deadline]
    timings = [end.timings for end in ends]
    all_known = len(ends) == len(texts)
    for what, counted, known in (
        ("predicted", stats.n_predicted, sum(end.n_decoded for end in ends)),
        ("cached", stats.n_prompt_cached, sum(each.cache_n for each in timings)),
        ("evaluated", stats.n_prompt, sum(each.prompt_n for each in timings)),
        ("missed", sum(stats.n_prompt_missed.values()), sum(each.prompt_n for each in timings)),
        ("from files", stats.n_prompt_from_files, sum(each.cache_disk_n for each in timings)),
        ("proposed", stats.n_drafted, sum(each.draft_n for each in timings)),
        ("accepted", stats.n_drafts_accepted, sum(each.draft_n_accepted for each in timings)),
    ):
        if counted < known or (all_known and counted != known):
            return f"has counted {counted} tokens {what}, and its requests {known}"
    return ""


def _sharing(asked: Asked) -> int:
    """Returns a number that is equal for requests which may share cached texts."""
    return asked.owner if asked.private else 0


def _name(part: object) -> str:
    return f"<{part.width - 2}>" if isinstance(part, Media) else str(part)


class Habits:
    """The properties of requests in one history. Each history has different ones: situations that
    are rare over all histories are frequent in some ("swarm testing", Groce et al., ISSTA 2012)."""

    def __init__(self, random: Random) -> None:
        choose = random.choice
        self.n_common = choose([1, 3, 3])
        """The number of beginnings that texts have."""
        self.length = choose([(2, 20, 40, 90), (40, 60), (20, 90)])
        """The possible numbers of words of a beginning."""
        self.goes_on = choose([0.1, 0.5, 0.5, 0.8])
        """The probability that a request continues an earlier one's text."""
        self.adds = choose([5, 5, 20])
        """The largest number of words that such a request adds."""
        self.repeats = choose([0.0, 0.0, 0.3])
        """The probability that a request repeats an earlier one's prompt."""
        self.constrained = choose([0.0, 0.25, 0.6])
        self.thinking = choose([0.0, 0.0, 0.4])
        """The probability that its reasoning ends."""
        self.seeing = choose([0.0, 0.4])
        self.private = choose([0.0, 0.3, 0.3, 0.8])
        """The probability that a request shares nothing with other owners."""
        self.pinned = choose([0.0, 0.1, 0.5])
        """The probability that a request chooses its slot."""
        self.tokens = choose([(0, 1, 2, 5, 10, 40), (1, 2, 5), (5, 40, 120)])
        """The possible numbers of requested tokens, if all have room."""
        self.together = choose([(1, 1, 2, 4, 8), (4, 8), (1, 2)])
        """The possible numbers of clients that come together."""
        self.pauses = choose([(0.0, 0.01, 0.05, 0.1, 0.5, 5.0), (0.0, 0.01, 0.05), (0.5, 5.0)])
        """The possible pauses in seconds before the next clients come."""
        self.moves = choose([False, False, False, True])
        """Whether texts move between slots: simultaneous texts continue the last texts or older
        ones, each in the slot after that of the text before it."""
        if self.moves:
            self.n_common, self.goes_on, self.adds, self.tokens = 4, 0.9, 20, (2, 5, 10)
            self.together, self.pauses = (2, 3, 4), (0.5, 5.0)


class Requests:
    """Makes requests for the models `choices`, and checks their texts. `random_of` returns the
    random numbers for choices with this name, which nothing else in the history changes."""

    def __init__(self, random_of: Callable[[str], Random], choices: dict[str, Choice]) -> None:
        self.choices = choices
        self.texts: list[Asked] = []
        self.vectors: list[AskedVectors] = []
        self.restored: set[str] = set()
        """The models with a slot that a restored file may have given another text."""
        self.is_approximate: Callable[[Asked], bool] = lambda asked: True
        """Whether a text may depend on moved cells, or on cells that were evaluated again after a
        shift."""
        self.is_started_again: Callable[[str], bool] = lambda model: False
        """Whether a process of the model has ended, so that the next one gets its requests
        again."""
        self.n = 0
        self._random_of = random_of
        self._random = random_of("requests")
        self.habits = Habits(self._random)
        self.terms_habits = TermsHabits(random_of)
        lengths = [self._random.choice(self.habits.length) for _ in range(self.habits.n_common)]
        self._common = [self._words(length) for length in lengths]
        self._alone: dict[tuple[str, bool], Alone] = {}  # by model, and whether it is lenient
        self._tokenized: dict[int, TokenArray] = {}  # prompts, by number of the request

    def texts_of(self, model: str) -> list[Asked]:
        """Returns the requests for texts from a model."""
        return [asked for asked in self.texts if asked.model == model]

    def _words(self, n: int) -> str:
        return " ".join(self._random.choices(WORDS, k=n))

    def new(self) -> "list[Asked] | AskedVectors":
        """Makes a request for one text, for several texts with different seeds, or for vectors."""
        self.n += 1
        self._random = self._random_of(f"request {self.n}")
        model = self._random.choice([*self.choices])
        if self.choices[model].embeds:
            return self._new_vectors(model)
        return self._new_texts(model)

    def _new_vectors(self, model: str) -> AskedVectors:
        n = self._random.choice([1, 1, 3, 70])
        inputs = [self._words(self._random.choice([1, 5, 20, 60])) for _ in range(n)]
        asked = AskedVectors(self.n, model, inputs)
        self.vectors.append(asked)
        return asked

    def _new_texts(self, model: str) -> list[Asked]:
        choose, chance = self._random.choice, self._random.random
        choice = self.choices[model]
        params = GenerationParams(
            n_predict=min(choose(self.habits.tokens), choice.many),
            temperature=choose([0.0, 0.0, 0.8]),
            seed=self._random.randrange(3),
            stop=choose([[], [], ["e"], ["th", "in"]]),
            cache_prompt=chance() < 0.9,
            ignore_eos=choose([True, False]),
            stream=choose([True, False]),
            n_probs=choose([0, 0, 2]),
            id_slot=self._slot(choice),
            n_cache_reuse=4 if chance() < 0.05 else 0,
            jump_forward=chance() < 0.8,
            speculative=Speculative(types=choose(choice.types), n_max=8),
        )
        changes: dict[str, Any] = {}
        if choice.has_adapters:
            changes["lora"] = choose([[(0, 1.0)], [(1, 0.5)], [(0, 0.5), (1, 1.0)], [(0, 0.0)]])
        if choice.options["context_shift"] and chance() < 0.1:
            changes["n_predict"] = SLOT_CONTEXT
        if chance() < self.habits.constrained:
            changes |= self._constraint()
        if chance() < self.habits.thinking:
            changes |= self._thinking()
        params = msgspec.structs.replace(params, **changes)
        prompt = self._prompt(choice)
        private = chance() < self.habits.private
        owner = choose([1, 2]) if private else choose([0, 0, 1, 2])
        terms = self.terms_habits.terms(self.n)
        group = []
        for i in range(choose([1, 1, 1, 1, 3])):
            slot = params.id_slot if i == 0 else -1
            own = msgspec.structs.replace(params, seed=params.seed + i, id_slot=slot)
            asked = Asked(self.n, model, prompt, own, owner=owner, private=private, terms=terms)
            group.append(asked)
        self.texts += group
        return group

    def _slot(self, choice: Choice) -> int:
        n = choice.options["parallel"]
        if self.habits.moves:
            return self.n % int(n)
        return self._random.randrange(n) if self._random.random() < self.habits.pinned else -1

    def _prompt(self, choice: Choice) -> PromptParts:
        choose, chance = self._random.choice, self._random.random
        text = f"{choose(self._common)} {self._words(self._random.randint(1, 10))}"
        before = [asked for asked in self.texts if self.choices[asked.model] is choice]
        if before and chance() < self.habits.repeats:
            return choose(before).prompt
        if before and chance() < self.habits.goes_on:
            is_near = self.habits.moves and chance() < 0.5
            last = choose(before[-NEAR:] if is_near else before)
            said = "".join(part for part in last.prompt if isinstance(part, str))
            n_more = self._random.randint(1, self.habits.adds)
            longer = f"{said}{last.text} {self._words(n_more)}"
            text = longer if len(longer) <= MOST_CHARACTERS else text
        if not (choice.sees and chance() < self.habits.seeing):
            return [text]
        cut = self._random.randrange(len(text))
        return [text[:cut], image(self._random.randrange(6)), text[cut:]]

    def _constraint(self) -> dict[str, Any]:
        """Returns parameters with a grammar or a schema, sometimes an invalid one."""
        choose, kind = self._random.choice, self._random.random()
        made: dict[str, Any] = {"ignore_eos": False}
        if kind < 0.5:
            made["json_schema"] = choose(SCHEMAS)
        elif kind < 0.9:
            made["grammar"] = choose(GRAMMARS)
            if self._random.random() < 0.3:
                made["grammar_lazy"] = True
                made["grammar_triggers"] = [GrammarTrigger(text=choose("ert"))]
        else:
            made["grammar"] = choose(WRONG)
        return made

    def _thinking(self) -> dict[str, Any]:
        """Returns parameters that end reasoning, mostly with a tool, as agents have them."""
        choose = self._random.choice
        thinking = ThinkingRules(
            choose(THOUGHTS),
            budget=choose([0, 2, 10]),
            message=choose(["", "that is enough"]),
            anywhere=choose([True, False]),
        )
        if not choose([True, True, False]):
            return {"thinking": thinking}
        return {
            "thinking": thinking,
            "json_schema": None,
            "grammar": choose(GRAMMARS),
            "grammar_lazy": True,
            "grammar_triggers": [GrammarTrigger(text=choose("ert"))],
        }

    # ---- the truth -----------------------------------------------------------------------

    def wrong(self, asked: Asked) -> str:
        """Returns what is wrong with the received text of `asked`; "" if it is right."""
        if not (asked.tokens or asked.text or isinstance(asked.end, Finished)):
            return ""
        truth, text = self.alone(asked)
        if isinstance(asked.end, Finished) and asked.end.deadline:
            n_decoded = asked.end.n_decoded
            truth, text = self.alone(asked, n_predict=n_decoded) if n_decoded else ([], "")
        n = self._n_exact(asked, truth)
        if n is None:
            return ""
        tokens = asked.tokens[:n]
        if truth[: len(tokens)] != tokens:
            return f"it has {asked.tokens} in the place of {truth}"
        if n < len(asked.tokens):  # the text after a shift differs
            return ""
        if not text.startswith(asked.text):
            return f"it has {asked.text!r} in the place of {text!r}"
        if isinstance(asked.end, Finished) and (asked.tokens, asked.text) != (truth, text):
            return f"it has {len(asked.tokens)} tokens of {len(truth)}"
        return ""

    def _n_exact(self, asked: Asked, truth: list[int]) -> int | None:
        """Returns the number of tokens of `asked` that are certain; None if no token is certain.

        By design, `n_cache_reuse` approximates a text if cells are moved. A shift of the context
        does, too: the text after it differs if it was evaluated again, for instance after a
        preemption.
        """
        if not self.is_approximate(asked):
            return max(len(truth), len(asked.tokens))
        if asked.params.n_cache_reuse:
            return None
        choice = self.choices[asked.model]
        n_prompt = asked.end.n_prompt if isinstance(asked.end, Finished) else MOST_CHARACTERS
        return max(0, choice.slot_context - n_prompt)

    def wrong_count(self, asked: Asked) -> str:
        """Returns what is wrong with the figures at the end of `asked`; "" if they are right."""
        end = asked.end
        if not isinstance(end, Finished):
            return ""
        timings = end.timings
        n_read = timings.cache_n + timings.prompt_n
        is_whole = bool(end.n_decoded) or not end.deadline
        if n_read > end.n_prompt or (is_whole and n_read < end.n_prompt):
            return f"{timings.cache_n} and {timings.prompt_n} tokens of a prompt of {end.n_prompt}"
        if min(timings.cache_ram_n, timings.cache_disk_n) < 0:
            return "fewer than 0 tokens came from somewhere"
        if timings.cache_ram_n + timings.cache_disk_n > timings.cache_n:
            return "more tokens were restored than cached"
        if end.n_prompt and is_whole and (reason := self._wrong_reason(asked, timings)):
            return reason
        if end.n_decoded < len(asked.tokens):
            return f"it has {len(asked.tokens)} tokens, and {end.n_decoded} were counted"
        if timings.draft_n_accepted > timings.draft_n:
            return "more was accepted than proposed"
        is_known = not (
            asked.model in self.restored
            or self.choices[asked.model].sees
            or asked.params.n_cache_reuse
        )
        if is_known and timings.cache_n > (most := self._most_cached(asked)):
            return f"{timings.cache_n} tokens were cached, at most {most} can be"
        return ""

    def _wrong_reason(self, asked: Asked, timings: Timings) -> str:
        """Returns what is wrong with the reason why the prompt of `asked` wasn't cached; "" if
        nothing is."""
        reason = timings.cache_miss_reason
        if reason is None:
            is_right = timings.prompt_n == 1 or self.choices[asked.model].sees
        elif reason == "disabled":
            is_right = not asked.params.cache_prompt
        elif reason == "key":
            is_right = False  # clients don't learn this
        elif reason == "window":
            is_right = self.choices[asked.model].shape.kind != "dense"
        else:
            is_right = timings.prompt_n > 1
        if is_right:
            return ""
        return f"its reason is {reason}, with {timings.prompt_n} evaluated tokens"

    def _most_cached(self, asked: Asked) -> int:
        """Returns the largest number of prompt tokens that can be cached: the longest common
        beginning with a request that may share its cache with this one. If a disk cache outlives a
        process, it is the whole prompt."""
        if self.choices[asked.model].options["cache_disk"] and self.is_started_again(asked.model):
            return len(self._tokens(asked))
        whose = _sharing(asked)
        own = self._tokens(asked)
        most = 0
        for other in self.texts:
            if other is asked or other.model != asked.model or _sharing(other) != whose:
                continue
            text = self._text(other)[: len(own)]
            is_equal = text == own[: len(text)]
            most = max(most, len(text) if is_equal.all() else int(is_equal.argmin()))
        return most

    def _text(self, asked: Asked) -> TokenArray:
        """Returns the tokens of the prompt and the generated tokens."""
        return np.concatenate((self._tokens(asked), np.array(asked.tokens, np.int32)))

    def _tokens(self, asked: Asked) -> TokenArray:
        if asked.number not in self._tokenized:
            (text,) = asked.prompt
            assert isinstance(text, str)
            self._tokenized[asked.number] = shared_model().tokenize(
                text.encode(), add_special=True, parse_special=True
            )
        return self._tokenized[asked.number]

    def wrong_vectors(self, asked: AskedVectors) -> str:
        """Returns what is wrong with the vectors of `asked`; "" if they are right."""
        n_rows = sum(len(each.n_rows) for each in asked.vectors)
        if asked.is_finished and n_rows != len(asked.inputs):
            return f"it has {n_rows} vectors of {len(asked.inputs)}"
        values = b"".join(each.values for each in asked.vectors)
        truth = b"".join(self._engine(asked.model).vector(text) for text in asked.inputs[:n_rows])
        return "" if values == truth else "its vectors are wrong"

    def is_refused(self, asked: Asked | AskedVectors) -> bool:
        """True if the request gets no text even without other requests, or can't be in time."""
        if isinstance(asked, AskedVectors):
            return False
        is_late = isinstance(asked.end, ErrorInfo) and asked.end.estimated_wait_ms is not None
        has_limit = bool(asked.terms.prompt_ms or asked.terms.timeout_ms)
        return (is_late and has_limit) or not self.alone(asked)[0]

    def alone(self, asked: Asked, **changes: Any) -> tuple[list[int], str]:
        """Returns the tokens and the text that the request, with `changes` of its parameters, gets
        in an engine of its own."""
        chosen = {name: getattr(asked.params, name) for name in ASKED} | changes
        return self._engine(asked.model, lenient=asked.relaxed).answer(asked.prompt, chosen)

    def _engine(self, model: str, *, lenient: bool = False) -> Alone:
        if (model, lenient) not in self._alone:
            self._alone[model, lenient] = Alone(self.choices[model], lenient=lenient)
        return self._alone[model, lenient]

    @property
    def n_steps_alone(self) -> int:
        """The number of steps of the engines that have one request alone."""
        return sum(each.n_steps for each in self._alone.values())

    def close(self) -> None:
        for engine in self._alone.values():
            engine.close()
