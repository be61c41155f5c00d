"""The parameters of one generation, with the defaults of the native API.

Field names are the JSON names of `POST /completion`. The command line's sampling options override
these defaults for a whole server (see `engine.options.EngineOptions.generation_defaults`); a
request's own fields override both. Bounds are in the OpenAPI schemas; a test compares the defaults
there and here.
"""

from typing import Literal, get_args

import msgspec

JsonWhitespace = Literal["flexible", "compact", "spaced"]
"""White space between the tokens of JSON: chosen by the model, none, or a space after "," and
":"."""

RANDOM_SEED = 0xFFFFFFFF
"""llama.cpp's LLAMA_DEFAULT_SEED: draw a new seed for every request. Requests may use -1."""

SamplerName = Literal[
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
    "adaptive_p",
    "infill",
]
ALL_SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
DEFAULT_SAMPLERS: tuple[SamplerName, ...] = ALL_SAMPLERS[:-2]  # without adaptive_p and infill
SAMPLER_LETTERS: dict[str, SamplerName] = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": "adaptive_p",
    "i": "infill",
}
_SPELLINGS: dict[str, SamplerName] = {
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
    "typical": "typ_p",
    "typicalp": "typ_p",
    **{name.replace("_", ""): name for name in ALL_SAMPLERS},
}


def sampler_name(text: str) -> SamplerName | None:
    """Returns the sampler that `text` names: 'top-k', 'topk' and 'Top_K' all mean 'top_k'."""
    return _SPELLINGS.get(text.strip().lower().replace("-", "").replace("_", ""))


class GrammarTrigger(msgspec.Struct, frozen=True):
    """The start of a lazy grammar: `text` in the answer, or, without one, the token `token`.

    The grammar is in force from the beginning of the trigger on. `at_start`: the text counts only
    at the beginning of the answer's text, after reasoning and white space.
    """

    text: str = ""
    token: int = -1
    at_start: bool = False


class Thoughts(msgspec.Struct, frozen=True):
    """The markers around the reasoning of an answer; `open`: it has begun in the prompt. White
    space at the outer ends of the markers may be missing. Any of `other_ends` also ends it."""

    begin: str
    end: str
    open: bool
    other_ends: list[str] = []


class ThinkingRules(msgspec.Struct, frozen=True):
    """The conditions that end `thoughts` before the model does: `budget` tokens (-1: no limit), and
    with `control` the message `EndThoughts`. `message` is then appended. Reasoning is at the
    beginning of the text, or, with `anywhere`, may occur at several places."""

    thoughts: Thoughts
    budget: int = -1
    message: str = ""
    control: bool = False
    anywhere: bool = False


class NamedSchema(msgspec.Struct, frozen=True):
    """A JSON schema as text, and its name in error messages. `at` is its location in the client's
    request: the name of a tool, if it belongs to one, and a JSON pointer."""

    name: str
    schema: str
    at: str = "#"


class NamedGrammar(msgspec.Struct, frozen=True):
    """A client's grammar of a text in llguidance's dialect of Lark, and its name in error messages.
    `in_json` is the same grammar for the text between the quotes of a JSON string."""

    name: str
    lark: str
    in_json: str


class Aside(msgspec.Struct, frozen=True):
    """A part of an answer that is not its text: reasoning, calls, or a marker. It extends from
    `begin` to the first of `ends`, or to the end of the answer if there are none. With `alone`, it
    consists only of `begin`. `at_start`: it only occurs before all text of the answer."""

    begin: str
    ends: list[str] = []
    at_start: bool = False
    alone: bool = False


class StopScope(msgspec.Struct, frozen=True):
    """Where the stop strings of an answer count: not in `asides`, nor in white space after one;
    with `skips_space`, nor in white space at the beginning. `begun`: the aside that the prompt has
    opened. `continued`: the prompt ends within the answer's text."""

    asides: list[Aside] = []
    skips_space: bool = False
    begun: Aside | None = None
    continued: bool = False


class AnswerRules(msgspec.Struct, frozen=True):
    """The form of a chat's answer, made by `engine.chat.grammar.answer`. Not part of a request.

    `lark` is a grammar of the answer in llguidance's dialect of Lark, "" for none; `@NAME` in it
    stands for the JSON schema `schemas[NAME]`, or for a string that follows the grammar
    `grammars[NAME]`, without its quotes. `relaxed` are keywords of schemas that the grammar leaves
    out, in the form of `NamedSchema.at`. `given` is the beginning of an answer that is part of the
    prompt: a JSON schema of the whole text includes it. Without `stops`, stop strings count
    everywhere.
    """

    lark: str = ""
    schemas: dict[str, NamedSchema] = {}
    thoughts: Thoughts | None = None
    relaxed: list[str] = []
    given: str = ""
    grammars: dict[str, NamedGrammar] = {}
    stops: StopScope | None = None


class Speculative(msgspec.Struct, frozen=True):
    """The proposals for one text. `types` are the kinds of sources, separated by commas, or `none`.
    At most `n_max` and at least `n_min` tokens are proposed at once. A draft model proposes tokens
    with a probability of at least `p_min`."""

    types: str = "none"
    n_max: int = 0
    n_min: int = 0
    p_min: float = 0.0


TOOL_CALLS = "tool_calls"
"""The `grammar_type` of a grammar that also describes the `generation_prompt`."""


class GenerationParams(msgspec.Struct, kw_only=True, frozen=True):
    """The parameters of a generation. `logit_bias` pairs a token id, or a text for all of its
    tokens, with an additive bias in logits (`-inf` forbids). `stop` strings are non-empty. At most
    one of `grammar` (GBNF), `json_schema` (the JSON of a schema) and `answer.lark` is given. With
    `grammar_lazy` it is in force from the first of `grammar_triggers` on; triggers in reasoning
    don't count. `preserved_tokens`, ids or texts that contain them, are included in the generated
    text although they are control tokens, unless they end it. `lora` pairs a LoRA adapter's id with
    its scale; an empty list stands for the server's own. `generation_prompt` is the end of the
    prompt; a JSON schema, and a grammar whose `grammar_type` is `TOOL_CALLS`, describe it together
    with the generated text. With `jump_forward`, tokens that a constraint forces need no separate
    step. `unset` names the fields that neither the request nor the server's options set: the values
    in the model's file apply to them."""

    n_predict: int = -1
    n_keep: int = 0
    n_discard: int = 0
    stream: bool = False
    stop: list[str] = []
    ignore_eos: bool = False
    cache_prompt: bool = True
    n_cache_reuse: int = 0
    id_slot: int = -1
    return_tokens: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    backend_sampling: bool = False
    json_whitespace: JsonWhitespace = "flexible"
    jump_forward: bool = True
    n_probs: int = 0
    post_sampling_probs: bool = False
    n_indent: int = 0
    t_max_predict_ms: int = 0

    seed: int = RANDOM_SEED
    samplers: list[SamplerName] = msgspec.field(default_factory=lambda: list(DEFAULT_SAMPLERS))
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = 0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: list[str] = msgspec.field(default_factory=lambda: ["\n", ":", '"', "*"])
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    logit_bias: list[tuple[int | str, float]] = []
    grammar: str = ""
    json_schema: str | None = None
    grammar_lazy: bool = False
    grammar_triggers: list[GrammarTrigger] = []
    preserved_tokens: list[int | str] = []
    lora: list[tuple[int, float]] = []
    generation_prompt: str = ""
    grammar_type: str = ""
    answer: AnswerRules | None = None
    thinking: ThinkingRules | None = None
    speculative: Speculative = Speculative()
    unset: list[str] = []
