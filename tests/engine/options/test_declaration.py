"""Tables, read back and put together."""

from functools import partial
from typing import Annotated

import msgspec
import pytest

from specllama.engine.options.declaration import Opt, compose, fields, replaced, tables

_opt = partial(Opt, group="Group", help="Help.")


class Left(msgspec.Struct, kw_only=True, frozen=True):
    a: Annotated[int, _opt(names="--a")] = 1
    b: Annotated[str, _opt(names="--b")] = "b"


class Right(msgspec.Struct, kw_only=True, frozen=True):
    c: Annotated[tuple[int, ...], _opt(names="--c", read=lambda text: (int(text),))] = ()


class Inner(msgspec.Struct, kw_only=True, frozen=True):
    right: Right = Right()


class Both(msgspec.Struct, kw_only=True, frozen=True):
    left: Left = Left()
    inner: Inner = Inner()


def test_fields_know_the_way_to_their_table() -> None:
    assert [*tables(Both)] == [(Left, ("left",)), (Right, ("inner", "right"))]
    assert [*fields(Both)] == ["a", "b", "c"]
    options = Both(left=Left(a=5), inner=Inner(right=Right(c=(7,))))
    assert [field.of(options) for field in fields(Both).values()] == [5, "b", (7,)]
    assert fields(Right)["c"].of(options.inner.right) == (7,)


def test_values_find_their_tables() -> None:
    chosen = {"a": 2, "c": (3,), "of another struct": 4}
    assert compose(Both, chosen) == Both(left=Left(a=2), inner=Inner(right=Right(c=(3,))))
    assert compose(Inner, chosen) == Inner(right=Right(c=(3,)))
    assert compose(Both, {}) == Both()


def test_values_are_replaced_in_their_tables() -> None:
    options = Both(left=Left(a=5, b="x"))
    assert replaced(options, b="y", c=(1,)) == Both(
        left=Left(a=5, b="y"), inner=Inner(right=Right(c=(1,)))
    )
    with pytest.raises(TypeError, match="Both has no d, e"):
        replaced(options, d=1, e=2, a=3)


def test_an_option_is_declared_once() -> None:
    class Twice(msgspec.Struct, frozen=True):
        one: Left = Left()
        other: Left = Left()

    with pytest.raises(TypeError, match="two tables have the option a"):
        fields(Twice)


def test_declarations_that_nothing_could_read() -> None:
    class Unread(msgspec.Struct, frozen=True):
        x: Annotated[list[int], _opt(names="--x")] = []

    class Negated(msgspec.Struct, frozen=True):
        x: Annotated[int, _opt(names="--x", negative="--no-x")] = 0

    class Quoted(msgspec.Struct, frozen=True):
        x: Annotated[str, _opt(names="--x", secret=True)] = ""

    for table in (Unread, Negated, Quoted):
        with pytest.raises(TypeError, match=r"the .*option x"):
            fields(table)
