"""Writes grammars in llguidance's dialect of Lark: literals, rules, and references to schemas.

A sequence of symbols is a text in which a space stands between two; "" is the empty one.
"""

import json
import re
from typing import Any

from specllama.engine.errors import invalid_request
from specllama.engine.params import NamedGrammar, NamedSchema

ANY = "/(?s:.*)/"
_PLAIN = re.compile(r"[a-zA-Z0-9]")


class Lark:
    """The rules and schemas of one grammar. `steps` is the budget of work for each tool whose
    schema is analysed for it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._lines: list[str] = []
        self._reserved = 0
        self._names: dict[tuple[str, str], str] = {}
        self.schemas: dict[str, NamedSchema] = {}
        self.grammars: dict[str, NamedGrammar] = {}
        self._relaxed: dict[str, None] = {}

    def rule(self, body: str) -> str:
        """The name of a rule for `body`."""
        return self._define("r", "", body)

    def terminal(self, body: str) -> str:
        """The name of a terminal, which is one regular expression."""
        return self._define("T", "", body)

    def lazily(self, body: str) -> str:
        """The name of a rule for the shortest text that the terminal `body` matches."""
        return self._define("r", "[lazy]", self.terminal(body))

    @property
    def relaxed(self) -> list[str]:
        """The keywords of schemas that the grammar leaves out, each once."""
        return list(self._relaxed)

    def leave_out(self, where: str) -> None:
        """Note that the keyword at `where` is left out, in the form of `NamedSchema.at`."""
        self._relaxed[where] = None

    def json(self, what: str, schema: Any, at: str = "#") -> str:
        """A reference to JSON of `schema`, which error messages call `what`; `at` as in
        `NamedSchema`.

        Raises EngineError (invalid_request_error) for a schema that is nested too deep.
        """
        try:
            text = json.dumps(schema, ensure_ascii=False)
        except RecursionError:
            raise invalid_request(f"Failed to parse {what}: it is nested too deep") from None
        key = ("@", f"{at}:{what}:{text}")
        if key not in self._names:
            self._names[key] = f"s{len(self.schemas)}"
            self.schemas[self._names[key]] = NamedSchema(what, text, at)
        return f"@{self._names[key]}"

    def text_in_json(self, what: str, lark: str, in_json: str) -> str:
        """A reference to what stands between the quotes of a string of JSON, see `NamedGrammar`."""
        name = f"g{len(self.grammars)}"
        self.grammars[name] = NamedGrammar(what, lark, in_json)
        return f"@{name}"

    def reserved(self) -> str:
        """The name of a rule that `define` gives a body: it may refer to itself."""
        self._reserved += 1
        return f"x{self._reserved}"

    def define(self, name: str, body: str) -> None:
        self._lines.append(f"{name}: {body}")

    def text(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines, ""])

    def _define(self, kind: str, options: str, body: str) -> str:
        key = (kind + options, body)
        if key not in self._names:
            self._names[key] = f"{kind}{len(self._lines)}"
            self._lines.append(f"{self._names[key]}{options}: {body}")
        return self._names[key]


def literal(text: str) -> str:
    """Exactly `text`."""
    return json.dumps(text) if text else ""


def regex(text: str) -> str:
    """A regular expression of exactly `text`, to stand between slashes."""
    return "".join(c if _PLAIN.match(c) else f"\\u{{{ord(c):x}}}" for c in text)


def sequence(*symbols: str) -> str:
    return " ".join(symbol for symbol in symbols if symbol)


def choice(symbols: list[str]) -> str:
    """A choice among several symbols, none of them empty."""
    return symbols[0] if len(symbols) == 1 else f"({' | '.join(symbols)})"


def optional(symbols: str) -> str:
    return f"({symbols})?" if symbols else ""
