"""Options that set the defaults of generation requests."""

from functools import partial
from typing import Annotated, Any

import msgspec

from specllama.engine.options import files, text_values, values
from specllama.engine.options.declaration import INT32_MAX, Opt
from specllama.engine.params import DEFAULT_SAMPLERS, RANDOM_SEED, JsonWhitespace, SamplerName

_sampling = partial(Opt, group="Sampling defaults")


def _unless_model(value: str) -> str:
    """Returns the default of an option whose value the model's file may override."""
    return f"{value}, or the model's own"


class SamplingOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Defaults of generation parameters, for requests that don't set them. None stands for the
    value in the model's file (`engine.options.model_values`), else for that of
    `GenerationParams`."""

    n_predict: Annotated[
        int,
        _sampling(
            names="-n --predict --n-predict",
            env="LLAMA_ARG_N_PREDICT",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="Maximum number of tokens to generate.",
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
            help="Reject JSON schemas with unenforceable keywords; else the keywords are ignored.",
        ),
    ] = False
    keep: Annotated[
        int,
        _sampling(
            names="--keep",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="Number of prompt tokens to keep when --context-shift discards tokens (-1: all).",
        ),
    ] = 0
    seed: Annotated[
        int,
        _sampling(
            names="-s --seed",
            metavar="N",
            min=-1,
            max=RANDOM_SEED,
            help="Seed of the random number generator.",
            default="-1 (a random seed for each request)",
        ),
    ] = -1
    samplers: Annotated[
        tuple[SamplerName, ...] | None,
        _sampling(
            names="--samplers",
            metavar="NAME;...",
            help="Samplers in the order of their application, separated by semicolons.",
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
            help="--samplers as letters without separators: "
            + ", ".join(f"{k} {v}" for k, v in values.SAMPLER_LETTERS.items())
            + ".",
            default="".join(k for k, v in values.SAMPLER_LETTERS.items() if v in DEFAULT_SAMPLERS),
            replaces=("samplers",),
            read=values.sampler_sequence,
        ),
    ] = ""
    ignore_eos: Annotated[
        bool,
        _sampling(
            names="--ignore-eos",
            help="Ignore the model's end-of-text token and continue generating.",
        ),
    ] = False
    logit_bias: Annotated[
        tuple[tuple[int, float], ...],
        _sampling(
            names="-l --logit-bias",
            metavar="TOKEN_ID(+/-)BIAS",
            help="Raise (15043+1) or lower (15043-1) a token's logit, or exclude it (15043-inf).",
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
            help="Temperature. With 0 or less, the likeliest token is always chosen.",
            default=_unless_model("0.8"),
        ),
    ] = None
    dynatemp_range: Annotated[
        float,
        _sampling(
            names="--dynatemp-range",
            metavar="R",
            min=0,
            help="Dynamic temperature: range around the temperature (0: disabled).",
        ),
    ] = 0.0
    dynatemp_exp: Annotated[
        float,
        _sampling(
            names="--dynatemp-exp", metavar="X", min=0, help="Dynamic temperature: exponent."
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
            help="Top-k sampling: keep the N likeliest tokens (0 or -1: disabled).",
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
            help="Top-p sampling: keep the likeliest tokens that add up to P (1: disabled).",
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
            help="Min-p sampling: minimum share of the best token's probability (0: disabled).",
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
            help="Locally typical sampling (1: disabled).",
        ),
    ] = 1.0
    top_nsigma: Annotated[
        float,
        _sampling(
            names="--top-nsigma --top-n-sigma",
            metavar="N",
            help="Top-n-sigma: keep logits within N standard deviations of the best (-1: "
            "disabled).",
        ),
    ] = -1.0
    xtc_probability: Annotated[
        float | None,
        _sampling(
            names="--xtc-probability",
            metavar="P",
            min=0,
            max=1,
            help="XTC sampling: probability of removing the top choices (0: disabled).",
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
            help="XTC sampling: minimum probability of a top choice (above 0.5: disabled).",
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
            help="Number of last tokens to consider for penalties (0: disabled, -1: context size).",
            default=_unless_model("64"),
        ),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        _sampling(
            names="--repeat-penalty",
            env="LLAMA_ARG_REPEAT_PENALTY",
            metavar="X",
            help="Repetition penalty: divisor of repeated tokens' logits, above 0 (1: disabled).",
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
            help="Presence penalty, subtracted from the logit of used tokens (0: disabled).",
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        _sampling(
            names="--frequency-penalty",
            env="LLAMA_ARG_FREQUENCY_PENALTY",
            metavar="X",
            help="Frequency penalty, subtracted from the logit for each use (0: disabled).",
        ),
    ] = 0.0
    dry_multiplier: Annotated[
        float,
        _sampling(
            names="--dry-multiplier",
            metavar="X",
            min=0,
            help="DRY sampling, which penalizes repeated sequences: multiplier (0: disabled).",
        ),
    ] = 0.0
    dry_base: Annotated[
        float,
        _sampling(
            names="--dry-base",
            metavar="X",
            min=1,
            help="DRY sampling: base of the exponential growth with a repetition's length.",
        ),
    ] = 1.75
    dry_allowed_length: Annotated[
        int,
        _sampling(
            names="--dry-allowed-length",
            metavar="TOKENS",
            min=0,
            max=INT32_MAX,
            help="DRY sampling: maximum length of a repetition without a penalty.",
        ),
    ] = 2
    dry_penalty_last_n: Annotated[
        int,
        _sampling(
            names="--dry-penalty-last-n",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="DRY sampling: number of last tokens to search (0: disabled, -1: context size).",
        ),
    ] = 64
    dry_sequence_breaker: Annotated[
        tuple[str, ...],
        _sampling(
            names="--dry-sequence-breaker",
            metavar="TEXT",
            help="DRY sampling: text that ends a repetition. Replaces the default breakers; may "
            "be given several times; none removes all breakers.",
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
            help="Mirostat version, 1 or 2, which replaces all other samplers (0: disabled).",
            default=_unless_model("0"),
        ),
    ] = None
    mirostat_lr: Annotated[
        float | None,
        _sampling(
            names="--mirostat-lr",
            metavar="X",
            help="Mirostat: learning rate, eta.",
            default=_unless_model("0.1"),
        ),
    ] = None
    mirostat_ent: Annotated[
        float | None,
        _sampling(
            names="--mirostat-ent",
            metavar="X",
            help="Mirostat: target entropy, tau.",
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
            help="Adaptive-p sampling: prefer tokens near this probability, if adaptive_p is "
            "among the samplers (negative: disabled).",
        ),
    ] = -1.0
    adaptive_decay: Annotated[
        float,
        _sampling(
            names="--adaptive-decay",
            metavar="X",
            min=0,
            max=0.99,
            help="Adaptive-p sampling: decay of its memory, which spans about 1/(1-X) tokens.",
        ),
    ] = 0.9
    grammar: Annotated[
        str,
        _sampling(
            names="--grammar",
            metavar="GBNF",
            help="GBNF grammar that constrains generated text.",
            default="none",
            replaces=("grammar_file", "json_schema", "json_schema_file"),
        ),
    ] = ""
    grammar_file: Annotated[
        str,
        _sampling(
            names="--grammar-file",
            metavar="FILE",
            help="File with a GBNF grammar that constrains generated text.",
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
            help="JSON schema that constrains generated text; {} stands for any object.",
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
            help="File with a JSON schema that constrains generated text.",
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
            help="White space in JSON that a schema constrains: flexible (the model chooses), "
            'compact ({"a":1,"b":2}) or spaced ({"a": 1, "b": 2}). Fixed white space is '
            "faster, as more of the text is determined by the schema.",
        ),
    ] = "flexible"
    jump_forward: Annotated[
        bool,
        _sampling(
            names="--jump-forward",
            negative="--no-jump-forward",
            env="LLAMA_ARG_JUMP_FORWARD",
            help="Evaluate tokens that a grammar or schema determines along with the next step.",
        ),
    ] = True
    backend_sampling: Annotated[
        bool,
        _sampling(
            names="-bs --backend-sampling",
            env="LLAMA_ARG_BACKEND_SAMPLING",
            help="The device that runs the model finds the 128 likeliest tokens of each text, and "
            "only these are copied to the host. For requests without a grammar, schema, "
            "probabilities or reasoning budget whose samplers need no other tokens, such as the "
            "default ones. For a GPU and many slots; slower on a CPU. Experimental.",
        ),
    ] = False
    reverse_prompt: Annotated[
        tuple[str, ...],
        _sampling(
            names="-r --reverse-prompt",
            metavar="TEXT",
            help="Stop text for requests without their own; may be given several times.",
            default="none",
            repeats=True,
            one_each=True,
            read=text_values.stop_text,
            show=text_values.show_texts,
        ),
    ] = ()
    special: Annotated[
        bool,
        _sampling(names="-sp --special", help="Include special tokens in generated text."),
    ] = False
    escape: Annotated[
        bool,
        _sampling(
            names="-e --escape",
            negative="--no-escape",
            help=r"Process \n, \t, \\, \x41 etc. in --reverse-prompt and --dry-sequence-breaker.",
        ),
    ] = True

    def unescaped(self, text: str) -> str:
        """Returns `text`, unescaped if `escape` is on. Raises `OptionError` for null characters."""
        return text_values.unescape(text) if self.escape else text
