"""The file of --keys-file: what is valid, and the messages about the rest."""

import datetime
import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.options import OptionError
from specllama.handlers.options import parse
from specllama.handlers.options.keys_file import (
    ACCESS,
    USUAL_ACCESS,
    KeysError,
    KeyTable,
    checked,
    read_keys,
    tables,
    what_is_valid,
)
from tests.support.options_support import error

ALL = """
[keys.alice]
key = "sk-alice"
models = ["a", "b*"]
operations = ["generate", "admin"]
weight = 2
priority = 3
best_priority = -1
concurrency = 4
requests_per_minute = 60
tokens_per_minute = 1000
tokens_per_day = 20_000
cache = "own"
cache_mib = 512
expires = 2027-01-31T12:00:00Z
"""


def test_every_field() -> None:
    [(name, table)] = tables(ALL).items()
    assert name == "alice"
    assert table == KeyTable(
        key="sk-alice",
        models=["a", "b*"],
        operations=["generate", "admin"],
        weight=2.0,
        priority=3,
        best_priority=-1,
        concurrency=4,
        requests_per_minute=60,
        tokens_per_minute=1000,
        tokens_per_day=20_000,
        cache="own",
        cache_mib=512,
        expires=datetime.datetime(2027, 1, 31, 12, tzinfo=datetime.UTC),
    )
    assert table.digest == hashlib.sha256(b"sk-alice").digest()
    assert table.expires_at == 1801396800


def test_the_defaults() -> None:
    hashed = hashlib.sha256(b"x").hexdigest()
    [table] = tables(f'[keys.a]\nsha256 = "{hashed.upper()}"').values()
    assert table.digest == hashlib.sha256(b"x").digest()
    assert tuple(table.operations) == USUAL_ACCESS
    assert "admin" not in USUAL_ACCESS
    assert (table.models, table.cache, table.expires_at) == (None, None, None)
    assert tables("[keys.a]\nkey = 'x'\npriority = 5")["a"].lowest_priority == 5


def test_a_date_is_its_first_moment_here() -> None:
    [table] = tables("[keys.a]\nkey = 'x'\nexpires = 2027-01-31").values()
    assert table.expires_at == datetime.datetime(2027, 1, 31).timestamp()


@pytest.mark.parametrize("text", ["", "# a comment", "[keys]"])
def test_a_file_without_keys(text: str) -> None:
    assert tables(text) == {}


WRONG = {
    "key": ["''", "5", "'a b'", "'ü'", r'"a\n"', "'" + "a" * 1025 + "'"],
    "sha256": ["'abc'", "1"],
    "models": ["'a'", "[1]", "['']"],
    "operations": ["'generate'", "['write']", "[1]"],
    "weight": ["0", "-1", "nan", "inf", "'1'", "true"],
    "priority": ["1.5", "128", "-129", "true", "'high'"],
    "best_priority": ["1.5", "1", "-129"],
    "concurrency": ["-1", "1.0", "99999999999999999999999999"],
    "requests_per_minute": ["-1"],
    "tokens_per_minute": ["'many'"],
    "tokens_per_day": ["-0.5"],
    "cache": ["'mine'", "true"],
    "cache_mib": ["-1"],
    "expires": ["'2027-01-31'", "2027", "07:32:00", "true"],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_the_message_names_file_table_field_and_what_is_valid(
    field: str, value: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.toml"
    rest = "" if field in ("key", "sha256") else "key = 'sk-secret'\n"
    file.write_text(f"[keys.bob]\n{rest}{field} = {value}\n", "utf-8")
    with pytest.raises(OptionError) as raised:
        read_keys(str(file))
    message = str(raised.value)
    assert "keys.toml" in message
    assert "\n" not in message
    assert f"[keys.bob] {field}: it must be" in message
    if field != "best_priority":
        assert message.endswith(what_is_valid(field))
    assert "sk-secret" not in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("keys = 5", "each key is a table [keys.NAME]"),
        ("[keys]\na = 5", "a key is a table [keys.a]"),
        ("[[keys]]\nname = 'a'\nkey = 'x'", "each key is a table [keys.NAME]"),
        ("[key.a]\nkey = 'x'", '"key" doesn\'t belong here'),
        ("[keys.a]\nwieght = 1", "(did you mean weight?)"),
        ("[keys.a]\ncolour = 'x'", "the fields are key, sha256, models"),
        ("[keys.a]\nweight = 1", "it needs either key or sha256"),
        (f"[keys.a]\nkey = 'x'\nsha256 = '{'0' * 64}'", "it needs either key or sha256"),
        ("[keys.'a b']\nkey = 'x'", "is no name of a key"),
        ("[keys.'']\nkey = 'x'", "is no name of a key"),
        ("[keys.api-key-1]\nkey = 'x'", "the name of a key of --api-key"),
        ("[keys.a]\nkey = 'x'\n[keys.b]\nkey = 'x'", "[keys.b]: its key is the same as that of"),
        ("[keys.a]\nkey = sk-secret", "line 2"),
        ("[keys.a]\nkey = 'x'\n[keys.a]\nkey = 'y'", "line 3"),
    ],
)
def test_other_faults(text: str, part: str) -> None:
    with pytest.raises(KeysError) as raised:
        tables(text)
    assert part in str(raised.value)
    assert "sk-secret" not in str(raised.value)


def test_a_key_and_its_hash_are_the_same_key() -> None:
    hashed = hashlib.sha256(b"x").hexdigest()
    with pytest.raises(KeysError, match=r"the same as that of \[keys.a\]"):
        tables(f"[keys.a]\nkey = 'x'\n[keys.b]\nsha256 = '{hashed}'")


def test_a_key_of_the_command_line_may_not_be_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("[keys.a]\nkey = 'sk-a'\n", "utf-8")
    message = error("--keys-file", str(file), "--api-key", "other,sk-a")
    assert "--keys-file" in message
    assert "[keys.a]" in message
    assert "a key of --api-key" in message
    assert "sk-a" not in message
    options = parse(["--keys-file", str(file), "--api-key", "other"], {})
    assert [*options.http.named_keys()] == ["a"]
    assert options.http.api_keys() == ["other"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot open" in error("--keys-file", str(tmp_path / "none"))
    assert "is a directory" in error("--keys-file", str(tmp_path))
    (file := tmp_path / "keys.toml").write_bytes(b"\xff\xfe")
    assert "UTF-8" in error("--keys-file", str(file))
    file.write_text("a = " + "[" * 100_000, "utf-8")
    assert "--keys-file" in error("--keys-file", str(file))


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@given(
    st.dictionaries(
        st.sampled_from([*WRONG, "other"]),
        VALUES | st.sampled_from(["own", [*ACCESS], 1, 0.5, "x"]),
    )
)
def test_any_other_value_is_a_fault_with_a_message(table: dict[str, Any]) -> None:
    message = ""
    try:
        found = checked("a", table)
        assert len(found.digest) == hashlib.sha256().digest_size
        assert found.lowest_priority <= found.priority
    except KeysError as error:
        message = str(error)
    assert not message or message.startswith("[keys.a]")
    assert "\n" not in message
