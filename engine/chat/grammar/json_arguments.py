"""Arguments of calls in JSON: of a schema, or a plain text that follows a grammar of its own."""

import logging
from typing import Any

import msgspec

from specllama.engine.chat.grammar.json_lark import TextGrammarError, in_json
from specllama.engine.chat.grammar.lark import Lark, literal, sequence
from specllama.engine.chat.request import FREE_TEXT

log = logging.getLogger("specllama.engine.chat.grammar")
_SPACE = "/[ \\t\\n]{1,8}/"


class TextArguments(msgspec.Struct, frozen=True):
    """Arguments with nothing but a text; `in_json` as in `NamedGrammar`."""

    what: str
    lark: str
    in_json: str


def text_arguments(what: str, lark: str) -> TextArguments | None:
    """The arguments of a tool whose text follows the grammar `lark`, which error messages call
    `what`; None if that can't be said in JSON."""
    try:
        return TextArguments(what, lark, in_json(lark))
    except TextGrammarError as error:
        log.warning("%s is told to the model, but not enforced: %s", what, error)
        return None


def json_arguments(lark: Lark, what: str, parameters: Any, at: str) -> str:
    """The symbols of an object that follows `parameters`, see `Lark.json`, or is
    `TextArguments`."""
    if not isinstance(parameters, TextArguments):
        return lark.json(what, parameters, at)
    space = f"{lark.terminal(_SPACE)}?"
    text = lark.text_in_json(parameters.what, parameters.lark, parameters.in_json)
    quoted = sequence(literal('"'), text, literal('"'))
    key = literal(f'"{FREE_TEXT}"')
    begin = sequence(literal("{"), space, key, space, literal(":"), space)
    return lark.rule(sequence(begin, quoted, space, literal("}")))
