"""The files made from the description are up to date."""

import pytest

from tools.schemas.__main__ import STUB, stub

pytestmark = pytest.mark.slow


def test_the_stub_is_of_this_description() -> None:
    assert STUB.read_text("utf-8") == stub(), "run: python -m tools.schemas"
