"""Rewrites grammars of plain texts to grammars of the same texts inside a JSON string.

Whether a character is escaped doesn't depend on its neighbours. So characters and classes of them
are rewritten one by one, and their combinations stay the same. Terminals become rules: if one ended
before an escape and the next began with one, the lexer couldn't separate them.
"""

import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

ESCAPED = frozenset('"\\') | {chr(code) for code in range(0x20)}
"""The characters that a JSON string contains only in escaped form."""
_PLAIN_CLASS = r"[^\x22\x5c\x00-\x1f]"
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*)
    |(?P<range>"(?:\\.|[^"\\\n])+"\s*\.\.\s*"(?:\\.|[^"\\\n])+")
    |"(?P<string>(?:\\.|[^"\\\n])*)"(?P<ignore_case>i?)
    |/(?P<regex>(?:\\.|[^/\\\n])+)/(?P<flags>[a-z]*)
    |%import\s+common\s*(?:\.\s*(?P<one>\w+)(?:\s*->\s*(?P<alias>\w+))?|\((?P<many>[\w\s,]*)\))
    |(?P<unknown>%\w*|<|@|\[)
    |(?P<alias_of_rule>->\s*\w+)
    |(?P<terminal>\b_*[A-Z][A-Z0-9_]*\b)
    |(?P<other>\w+|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMON = {
    "DIGIT": '"0".."9"',
    "HEXDIGIT": "/[0-9a-fA-F]/",
    "INT": "/[0-9]+/",
    "SIGNED_INT": "/[+-]?[0-9]+/",
    "DECIMAL": r"/[0-9]+\.[0-9]*|\.[0-9]+/",
    "FLOAT": r"/[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?/",
    "SIGNED_FLOAT": r"/[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)/",
    "NUMBER": r"/([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?/",
    "SIGNED_NUMBER": r"/[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?/",
    "LCASE_LETTER": "/[a-z]/",
    "UCASE_LETTER": "/[A-Z]/",
    "LETTER": "/[a-zA-Z]/",
    "WORD": "/[a-zA-Z]+/",
    "CNAME": "/[a-zA-Z_][a-zA-Z0-9_]*/",
    "WS_INLINE": r"/[ \t]+/",
    "WS": r"/[ \t\f\r\n]+/",
    "CR": r"/\r/",
    "LF": r"/\n/",
    "NEWLINE": r"/(\r?\n)+/",
    "ESCAPED_STRING": r'/"([^"\\\n]|\\.)*"/',
    "SH_COMMENT": r"/#[^\n]*/",
    "CPP_COMMENT": r"/\/\/[^\n]*/",
    "SQL_COMMENT": r"/--[^\n]*/",
}
_RUN = re.compile(r"\(*(?P<one>\.|\\[dDsSwW]|\[\^?\]?(?:\\.|[^\]\\])*\])(?P<times>[*+])\)*")
"""A regular expression that consists of one class of characters, repeated any number of times."""
_OPEN = re.compile(r"\(\?P?<\w+>|\((?!\?)")
_CLOSE, _BAR = re.compile(r"\)"), re.compile(r"\|")
_TIMES = re.compile(r"(\{\d+(?:,\d*)?\}|[*+?])\??")
_FLAGS = re.compile(r"\(\?([a-zA-Z-]*)([:)])")
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[xu]\{([0-9a-fA-F]+)\})")
_NOT_IN_A_CLASS = re.compile(r"(?<!\\)(\[|&&|--|~~)|\\[pP]")


class TextGrammarError(ValueError):
    """A part of a grammar that can't be rewritten."""


def in_json(lark: str) -> str:
    """Returns `lark`, a grammar in llguidance's dialect of Lark, for the same texts between the
    quotes of a JSON string. Most errors in `lark` stay in the result.

    Raises TextGrammarError.
    """
    return "".join(_tokens(lark))


def _tokens(lark: str) -> Iterator[str]:
    for token in _TOKEN.finditer(lark):
        if token["unknown"]:
            raise TextGrammarError(
                f"{token['unknown']} is not supported in a grammar of a text in JSON"
            )
        if token["range"]:
            first, last = (_decoded(each) for each in re.findall(r'"((?:\\.|[^"\\])+)"', token[0]))
            yield _class(f"[{_in_class(first)}-{_in_class(last)}]")
        elif token["string"] is not None:
            yield _literal(_decoded(token["string"]), bool(token["ignore_case"]))
        elif token["regex"] is not None:
            yield _rule(token["regex"], token["flags"])
        elif token["one"] or token["many"] is not None:
            names = [token["one"]] if token["one"] else re.split(r"[\s,]+", token["many"].strip())
            for name in names:
                yield f"{_renamed(token['alias'] or name)}: {in_json(_common(name))}\n"
        elif token["terminal"]:
            yield _renamed(token["terminal"])
        elif token["other"]:
            yield token["other"]


def _renamed(terminal: str) -> str:
    return f"terminal_{terminal.lower()}"


def _common(name: str) -> str:
    if name not in _COMMON:
        raise TextGrammarError(f"there is no common.{name}")
    return _COMMON[name]


def _decoded(literal: str) -> str:
    try:
        return str(json.loads(f'"{literal}"'))
    except ValueError:
        raise TextGrammarError(f'"{literal[:80]}" is no literal') from None


def _escape(char: str) -> str:
    """Returns the literal of a character as JSON escapes it."""
    return json.dumps(json.dumps(char)[1:-1])


def _literal(text: str, ignore_case: bool) -> str:
    if not text:
        return '""'
    pieces = re.findall(r'[^"\\\x00-\x1f]+|.', text, re.DOTALL)
    shown = [_escape(each) if each in ESCAPED else json.dumps(each) for each in pieces]
    if ignore_case:
        shown = [
            each if piece in ESCAPED else f"{each}i"
            for piece, each in zip(pieces, shown, strict=True)
        ]
    return f"({' '.join(shown)})"


def _in_class(char: str) -> str:
    if len(char) != 1:
        raise TextGrammarError(f"a range of {char[:80]!r}, which is not one character")
    return f"\\u{{{ord(char):x}}}"


@dataclass
class _Flags:
    """The flags in force within one pair of parentheses."""

    ignore_case: bool
    dot_all: bool


def _rule(regex: str, flags: str) -> str:
    """Returns a regular expression as part of a rule."""
    if unknown := set(flags) - set("is"):
        raise TextGrammarError(f"regular expressions have no flag {min(unknown)}")
    now = _Flags("i" in flags, "s" in flags)
    run = _RUN.fullmatch(regex)
    if run and regex.count("(") == regex.count(")") <= 1:
        return f"({_atom(run['one'], now, '+')}){run['times']}"
    outer: list[_Flags] = []
    made: list[str] = []
    at = 0
    while at < len(regex):
        if found := _FLAGS.match(regex, at):
            on, _, off = found[1].partition("-")
            if set(on + off) - set("is"):
                raise TextGrammarError(f"regular expressions have no {found[0]}")
            if found[2] == ":":
                outer.append(now)
                made.append("(")
            now = _Flags(
                ("i" in on or now.ignore_case) and "i" not in off,
                ("s" in on or now.dot_all) and "s" not in off,
            )
        elif found := _OPEN.match(regex, at):
            outer.append(now)
            made.append("(")
        elif (found := _CLOSE.match(regex, at)) and outer:
            now = outer.pop()
            made += _nothing_before(made, ")")
        elif found := _BAR.match(regex, at):
            made += _nothing_before(made, "|")
        elif found := _TIMES.match(regex, at):
            made.append(found[1])  # lazy or greedy makes no difference to the texts
        elif found := _ATOM.match(regex, at):
            made.append(f"({_atom(found[0], now)})")
        else:
            raise TextGrammarError(
                f"{regex[at : at + 10]} is not supported in a regular expression in JSON"
            )
        at = found.end()
    made += _nothing_before(made, "")
    return f"({' '.join(made)})"


def _nothing_before(made: list[str], symbol: str) -> list[str]:
    """Returns `symbol`, preceded by an empty text if the choice before it would be empty."""
    empty = not made or made[-1] in ("(", "|")
    return ['""', symbol] if empty else [symbol]


_ATOM = re.compile(
    r"\.|\\[dDsSwW]|\[\^?\]?(?:\\.|[^\]\\])*\]|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[xu]\{[0-9a-fA-F]+\})"
    r"|\\[nrtfv]|\\[^a-zA-Z0-9]|[^\\()\[{^$*+?|]",
    re.DOTALL,
)


def _atom(atom: str, flags: _Flags, times: str = "") -> str:
    """Returns one character, or one of a class. `times` applies to unescaped characters."""
    if atom == ".":
        return _class(r"[\s\S]" if flags.dot_all else r"[^\n]", times)
    if atom[0] == "[" and len(atom) > 1:
        return _class(atom, times, ignore_case=flags.ignore_case)
    if re.fullmatch(r"\\[dDsSwW]", atom):
        return _class(f"[{atom}]", times)
    if code := _CODE.fullmatch(atom):
        char = chr(int(code[1] or code[2] or code[3], 16))
    elif atom[0] == "\\":
        char = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}.get(atom[1], atom[1])
    else:
        char = atom
    return _literal(char, flags.ignore_case)


def _class(written: str, times: str = "", *, ignore_case: bool = False) -> str:
    """Returns a class of characters: the ones that JSON contains unescaped, and the escapes of the
    others."""
    if _NOT_IN_A_CLASS.search(written[1:-1]):
        raise TextGrammarError(f"a class of characters too intricate for JSON: {written[:80]}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            holds = re.compile(_CODE.sub(_python_code, written)).match
    except (re.error, Warning, OverflowError) as error:
        raise TextGrammarError(f"{written[:80]}: {error}") from None
    escapes = [json.dumps(char)[1:-1] for char in sorted(ESCAPED) if holds(char)]
    choices = [f"/{'|'.join(map(re.escape, escapes))}/"] if escapes else []
    if any(holds(chr(code)) for code in range(0x20, 0x3000) if chr(code) not in ESCAPED) or (
        not choices
    ):
        flag = "(?i)" if ignore_case else ""
        choices.insert(0, f"/{flag}[{written}&&{_PLAIN_CLASS}]{times}/")
    return f"({' | '.join(choices)})"


def _python_code(code: re.Match[str]) -> str:
    return f"\\U{int(code[1] or code[2] or code[3], 16):08x}"
