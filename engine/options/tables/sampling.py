"""Options that set the defaults of generation requests."""

from functools import partial
from typing import Annotated, Any

import msgspec

from specllama.engine.options import files, text_values, values
from specllama.engine.options.declaration import INT32_MAX, Opt
from specllama.engine.params import DEFAULT_SAMPLERS, RANDOM_SEED, JsonWhitespace, SamplerName

_sampling = partial(Opt, group="Sampling defaults")


def _unless_model(value: str) -> str:
    """The default of an option of which the model's file may have a value of its own."""
    return f"{value}, or the model's own"


class SamplingOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How to generate where a request does not say so itself. None stands for the value in the
    model's file (`engine.options.model_values`), else for that of `GenerationParams`."""

    n_predict: Annotated[
        int,
        _sampling(
            names="-n --predict --n-predict",
            env="LLAMA_ARG_N_PREDICT",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="Most tokens to generate.",
            default="-1 (no limit)",
        ),
    ] = -1
    strict_schemas: Annotated[
        bool,
        Opt(
            group="Server",
            names="--strict-schemas",
            negative="--no-strict-schemas",
            env="LLAMA_ARG_STRICT_SCHEMAS",
            help="Refuse JSON schemas of which a keyword can't be turned into a constraint, "
            "rather than leaving the keyword out.",
        ),
    ] = False
    keep: Annotated[
        int,
        _sampling(
            names="--keep",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="Prompt tokens that stay when the context is full (-1: all).",
        ),
    ] = 0
    seed: Annotated[
        int,
        _sampling(
            names="-s --seed",
            metavar="N",
            min=-1,
            max=RANDOM_SEED,
            help="Seed of the random numbers.",
            default="-1 (another one for every request)",
        ),
    ] = -1
    samplers: Annotated[
        tuple[SamplerName, ...] | None,
        _sampling(
            names="--samplers",
            metavar="NAME;...",
            help="The samplers to apply, in order.",
            replaces=("sampler_seq",),
            read=values.samplers,
            show=values.show_samplers,
            default=_unless_model(values.show_samplers(DEFAULT_SAMPLERS)),
        ),
    ] = None
    sampler_seq: Annotated[
        str,
        _sampling(
            names="--sampler-seq --sampling-seq",
            metavar="LETTERS",
            help="The same as one letter each: "
            + ", ".join(f"{k} {v}" for k, v in values.SAMPLER_LETTERS.items())
            + ".",
            default="".join(k for k, v in values.SAMPLER_LETTERS.items() if v in DEFAULT_SAMPLERS),
            replaces=("samplers",),
            read=values.sampler_sequence,
        ),
    ] = ""
    ignore_eos: Annotated[
        bool, _sampling(names="--ignore-eos", help="Never end with the model's end-of-text token.")
    ] = False
    logit_bias: Annotated[
        tuple[tuple[int, float], ...],
        _sampling(
            names="-l --logit-bias",
            metavar="TOKEN_ID(+/-)BIAS",
            help="Make a token likelier (15043+1), unlikelier (15043-1) or impossible (15043-inf).",
            default="none",
            repeats=True,
            one_each=True,
            read=values.logit_bias,
            show=values.show_logit_bias,
        ),
    ] = ()
    temp: Annotated[
        float | None,
        _sampling(
            names="--temp --temperature",
            env="LLAMA_ARG_TEMPERATURE",
            metavar="T",
            help="Temperature; 0 and less always take the likeliest token.",
            default=_unless_model("0.8"),
        ),
    ] = None
    dynatemp_range: Annotated[
        float,
        _sampling(
            names="--dynatemp-range",
            metavar="R",
            min=0,
            help="Dynamic temperature: how far around the temperature (0: off).",
        ),
    ] = 0.0
    dynatemp_exp: Annotated[
        float,
        _sampling(
            names="--dynatemp-exp", metavar="X", min=0, help="Dynamic temperature: the exponent."
        ),
    ] = 1.0
    top_k: Annotated[
        int | None,
        _sampling(
            names="--top-k",
            env="LLAMA_ARG_TOP_K",
            metavar="N",
            min=-1,
            max=INT32_MAX,
            help="Only the N likeliest tokens (0 or -1: off).",
            default=_unless_model("40"),
        ),
    ] = None
    top_p: Annotated[
        float | None,
        _sampling(
            names="--top-p",
            env="LLAMA_ARG_TOP_P",
            metavar="P",
            min=0,
            max=1,
            help="Only the likeliest tokens that together reach this probability (1: off).",
            default=_unless_model("0.95"),
        ),
    ] = None
    min_p: Annotated[
        float | None,
        _sampling(
            names="--min-p",
            env="LLAMA_ARG_MIN_P",
            metavar="P",
            min=0,
            max=1,
            help="Only tokens with this share of the likeliest one's probability (0: off).",
            default=_unless_model("0.05"),
        ),
    ] = None
    typical: Annotated[
        float,
        _sampling(
            names="--typical --typical-p",
            metavar="P",
            min=0,
            max=1,
            help="Locally typical sampling (1: off).",
        ),
    ] = 1.0
    top_nsigma: Annotated[
        float,
        _sampling(
            names="--top-nsigma --top-n-sigma",
            metavar="N",
            help="Only tokens within N standard deviations of the best logit (-1: off).",
        ),
    ] = -1.0
    xtc_probability: Annotated[
        float | None,
        _sampling(
            names="--xtc-probability",
            metavar="P",
            min=0,
            max=1,
            help="How often the XTC sampler takes the top choices away (0: off).",
            default=_unless_model("0.0"),
        ),
    ] = None
    xtc_threshold: Annotated[
        float | None,
        _sampling(
            names="--xtc-threshold",
            metavar="P",
            min=0,
            max=1,
            help="Probability from which on a token is a top choice for XTC (above 0.5: off).",
            default=_unless_model("0.1"),
        ),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        _sampling(
            names="--repeat-last-n",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="How far back the penalties look (0: off, -1: the whole context).",
            default=_unless_model("64"),
        ),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        _sampling(
            names="--repeat-penalty",
            env="LLAMA_ARG_REPEAT_PENALTY",
            metavar="X",
            help="Divides the logits of repeated tokens (1: off; must be above 0).",
            read=values.positive,
            default=_unless_model("1.0"),
        ),
    ] = None
    presence_penalty: Annotated[
        float,
        _sampling(
            names="--presence-penalty",
            env="LLAMA_ARG_PRESENCE_PENALTY",
            metavar="X",
            help="Subtracted once from the logit of a token that occurred (0: off).",
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        _sampling(
            names="--frequency-penalty",
            env="LLAMA_ARG_FREQUENCY_PENALTY",
            metavar="X",
            help="Subtracted for each time that a token occurred (0: off).",
        ),
    ] = 0.0
    dry_multiplier: Annotated[
        float,
        _sampling(
            names="--dry-multiplier",
            metavar="X",
            min=0,
            help="DRY, which penalizes repeated sequences: strength (0: off).",
        ),
    ] = 0.0
    dry_base: Annotated[
        float,
        _sampling(
            names="--dry-base",
            metavar="X",
            min=1,
            help="DRY: base of the growth with the length of a repetition.",
        ),
    ] = 1.75
    dry_allowed_length: Annotated[
        int,
        _sampling(
            names="--dry-allowed-length",
            metavar="TOKENS",
            min=0,
            max=INT32_MAX,
            help="DRY: length of a repetition that is free of charge.",
        ),
    ] = 2
    dry_penalty_last_n: Annotated[
        int,
        _sampling(
            names="--dry-penalty-last-n",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="DRY: how far back to look (0: off, -1: the whole context).",
        ),
    ] = 64
    dry_sequence_breaker: Annotated[
        tuple[str, ...],
        _sampling(
            names="--dry-sequence-breaker",
            metavar="TEXT",
            help="DRY: a text that no repetition goes across, in place of the default ones; "
            "may be given several times; none leaves no breaker.",
            default=r'\n : " *',
            repeats=True,
            one_each=True,
            read=text_values.sequence_breaker,
            show=text_values.show_texts,
        ),
    ] = ("\n", ":", '"', "*")
    mirostat: Annotated[
        int | None,
        _sampling(
            names="--mirostat",
            metavar="N",
            min=0,
            max=2,
            help="Mirostat version 1 or 2, which replaces all other samplers (0: off).",
            default=_unless_model("0"),
        ),
    ] = None
    mirostat_lr: Annotated[
        float | None,
        _sampling(
            names="--mirostat-lr",
            metavar="X",
            help="Mirostat's learning rate, eta.",
            default=_unless_model("0.1"),
        ),
    ] = None
    mirostat_ent: Annotated[
        float | None,
        _sampling(
            names="--mirostat-ent",
            metavar="X",
            help="Mirostat's target entropy, tau.",
            default=_unless_model("5.0"),
        ),
    ] = None
    adaptive_target: Annotated[
        float,
        _sampling(
            names="--adaptive-target",
            metavar="P",
            min=-1,
            max=1,
            help="Adaptive-p: prefer tokens near this probability, if adaptive_p is among the "
            "samplers (negative: off).",
        ),
    ] = -1.0
    adaptive_decay: Annotated[
        float,
        _sampling(
            names="--adaptive-decay",
            metavar="X",
            min=0,
            max=0.99,
            help="Adaptive-p: how slowly it forgets; about 1/(1-X) tokens count.",
        ),
    ] = 0.9
    grammar: Annotated[
        str,
        _sampling(
            names="--grammar",
            metavar="GBNF",
            help="A grammar that every text has to follow.",
            default="none",
            replaces=("grammar_file", "json_schema", "json_schema_file"),
        ),
    ] = ""
    grammar_file: Annotated[
        str,
        _sampling(
            names="--grammar-file",
            metavar="FILE",
            help="A file with a grammar that every text has to follow.",
            default="none",
            replaces=("grammar", "json_schema", "json_schema_file"),
            file=files.read_text,
        ),
    ] = ""
    json_schema: Annotated[
        dict[str, Any] | None,
        _sampling(
            names="-j --json-schema",
            metavar="JSON",
            help="A JSON schema that every text has to follow; {} stands for any object.",
            default="none",
            replaces=("grammar", "grammar_file", "json_schema_file"),
            read=text_values.json_object,
            show=text_values.show_json,
        ),
    ] = None
    json_schema_file: Annotated[
        str,
        _sampling(
            names="-jf --json-schema-file",
            metavar="FILE",
            help="A file with a JSON schema that every text has to follow.",
            default="none",
            replaces=("grammar", "grammar_file", "json_schema"),
            file=files.read_json_object,
        ),
    ] = ""
    json_whitespace: Annotated[
        JsonWhitespace,
        _sampling(
            names="--json-whitespace",
            env="LLAMA_ARG_JSON_WHITESPACE",
            metavar="FORM",
            help="White space of JSON that follows a schema: flexible (the model chooses), compact "
            '({"a":1,"b":2}) or spaced ({"a": 1, "b": 2}). Where it is fixed, more of the text is '
            "certain, and comes faster.",
        ),
    ] = "flexible"
    jump_forward: Annotated[
        bool,
        _sampling(
            names="--jump-forward",
            negative="--no-jump-forward",
            env="LLAMA_ARG_JUMP_FORWARD",
            help="Let tokens that a grammar or a schema leaves no choice about join the next step, "
            "rather than take one each.",
        ),
    ] = True
    backend_sampling: Annotated[
        bool,
        _sampling(
            names="-bs --backend-sampling",
            env="LLAMA_ARG_BACKEND_SAMPLING",
            help="Choose tokens on the device that runs the model, where it can: for requests "
            "without grammar, schema, probabilities and limit of thinking whose samplers are "
            "among penalties, top_k, top_p, min_p and temperature. All others are sampled as "
            "usual. A matter of speed with a GPU and many slots; on a CPU it is slower. "
            "Experimental.",
        ),
    ] = False
    reverse_prompt: Annotated[
        tuple[str, ...],
        _sampling(
            names="-r --reverse-prompt",
            metavar="TEXT",
            help="Stop where this text appears, in requests without stop texts of their own; "
            "may be given several times.",
            default="none",
            repeats=True,
            one_each=True,
            read=text_values.stop_text,
            show=text_values.show_texts,
        ),
    ] = ()
    special: Annotated[
        bool,
        _sampling(names="-sp --special", help="Spell out the special tokens in generated text."),
    ] = False
    escape: Annotated[
        bool,
        _sampling(
            names="-e --escape",
            negative="--no-escape",
            help=r"Resolve \n, \t, \\, \x41 and the like in --reverse-prompt and "
            "--dry-sequence-breaker.",
        ),
    ] = True

    def unescaped(self, text: str) -> str:
        """`text` as it is meant: with its escape sequences resolved, unless `--no-escape` is
        in force. Raises `OptionError` if that gives a null character."""
        return text_values.unescape(text) if self.escape else text
