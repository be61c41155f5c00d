"""Small Python functions with a meaning, made from typed steps, for the training only."""

import re
from collections.abc import Sequence
from keyword import iskeyword

from tools.models.lessons.source import Source

Step = tuple[str, str, str]
"""The result's type, an expression of `{x}`, and its meaning in terms of `{x}`."""

TEXT, WORDS, COUNTS = "text", "words", "counts"
NUMBER, NUMBERS, TRUTH = "number", "numbers", "truth"

STEPS: dict[str, tuple[Step, ...]] = {
    TEXT: (
        (TEXT, "{x}.strip()", "{x} without spaces around it"), (TEXT, "{x}.lower()", "{x} in lower case"),
        (TEXT, "{x}.upper()", "{x} in upper case"), (TEXT, "{x}[::-1]", "{x} backwards"),
        (TEXT, "{x}.replace(\"{s}\", \"\")", "{x} without any {s}"), (TEXT, "{x} + \"{s}\"", "{x} with {s} behind it"),
        (TEXT, "{x}.title()", "{x} as a title"), (TEXT, "{x} * {n}", "{x} {n} times"),
        (WORDS, "{x}.split()", "words of {x}"), (WORDS, "{x}.split(\"{c}\")", "parts of {x}"), (WORDS, "{x}.splitlines()", "lines of {x}"),
        (NUMBER, "len({x})", "length of {x}"), (NUMBER, "int({x})", "number in {x}"), (NUMBER, "{x}.count(\"{s}\")", "how often {x} has {s}"),
        (NUMBER, "{x}.find(\"{s}\")", "where {s} is in {x}"),
        (TRUTH, "{x}.startswith(\"{s}\")", "whether {x} starts with {s}"), (TRUTH, "{x}.endswith(\"{s}\")", "whether {x} ends with {s}"),
        (TRUTH, "\"{s}\" in {x}", "whether {x} has {s}"), (TRUTH, "{x} == \"{s}\"", "whether {x} is {s}"), (TRUTH, "{x}.isdigit()", "whether {x} is a number"),
    ),
    WORDS: (
        (NUMBER, "len({x})", "number of {x}"), (WORDS, "sorted({x})", "{x} in order"), (WORDS, "{x}[1:]", "{x} but the first"), (WORDS, "{x}[:{n}]", "first {n} {x}"),
        (WORDS, "[{e}.lower() for {e} in {x}]", "{x} in lower case"), (WORDS, "[{e}.strip() for {e} in {x}]", "{x} without spaces"),
        (WORDS, "[{e} for {e} in {x} if {e}]", "{x} that are not empty"), (WORDS, "[{e} for {e} in {x} if len({e}) > {n}]", "{x} that are long"),
        (NUMBERS, "[len({e}) for {e} in {x}]", "lengths of {x}"), (NUMBERS, "[int({e}) for {e} in {x}]", "{x} as numbers"),
        (TEXT, "\" \".join({x})", "{x} as one text"), (TEXT, "\", \".join({x})", "{x} with commas"), (TEXT, "{x}[1]", "second of {x}"),
        (TEXT, "max({x}, key=len)", "longest of {x}"), (TRUTH, "\"{s}\" in {x}", "whether {s} is in {x}"), (WORDS, "list(set({x}))", "different {x}"),
        (TRUTH, "not {x}", "whether there are no {x}"),
    ),
    NUMBER: (
        (NUMBER, "{x} + 1", "number after {x}"), (NUMBER, "{x} * 2", "double of {x}"), (NUMBER, "{x} * {x}", "square of {x}"), (NUMBER, "{x} // 2", "half of {x}"),
        (NUMBER, "abs({x})", "{x} without its sign"), (NUMBER, "{x} + {n}", "{x} and {n}"), (NUMBER, "{x} * {n}", "{x} times {n}"), (NUMBER, "{x} - {n}", "{x} less {n}"),
        (NUMBER, "min({x}, {n})", "{x}, at most {n}"), (NUMBER, "max({x}, {n})", "{x}, at least {n}"), (NUMBER, "-{x}", "negative of {x}"),
        (TEXT, "str({x})", "{x} as text"), (TEXT, "f\"{{{x}}} {s}\"", "{x} in a sentence"), (NUMBERS, "list(range({x}))", "numbers below {x}"),
        (TRUTH, "{x} > {n}", "whether {x} is more than {n}"), (TRUTH, "{x} < {n}", "whether {x} is less than {n}"), (TRUTH, "{x} == 0", "whether {x} is zero"),
        (TRUTH, "{x} % 2 == 0", "whether {x} is even"), (TRUTH, "{x} % 2 == 1", "whether {x} is odd"), (TRUTH, "{x} % {n} == 0", "whether {n} divides {x}"), (TRUTH, "{x} >= 0", "whether {x} is not negative"),
    ),
    NUMBERS: (
        (NUMBER, "len({x})", "number of {x}"), (NUMBER, "sum({x})", "sum of {x}"), (NUMBER, "max({x})", "largest of {x}"), (NUMBER, "min({x})", "smallest of {x}"),
        (NUMBER, "{x}[1]", "second of {x}"), (NUMBER, "sum({x}) / len({x})", "mean of {x}"), (NUMBER, "max({x}) - min({x})", "range of {x}"),
        (NUMBERS, "sorted({x})", "{x} in order"), (NUMBERS, "sorted({x}, reverse=True)", "{x} from the largest on"), (NUMBERS, "{x}[::-1]", "{x} backwards"), (NUMBERS, "{x}[:{n}]", "first {n} of {x}"),
        (NUMBERS, "[{e} * 2 for {e} in {x}]", "doubles of {x}"), (NUMBERS, "[{e} + {n} for {e} in {x}]", "{x} with {n} added"), (NUMBERS, "[{e} * {e} for {e} in {x}]", "squares of {x}"),
        (NUMBERS, "[{e} for {e} in {x} if {e} > 0]", "positive {x}"), (NUMBERS, "[{e} for {e} in {x} if {e} % 2 == 0]", "even {x}"), (NUMBERS, "[abs({e}) for {e} in {x}]", "sizes of {x}"),
        (WORDS, "[str({e}) for {e} in {x}]", "{x} as texts"), (TRUTH, "{n} in {x}", "whether {n} is in {x}"), (TRUTH, "len({x}) > {n}", "whether {x} are many"),
    ),
    COUNTS: (
        (WORDS, "sorted({x})", "keys of {x} in order"), (WORDS, "list({x})", "keys of {x}"), (NUMBERS, "list({x}.values())", "values of {x}"), (NUMBER, "len({x})", "size of {x}"),
        (NUMBER, "sum({x}.values())", "sum of {x}"), (NUMBER, "{x}[\"{s}\"]", "{s} of {x}"), (NUMBER, "{x}.get(\"{s}\", 0)", "{s} of {x}"), (TEXT, "max({x}, key={x}.get)", "most frequent of {x}"), (TRUTH, "\"{s}\" in {x}", "whether {x} has {s}"),
    ),
    TRUTH: ((TRUTH, "not {x}", "opposite of {x}"), (NUMBER, "int({x})", "{x} as a number"), (TEXT, "\"yes\" if {x} else \"no\"", "{x} as a word")),
}  # fmt: skip

Loop = tuple[str, str, tuple[str, ...], str]
"""The result's type, the initial value of `{r}`, the statement for each `{e}`, and the meaning."""

LOOPS: dict[str, tuple[Loop, ...]] = {
    NUMBERS: (
        (NUMBER, "0", ("{r} += {e}",), "sum of {x}"), (NUMBER, "1", ("{r} *= {e}",), "product of {x}"), (NUMBER, "0", ("{r} += {e} * {e}",), "sum of the squares of {x}"),
        (NUMBER, "0", ("if {e} > {n}:", "    {r} += 1"), "how many of {x} are more than {n}"), (NUMBER, "0", ("if {e} % 2 == 0:", "    {r} += 1"), "number of even {x}"),
        (NUMBER, "{x}[0]", ("if {e} > {r}:", "    {r} = {e}"), "largest of {x}"), (NUMBER, "{x}[0]", ("if {e} < {r}:", "    {r} = {e}"), "smallest of {x}"), (NUMBER, "0", ("{r} = max({r}, {e})",), "largest of {x}, at least zero"),
        (NUMBERS, "[]", ("{r}.append({e} * 2)",), "doubles of {x}"), (NUMBERS, "[]", ("{r}.append({e} + {n})",), "{x} with {n} added"), (NUMBERS, "[]", ("if {e} > 0:", "    {r}.append({e})"), "positive {x}"),
        (NUMBERS, "[]", ("if {e} not in {r}:", "    {r}.append({e})"), "different {x}"), (NUMBERS, "[]", ("{r}.insert(0, {e})",), "{x} backwards"),
    ),
    WORDS: (
        (COUNTS, "{{}}", ("{r}[{e}] = {r}.get({e}, 0) + 1",), "how often each of {x} comes"), (COUNTS, "{{}}", ("{r}[{e}] = len({e})",), "length of each of {x}"), (NUMBER, "0", ("{r} += len({e})",), "length of all {x}"),
        (WORDS, "[]", ("{r}.append({e}.upper())",), "{x} in upper case"), (WORDS, "[]", ("if {e}.startswith(\"{s}\"):", "    {r}.append({e})"), "{x} that start with {s}"), (WORDS, "[]", ("if {e} not in {r}:", "    {r}.append({e})"), "different {x}"),
        (TEXT, "\"\"", ("{r} += {e}",), "{x} as one text"), (TEXT, "\"\"", ("if len({e}) > len({r}):", "    {r} = {e}"), "longest of {x}"), (NUMBER, "0", ("if {e} == \"{s}\":", "    {r} += 1"), "how often {s} is in {x}"),
    ),
    TEXT: (
        (NUMBER, "0", ("if {e} == \"{c}\":", "    {r} += 1"), "how often {x} has this letter"), (TEXT, "\"\"", ("if {e} != \"{c}\":", "    {r} += {e}"), "{x} without this letter"), (COUNTS, "{{}}", ("{r}[{e}] = {r}.get({e}, 0) + 1",), "how often {x} has each letter"), (WORDS, "[]", ("{r}.append({e})",), "letters of {x}"),
    ),
    COUNTS: (
        (NUMBER, "0", ("{r} += {x}[{e}]",), "sum of {x}"), (WORDS, "[]", ("if {x}[{e}] > {n}:", "    {r}.append({e})"), "keys of {x} with more than {n}"), (COUNTS, "{{}}", ("{r}[{e}] = {x}[{e}] * 2",), "{x} with doubled values"),
    ),
}  # fmt: skip
FINDS = {
    NUMBERS: ("{e} > {n}", "{e} < 0", "{e} == {y}", "{e} % 2 == 0", "{e} % {y} == 0"),
    WORDS: ("{e} == {y}", "{e}.startswith({y})", "len({e}) > {n}", "{y} in {e}"),
    TEXT: ("{e} == {y}", "{e}.isdigit()", "{e} in {y}"),
}
PAIRS = (
    ("{x} + {y}", "sum of {x} and {y}"), ("{x} * {y}", "product of {x} and {y}"), ("{x} - {y}", "difference of {x} and {y}"), ("{x} / {y}", "{x} divided by {y}"), ("{x} // {y}", "how often {y} fits into {x}"), ("{x} % {y}", "rest of {x} divided by {y}"),
    ("{x} ** {y}", "{x} to the power of {y}"), ("max({x}, {y})", "larger of {x} and {y}"), ("min({x}, {y})", "smaller of {x} and {y}"), ("{x} == {y}", "whether {x} equals {y}"), ("{x} > {y}", "whether {x} is more than {y}"), ("{x} % {y} == 0", "whether {y} divides {x}"),
    ("({x} + {y}) / 2", "mean of {x} and {y}"), ("2 * ({x} + {y})", "twice the sum of {x} and {y}"), ("{x} * {y} / 2", "half the product of {x} and {y}"), ("abs({x} - {y})", "distance of {x} and {y}"), ("[{x}, {y}]", "{x} and {y}"), ("{x} if {x} > {y} else {y}", "larger of {x} and {y}"),
)  # fmt: skip
CALLED = {
    TEXT: "text word line name s string value message label title".split(),
    WORDS: "words names lines items parts words strings values keys".split(),
    NUMBER: "n number x count value size index age price score".split(),
    NUMBERS: "numbers values items data scores prices xs nums sizes".split(),
    COUNTS: "counts table data mapping scores d result".split(),
    TRUTH: "result found ok flag valid".split(),
}
EACH = "each item value x word n name entry".split()
MADE = "result total out found made answer new".split()
EMPTY = {TEXT: '""', WORDS: "[]", NUMBER: "0", NUMBERS: "[]", COUNTS: "{}", TRUTH: "False"}
_NOT_IN_NAMES = re.compile("[^a-z0-9]+")


def program(source: Source, names: Sequence[str], f: str) -> str:
    """Returns a function with some of these names, or with descriptive names; it is named `f`,
    unless its name describes it."""
    made = source.random.choices((_chain, _loop, _search, _pair), (35, 30, 12, 23))[0]
    free = [*names] if source.chance(0.4) else []
    parameters, lines, meaning = made(source, free)
    if source.chance(0.5):
        f = _called(source, meaning, parameters)
    described = [f'"""Return {_said(meaning)}."""'] if source.chance(0.4) else []
    body = "".join(f"    {each}\n" for each in (*described, *lines))
    return f"def {f}({', '.join(parameters)}):\n{body}"


Made = tuple[list[str], list[str], str]
"""Parameters, lines, and the meaning of the result."""


def _called(source: Source, meaning: str, parameters: Sequence[str]) -> str:
    """Returns a name that describes the result: `largest_of_values`, `largest`, `is_even`."""
    said = _NOT_IN_NAMES.sub(" ", meaning).split()
    if said[0] == "whether":
        said = ["is", *said[3:]] if said[2:3] == ["is"] else said[1:]
    if source.chance(0.5):
        said = [each for each in said if each not in (*parameters, "of", "the")] or said
    name = "_".join(said[:5])
    return name if name.isidentifier() and not iskeyword(name) else "answer"


def _said(meaning: str) -> str:
    return meaning if meaning.startswith(("whether", "how", "where")) else f"the {meaning}"


def _name(source: Source, free: list[str], listed: Sequence[str], *taken: str) -> str:
    if free:
        return free.pop()
    return source.one([each for each in listed if each not in taken])


def _values(source: Source) -> dict[str, str]:
    return {"n": str(source.integer(2, 20)), "s": source.word(), "c": source.one("abcdexyz,;:-")}


def _guards(source: Source, kind: str, x: str, result: str) -> list[str]:
    """Returns the first lines of some functions."""
    if not source.chance(0.25):
        return []
    if kind == NUMBER:
        return [
            f"if {x} < 0:",
            source.one((f'    raise ValueError("{x} is negative")', "    return 0")),
        ]
    if source.chance(0.3):
        return [f"if not {x}:", f'    raise ValueError("{x} is empty")']
    return [f"if not {x}:", f"    return {source.one((EMPTY[result], 'None'))}"]


def _chain(source: Source, free: list[str]) -> Made:
    """Returns one to three steps, each applied to the result of the one before."""
    kind = source.one((TEXT, WORDS, NUMBER, NUMBER, NUMBERS, COUNTS))
    first = x = meaning = _name(source, free, CALLED[kind])
    lines: list[str] = []
    begins = kind
    for left in reversed(range(source.random.choices((1, 2, 3), (5, 4, 1))[0])):
        e = _name(source, [], EACH, x)
        made, code, said = source.one(STEPS[kind])
        given = {**_values(source), "e": e}
        code, meaning = code.format(**given, x=x), said.format(**given, x=meaning)
        kind = made
        if left or source.chance(0.25):
            x = _name(source, free, CALLED[kind], x, first)
            lines.append(f"{x} = {code}")
        else:
            x = ""
            lines.append(f"return {code}")
    if x:
        lines.append(f"return {x}")
    return [first], [*_guards(source, begins, first, kind), *lines], meaning


def _loop(source: Source, free: list[str]) -> Made:
    """Returns a loop that changes a value for each element."""
    kind = source.one(list(LOOPS))
    made, first, inside, said = source.one(LOOPS[kind])
    x = _name(source, free, CALLED[kind])
    e = _name(source, free, EACH, x)
    r = _name(source, free, source.one((MADE, CALLED[made])), x, e)
    given = {**_values(source), "x": x, "e": e, "r": r}
    lines = [
        *_guards(source, kind, x, made),
        f"{r} = {first.format(**given)}",
        f"for {e} in {x}:",
        *(f"    {each.format(**given)}" for each in inside),
    ]
    result, meaning = r, said.format(**given)
    if source.chance(0.15):
        _, code, said = source.one(STEPS[made])
        given = {**_values(source), "e": _name(source, [], EACH, r)}
        result, meaning = code.format(**given, x=r), said.format(**given, x=meaning)
    return [x], [*lines, f"return {result}"], meaning


def _search(source: Source, free: list[str]) -> Made:
    """Returns a search: whether an element has a property, or which one has it."""
    kind = source.one(list(FINDS))
    condition = source.one(FINDS[kind])
    x = _name(source, free, CALLED[kind])
    e = _name(source, free, EACH, x)
    y = _name(source, free, ("other", "key", "wanted", "limit", "prefix"), x, e)
    asked = condition.format(**_values(source), e=e, y=y)
    parameters = [x, y] if "{y}" in condition else [x]
    found, missing = source.one((("True", "False"), ("False", "True"), (e, "None"), (e, "None")))
    if source.chance(0.25):
        how = source.one(("any", "all"))
        return parameters, [f"return {how}({asked} for {e} in {x})"], f"whether {how} of {x} fit"
    lines = [f"for {e} in {x}:", f"    if {asked}:", f"        return {found}", f"return {missing}"]
    return parameters, lines, f"first of {x} that fits" if found == e else f"whether {x} fit"


def _pair(source: Source, free: list[str]) -> Made:
    """Returns an expression of two numbers."""
    code, said = source.one(PAIRS)
    listed = ("a", "b", "x", "y", "first", "second", "width", "height", "left", "right", "price")
    x = _name(source, free, listed)
    y = _name(source, free, listed, x)
    expression, meaning = code.format(x=x, y=y), said.format(x=x, y=y)
    lines = []
    if re.search(rf"[/%] {y}\b", expression) and source.chance(0.4):
        lines = [
            f"if {y} == 0:",
            source.one((f'    raise ValueError("{y} is zero")', "    return None")),
        ]
    if source.chance(0.25):
        r = _name(source, free, MADE, x, y)
        return [x, y], [*lines, f"{r} = {expression}", f"return {r}"], meaning
    return [x, y], [*lines, f"return {expression}"], meaning
