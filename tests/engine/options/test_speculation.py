"""Options of speculation: what several of them mean together."""

import pytest

from specllama.engine.options import OptionError
from specllama.engine.options.tables.speculation import SpeculationOptions
from specllama.handlers.options import parse


def speculation(*argv: str) -> SpeculationOptions:
    return parse([*argv], {}).model.engine.speculation


@pytest.mark.parametrize(
    ("argv", "types"),
    [
        ([], set()),
        (["--spec-type", "none"], set()),
        (["--spec-type", "ngram-simple,ngram-cache"], {"ngram-simple", "ngram-cache"}),
        (["--spec-type", "ngram-simple", "--spec-type", "radix"], {"ngram-simple", "radix"}),
        (["--spec-type", "radix,none,ngram-mod"], set()),
        (["--spec-default"], {"radix", "ngram-mod", "ngram-cache"}),
        (["--spec-default", "--spec-type", "ngram-mod,draft-simple"],
         {"radix", "ngram-mod", "ngram-cache", "draft-simple"}),
        (["--spec-type", "draft-simple"], {"draft-simple"}),
    ],
)  # fmt: skip
def test_types(argv: list[str], types: set[str]) -> None:
    assert speculation(*argv).types() == types


@pytest.mark.parametrize("name", ["draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"])
def test_heads_are_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=f"--spec-type: {name} is not available: .*hidden states"):
        speculation("--spec-type", f"ngram-simple,{name}")


def test_old_spellings_mean_the_new_ones() -> None:
    old = speculation("--draft-max", "7", "--draft-n-min", "3", "--draft-p-min", "0.5")
    new = ("--spec-draft-n-max", "7", "--spec-draft-n-min", "3", "--spec-draft-p-min", "0.5")
    assert old == speculation(*new)
    options = parse([], {"LLAMA_ARG_DRAFT_MAX": "7", "LLAMA_ARG_SPEC_TYPE": "radix"})
    found = options.model.engine.speculation
    assert (found.spec_draft_n_max, found.spec_type) == (7, ("radix",))
