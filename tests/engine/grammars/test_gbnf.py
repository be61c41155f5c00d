"""The translation of GBNF accepts exactly the texts that the grammar derives."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specllama.engine.grammars.gbnf import MAX_ITEMS, GrammarError, to_lark

END = 256


class Bytes:
    """A vocabulary of all single bytes and an end token."""

    eos_token_id, bos_token_id = END, None
    tokens = [*(bytes([b]) for b in range(256)), b"\xff<end>"]  # noqa: RUF012  # a duck type
    special_token_ids = (END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


TOKENIZER = LLTokenizer(TokenizerWrapper(Bytes()), slices=[])


def matcher(grammar: str) -> LLMatcher:
    source = LLMatcher.grammar_from_lark(to_lark(grammar, lambda text: None))
    made = LLMatcher(TOKENIZER, source, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def accepts(grammar: str, text: str) -> bool:
    made = matcher(grammar)
    data = list(text.encode())
    return (
        made.validate_tokens(data) == len(data)
        and made.consume_tokens(data)
        and (made.is_accepting())
    )


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('root ::= "a"', ["a"], ["", "b", "aa"]),
        ('root ::= "ab"* # twice\n', ["", "ab", "abab"], ["a", "aba"]),
        ('root ::= "a" | "ab" | "abc" "d"', ["a", "ab", "abcd"], ["abc"]),
        ('root ::= [a-z]+ "abc"', ["xabc", "abcabc"], ["abc", "xab"]),
        ('root ::= ("a" |\n "b" # both\n | [^\\x00-\\x7f])? "."', [".", "a.", "é.", "😀."], ["c."]),
        ('root ::= x{2} x{1,} x{0,2} x{0}\nx ::= "x"', ["xxx", "x" * 9], ["xx"]),
        ('root ::= "(" root ")" | ""', ["", "()", "((()))"], ["(", "())"]),
        ('root ::= root "+" t | t\nt ::= [0-9]', ["1", "1+2+3"], ["+", "1+"]),
        ('root ::= a\na ::= b a "x" | "y"\nb ::= c\nc ::= ""', ["y", "yxx"], ["x"]),
        ('root ::= "\\n\\t\\r\\"\\\\\\x41\\u00e4\\U0001F600"', ['\n\t\r"\\Aä😀'], ["A"]),
        ("root ::= . .", ["ab", "\n\n", "éé"], ["a", "abc"]),
        ('root ::= [a\\]\\-"^]{5}', ['a]-"^'], ["bbbbb"]),
        ("root ::= [a-]", ["a", "-"], ["b"]),
        ('root ::= ("a"?)+*', ["", "aaa"], ["b"]),
        ('\r\n# first\r\nroot ::= x-1 Y\r\nx-1 ::= "a"\r\nY ::= "b"', ["ab"], ["a"]),
        ('root ::= "a" |', ["", "a"], ["aa"]),
        ('root ::= "old"\nroot ::= "new"', ["new"], ["old"]),
    ],
)
def test_examples(grammar: str, yes: list[str], no: list[str]) -> None:
    for text in yes:
        assert accepts(grammar, text), text
    for text in no:
        assert not accepts(grammar, text), text


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "no rule 'root'"),
        ('x ::= "a"', "no rule 'root'"),
        ("root ::= x", "line 1, column 10: there is no rule 'x'"),
        ('root = "a"', "expected '::='"),
        ('root ::= "a', "column 10: a text or class is not closed"),
        ("root ::= [a", "not closed"),
        ('root ::= "a\\', "not closed"),
        ('root ::= ("a"', "line 1, column 10: this parenthesis is not closed"),
        ('root ::= "a")', r"unexpected '\)'"),
        ('root ::= "a"\n  | "b"', "line 2, column 3: expected a rule's name"),
        ("root ::= *", "nothing to repeat"),
        ("root ::= ( | * )", "nothing to repeat"),
        ('root ::= "a"{5,2}', "upper bound"),
        ('root ::= "a"{,2}', "expected {n}"),
        ('root ::= "a"{99999}', "more than 2000 repetitions"),
        ("root ::= [b-a]", "ends before"),
        ("root ::= []", "no character"),
        ('root ::= "\\x00"', r"U\+0000"),
        ('root ::= "\\q"', "unknown escape"),
        ('root ::= "\\x4"', "2 hexadecimal digits"),
        ('root ::= "\\ud800"', "no character"),
        ('root ::= "\\UFFFFFFFF"', "no character"),
        ("root ::= <nothing>", "not one token"),
        ("root ::= <[5", "expected a token"),
        ("root ::= $", "unexpected"),
        ("ruß ::= x", "expected '::='"),
        ('root ::= "' + "a" * (MAX_ITEMS + 1) + '"', "more than"),
        ("#" * (1 << 21), "longer than"),
    ],
)
def test_mistakes_are_reported(grammar: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        to_lark(grammar, lambda text: None)


# ---- compared with a recognizer without Lark ---------------------------------------

# A grammar: rule -> alternatives -> symbols, which are (kind, value, least, most).
Symbol = tuple[str, str, int, int]
Grammar = dict[str, list[list[Symbol]]]
RULES = ("root", "x", "y")
BOUNDS = [(1, 1), (1, 1), (1, 1), (0, 1), (0, 9), (1, 9), (2, 2), (1, 3)]
OPERATORS = {(1, 1): "", (0, 1): "?", (0, 9): "*", (1, 9): "+", (2, 2): "{2}", (1, 3): "{1,3}"}

symbols = st.tuples(
    st.one_of(
        st.tuples(st.just("text"), st.sampled_from(["a", "b", "ab", "ba", "é", "aé"])),
        st.tuples(st.just("class"), st.sampled_from(["ab", "bé", "^a", "^bé"])),
        st.tuples(st.just("rule"), st.sampled_from(RULES)),
    ),
    st.sampled_from(BOUNDS),
).map(lambda made: (*made[0], *made[1]))
grammars = st.fixed_dictionaries(
    {name: st.lists(st.lists(symbols, max_size=3), min_size=1, max_size=3) for name in RULES}
)


def written(grammar: Grammar) -> str:
    def show(symbol: Symbol) -> str:
        kind, value, *bounds = symbol
        shown = {"text": f'"{value}"', "class": f"[{value}]", "rule": value}[kind]
        return shown + OPERATORS[bounds[0], bounds[1]]

    return "\n".join(
        f"{name} ::= "
        + " | ".join(" ".join(map(show, sequence)) or '""' for sequence in alternatives)
        for name, alternatives in grammar.items()
    )


def derives(grammar: Grammar, text: str) -> bool:
    """True if `root` derives `text`: the sets of ends by rule and beginning, grown until they grow
    no more."""
    ends: dict[tuple[str, int], set[int]] = {
        (name, at): set() for name in grammar for at in range(len(text) + 1)
    }

    def once(symbol: Symbol, at: int) -> Iterator[int]:
        kind, value, *_ = symbol
        if kind == "rule":
            yield from ends[value, at]
        elif kind == "text" and text.startswith(value, at):
            yield at + len(value)
        elif kind == "class" and at < len(text):
            inside = text[at] in value.removeprefix("^")
            if inside != value.startswith("^"):
                yield at + 1

    def repeated(symbol: Symbol, at: int) -> set[int]:
        _, _, least, most = symbol
        reached, found = {at}, {at} if least == 0 else set()
        # An unbounded repetition: longer than the text only by empty ones.
        for count in range(1, (least + len(text) + 1 if most == 9 else most) + 1):
            reached = {end for begin in reached for end in once(symbol, begin)}
            if count >= least:
                found |= reached
        return found

    grown = True
    while grown:
        grown = False
        for (name, at), known in ends.items():
            for sequence in grammar[name]:
                reached = {at}
                for symbol in sequence:
                    reached = {end for begin in reached for end in repeated(symbol, begin)}
                if not reached <= known:
                    known |= reached
                    grown = True
    return len(text) in ends["root", 0]


@settings(max_examples=300, deadline=None)
@given(grammars, st.lists(st.text("abé", max_size=6), min_size=1, max_size=8))
def test_the_same_language(grammar: Grammar, texts: list[str]) -> None:
    source = written(grammar)
    for text in texts:
        assert accepts(source, text) == derives(grammar, text), (source, text)


def test_only_grammars_without_recursion_become_one_lexeme() -> None:
    def start(grammar: str) -> str:
        return to_lark(grammar, lambda text: 7).splitlines()[0]

    assert start('root ::= (x | "b") x\nx ::= [a-c]{2,9} y?\ny ::= "d"') == "start: R0"
    assert start('root ::= x\nx ::= "a" (y | "b")\ny ::= "(" x? ")"') == "start: r0"
    assert start('root ::= <[7]> "a"') == "start: r0"
    doubling = "".join(f"x{i} ::= x{i + 1} x{i + 1}\n" for i in range(60))
    assert start(f'root ::= x0\n{doubling}x60 ::= "a"') == "start: r0"
