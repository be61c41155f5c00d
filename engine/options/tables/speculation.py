"""Options of speculative decoding: which sources propose tokens, and how many."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

import msgspec

from specllama.engine.options import files, values
from specllama.engine.options.declaration import INT32_MAX, Opt
from specllama.engine.options.values import OptionError, real

# ---- Synthetic acceptance rates, for benchmarks: `--spec-synth-len`, `--spec-synth-rates`.


HALVINGS = 50
"""Number of bisections, after which an interval is smaller than the precision of a float."""


def read_rates(text: str) -> tuple[float, ...]:
    """Returns the chances that at least 1, 2, ... tokens of a proposal are accepted."""
    rates = tuple(real(rate.strip(), 0, 1) for rate in text.split(","))
    if any(after > before for before, after in pairwise(rates)):
        raise OptionError(
            "a rate is higher than the one before: a token is accepted only after all earlier ones"
        )
    return rates


def show_rates(rates: Sequence[float]) -> str:
    return ",".join(map(str, rates))


def rates_of(length: float, rates: tuple[float, ...], n_max: int) -> tuple[float, ...]:
    """Returns the acceptance rates of proposals of up to `n_max` tokens: the given `rates`, or
    rates with which a step generates `length` tokens on average, including its own. Empty if
    neither is given. Raises `OptionError` for values that don't match `n_max`."""
    if not length and not rates:
        return ()
    name = "--spec-synth-rates" if rates else "--spec-synth-len"
    if not n_max:
        raise OptionError(
            f"{name} sets the acceptance of proposals, so it needs --spec-type or --model-draft"
        )
    if rates:
        if len(rates) != n_max:
            raise OptionError(
                f"{name} has {len(rates)} rates, but it needs one for each of the up to {n_max} "
                "tokens that are proposed at once"
            )
        return rates
    if length > n_max + 1:
        raise OptionError(
            f"{name} {length:g} is out of range: with up to {n_max} proposed tokens, a step "
            f"generates at most {n_max + 1}"
        )
    chance = _chance(length - 1, n_max)
    return tuple(chance**n for n in range(1, n_max + 1))


def _chance(length: float, n: int) -> float:
    """Returns the chance of each token, given that all earlier ones are accepted, with which on
    average `length` of `n` tokens are accepted."""
    if length == n:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        chance = (low + high) / 2
        if sum(chance**k for k in range(1, n + 1)) < length:
            low = chance
        else:
            high = chance
    return low


SpeculationType = Literal[
    "none",
    "radix",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "draft-simple",
]

DRAFT: SpeculationType = "draft-simple"
MOST = 64
"""Maximum number of tokens that a source without an option for it proposes at once."""

_spec = partial(Opt, group="Speculation")

_HEADS = ("draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
_LONGEST = 1024
"""Maximum length of an n-gram, or of a proposal from text, in tokens; llama-server's limit."""


def _types(text: str) -> tuple[SpeculationType, ...]:
    known: tuple[SpeculationType, ...] = get_args(SpeculationType)
    names = values.comma_separated(text)
    for name in names:
        if name in _HEADS:
            raise OptionError(
                f"{name} is not available: it needs a head that reads the model's hidden states"
            )
        if name not in known:
            expected = ", ".join(known)
            raise OptionError(f"unknown type {values.quote(name)} (known: {expected})")
    return tuple(kind for name in names for kind in known if kind == name)


def _of_lookup(kind: str, name: str, help: str, most: int = _LONGEST) -> Opt:
    return _spec(
        names=f"--spec-{kind}-{name}", metavar="N", min=1, max=most, help=f"{kind}: {help}"
    )


def _size_n(kind: str) -> Opt:
    return _of_lookup(kind, "size-n", "number of last tokens to search for in the text.")


def _size_m(kind: str) -> Opt:
    return _of_lookup(kind, "size-m", "maximum number of tokens to propose.")


def _min_hits(kind: str) -> Opt:
    help = "minimum number of occurrences of the last tokens for a proposal."
    return _of_lookup(kind, "min-hits", help, INT32_MAX)


def _of_mod(name: str, help: str, low: int, **more: Any) -> Opt:
    return _spec(
        names=f"--spec-ngram-mod-{name}",
        metavar="N",
        min=low,
        max=_LONGEST,
        help=f"ngram-mod: {help}",
        **more,
    )


class SpeculationOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How tokens are proposed, to be verified together in one step. The options don't change texts,
    except for the synthetic rates."""

    spec_type: Annotated[
        tuple[SpeculationType, ...],
        _spec(
            names="--spec-type",
            env="LLAMA_ARG_SPEC_TYPE",
            metavar="TYPE,...",
            help="Sources of proposals; may be given several times. From the same text: "
            "ngram-simple, ngram-map-k, ngram-map-k4v, ngram-cache, and ngram-mod, which "
            "also uses other texts of the same API key. From texts of the same API key with "
            "the same beginning: radix. From --model-draft: draft-simple.",
            default="none",
            repeats=True,
            read=_types,
            show=values.show_comma_separated,
        ),
    ] = ()
    spec_default: Annotated[
        bool,
        _spec(
            names="--spec-default",
            help="Enable speculation without a draft model: "
            "--spec-type radix,ngram-mod,ngram-cache.",
        ),
    ] = False
    spec_draft_n_max: Annotated[
        int,
        _spec(
            names="--spec-draft-n-max --draft --draft-n --draft-max",
            env="LLAMA_ARG_SPEC_DRAFT_N_MAX",
            also_env="LLAMA_ARG_DRAFT_MAX",
            metavar="N",
            min=0,
            max=INT32_MAX,
            help="Draft model: maximum number of tokens to propose (0: none).",
        ),
    ] = 16
    spec_draft_n_min: Annotated[
        int,
        _spec(
            names="--spec-draft-n-min --draft-min --draft-n-min",
            env="LLAMA_ARG_SPEC_DRAFT_N_MIN",
            also_env="LLAMA_ARG_DRAFT_MIN",
            metavar="N",
            min=0,
            max=INT32_MAX,
            help="Draft model: minimum number of tokens to propose; with fewer, it proposes "
            "nothing. Limited to --spec-draft-n-max.",
        ),
    ] = 0
    spec_draft_p_min: Annotated[
        float,
        _spec(
            names="--spec-draft-p-min --draft-p-min",
            env="LLAMA_ARG_SPEC_DRAFT_P_MIN",
            also_env="LLAMA_ARG_DRAFT_P_MIN",
            metavar="P",
            help="Draft model: minimum probability of a token to propose it.",
        ),
    ] = 0.75
    spec_draft_p_split: Annotated[
        float,
        _spec(
            names="--spec-draft-p-split --draft-p-split",
            env="LLAMA_ARG_SPEC_DRAFT_P_SPLIT",
            metavar="P",
            help="Without effect, as in llama-server: proposals don't branch.",
        ),
    ] = 0.1
    spec_synth_len: Annotated[
        float,
        _spec(
            names="--spec-synth-len",
            env="LLAMA_ARG_SPEC_SYNTH_LEN",
            metavar="L",
            min=1,
            help="For benchmarks: evaluate every proposal, whether it pays or not (so without "
            "--spec-draft-p-min), and accept its tokens at random, so that a step generates this "
            "number of tokens on average, including its own. Generated texts are meaningless.",
            default="none",
            excludes=("spec_synth_rates",),
        ),
    ] = 0.0
    spec_synth_rates: Annotated[
        tuple[float, ...],
        _spec(
            names="--spec-synth-rates",
            env="LLAMA_ARG_SPEC_SYNTH_RATES",
            metavar="P0,P1,...",
            help="For benchmarks: evaluate every proposal, whether it pays or not (so without "
            "--spec-draft-p-min), and accept its tokens at random, with these chances that at "
            "least 1, 2, ... tokens are accepted. Needs a chance for each token that may be "
            "proposed at once.",
            default="none",
            excludes=("spec_synth_len",),
            read=read_rates,
            show=show_rates,
        ),
    ] = ()
    spec_ngram_simple_size_n: Annotated[int, _size_n("ngram-simple")] = 12
    spec_ngram_simple_size_m: Annotated[int, _size_m("ngram-simple")] = 48
    spec_ngram_simple_min_hits: Annotated[int, _min_hits("ngram-simple")] = 1
    spec_ngram_map_k_size_n: Annotated[int, _size_n("ngram-map-k")] = 12
    spec_ngram_map_k_size_m: Annotated[int, _size_m("ngram-map-k")] = 48
    spec_ngram_map_k_min_hits: Annotated[int, _min_hits("ngram-map-k")] = 1
    spec_ngram_map_k4v_size_n: Annotated[int, _size_n("ngram-map-k4v")] = 12
    spec_ngram_map_k4v_size_m: Annotated[int, _size_m("ngram-map-k4v")] = 48
    spec_ngram_map_k4v_min_hits: Annotated[int, _min_hits("ngram-map-k4v")] = 1
    spec_ngram_mod_n_match: Annotated[
        int,
        _of_mod("n-match", "length of the n-gram that determines the next token, in tokens.", 1),
    ] = 24
    spec_ngram_mod_n_max: Annotated[
        int, _of_mod("n-max", "maximum number of tokens to propose (0: none).", 0)
    ] = 64
    spec_ngram_mod_n_min: Annotated[
        int,
        _of_mod(
            "n-min",
            "minimum number of tokens to propose; with fewer, it proposes nothing. Limited to "
            "--spec-ngram-mod-n-max.",
            0,
        ),
    ] = 48
    lookup_cache_static: Annotated[
        str,
        _spec(
            names="-lcs --lookup-cache-static",
            metavar="FILE",
            help="ngram-cache: file of llama-lookup-create, to confirm proposals from the text.",
            default="none",
            file=files.check_file,
        ),
    ] = ""
    lookup_cache_dynamic: Annotated[
        str,
        _spec(
            names="-lcd --lookup-cache-dynamic",
            metavar="FILE",
            help="ngram-cache: file of llama-lookup-create, for proposals if the text gives "
            "none. In contrast to llama-server, it is only read.",
            default="none",
            file=files.check_file,
        ),
    ] = ""

    def draft_sizes(self) -> tuple[int, int]:
        """Returns the minimum and the maximum number of tokens that the draft model proposes."""
        return min(self.spec_draft_n_min, self.spec_draft_n_max), self.spec_draft_n_max

    def most(self) -> dict[SpeculationType, int]:
        """Returns the maximum number of tokens that each source proposes at once."""
        return {
            "radix": MOST,
            "ngram-simple": self.spec_ngram_simple_size_m,
            "ngram-map-k": self.spec_ngram_map_k_size_m,
            "ngram-map-k4v": self.spec_ngram_map_k4v_size_m,
            "ngram-mod": self.spec_ngram_mod_n_max,
            "ngram-cache": MOST,
            DRAFT: self.spec_draft_n_max,
        }

    def types(self) -> frozenset[SpeculationType]:
        """Returns the requested sources; empty if `none` is among them."""
        wanted = frozenset(self.spec_type)
        if self.spec_default:
            wanted |= {"radix", "ngram-mod", "ngram-cache"}
        return frozenset() if "none" in wanted else wanted

    def sources(self, *, has_draft: bool) -> list[SpeculationType]:
        """Returns the sources to use, including the draft model if it exists and may propose
        tokens."""
        wanted = self.types() - {DRAFT}
        if has_draft and self.spec_draft_n_max > 0:
            wanted |= {DRAFT}
        return [name for name in self.most() if name in wanted]

    def n_max(self, *, has_draft: bool) -> int:
        """Returns the maximum number of tokens proposed at once."""
        most = self.most()
        return max((most[name] for name in self.sources(has_draft=has_draft)), default=0)

    def synthetic_rates(self, *, has_draft: bool) -> tuple[float, ...]:
        """Returns the synthetic chances that at least 1, 2, ... tokens of a proposal are
        accepted; empty without synthetic rates. Raises `OptionError` for values that don't match
        the sources."""
        n_max = self.n_max(has_draft=has_draft)
        return rates_of(self.spec_synth_len, self.spec_synth_rates, n_max)
