"""Random small Python functions, for the training only.

They have no meaning, but can be parsed, and repeat their names as real ones do.
"""

from collections.abc import Sequence

from tools.models.lessons.source import Source

ATTRIBUTES = "name value items size count data lines path text key parent child next state index total".split()
METHODS = "append strip split lower upper get pop join read write close update add sort find replace keys".split()
BUILT_IN = (
    "len str int sorted list set sum max min abs print range dict tuple reversed enumerate".split()
)
ERRORS = "ValueError TypeError KeyError IndexError OSError RuntimeError".split()
OPERATORS = "+ - * / // % + - *".split()
COMPARISONS = ("==", "!=", "<", ">", "<=", ">=", "in", "not in", "is", "is not", ">", "==")
CONSTANTS = ("None", "True", "False", "0", "1", "[]", "{}", '""', "()", "set()")


def function(source: Source, names: Sequence[str], f: str, n: int | None = None) -> str:
    """Returns a function named `f` with some of these names as its parameters, and `n` statements
    or a few."""
    known = source.some(names, source.number(1, max(1, len(names) - 1)))
    parameters = [
        f"{name}={_constant(source)}" if i and source.chance(0.15) else name
        for i, name in enumerate(known)
    ]
    for i in range(1, len(parameters)):
        if "=" in parameters[i - 1] and "=" not in parameters[i]:
            parameters[i] += "=None"
    if source.chance(0.2):
        parameters.insert(0, "self")
        known.append("self")
    lines = [f"def {f}({', '.join(parameters)}):"]
    if source.chance(0.15):
        words = " ".join(source.running_word() for _ in range(source.number(2, 7)))
        lines.append(f'    """{words.capitalize()}."""')
    unknown = [each for each in names if each not in known]
    lines += _block(source, known, unknown, "    ", n or source.number(1, 3))
    if n is None and source.chance(0.8):
        lines.append(f"    return {_expression(source, known)}")
    return "\n".join(lines) + "\n"


def _block(source: Source, known: list[str], unknown: list[str], indent: str, n: int) -> list[str]:
    lines: list[str] = []
    for _ in range(n):
        lines += _statement(source, known, unknown, indent)
    return lines


def _statement(source: Source, known: list[str], unknown: list[str], indent: str) -> list[str]:
    kind = source.random.choices(
        ("assign", "change", "call", "if", "for", "while", "raise", "with", "try"),
        (30, 12, 14, 16, 12, 4, 3, 3, 3) if len(indent) < 12 else (30, 12, 14, 0, 0, 0, 3, 0, 0),
    )[0]
    value = _expression(source, known)
    inner = indent + "    "

    def block() -> list[str]:
        return _block(source, known, unknown, inner, source.random.choices((1, 2), (3, 1))[0])

    def new() -> str:
        if unknown:
            known.append(unknown.pop())
            return known[-1]
        return _target(source, known)

    if kind == "assign":
        return [f"{indent}{new() if source.chance(0.6) else _target(source, known)} = {value}"]
    if kind == "change":
        return [f"{indent}{_target(source, known)} {source.one(OPERATORS)}= {value}"]
    if kind == "call":
        return [f"{indent}{_call(source, known)}"]
    if kind == "if":
        early = [f"{inner}return {value}"]
        inside = early if source.chance(0.3) else block()
        lines = [f"{indent}if {_condition(source, known)}:", *inside]
        if source.chance(0.3):
            lines += [f"{indent}else:", *block()]
        return lines
    if kind == "for":
        return [f"{indent}for {new()} in {value}:", *block()]
    if kind == "while":
        return [f"{indent}while {_condition(source, known)}:", *block()]
    if kind == "raise":
        return [f'{indent}raise {source.one(ERRORS)}("{source.word()} {source.word()}")']
    if kind == "with":
        return [f"{indent}with open({source.one(known)}) as {new()}:", *block()]
    return [f"{indent}try:", *block(), f"{indent}except {source.one(ERRORS)}:", *block()]


def _target(source: Source, known: Sequence[str]) -> str:
    name = source.one(known)
    pick = source.random.random()
    if name == "self" or pick < 0.15:
        return f"{name}.{source.one(ATTRIBUTES)}"
    if pick < 0.3:
        return f"{name}[{_simple(source, known)}]"
    return name


def _constant(source: Source) -> str:
    pick = source.random.random()
    if pick < 0.4:
        return str(source.integer(0, 99))
    return f'"{source.word()}"' if pick < 0.6 else source.one(CONSTANTS)


def _simple(source: Source, known: Sequence[str]) -> str:
    return source.one(known) if source.chance(0.7) else _constant(source)


def _call(source: Source, known: Sequence[str]) -> str:
    arguments = ", ".join(_simple(source, known) for _ in range(source.number(0, 2)))
    if source.chance(0.4):
        return f"{source.one(BUILT_IN)}({arguments or source.one(known)})"
    return f"{source.one(known)}.{source.one(METHODS)}({arguments})"


def _condition(source: Source, known: Sequence[str]) -> str:
    pick = source.random.random()
    if pick < 0.2:
        return f"not {source.one(known)}"
    if pick < 0.3:
        return source.one(known)
    if pick < 0.4:
        return f"isinstance({source.one(known)}, {source.one(('str', 'int', 'list', 'dict'))})"
    compared = f"{_simple(source, known)} {source.one(COMPARISONS)} {_simple(source, known)}"
    if pick < 0.5:
        return f"{compared} {source.one(('and', 'or'))} {source.one(known)}"
    return compared


def _expression(source: Source, known: Sequence[str]) -> str:
    pick = source.random.random()
    name = source.one(known)
    if pick < 0.15:
        return name
    if pick < 0.3:
        return f"{name} {source.one(OPERATORS)} {_simple(source, known)}"
    if pick < 0.43:
        return _call(source, known)
    if pick < 0.47:
        return f"{_call(source, known)} {source.one('+-*&|')} {_call(source, known)}"
    if pick < 0.55:
        return f"{name}[{source.one((_simple(source, known), '-1', '0', '1:', ':-1', '1'))}]"
    if pick < 0.63:
        return f"{name}.{source.one(ATTRIBUTES)}"
    if pick < 0.68:
        return f"[{_simple(source, known)}, {_simple(source, known)}]"
    if pick < 0.76:
        each = source.one("abcdijkxyz")
        condition = f" if {_condition(source, [each])}" if source.chance(0.4) else ""
        made = source.one((each, each, f"{each}.{source.one(METHODS)}()", f"{each} * {name}"))
        return f"[{made} for {each} in {name}{condition}]"
    if pick < 0.81:
        return f"{_simple(source, known)} if {_condition(source, known)} else {_constant(source)}"
    return _constant(source)
