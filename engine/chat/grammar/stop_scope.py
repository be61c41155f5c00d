"""Where in an answer stop strings count: in its text, as `engine.chat.parse` tells it apart. The
engine process finds them by the same markers, so that a text ends as soon as one has come."""

from collections.abc import Collection

from specllama.engine.chat import harmony_markers as harmony
from specllama.engine.chat.grammar.triggers import tags, triggers
from specllama.engine.chat.request import THOUGHTS_IN_CONTENT, ReasoningFormat
from specllama.engine.chat.syntax import OutputSyntax
from specllama.engine.params import Aside, StopScope

_ENDS = [harmony.END, harmony.CALL]


def stop_scope(
    syntax: OutputSyntax,
    *,
    reasoning: ReasoningFormat,
    thinking: bool,
    tools: Collection[str],
    required: bool,
    prompt: str = "",
    continued: bool = False,
) -> StopScope:
    """The scope of one answer. `tools` are the names of those whose calls are parsed, `required` if
    the answer has nothing else; `reasoning`, `thinking`, `prompt` and `continued` are as in
    `engine.chat.parse.parser.answer_parser`. Thoughts that are content count as text; behind the
    first call nothing does."""
    shown = reasoning in THOUGHTS_IN_CONTENT
    asides = _harmony(shown) if syntax.harmony else _others(syntax, shown)
    if tools:
        begins = [*triggers(syntax, tools, prompt), *tags(syntax)]
        asides += [Aside(each.text, at_start=each.at_start) for each in begins if each.text]
    begun = None
    if required and tools and not shown:
        begun = Aside("")  # thoughts and calls: there is no text at all
    elif thinking and not shown:
        begun = Aside("", _ENDS if syntax.harmony else _end(syntax))
    calls_after_space = bool(tools and syntax.calls and syntax.calls.opening[:1].isspace())
    return StopScope(
        asides,
        skips_space=not continued and not shown and (syntax.thinks or calls_after_space),
        begun=begun,
        continued=continued and begun is None,
    )


def _end(syntax: OutputSyntax) -> list[str]:
    end = syntax.reasoning.end.strip() if syntax.reasoning else ""
    return [end] if end else []


def _others(syntax: OutputSyntax, shown: bool) -> list[Aside]:
    begin, end = (text.strip() for text in (syntax.content.begin, syntax.content.end))
    asides = [Aside(text, alone=True) for text in (begin, end) if text]
    if ends := [] if shown else _end(syntax):
        asides.append(Aside(ends[0], at_start=True, alone=True))  # of what wasn't opened
        if syntax.reasoning and (begin := syntax.reasoning.begin.strip()):
            asides.append(Aside(begin, ends, at_start=True))
    return asides


def _harmony(shown: bool) -> list[Aside]:
    """Headers, ends, and the channel of thoughts."""
    alone = [Aside(text, alone=True) for text in (*_ENDS, harmony.NEXT, harmony.MESSAGE)]
    asides = [*alone, Aside(harmony.CHANNEL, [harmony.MESSAGE])]
    return asides if shown else [*asides, Aside(f"{harmony.CHANNEL}analysis", _ENDS)]
