"""Infill: one or a few lines of small Python functions, of ours and of Python's library."""

import ast
import importlib
import inspect
import re
import textwrap
from dataclasses import replace
from functools import cache
from threading import Lock

from tools.models.corpus import MODULES
from tools.models.lessons.functions import function
from tools.models.lessons.lesson import Gap
from tools.models.lessons.programs import program
from tools.models.lessons.source import Source, is_held_out

ABILITY = "infill"
LONGEST = 900
"""Longer functions, in characters, are left out."""
RANDOM, MEANT = 0.2, 0.5
"""The share of our own functions that are random, and of those made from steps that fit."""
HEADERS = 0.25
"""The share of gaps in a line before a deeper one, where a colon is needed."""

BODIES = (
    "def {f}({a}, {b}):\n    \"\"\"Return the sum of {a} and {b}.\"\"\"\n    return {a} + {b}\n",
    "def {f}({a}):\n    {b} = 0\n    for {c} in {a}:\n        {b} += {c}\n    return {b}\n",
    "def {f}({a}):\n    {b} = []\n    for {c} in {a}:\n        {b}.append({c} * {n})\n    return {b}\n",
    "def {f}({a}, {b}):\n    if {a} > {b}:\n        return {a}\n    return {b}\n",
    "def {f}({a}):\n    if not {a}:\n        return None\n    return {a}[0]\n",
    "def {f}({a}):\n    {b} = {{}}\n    for {c} in {a}:\n        {b}[{c}] = {b}.get({c}, 0) + 1\n    return {b}\n",
    "def {f}({a}, {b}):\n    if {b} == 0:\n        raise ValueError(\"{b} is zero\")\n    return {a} / {b}\n",
    "def {f}({a}):\n    return [{b} for {b} in {a} if {b} > {n}]\n",
    "def {f}({a}):\n    with open({a}) as {b}:\n        {c} = {b}.read()\n    return {c}\n",
    "def {f}({a}):\n    {b} = 1\n    while {a} > 1:\n        {b} *= {a}\n        {a} -= 1\n    return {b}\n",
    "def {f}({a}):\n    try:\n        {b} = int({a})\n    except ValueError:\n        {b} = {n}\n    return {b}\n",
    "class {C}:\n    def __init__(self, {a}, {b}):\n        self.{a} = {a}\n        self.{b} = {b}\n\n    def {f}(self):\n        return self.{a} + self.{b}\n",
    "def {f}({a}):\n    {b} = {a}.split()\n    {c} = len({b})\n    return {c}\n",
    "def {f}({a}, {b}):\n    print({a})\n    print({b})\n    return {a}, {b}\n",
    "def {f}({a}):\n    {b} = sorted({a})\n    return {b}[-1]\n",
    "def {f}({a}, {b}={n}):\n    {c} = {a} * {b}\n    if {c} > 100:\n        return 100\n    return {c}\n",
    "def {f}({a}):\n    {b} = \"\"\n    for {c} in {a}:\n        {b} = {c} + {b}\n    return {b}\n",
    "def {f}({a}):\n    return {a} % 2 == 0\n",
    "class {C}:\n    def __init__(self):\n        self.{a} = []\n\n    def {f}(self, {b}):\n        self.{a}.append({b})\n        return len(self.{a})\n",
    "def {f}({a}, {b}):\n    {c} = set({a}) & set({b})\n    return sorted({c})\n",
)  # fmt: skip
SHORT = 0.25
"""The share of lessons with a line of few words."""
TWINS = 0.25
"""The share of these that follow another function with the same lines."""
NAMES = (
    "a b c d i j k n m x y z key value item items name names text word words line lines data result "
    "total count number numbers index size left right first second path file content node values "
    "lst string start stop step user score scores price limit"
).split()


_building = Lock()


def tree(text: str) -> ast.AST:
    """Returns `ast.parse` of the text, in one thread at a time: Python 3.11 has one counter of the
    depth for all threads, and raises SystemError."""
    with _building:
        return ast.parse(text)


def lesson(source: Source) -> Gap:
    if not source.held_out and source.chance(SHORT):
        made = short(source)
    elif not source.chance(0.6 if source.held_out else 0.65):
        return cut(source, borrowed(source))
    elif not source.held_out and source.chance(TWINS):
        made = twins(source)
    else:
        made = cut(source, own(source))
    return replace(made, own=True)


def short(source: Source) -> Gap:
    """Returns a gap in a line. The only difficulty is where the gap begins, which many lessons
    teach."""
    if source.chance(0.5):
        return within(source, function(source, [source.listed(NAMES)], source.made_up(), 1))
    mark = source.one((" ", " ", "_", ", ", ".", " = ", "(", "-"))
    line = mark.join(source.word() for _ in range(source.number(2, 5)))
    gap = within(source, line)
    between = source.one(("\n", "\n", " ", ". ", "\n\n"))
    return replace(gap, prefix=f"{line}{between}{gap.prefix}", suffix=f"{gap.suffix}\n")


def within(source: Source, text: str) -> Gap:
    """Leaves out any part of the last line."""
    ends = len(text.rstrip("\n"))
    begin = text.rfind("\n", 0, ends) + 1
    begin += len(text[begin:]) - len(text[begin:].lstrip())
    start = source.number(begin, ends - 1)
    end = ends if source.chance(0.5) else source.number(start + 1, ends)
    return _gap(text, start, end)


def twins(source: Source) -> Gap:
    """Returns a gap in the second of two functions that differ only in their names, so that the
    right text can be known from the place where the gap begins."""
    text = own(source)
    other = re.sub(r"(?<=^def )\w+|(?<=^class )\w+", source.made_up(), text)
    made = cut(source, other)
    return replace(made, prefix=f"{text}\n\n{made.prefix}")


def own(source: Source) -> str:
    names: list[str] = []
    while len(names) < 4:
        name = source.listed(NAMES) if source.chance(0.7) else source.made_up()
        if name not in names and name.isidentifier():
            names.append(name)
    a, b, c, f = names
    if source.chance(0.5):
        f = f"{source.noun()}_{source.noun()}"
    if not source.held_out:
        pick = source.random.random()
        if pick < RANDOM:
            return function(source, names[:3], f)
        if pick < RANDOM + MEANT:
            return program(source, names[:3], f)
    text = source.phrase(BODIES)
    made = text.format(a=a, b=b, c=c, f=f, C=source.noun().capitalize(), n=source.integer(1, 99))
    try:
        tree(made)
    except SyntaxError:  # a keyword
        return own(source)
    return made


def borrowed(source: Source) -> str:
    while True:
        text = source.one(library())
        if is_held_out(text.split("(")[0].split()[-1]) == source.held_out:
            return text


@cache
def library() -> tuple[str, ...]:
    """Returns small functions of Python's own library, without their indentation."""
    found = []
    for name in MODULES:
        source = inspect.getsource(importlib.import_module(name))
        lines = source.splitlines()
        for node in ast.walk(tree(source)):
            if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                if 40 < len(text) < LONGEST and text.startswith("def "):
                    found.append(text + "\n")
    return tuple(found)


def cut(source: Source, text: str) -> Gap:
    """Leaves out a part of a line, a line, or a few lines."""
    lines = text.splitlines(keepends=True)
    first = source.number(1, len(lines) - 1) if len(lines) > 1 else 0
    last = min(len(lines), first + source.random.choices((1, 2, 3), (6, 3, 1))[0])
    if not source.held_out and source.chance(HEADERS):
        headers = [i for i, line in enumerate(lines) if i and line.rstrip().endswith(":")]
        if headers:
            first = source.one(headers)
            last = first + 1
    start = sum(map(len, lines[:first]))
    end = sum(map(len, lines[:last])) - 1
    # An editor's cursor is after the indentation, or within the line.
    start += len(lines[first]) - len(lines[first].lstrip())
    if source.chance(0.4 if source.held_out else 0.55) and end - start > 4:
        start = source.number(start, end - 2)
    start = min(start, end)
    return _gap(text, start, end)


def _gap(text: str, start: int, end: int) -> Gap:
    return Gap(
        ability=ABILITY, kind="gap", prefix=text[:start], middle=text[start:end], suffix=text[end:]
    )


def document(source: Source) -> Gap:
    """Returns a whole function, to be written from nothing."""
    text = own(source) if source.chance(0.5) else borrowed(source)
    return Gap(ability=ABILITY, kind="document", prefix="", middle=text, suffix=None)
