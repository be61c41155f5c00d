"""Reads and checks the file of `--keys-file`: API keys with names, and what each of them may do.

[keys.alice]
sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
models = ["qwen*"]
operations = ["generate", "read"]
"""

import datetime
import functools
import hashlib
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from specllama.engine.options.declaration import FIRST_PRIORITY, INT32_MAX, LAST_PRIORITY
from specllama.engine.options.files import read_text
from specllama.engine.options.names import suggestion
from specllama.engine.options.values import OptionError, quote

Access = Literal["generate", "embed", "read", "admin"]
"""The groups of operations; `x-access` names the group of an operation in the description."""
ACCESS: tuple[Access, ...] = typing.get_args(Access)
USUAL_ACCESS: tuple[Access, ...] = ("generate", "embed", "read")

MAX_KEYS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RESERVED = re.compile(r"api-key-\d+")
_FORM = "letters, digits, '.', '_' and '-', at most 64, the first a letter or digit"

Count = Annotated[int, Meta(ge=0, le=2**53, description="a whole number from 0 (no limit) to 2^53")]
Priority = Annotated[
    int,
    Meta(
        ge=FIRST_PRIORITY,
        le=LAST_PRIORITY,
        description=f"a whole number from {FIRST_PRIORITY} to {LAST_PRIORITY}",
    ),
]


class KeyTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table of one key in the file. The description of a field's type says what is valid."""

    key: (
        Annotated[
            str, Meta(pattern=r"^[!-~]{1,1024}\Z", description="1 to 1024 visible ASCII characters")
        ]
        | None
    ) = None
    sha256: (
        Annotated[
            str,
            Meta(
                pattern=r"^[0-9a-fA-F]{64}\Z", description="the SHA-256 of the key, 64 hex digits"
            ),
        ]
        | None
    ) = None
    models: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=4096)]],
            Meta(
                max_length=1000,
                description='a list of names or aliases of models, such as ["a", "b*"]',
            ),
        ]
        | None
    ) = None
    operations: Annotated[
        list[Access],
        Meta(max_length=100, description=f"a list of groups: {', '.join(ACCESS)}"),
    ] = msgspec.field(default_factory=lambda: list(USUAL_ACCESS))
    weight: Annotated[float, Meta(ge=0.001, le=1000, description="a number from 0.001 to 1000")] = (
        1.0
    )
    priority: Priority = 0
    best_priority: Priority | None = None
    concurrency: Count = 0
    requests_per_minute: Count = 0
    tokens_per_minute: Count = 0
    tokens_per_day: Count = 0
    cache: Annotated[Literal["own", "shared"], Meta(description='"own" or "shared"')] | None = None
    cache_mib: Annotated[
        int, Meta(ge=0, le=INT32_MAX, description="a whole number of MiB, from 0 (no limit)")
    ] = 0
    expires: Any = None

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the key."""
        return bytes.fromhex(self.sha256) if self.sha256 is not None else digest(self.key or "")

    @property
    def expires_at(self) -> float | None:
        """The end of the key in seconds since 1970: a date means its first moment. Times without
        a zone are those of this machine."""
        if self.expires is None:
            return None
        moment = self.expires
        if not isinstance(moment, datetime.datetime):
            moment = datetime.datetime.combine(moment, datetime.time())
        return float(moment.timestamp())

    @property
    def lowest_priority(self) -> int:
        """The lowest number that requests may have as their priority: their default, unless the
        table has another one."""
        return self.priority if self.best_priority is None else self.best_priority


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def read_keys(path: str, others: Iterable[str] = ()) -> dict[str, KeyTable]:
    """Returns the tables of a keys file by the names of the keys; empty for a file without keys.

    Raises `OptionError`, which names the file, the table and the field, if the file is invalid, or
    if a key occurs twice or is among the keys `others`. The message never contains a key.
    """
    try:
        return tables(read_text(path), others)
    except KeysError as error:
        raise OptionError(f"{quote(path)}: {error}") from None


class KeysError(ValueError):
    """The text of a keys file is invalid. The message names the table and the field."""


def tables(text: str, others: Iterable[str] = ()) -> dict[str, KeyTable]:
    """Returns the tables in the text of a keys file. Raises `KeysError`, see `read_keys`."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise KeysError(_syntax(error)) from None
    for name in document.keys() - {"keys"}:
        raise KeysError(f"{_shown(name)} doesn't belong here: each key is a table [keys.NAME]")
    keys = document.get("keys", {})
    if not isinstance(keys, dict):
        raise KeysError("keys: each key is a table [keys.NAME]")
    if len(keys) > MAX_KEYS:
        raise KeysError(f"keys: there are {len(keys)} keys, more than {MAX_KEYS}")
    found = {name: _table(name, table) for name, table in keys.items()}
    _check_distinct(found, others)
    return found


def _syntax(error: Exception) -> str:
    return str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it is nested too deeply"


def check_name(name: str) -> None:
    """Raises `KeysError` if no key may have this name."""
    if not _NAME.fullmatch(name):
        raise KeysError(f"{_shown(name)} is no name of a key: {_FORM}")
    if _RESERVED.fullmatch(name):
        raise KeysError(f"[keys.{name}]: this is the name of a key of --api-key; choose another")


def _table(name: str, table: Any) -> KeyTable:
    check_name(name)
    if not isinstance(table, dict):
        raise KeysError(f"keys.{name}: a key is a table [keys.{name}]")
    return checked(name, table)


def checked(name: str, table: Mapping[str, Any]) -> KeyTable:
    """Returns the table of the key `name`. Raises `KeysError`."""
    found = KeyTable(**{field: _value(name, field, value) for field, value in table.items()})
    if (found.key is None) == (found.sha256 is None):
        raise KeysError(f"[keys.{name}]: it needs either key or sha256")
    if found.lowest_priority > found.priority:
        raise _wrong(name, "best_priority", f"a number of at most priority ({found.priority})")
    return found


def _value(name: str, field: str, value: Any) -> Any:
    """Returns the valid `value` of a field. Raises `KeysError`, without the value."""
    types = _types()
    if field not in types:
        near = suggestion(field, types.keys())
        raise KeysError(
            f"[keys.{name}] {_shown(field)}: there is no such field{near or _listed(types)}"
        )
    if field == "expires":
        _check_moment(name, value)
        return value
    try:
        return msgspec.convert(value, types[field])
    except (msgspec.ValidationError, OverflowError):
        raise _wrong(name, field, what_is_valid(field)) from None


def _listed(types: Iterable[str]) -> str:
    return f"; the fields are {', '.join(types)}"


def _check_moment(name: str, value: Any) -> None:
    try:
        if isinstance(value, datetime.date):
            KeyTable(expires=value).expires_at  # noqa: B018  # raises for years out of range
            return
    except (OverflowError, ValueError, OSError):
        pass
    raise _wrong(name, "expires", what_is_valid("expires"))


def _wrong(name: str, field: str, valid: str) -> KeysError:
    return KeysError(f"[keys.{name}] {field}: it must be {valid}")


@functools.cache
def _types() -> dict[str, Any]:
    return typing.get_type_hints(KeyTable, include_extras=True)


def what_is_valid(field: str) -> str:
    """Returns the description of a field's valid values."""
    if field == "expires":
        return "a date or a date-time, such as 2027-01-31 or 2027-01-31T12:00:00Z"
    type_ = _types()[field]
    for branch in (type_, *typing.get_args(type_)):
        for meta in getattr(branch, "__metadata__", ()):
            return str(meta.description)
    raise TypeError(f"{field} has no description")


def _check_distinct(found: Mapping[str, KeyTable], others: Iterable[str]) -> None:
    owners = {digest(secret): "a key of --api-key or --api-key-file" for secret in others}
    for name, table in found.items():
        if (owner := owners.get(table.digest)) is not None:
            raise KeysError(f"[keys.{name}]: its key is the same as that of {owner}")
        owners[table.digest] = f"[keys.{name}]"


def _shown(name: str) -> str:
    return quote(name[:100])
