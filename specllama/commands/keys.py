"""`specllama keys`: adds API keys to the file of `--keys-file`, lists them, and removes them."""

import argparse
import hashlib
import os
import secrets
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from filelock import FileLock
from tomlkit.items import Table, Whitespace

from specllama.engine.options import OptionError
from specllama.engine.options.files import read_text, reason
from specllama.engine.options.values import quote
from specllama.handlers.options.keys_file import (
    USUAL_ACCESS,
    KeysError,
    KeyTable,
    check_name,
    checked,
    tables,
    what_is_valid,
)

VARIABLE = "LLAMA_ARG_KEYS_FILE"
USUAL_FILE = "keys.toml"
PREFIX = "sk-"
"""The beginning of a new key, by which people and programs recognize it as a secret."""
_SECRETS = ("key", "sha256")
_LISTS = {
    "models": "names or aliases of models, such as a,b* (default: all models)",
    "operations": f"groups of operations, such as {','.join(USUAL_ACCESS)} (the default); admin is "
    "another",
}
"""Fields that have several values, with commas between them, and their help."""
_FIELDS = [each.name for each in msgspec.structs.fields(KeyTable) if each.name not in _SECRETS]


def main(argv: Sequence[str]) -> int:
    """Returns 0, or 1 after one line about an error."""
    given = _parser().parse_args(argv)
    path = Path(given.keys_file or os.environ.get(VARIABLE) or USUAL_FILE)
    try:
        match given.action:
            case "add":
                _add(path, given.name, _table(given))
            case "list":
                _list(path)
            case _:
                _revoke(path, given.name)
    except (OptionError, KeysError) as error:
        print(f"specllama keys: error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--keys-file",
        metavar="FILE",
        help=f"the file of the server's --keys-file (default: {VARIABLE}, or else {USUAL_FILE})",
    )
    parser = argparse.ArgumentParser(
        prog="specllama keys",
        description="Adds, lists and removes API keys in the file of --keys-file. A running "
        "server reads the changed file by itself.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="add|list|revoke")
    about = "adds a key and prints it, the only time; the file has its SHA-256"
    add = actions.add_parser("add", parents=[common], help=about, description=about)
    add.add_argument("name", metavar="NAME", help="name of the key, in the log and in metrics")
    for field in _FIELDS:
        name = "--" + field.replace("_", "-")
        about_field = _LISTS.get(field) or what_is_valid(field)
        add.add_argument(name, metavar="VALUE", help=about_field)
    about = "lists the keys and what they may do"
    actions.add_parser("list", parents=[common], help=about, description=about)
    about = "removes a key"
    revoke = actions.add_parser("revoke", parents=[common], help=about, description=about)
    revoke.add_argument("name", metavar="NAME", help="name of the key in `specllama keys list`")
    return parser


def _table(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields of a key on the command line."""
    texts = {field: getattr(given, field) for field in _FIELDS}
    return {field: value_of(field, text) for field, text in texts.items() if text is not None}


def value_of(field: str, text: str) -> Any:
    """Returns the value of a field; the text itself if it isn't one, which the checks reject."""
    if field in _LISTS:
        return [part.strip() for part in text.split(",")]
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 else text


# ---- the commands ------------------------------------------------------------------------


def _add(path: Path, name: str, table: Mapping[str, Any]) -> None:
    secret = PREFIX + secrets.token_urlsafe(32)
    hashed = hashlib.sha256(secret.encode()).hexdigest()
    with _changing(path) as file:
        file.text = added(file.text, name, {"sha256": hashed, **table})
    print(
        f"added {name} to {path}. This is the key; it is shown only now, and the file has only "
        "its SHA-256:",
        file=sys.stderr,
        flush=True,
    )
    print(secret)


def _list(path: Path) -> None:
    found = tables(_read(path, must_exist=True))
    rows: list[tuple[str, ...]] = [("NAME", "OPERATIONS", "MODELS", "LIMITS", "EXPIRES")]
    rows += [_row(name, table) for name, table in found.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{n}}" for cell, n in zip(row, widths, strict=True)).rstrip())


def _row(name: str, table: KeyTable) -> tuple[str, ...]:
    usual = KeyTable()
    shown = ("models", "operations", "expires", *_SECRETS)
    limits = [
        f"{field}={_short(getattr(table, field))}"
        for field in _FIELDS
        if field not in shown and getattr(table, field) != getattr(usual, field)
    ]
    models = "all" if table.models is None else ",".join(table.models)
    expires = "" if table.expires is None else str(table.expires)
    operations = ",".join(table.operations) or "none"
    return name, operations, models or "none", " ".join(limits) or "none", expires or "never"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _revoke(path: Path, name: str) -> None:
    with _changing(path, must_exist=True) as file:
        file.text = revoked(file.text, name)
    print(f"removed {name} from {path}")


# ---- the text of the file ----------------------------------------------------------------


def added(text: str, name: str, table: Mapping[str, Any]) -> str:
    """Returns the text of a keys file with one more key at its end. Raises KeysError if the text,
    the name or the table is invalid, or there is a key with this name."""
    before = tables(text)
    check_name(name)
    checked(name, table)
    if name in before:
        raise KeysError(f"there is a key {name} already; revoke it first")
    new = tomlkit.document()
    new.add("keys", tomlkit.table(is_super_table=True).add(name, tomlkit.item(dict(table))))
    start = f"{text.rstrip()}\n\n" if text.strip() else ""
    return _checked(start + tomlkit.dumps(new), {*before, name})


def revoked(text: str, name: str) -> str:
    """Returns the text of a keys file without a key. Comments after its last field stay, because
    they may be about the next key. Raises KeysError if the text is invalid, or there is no such
    key."""
    before = tables(text)
    if name not in before:
        raise KeysError(f"there is no key {quote(name)}; specllama keys list shows all keys")
    document = tomlkit.parse(text)
    keys = document["keys"]
    found = keys[name]
    if isinstance(keys, Table) and isinstance(found, Table) and not found.is_super_table():
        body = keys.value.body
        place = next(i for i, (key, _) in enumerate(body) if key is not None and key.key == name)
        body[place] = (None, Whitespace(_after_fields(found)))
    else:
        del keys[name]
    return _checked(tomlkit.dumps(document), before.keys() - {name})


def _after_fields(table: Table) -> str:
    """Returns the lines after the last field of a table."""
    rest: list[str] = []
    for key, item in reversed(table.value.body):
        if key is not None:
            break
        rest.insert(0, item.as_string())
    return "".join(rest)


def _checked(text: str, names: set[str]) -> str:
    """Returns the text if it is a valid file of keys with these names. Raises KeysError."""
    try:
        is_right = tables(text).keys() == names
    except KeysError:
        is_right = False
    if not is_right:
        raise KeysError("its form is too unusual; write each key as a table [keys.NAME]")
    return text


# ---- the file ----------------------------------------------------------------------------


class _File:
    """The text of a file, to be changed."""

    def __init__(self, text: str) -> None:
        self.text = text


@contextmanager
def _changing(path: Path, *, must_exist: bool = False) -> Iterator[_File]:
    """Yields the file's text, and replaces the file by the changed text in one step. Other commands
    wait meanwhile. Raises OptionError."""
    path = path.resolve()  # behind a symbolic link, the file itself is replaced
    try:
        with FileLock(f"{path}.lock", mode=0o600):
            yield (file := _File(_read(path, must_exist=must_exist)))
            _replace(path, file.text)
    except KeysError as error:
        raise OptionError(f"{quote(str(path))}: {error}") from None
    except OSError as error:
        raise OptionError(f"cannot write {quote(str(path))}: {reason(error)}") from None


def _read(path: Path, *, must_exist: bool) -> str:
    if not must_exist and not path.exists():
        return ""
    return read_text(str(path))


def _replace(path: Path, text: str) -> None:
    """Writes the text to a new file, which takes the place of `path`. Only its owner can read it;
    an existing file keeps its owner and the rights of its group."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if path.exists() and os.name == "posix":
            before = path.stat()
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.chown(name, before.st_uid, before.st_gid)
            os.chmod(name, before.st_mode & 0o770)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
