"""Grammars for answers: calls of the given tools in the model's output syntax, with arguments that
follow the tools' schemas; or JSON that follows a schema.

The answer's own syntax becomes rules of a grammar. Arguments in JSON become schemas that the
grammar refers to; the engine translates and checks them.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from specllama.engine.chat import harmony_markers as harmony
from specllama.engine.chat.grammar.json_lark import TextGrammarError, in_json
from specllama.engine.chat.grammar.lark import Lark, choice, literal, optional, regex, sequence
from specllama.engine.chat.grammar.tagged_arguments import ANY_OBJECT, tagged_arguments
from specllama.engine.chat.grammar.triggers import is_plain_json, triggers, without_calls
from specllama.engine.chat.request import FREE_TEXT, NO_BUDGET, OfferedTool, ThinkingBudget
from specllama.engine.chat.syntax import (
    HARMONY_THOUGHTS,
    HERMES_CALLS,
    Fill,
    OutputSyntax,
    begun_by,
)
from specllama.engine.errors import invalid_request
from specllama.engine.formats.json_schema import TYPES
from specllama.engine.params import (
    AnswerRules,
    GenerationParams,
    GrammarTrigger,
    NamedGrammar,
    NamedSchema,
    ThinkingRules,
    Thoughts,
)

# ---- Arguments of calls in JSON: an object of a schema, or a plain text that follows a grammar.


log = logging.getLogger("specllama.engine.chat.grammar")
_SPACE_BETWEEN = "/[ \\t\\n]{1,8}/"


class TextArguments(msgspec.Struct, frozen=True):
    """Arguments that consist of one text; `in_json` as in `NamedGrammar`."""

    what: str
    lark: str
    in_json: str


def text_arguments(what: str, lark: str) -> TextArguments | None:
    """Returns the arguments of a tool whose text follows the grammar `lark`, which error messages
    call `what`; None if the grammar can't be written for texts in JSON."""
    try:
        return TextArguments(what, lark, in_json(lark))
    except TextGrammarError as error:
        log.warning("%s: the prompt contains this grammar, but it is not enforced: %s", what, error)
        return None


def json_arguments(lark: Lark, what: str, parameters: Any, at: str) -> str:
    """Returns the symbols of an object of arguments. `parameters` is its schema (see `Lark.json`),
    or `TextArguments`."""
    if not isinstance(parameters, TextArguments):
        return lark.json(what, parameters, at)
    space = f"{lark.terminal(_SPACE_BETWEEN)}?"
    text = lark.text_in_json(parameters.what, parameters.lark, parameters.in_json)
    quoted = sequence(literal('"'), text, literal('"'))
    key = literal(f'"{FREE_TEXT}"')
    begin = sequence(literal("{"), space, key, space, literal(":"), space)
    return lark.rule(sequence(begin, quoted, space, literal("}")))


MAX_NAME = 128  # characters
MAX_WORK = 20_000  # steps for the schemas of all tools, which take some tenths of a second
MIN_WORK = 500  # for each of many tools
_NAME = re.compile(rf"[\w.:/@$+-]{{1,{MAX_NAME}}}")  # no output syntax has such a name as a marker
_ID = "/[a-zA-Z0-9]{9}/"  # Mistral's models require this form, others accept any
_NEXT_INDEX = "/[1-9][0-9]{0,3}/"
_SPACE = "/( |\\n{1,2}[ \\t]{0,20}){1,2}/"  # white space that llama-server permits before an answer
_HARMONY_JSON = f'(" {harmony.CONSTRAIN}json" | " json")?'


class AnswerGrammar(msgspec.Struct, frozen=True):
    """A constraint for `GenerationParams`: the `lark`, `schemas` and `relaxed` keywords of
    `AnswerRules`, and, if it is `lazy`, the triggers that start it."""

    lark: str
    schemas: dict[str, NamedSchema]
    relaxed: list[str] = []
    lazy: bool = False
    triggers: list[GrammarTrigger] = []
    grammars: dict[str, NamedGrammar] = {}


def answer_params(
    params: GenerationParams,
    syntax: OutputSyntax,
    grammar: AnswerGrammar | None,
    *,
    thinking: bool,
    budget: ThinkingBudget = NO_BUDGET,
    given: str = "",
) -> GenerationParams:
    """Returns `params` with the settings for an answer in `syntax`: its markers are preserved, it
    follows `grammar`, and `budget` limits its reasoning. The text of the answer begins with
    `given`, which is part of the prompt.

    Raises EngineError (invalid_request_error) if `params` already has a grammar or schema.
    """
    wrapper = HARMONY_THOUGHTS if syntax.harmony else syntax.reasoning
    thoughts = Thoughts(wrapper.begin, wrapper.end, thinking) if wrapper else None
    if grammar is None:
        rules = AnswerRules(thoughts=thoughts, given=given)
        changes: dict[str, Any] = {}
    else:
        if params.grammar or params.json_schema:
            raise invalid_request("a grammar or json_schema can't be used together with tools")
        rules = AnswerRules(
            grammar.lark, grammar.schemas, thoughts, grammar.relaxed, grammars=grammar.grammars
        )
        changes = {"grammar_lazy": grammar.lazy, "grammar_triggers": grammar.triggers}
    if thoughts is not None:
        changes["thinking"] = ThinkingRules(thoughts, budget.tokens, budget.message, budget.control)
    preserved = [*params.preserved_tokens, *syntax.markers]
    return msgspec.structs.replace(params, answer=rules, preserved_tokens=preserved, **changes)


def answer_grammar(
    syntax: OutputSyntax,
    *,
    tools: list[OfferedTool],
    required: bool,
    tool_name: str | None,
    parallel: bool,
    thinking: bool,
    schema: Any = None,
    prompt: str = "",
    may_think: bool = True,
    texts: Mapping[str, str] = MappingProxyType({}),
) -> AnswerGrammar | None:
    """Returns the grammar of an answer in `syntax`; None if any text is valid.

    `tools` are those of `ChatRequest`. The text of the answer follows `schema`, if there is one.
    The grammar is lazy, from the first call on, unless calls are `required` or there is a `schema`;
    `tool_name` requires a call of this tool. `parallel` allows several calls in one answer.
    `thinking`: the prompt has opened the reasoning. If `prompt` ends with the beginning of a call
    or of the content, the grammar leaves out that beginning. Without `may_think`, a grammar that
    isn't lazy allows only the reasoning that the prompt has opened. `texts` are the grammars, in
    Lark, of tools that accept a plain text.

    Raises EngineError (invalid_request_error) with the name of the invalid tool. Errors within a
    schema are only detected in the engine, whose error contains the tool's name, too.
    """
    lark = Lark(max(MIN_WORK, MAX_WORK // max(1, len(tools))))
    functions = _functions(tools, tool_name, lark)
    _add_texts(functions, texts, syntax, lark)
    if not functions and schema is None:
        return None
    required = bool(functions) and (required or tool_name is not None)
    answer = _Harmony(lark) if syntax.harmony else _Answer(lark, syntax, prompt)
    lazy = bool(functions) and not required and schema is None
    if lazy:
        start = answer.lazy_calls(functions, parallel)
        begins = triggers(syntax, functions, prompt)
        return AnswerGrammar(
            lark.text(start), lark.schemas, lark.relaxed, True, begins, lark.grammars
        )
    bodies = [answer.calls(functions, parallel)] if functions else []
    if schema is not None and not required:
        if functions:
            answer.check_mixable()
        bodies.append(answer.text(lark.json("JSON schema", schema or ANY_OBJECT)))
    start = choice(bodies)
    start = answer.after_thoughts(start, thinking) if thinking or may_think else answer.only(start)
    return AnswerGrammar(lark.text(start), lark.schemas, lark.relaxed, grammars=lark.grammars)


def no_calls_grammar(
    syntax: OutputSyntax, names: Collection[str], prompt: str = ""
) -> AnswerGrammar | None:
    """Returns the grammar of an answer without calls of the tools `names`; None if calls can't be
    recognized in the text. `prompt` is as in `answer_grammar`."""
    lark = Lark(MIN_WORK)
    text = without_calls(syntax, names, prompt)
    return AnswerGrammar(lark.text(lark.terminal(text)), {}) if text else None


Functions = Mapping[str, Any]
"""The schemas of the parameters, or the `TextArguments`, by the name of the tool."""


def _functions(tools: list[OfferedTool], wanted: str | None, lark: Lark) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, tool in enumerate(tools):
        function = tool.get("function") if tool.get("type", "function") == "function" else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            raise invalid_request(f"tools[{i}]: not a function with a name")
        if not _NAME.fullmatch(name):
            raise invalid_request(
                f"tools[{i}]: the name {name[:MAX_NAME]!r} can't be called: a name has up to "
                f"{MAX_NAME} letters, digits and _ - . : / @ $ +"
            )
        if name in found:
            raise invalid_request(f"tools[{i}]: there is another tool {name!r}")
        parameters = function.get("parameters")
        found[name] = _object_schema(name, parameters, lark)
    if wanted is None:
        return found
    if wanted not in found:
        raise invalid_request(f"tool_choice: there is no tool {wanted!r}")
    return {wanted: found[wanted]}


def _add_texts(
    functions: dict[str, Any], texts: Mapping[str, str], syntax: OutputSyntax, lark: Lark
) -> None:
    """Replaces the schemas of tools that accept a text by their grammars, if calls have their
    arguments in JSON."""
    tagged = syntax.calls is not None and syntax.calls.tagged is not None
    for name, text in texts.items():
        if name not in functions:
            continue
        arguments = None if tagged else text_arguments(f"the grammar of the tool {name!r}", text)
        if arguments is None:
            lark.leave_out(f"{_place_of(name)}/format")
        else:
            functions[name] = arguments


def _parameters_of(name: str) -> str:
    return f"the parameters of the tool {name!r}"


def _place_of(name: str) -> str:
    """Returns the location of a tool's schema, as in `NamedSchema.at`."""
    return f"{name}#"


def _object_schema(name: str, parameters: Any, lark: Lark) -> Any:
    """Returns the schema restricted to objects, as arguments are always an object."""
    if parameters in (None, True, {}):
        return ANY_OBJECT
    what = f"Failed to parse {_parameters_of(name)}: JSON schema error at #"
    if not isinstance(parameters, dict):
        raise invalid_request(f"{what}: schema must be an object")
    kind = parameters.get("type") or "object"
    names = kind if isinstance(kind, list) else [kind]
    if not all(isinstance(each, str) for each in names):
        raise invalid_request(f"{what}: type must be a string or an array of strings")
    if unknown := [each for each in names if each not in TYPES]:
        raise invalid_request(f"{what}: unrecognized type {unknown[0][:80]}")
    if "object" not in names:
        lark.leave_out(f"{_place_of(name)}/type")
    return {**parameters, "type": "object"}


class _Answer:
    """Answers of most models."""

    def __init__(self, lark: Lark, syntax: OutputSyntax, prompt: str) -> None:
        self.lark = lark
        self._syntax = syntax
        self._calls = syntax.calls or HERMES_CALLS
        self._opening = self._calls.opening.lstrip()
        self._begun = begun_by(prompt, self._opening)
        self._text_begun = begun_by(prompt, syntax.content.begin.lstrip())

    def calls(self, functions: Functions, parallel: bool) -> str:
        return self._row(functions, parallel, self._begun)

    def lazy_calls(self, functions: Functions, parallel: bool) -> str:
        """Returns the grammar of a trigger and of the text after it."""
        rows = [self._row(functions, parallel, "")]
        if self._begun:
            rows.append(self._row(functions, parallel, self._begun))
        return choice(rows)

    def _row(self, functions: Functions, parallel: bool, begun: str) -> str:
        calls = self._calls
        first = self._one_of(functions, calls.begin, begun=begun)
        more = ""
        if parallel and calls.parallel:
            more = f"{self.lark.rule(self._one_of(functions, calls.separator, _NEXT_INDEX))}*"
        # The grammar doesn't include a token that ends the answer, as that isn't text.
        end = "" if calls.stops else calls.end.rstrip()
        return sequence(self.lark.rule(first), more, literal(end))

    def _one_of(
        self, functions: Functions, before: str, index: str | None = None, begun: str = ""
    ) -> str:
        return choice(
            [
                sequence(*self._call(name, functions[name], before, index, begun))
                for name in functions
            ]
        )

    def _call(
        self, name: str, parameters: Any, before: str, index: str | None, begun: str
    ) -> list[str]:
        """Returns the symbols of a call. `index` is the pattern of its number; None for the first
        call."""
        symbols: list[str] = []
        # All fixed text up to a variable part is one literal: if one name is the beginning of
        # another, the lexer must not decide between them before their ends.
        text = before

        def flush() -> None:
            nonlocal text
            if not symbols and index is None:
                text = text.lstrip().removeprefix(begun)
            symbols.append(literal(text))
            text = ""

        for part in self._calls.parts:
            match part:
                case str():
                    text += part
                case Fill("name"):
                    text += name
                case Fill("index") if index is None:
                    text += str(self._calls.first_index)
                case Fill("index"):
                    flush()
                    symbols.append(self.lark.terminal(str(index)))
                case Fill("id"):
                    flush()
                    symbols.append(self.lark.terminal(_ID))
                case Fill("arguments"):
                    flush()
                    symbols.append(self._arguments(name, parameters))
        flush()
        return symbols

    def _arguments(self, name: str, parameters: Any) -> str:
        if self._calls.tagged is None:
            return json_arguments(self.lark, _parameters_of(name), parameters, _place_of(name))
        what, at = _parameters_of(name), _place_of(name)
        return tagged_arguments(self.lark, self._calls.tagged, what, parameters, at)

    def text(self, body: str) -> str:
        """Returns the symbol of an answer's text, which is `body`. Models sometimes omit both of
        its markers, or the second one, but never only the first one."""
        content = self._syntax.content
        begin = content.begin.lstrip().removeprefix(self._text_begun)
        marked = sequence(body, optional(literal(content.end.strip())))
        if not begin.strip():
            return marked
        space = self._space() if begin[-1:].isspace() else ""
        return choice([sequence(literal(begin.rstrip()), space, marked), body])

    def after_thoughts(self, body: str, thinking: bool) -> str:
        reasoning = self._syntax.reasoning
        if reasoning is None:
            return self.only(body)
        if not reasoning.end.strip():
            return sequence(self._space(), body)
        thoughts = self.lark.lazily(f"/(?s:.*){regex(reasoning.end.strip())}/")
        if not thinking:
            begin = literal(reasoning.begin.strip())
            thoughts = optional(sequence(self._space(), begin, thoughts)) if begin else ""
        return sequence(thoughts, self._space(), body)

    def only(self, body: str) -> str:
        begins_with_space = self._syntax.reasoning or self._calls.opening[:1].isspace()
        return sequence(self._space() if begins_with_space else "", body)

    def _space(self) -> str:
        return f"{self.lark.terminal(_SPACE)}?"

    def check_mixable(self) -> None:
        """Raises EngineError if calls and JSON begin with the same text, so that their first tokens
        can't distinguish them."""
        if is_plain_json(self._opening.removeprefix(self._begun)):
            raise invalid_request(
                "response_format and tools can't be used together with this model, whose calls "
                "are JSON without anything before it"
            )


class _Harmony:
    """Answers in channels. A call ends the answer. The recipient is written before or after the
    channel."""

    def __init__(self, lark: Lark) -> None:
        self.lark = lark

    def calls(self, functions: Functions, parallel: bool) -> str:
        return self._one_of(functions, _after_channel, _before_channel)

    def lazy_calls(self, functions: Functions, parallel: bool) -> str:
        before = _before_channel
        return self._one_of(
            functions,
            _after_channel,
            lambda name: before(name).lstrip(),
            lambda name: harmony.NEXT + before(name),
        )

    def _one_of(self, functions: Functions, *headers: Callable[[str], str]) -> str:
        return choice(
            [
                sequence(
                    literal(header(name)),
                    _HARMONY_JSON,
                    literal(harmony.MESSAGE),
                    json_arguments(self.lark, _parameters_of(name), parameters, _place_of(name)),
                )
                for name, parameters in functions.items()
                for header in headers
            ]
        )

    def text(self, body: str) -> str:
        begin = literal(harmony.FINAL)
        return sequence(begin, _HARMONY_JSON, literal(harmony.MESSAGE), body)

    def after_thoughts(self, body: str, thinking: bool) -> str:
        begin, end = HARMONY_THOUGHTS.begin, HARMONY_THOUGHTS.end
        thoughts = self.lark.lazily(f"/(?s:.*){regex(end)}/")
        rest = sequence(thoughts, literal(harmony.NEXT))
        return sequence(rest if thinking else optional(sequence(literal(begin), rest)), body)

    def only(self, body: str) -> str:
        return body

    def check_mixable(self) -> None:
        """Does nothing: calls and text are in different channels."""


def _after_channel(name: str) -> str:
    return f"{harmony.COMMENTARY} to={harmony.FUNCTIONS}{name}"


def _before_channel(name: str) -> str:
    return f" to={harmony.FUNCTIONS}{name}{harmony.COMMENTARY}"
