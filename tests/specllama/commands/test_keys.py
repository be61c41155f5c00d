"""`specllama keys`: what it does to the file of API keys."""

import hashlib
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specllama.commands.keys import PREFIX, added, main, revoked, value_of
from specllama.handlers.options.keys_file import KeysError, tables


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "keys.toml"
    monkeypatch.setenv("LLAMA_ARG_KEYS_FILE", str(path))
    return path


def add(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Adds a key, and returns it."""
    assert main(["add", *argv]) == 0
    said = capsys.readouterr()
    assert "only now" in said.err
    assert said.out.startswith(PREFIX)
    return said.out.removesuffix("\n")


def failed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 1
    said = capsys.readouterr()
    assert not said.out
    [line] = said.err.splitlines()
    return line


def test_a_key_is_shown_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = add(capsys, "alice")
    assert len(secret) > 40
    assert add(capsys, "bob") != secret
    text = file.read_text("utf-8")
    assert secret not in text
    found = tables(text)
    assert [*found] == ["alice", "bob"]
    assert found["alice"].digest == hashlib.sha256(secret.encode()).digest()
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert secret not in listed
    assert hashlib.sha256(secret.encode()).hexdigest() not in listed


def test_every_field_can_be_given(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(
        capsys, "alice", "--models", "a, b*", "--operations", "generate,admin", "--weight", "2",
        "--priority", "3", "--best-priority", "-1", "--concurrency", "4",
        "--requests-per-minute", "60", "--tokens-per-minute", "1_000", "--tokens-per-day", "20",
        "--cache", "own", "--cache-mib", "5", "--expires", "2027-01-31",
    )  # fmt: skip
    found = tomllib.loads(file.read_text("utf-8"))["keys"]["alice"]
    del found["sha256"]
    assert found == {
        "models": ["a", "b*"],
        "operations": ["generate", "admin"],
        "weight": 2,
        "priority": 3,
        "best_priority": -1,
        "concurrency": 4,
        "requests_per_minute": 60,
        "tokens_per_minute": 1000,
        "tokens_per_day": 20,
        "cache": "own",
        "cache_mib": 5,
        "expires": value_of("expires", "2027-01-31"),
    }
    assert main(["list"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "OPERATIONS", "MODELS", "LIMITS", "EXPIRES"]
    assert line.split()[:4] == ["alice", "generate,admin", "a,b*", "weight=2"]
    assert line.endswith("2027-01-31")


def test_faults_change_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot open" in failed(capsys, "list")
    assert "cannot open" in failed(capsys, "revoke", "alice")
    assert not file.exists()
    add(capsys, "alice")
    before = file.read_bytes()
    assert "[keys.bob] weight: it must be" in failed(capsys, "add", "bob", "--weight", "heavy")
    assert "[keys.bob] operations" in failed(capsys, "add", "bob", "--operations", "all")
    assert "already" in failed(capsys, "add", "alice")
    assert "is no name" in failed(capsys, "add", "a b")
    assert "--api-key" in failed(capsys, "add", "api-key-1")
    assert 'no key "carol"' in failed(capsys, "revoke", "carol")
    assert file.read_bytes() == before
    file.write_text("[keys.", "utf-8")
    assert "keys.toml" in failed(capsys, "add", "bob")
    assert file.read_text("utf-8") == "[keys."
    assert {path.name for path in file.parent.iterdir()} <= {file.name, f"{file.name}.lock"}


def test_the_usual_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LLAMA_ARG_KEYS_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    add(capsys, "alice")
    assert [*tables((tmp_path / "keys.toml").read_text("utf-8"))] == ["alice"]
    add(capsys, "bob", "--keys-file", "other.toml")
    assert [*tables((tmp_path / "other.toml").read_text("utf-8"))] == ["bob"]


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_only_the_owner_can_read_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(capsys, "alice")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    add(capsys, "bob")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    (link := file.with_name("link.toml")).symlink_to(file)
    assert main(["revoke", "bob", "--keys-file", str(link)]) == 0
    assert link.is_symlink()
    assert [*tables(file.read_text("utf-8"))] == ["alice"]


COMMENTED = """# The keys of our team.

[keys.alice]  # the first
key = "sk-a" # hers
models = [
    "a", # one
    "b",
]

# About Bob.
[keys.bob]
key = "sk-b"
# The end of Bob.

# About Carol.
[keys.carol]
key = '''sk-c'''
# The end.
"""


def test_comments_stay() -> None:
    assert revoked(COMMENTED, "alice") == COMMENTED.replace(
        COMMENTED[COMMENTED.index("[keys.alice]") : COMMENTED.index("\n# About Bob")], ""
    )
    without = revoked(COMMENTED, "bob")
    for comment in ("the first", "# hers", "# one", "# About Bob", "# About Carol", "# The end."):
        assert comment in without
    more = added(COMMENTED, "dora", {"sha256": "0" * 64})
    assert more.startswith(COMMENTED)
    assert revoked(more, "dora").strip() == COMMENTED.strip()


@pytest.mark.parametrize(
    "text",
    [
        '[keys]\na.key = "x"\nb.key = "y"\n',
        'keys.a.key = "x"\nkeys.b.key = "y"\n',
        '[keys]\na = {key = "x"}\nb = {key = "y"}\n',
        'keys = {a = {key = "x"}, b = {key = "y"}}\n',
        '[keys."a"]\n"key" = "x"\n[keys."b"]\nkey = "y"\n',
        '[keys]\n[keys.a]\nkey = "x"\n[keys.b]\nkey = "y"',
    ],
)
def test_other_forms_of_the_file(text: str) -> None:
    assert [*tables(revoked(text, "a"))] == ["b"]
    assert [*tables(revoked(text, "b"))] == ["a"]
    if text.startswith("keys = "):
        with pytest.raises(KeysError, match="too unusual"):
            added(text, "c", {"key": "z"})
    else:
        assert [*tables(added(text, "c", {"key": "z"}))] == ["a", "b", "c"]


NAMES = st.sampled_from(["a", "b", "c-1", "D.e", "x_y"])
COMMENT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
TABLE = st.fixed_dictionaries(
    {"key": st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1)},
    optional={
        "models": st.lists(st.text(min_size=1, max_size=4), max_size=3),
        "weight": st.floats(0.001, 1000),
        "concurrency": st.integers(0, 2**53),
        "expires": st.dates() | st.datetimes(),
    },
)


@given(st.lists(st.tuples(NAMES, TABLE, COMMENT, st.booleans()), max_size=8))
def test_any_history(steps: list[tuple[str, dict[str, Any], str, bool]]) -> None:
    text, model, comments = "", dict[str, Any](), list[str]()
    for name, table, comment, removes in steps:
        if removes and name in model:
            text = revoked(text, name)
            del model[name]
        elif name not in model:
            assume(table["key"] not in {each["key"] for each in model.values()})
            try:
                text = added(text, name, table)
            except KeysError:  # a year that the system's clock doesn't have
                assume(False)
            model[name] = table
        text += f"\n# {comment}.\n"
        comments.append(f"# {comment}.")
        assert tomllib.loads(text).get("keys", {}) == model
        assert [line for line in text.splitlines() if line.startswith("# ")] == comments
