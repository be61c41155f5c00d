"""Renders chat templates: Jinja2 in a sandbox, with the helpers that published templates use.

The dialect is that of the Hugging Face `apply_chat_template` function, for which nearly all
templates are written: `trim_blocks` and `lstrip_blocks`, loop controls, `raise_exception`,
`strftime_now`, a `tojson` without HTML escapes, and `{% generation %}` blocks, which mark the
assistant's text for training and have no effect here. A template comes with a downloaded model, so
it runs sandboxed and can neither access Python's internals nor change its input.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import (
    ChainableUndefined,
    TemplateError,
    TemplateSyntaxError,
    Undefined,
    meta,
    nodes,
)
from jinja2.ext import Extension, loopcontrols
from jinja2.lexer import (
    TOKEN_RAW_BEGIN,
    TOKEN_RAW_END,
    Token,
    TokenStream,
    ignored_tokens,
    newline_re,
)
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specllama.engine.errors import invalid_request, server_error

Message = Mapping[str, Any]

MAX_PROMPT = 1 << 25  # characters; a template that writes more is stopped


class ChatTemplate:
    """A compiled template with the special tokens of its model. `variables` are the names that it
    reads and doesn't define itself.

    Raises EngineError (server_error) if `source` is not a valid template.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._changes_lists = ".append(" in source or ".pop(" in source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment.from_string(source)
            self.variables = meta.find_undeclared_variables(_environment.parse(source))
        except TemplateSyntaxError as e:
            line, column = _place(source, e)
            text = f"The chat template is not valid: {e.message} (line {line}, column {column})"
            raise server_error(text, final=True) from e
        except MemoryError:
            raise
        except Exception as e:  # Jinja folds constants here: any exception is possible
            text = f"The chat template is not valid: {type(e).__name__}: {e}"
            raise server_error(text, final=True) from e

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns the prompt for `messages`; `variables` are further names that the template may
        use.

        Raises EngineError (invalid_request_error) if the template rejects the messages, with its
        own message, or fails in any other way, because the messages have caused that; MemoryError
        if the template needs too much memory.
        """
        now = datetime.now()
        context = {
            "enable_thinking": True,
            "datetime": now.strftime("%b %d %Y"),
            "date_string": now.strftime("%d %b %Y"),
            "documents": None,
            **self._tokens,
            **(variables or {}),
            "messages": self._given(messages) if messages else _NoMessages(),
            **({"tools": self._given(tools)} if tools else {}),
            "add_generation_prompt": add_generation_prompt,
        }
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(context):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_PROMPT:
                    break
        except TemplateError as e:
            raise invalid_request(f"the chat template refuses this request: {e}") from e
        except MemoryError:
            raise
        except Exception as e:  # a template is code of another author: any exception is possible
            raise invalid_request(
                f"the chat template fails on this request: {type(e).__name__}: {e}"
            ) from e
        if size > MAX_PROMPT:
            raise invalid_request(
                f"the chat template writes more than {MAX_PROMPT} characters for this request"
            )
        return "".join(pieces)

    def _given(self, value: Any) -> Any:
        return _protected(value) if self._changes_lists else value


def _place(source: str, error: TemplateSyntaxError) -> tuple[int, int]:
    """Returns the line and the column, from 1, of an error; Jinja reports only the line. The column
    is that of the last token that the parser has read, or of the invalid text."""
    source = "\n".join(newline_re.split(source)[::2])
    places: list[tuple[int, int]] = []  # positions of the tokens that the parser reads
    end = 0
    try:
        for line, kind, text in _environment.lexer.tokeniter(source, None):
            begin = max(source.find(text, end), end)  # white space between tokens may be missing
            end = begin + len(text)
            if kind not in ignored_tokens and kind not in (TOKEN_RAW_BEGIN, TOKEN_RAW_END):
                places.append((line, begin - source.rfind("\n", 0, begin)))
    except TemplateSyntaxError as e:
        if (e.message, e.lineno) == (error.message, error.lineno):
            return e.lineno, end - source.rfind("\n", 0, end)
    n_read = 0

    def counted(stream: TokenStream) -> Iterator[Token]:
        nonlocal n_read
        for token in stream:
            n_read += 1
            yield token

    parser = Parser(_environment, source)
    with suppress(TemplateSyntaxError):
        parser.stream = TokenStream(counted(parser.stream), None, None)
        parser.parse()
    return next(
        (place for place in reversed(places[:n_read]) if place[0] == error.lineno),
        (error.lineno, 1),
    )


class _GivenList(list[Any]):
    """A list that templates must not change, unlike lists that they create."""


class _NoMessages(list[Any]):
    """A conversation without messages. Access to a message returns an undefined value instead of
    raising an error, as templates access the first message without a check."""

    def __getitem__(self, index: Any) -> Any:
        return [] if isinstance(index, slice) else ChainableUndefined(name="message")


def _protected(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _protected(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _GivenList(map(_protected, value))
    return value


class _GenerationBlocks(Extension):
    """`{% generation %}...{% endgeneration %}` is replaced by its content."""

    tags = {"generation"}  # noqa: RUF012  # as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """Returns the items of an iterator, which filters such as `map` return."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class _Environment(ImmutableSandboxedEnvironment):
    """A template may change lists that it has created, but not its input. Undefined and null values
    add nothing to a text, as some templates don't check their input."""

    intercepted_binops = frozenset("+")

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr in ("append", "pop") and type(obj) is list:
            return True  # a list that the template has created
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str) and _is_nothing(right):
            return left
        if isinstance(right, str) and _is_nothing(left):
            return right
        return super().call_binop(context, operator, left, right)


def _is_nothing(value: Any) -> bool:
    return value is None or isinstance(value, Undefined)


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlocks, loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.filters["safe"] = str  # instead of a text that escapes what is added to it
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


_environment = _make_environment()
