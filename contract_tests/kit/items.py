"""Finds the operation of a collected test, and its title."""

import re
from collections.abc import Collection

import pytest

from contract_tests.kit import contract

DOWNLOADING = ("POST /models", "POST /api/pull")
"""Operations that look for a model on a hub: no test may send made-up names there."""
MAKING_UP = ("test_schemathesis", "test_bad_input")
"""Modules of tests that send made-up values for every field."""


def operation_of(item: pytest.Item) -> str | None:
    """Returns the operation in the parameters of a test, by method and path."""
    if callspec := getattr(item, "callspec", None):
        for value in callspec.params.values():
            if isinstance(value, str) and value in contract.operations():
                return contract.operations()[value].name
    within = re.search(r"\[(.+)\]$", item.name, re.DOTALL)
    names = {each.name for each in contract.operations().values()}
    return within[1] if within and within[1] in names else None


def title_of(item: pytest.Item) -> str:
    """Returns the name of a test as a sentence."""
    name, _, rest = item.name.removeprefix("test_").partition("[")
    return name.replace("_", " ") + (f" ({rest.rstrip(']')})" if rest else "")


def is_generated(item: pytest.Item) -> bool:
    return item.path.stem == "test_schemathesis"


def is_for(item: pytest.Item, absent: Collection[str]) -> bool:
    """True if a server of another make that lacks the operations `absent` can run the test."""
    own = operation_of(item)
    return own not in absent and not (own in DOWNLOADING and item.path.stem in MAKING_UP)
