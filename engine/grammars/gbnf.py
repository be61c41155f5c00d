"""Translates GBNF, llama.cpp's notation for grammars, for llguidance.

llguidance parses with a lexer that matches the longest lexeme; GBNF has no lexer. The translation
must accept exactly the same texts. So a grammar without recursion becomes a single lexeme, which is
fastest. In any other grammar, every lexeme is one character: no character is a prefix of another
one, so the lexer has no choice, and the parser (an Earley parser, which supports ambiguity and left
recursion) sees the same characters as in the GBNF.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_LENGTH = 1 << 20  # characters
MAX_ITEMS = 50_000  # symbols of all rules; llguidance counts them in 16 bits
MAX_REGULAR = 2000  # symbols of a grammar that becomes one regular expression
MAX_REPETITIONS = 2000  # the same limit as in llama.cpp
ROOT = "root"
_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}

_SPACE = re.compile(r"(?:[ \t]+|#[^\r\n]*)*")
_SPACE_OR_LINES = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_BOUNDS = re.compile(r"\{[ \t]*([0-9]+)[ \t]*(?:(,)[ \t]*([0-9]*)[ \t]*)?\}")
_TOKEN = re.compile(r"(!?)<(?:\[([0-9]{1,10})\]|([^>]+))>")

_REFERENCE = re.compile(r"[rg][0-9]+")

Range = tuple[int, int]


class GrammarError(ValueError):
    """An error in a grammar or a schema, with a message for its author."""


@dataclass
class _Rule:
    """A rule with its alternatives, each a list of symbols in llguidance's notation."""

    name: str
    alternatives: list[list[str]] = field(default_factory=lambda: [[]])


@dataclass
class _Group:
    """An open parenthesis."""

    rule: _Rule
    at: int


def to_lark(grammar: str, token_id: Callable[[str], int | None]) -> str:
    """`grammar` in llguidance's dialect of Lark. `token_id` returns the id of the single token for
    a text such as `<think>`, or for the digits of an id; else None. Raises GrammarError."""
    if len(grammar) > MAX_LENGTH:
        raise GrammarError(f"the grammar is longer than {MAX_LENGTH} characters")
    return _Translation(grammar, token_id).lark()


class _Translation:
    def __init__(self, text: str, token_id: Callable[[str], int | None]) -> None:
        self._text = text
        self._token_id = token_id
        self._at = 0
        self._n_items = 0
        self._numbers: dict[str, int] = {}  # of named rules
        self._first_use: dict[str, int] = {}
        self._rules: dict[str, _Rule] = {}  # by their names in the translation
        self._defined: set[str] = set()
        self._groups = 0

    def lark(self) -> str:
        self._skip(_SPACE_OR_LINES)
        while self._at < len(self._text):
            self._rule()
        if ROOT not in self._defined:
            raise GrammarError(f"there is no rule {ROOT!r}")
        for name, at in self._first_use.items():
            if name not in self._defined:
                raise self._error(f"there is no rule {name!r}", at)
        if self._is_regular():
            for rule in self._rules.values():
                rule.name = rule.name.upper()
                rule.alternatives = [list(map(_terminal, each)) for each in rule.alternatives]
            lines = [f"start: {_terminal(self._named(ROOT))}"]
        else:
            lines = [f"start: {self._named(ROOT)}"]
        lines += [
            f"{rule.name}: " + "\n | ".join(map(_sequence, rule.alternatives))
            for rule in self._rules.values()
        ]
        return "\n".join(lines) + "\n"

    def _is_regular(self) -> bool:
        """True if the grammar is a regular expression of at most `MAX_REGULAR` symbols: no rule
        contains itself, and it has no token references."""
        sizes: dict[str, int] = {}  # expanded size of each finished rule
        path: set[str] = set()
        todo = [self._named(ROOT)]
        while todo:
            name = todo[-1]
            if name in sizes:
                todo.pop()
                continue
            symbols = [s for sequence in self._rules[name].alternatives for s in sequence]
            inner = [match[0] for s in symbols if (match := _REFERENCE.match(s))]
            if any(symbol.startswith("<") for symbol in symbols):
                return False
            if missing := [other for other in inner if other not in sizes]:
                path.add(name)
                if any(other in path for other in missing):
                    return False
                todo += missing
                continue
            sizes[name] = len(symbols) + sum(sizes[other] for other in inner)
            if sizes[name] > MAX_REGULAR:
                return False
            path.discard(name)
            todo.pop()
        return True

    # ---- the notation --------------------------------------------------------------------

    def _rule(self) -> None:
        at = self._at
        name = self._match(_NAME, "a rule's name")[0]
        self._skip(_SPACE)
        if not self._text.startswith("::=", self._at):
            raise self._error("expected '::='")
        self._at += 3
        self._skip(_SPACE_OR_LINES)
        rule = _Rule(self._named(name, at))
        self._rules[rule.name] = rule
        self._defined.add(name)
        self._alternatives(rule)
        if self._at < len(self._text) and self._text[self._at] not in "\r\n":
            raise self._error(f"unexpected {self._text[self._at]!r}")
        self._skip(_SPACE_OR_LINES)

    def _alternatives(self, rule: _Rule) -> None:
        """Parses the alternatives up to the end of the rule. Parentheses become separate rules.
        Open ones are kept in a list instead of on Python's stack, which a hostile grammar could
        exhaust."""
        open_groups: list[_Group] = []
        text = self._text
        while self._at < len(text):
            inner = open_groups[-1].rule if open_groups else rule
            sequence = inner.alternatives[-1]
            match text[self._at]:
                case "|":
                    inner.alternatives.append([])
                    self._at += 1
                    self._skip(_SPACE_OR_LINES)
                    continue
                case "(":
                    self._groups += 1
                    group = _Rule(f"g{self._groups}")
                    self._rules[group.name] = group
                    open_groups.append(_Group(group, self._at))
                    self._at += 1
                    self._skip(_SPACE_OR_LINES)
                    continue
                case ")" if open_groups:
                    self._at += 1
                    closed = open_groups.pop().rule
                    inner = open_groups[-1].rule if open_groups else rule
                    sequence = inner.alternatives[-1]
                    sequence.append(closed.name)
                case '"':
                    self._literal(sequence)
                case "[":
                    sequence.append(self._character_class())
                case ".":
                    self._at += 1
                    sequence.append(_class([(1, _LAST)]))
                case "<" | "!":
                    sequence.append(self._token())
                case "*" | "+" | "?" | "{":
                    raise self._error("there is nothing to repeat")
                case _ if name := _NAME.match(text, self._at):
                    sequence.append(self._named(name[0], self._at))
                    self._at = name.end()
                case _:
                    break
            self._n_items += 1
            self._check_size()
            self._repetitions(sequence, bool(open_groups))
        if open_groups:
            raise self._error("this parenthesis is not closed", open_groups[-1].at)

    def _repetitions(self, sequence: list[str], in_group: bool) -> None:
        """Parses the operators after the last symbol of `sequence`, and the white space after
        them."""
        space = _SPACE_OR_LINES if in_group else _SPACE
        self._skip(space)
        while self._at < len(self._text) and self._text[self._at] in "*+?{":
            at = self._at
            if self._text[at] == "{":
                bounds = _BOUNDS.match(self._text, at)
                if bounds is None:
                    raise self._error("expected {n}, {n,} or {n,m}")
                self._at = bounds.end()
                operator = self._bounds(bounds, at)
            else:
                operator = self._text[at]
                self._at += 1
            if operator == "{0,0}":
                sequence[-1] = '""'
                self._skip(space)
                continue
            if sequence[-1][-1] in "*+?}":  # a repetition of a repetition
                self._groups += 1
                wrapper = _Rule(f"g{self._groups}", [[sequence[-1]]])
                self._rules[wrapper.name] = wrapper
                sequence[-1] = wrapper.name
                self._n_items += 1
                self._check_size()
            sequence[-1] += operator
            self._skip(space)

    def _bounds(self, match: re.Match[str], at: int) -> str:
        low = match[1]
        high = match[3] if match[2] else low
        if any(len(number) > 9 or int(number or 0) > MAX_REPETITIONS for number in (low, high)):
            raise self._error(f"more than {MAX_REPETITIONS} repetitions", at)
        if high and int(high) < int(low):
            raise self._error("the upper bound is below the lower one", at)
        return f"{{{int(low)},{int(high) if high else ''}}}"

    def _literal(self, sequence: list[str]) -> None:
        start = self._at
        self._at += 1
        characters = []
        while self._peek(start) != '"':
            code = self._character(start)
            characters.append(self._exactly(code, start))
            self._n_items += 1
            self._check_size()
        self._at += 1
        if len(characters) == 1:
            sequence += characters
        else:
            # A separate rule, so that an operator repeats the whole text.
            self._groups += 1
            rule = _Rule(f"g{self._groups}", [characters])
            self._rules[rule.name] = rule
            sequence.append(rule.name)

    def _character_class(self) -> str:
        start = self._at
        self._at += 1
        negative = self._peek(start) == "^"
        self._at += negative
        ranges: list[Range] = []
        while self._peek(start) != "]":
            at = self._at
            low = high = self._character(start)
            if self._peek(start) == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._character(start)
                if high < low:
                    raise self._error("the range ends before it begins", at)
            ranges.append((low, high))
            self._n_items += 1
            self._check_size()
        self._at += 1
        wanted = _normal(_complement(ranges) if negative else ranges)
        if not wanted:
            raise self._error("no character is in this class", start)
        return _class(wanted)

    def _character(self, start: int) -> int:
        """Parses the next character of a literal or class that began at `start`. Returns its
        code."""
        if self._peek(start) != "\\":
            self._at += 1
            return ord(self._text[self._at - 1])
        escape = _ESCAPE.match(self._text, self._at)
        if escape is None:
            raise self._error("a text or class is not closed", start)
        if (letter := escape[4]) is None:
            code = int(escape[1] or escape[2] or escape[3], 16)
            if code > _LAST or code in _SURROGATES:
                raise self._error(f"there is no character {escape[0]}")
        elif letter in _HEX_DIGITS:
            raise self._error(f"expected {_HEX_DIGITS[letter]} hexadecimal digits")
        elif letter in _ESCAPES:
            code = ord(_ESCAPES[letter])
        else:
            raise self._error(f"unknown escape \\{letter}")
        self._at = escape.end()
        return code

    def _token(self) -> str:
        match = self._match(_TOKEN, "a token, as <[id]> or <text>")
        written = match[0].removeprefix("!")
        id = self._token_id(match[2] or written)
        if id is None:
            raise self._error(f"{written} is not one token of the vocabulary", match.start())
        return f"<[{'^' if match[1] else ''}{id}]>"

    # ---- helpers --------------------------------------------------------------------

    def _named(self, name: str, at: int | None = None) -> str:
        """The name of a rule in the translation: the original name may be a keyword in Lark."""
        if at is not None:
            self._first_use.setdefault(name, at)
        return f"r{self._numbers.setdefault(name, len(self._numbers))}"

    def _exactly(self, code: int, at: int) -> str:
        if code == 0:
            raise self._error("the character U+0000 can't be generated", at)
        return _class([(code, code)])

    def _peek(self, start: int) -> str:
        if self._at >= len(self._text):
            raise self._error("a text or class is not closed", start)
        return self._text[self._at]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        if match := pattern.match(self._text, self._at):
            self._at = match.end()

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise self._error(f"expected {what}")
        self._at = match.end()
        return match

    def _check_size(self) -> None:
        if self._n_items > MAX_ITEMS:
            raise GrammarError(f"the grammar has more than {MAX_ITEMS} symbols")

    def _error(self, message: str, at: int | None = None) -> GrammarError:
        at = self._at if at is None else at
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        return GrammarError(f"line {line}, column {column}: {message}")


def _terminal(symbol: str) -> str:
    """Turns a reference to a rule into one to a terminal, which has capital letters in Lark."""
    return symbol.upper() if _REFERENCE.match(symbol) else symbol


def _sequence(symbols: list[str]) -> str:
    return " ".join(symbols) or '""'


def _class(ranges: list[Range]) -> str:
    """A lexeme of one character of `ranges`, in hexadecimal, so that nothing has to be quoted."""
    return "/[" + "".join(f"\\u{{{low:x}}}-\\u{{{high:x}}}" for low, high in ranges) + "]/"


def _complement(ranges: list[Range]) -> list[Range]:
    result, next_free = [], 0
    for low, high in sorted(ranges):
        if low > next_free:
            result.append((next_free, low - 1))
        next_free = max(next_free, high + 1)
    return [*result, (next_free, _LAST)] if next_free <= _LAST else result


def _normal(ranges: list[Range]) -> list[Range]:
    """`ranges`, sorted and without overlaps, without U+0000 (which models don't generate in texts)
    and surrogates (which aren't characters)."""
    outside = _complement(ranges)
    return _complement([*outside, (0, 0), (_SURROGATES.start, _SURROGATES.stop - 1)])
