"""Detects in a chat template how its model writes reasoning, content and tool calls.

The template is rendered with probe conversations whose words are unmistakable; the text around them
is the syntax. A result is only accepted if it also explains further renderings: a template whose
calls can't be explained has no call syntax. This takes about 20 to 50 renderings; callers cache the
result.
"""

import re
from collections.abc import Iterator

import msgspec

from specllama.engine.chat.syntax import CallSyntax, Fill, OutputSyntax, TaggedArguments, Wrapper
from specllama.engine.helpers.render.detect.call_finding import ONE, TWO, find_calls, shows_calls
from specllama.engine.helpers.render.detect.matching import (
    closings,
    common_prefix,
    common_suffix,
    objects_in,
    openings,
    tags,
)
from specllama.engine.helpers.render.detect.probing import USUAL, Answer, Prober, Style
from specllama.engine.helpers.render.template.template import ChatTemplate

# ---- Call syntaxes of models whose chat template shows tools, but never a call.


_LFM = CallSyntax(
    parts=(Fill("name"), "(", Fill("arguments"), ")"),
    begin="<|tool_call_start|>[",
    separator=", ",
    end="]<|tool_call_end|>",
    tagged=TaggedArguments("", "=", "", ", ", quote="'"),
)

KNOWN = (("<|tool_list_start|>", _LFM), ("List of tools: [", _LFM))
"""Texts that a template writes around the tools, with the call syntax of its model."""


def known_calls(source: str) -> CallSyntax | None:
    """Returns the known syntax of calls for `source`, a chat template."""
    return next((calls for words, calls in KNOWN if words in source), None)


_CONTENT, _THOUGHTS = "Zqcontent", "Zqthoughts"
_CHECKED, _CHECKED_THOUGHTS = "Another answer,\nin 2 lines", "Other ideas\n\nabout it"
_THINKING = re.compile("think|thought|reason|reflect", re.IGNORECASE)
_CHANNEL = re.compile(r"<\|channel\|>[^<]*<\|message\|>$")
_PAIR = re.compile(r"(<[^<>{}\s]+>|\[[A-Z_]+\])(\s*)(<[^<>{}\s]+>|\[/?[A-Z_]+\])")
_CANDIDATES = 6  # maximum number of closing markers in a template's source to try


class _Frame(msgspec.Struct, frozen=True):
    """The text between the question and the content of an answer. `head` is its part that is common
    to all answers and prompts. `thinking` and `silent` follow it in a prompt for an answer, with
    thinking and without."""

    head: str
    plain: str  # follows the head in a text answer, up to the content
    thinking: str
    silent: str

    def body(self, text: str) -> str:
        """Returns `text`, a rendered answer, without the head, or without the part of the head that
        it begins with."""
        return text[len(common_prefix(self.head, text)) :]


class _Shown(msgspec.Struct, frozen=True):
    """A rendered answer, split at its reasoning and at the text after the reasoning; with `calls`,
    at the call after the reasoning."""

    before: str
    between: str
    after: str
    calls: bool = False


def detect(template: ChatTemplate) -> OutputSyntax:
    """Returns the syntax of the answers of the model that `template` belongs to.

    Never raises. Parts that aren't found, or are contradictory, are None.
    """
    prober = Prober(template)
    plain = prober.answer(Answer(content=_CONTENT))
    if plain is None or _CONTENT not in plain:
        return OutputSyntax()
    thinking, silent = prober.prompt(thinking=True), prober.prompt(thinking=False)
    if thinking is None or silent is None:
        return OutputSyntax()
    before, _, ending = plain.partition(_CONTENT)
    if not ending.strip():
        ending = _end_of_turn(prober)
    shown = _shown_thoughts(prober)
    calling = next(filter(None, (shows_calls(prober, style) for style in prober.styles())), "")
    if _CHANNEL.search(before) or (shown and _CHANNEL.search(shown.before)):
        return OutputSyntax(harmony=True)

    frame = _frame(prober, before, thinking, silent, shown, calling)
    reasoning = _reasoning(frame, shown) if shown else None
    reasoning = reasoning or _prompted(frame, prober.source) or _stripped(prober)
    content = _content(frame, reasoning, ending, shown)
    if content.begin and not _content_holds(prober, frame, reasoning, content):
        content = Wrapper()
    end_of_turn = ending.removeprefix(content.end)
    if reasoning and content.begin and reasoning.end.endswith(content.begin):
        reasoning = Wrapper(reasoning.begin, reasoning.end.removesuffix(content.begin))

    def body(text: str) -> str:
        rest = _after_thoughts(frame.body(text), reasoning)
        empty = (content.begin + content.end) if content.end else ""
        return rest.lstrip().removeprefix(empty) if empty else rest

    found = (find_calls(prober, style, body, end_of_turn) for style in prober.styles())
    calls = next(filter(None, found), None) if calling else known_calls(prober.source)
    return OutputSyntax(reasoning, content, calls)


def _end_of_turn(prober: Prober) -> str:
    """Returns the end of a turn before another turn, for templates that don't end the last one."""
    text = prober.answer(Answer(content=_CONTENT), followed=True) or ""
    ending = text.partition(_CONTENT)[2].lstrip()
    return next((tag for tag in tags(ending) if ending.startswith(tag)), "")


def _frame(
    prober: Prober, before: str, thinking: str, silent: str, shown: _Shown | None, calling: str
) -> _Frame:
    """Returns the frame. `before` is the text before the content of an answer, `calling` an answer
    with a call."""
    head = common_prefix(before, thinking)
    if 0 < len(before) - len(head) <= len(common_suffix(before, thinking)):
        # The prompt has a different beginning, followed by the same header.
        head = thinking = before
    if shown is not None:
        head = common_prefix(head, shown.before)
    texts = [before, thinking]
    if silent.startswith(head):
        texts.append(silent)
    opened = _opened_thoughts(head, prober.source, texts, shown)
    if not opened and calling[len(head) :].startswith(ONE.name):
        opened = _opened_calls(head, prober)
    head = head[: len(head) - len(opened)]
    if head.strip() and head in silent:
        # Without thinking, the template may have changed the question.
        silent = silent[silent.rindex(head) :]
    rests = (text[len(common_prefix(head, text)) :] for text in (before, thinking, silent))
    return _Frame(head, *rests)


def _opened_calls(head: str, prober: Prober) -> str:
    """Returns the end of `head`, common to all answers, that begins calls as well as text: it also
    occurs between two calls."""
    for style in prober.styles():
        text = prober.answer(Answer(calls=[ONE, TWO]), style) or ""
        between = text.partition(ONE.name)[2].partition(TWO.name)[0]
        ends = [end for _, end, value in objects_in(between) if value == ONE.arguments]
        if ends:
            return common_suffix(head, between[ends[0] :])
    return ""


def _forms(prober: Prober, thoughts: str, content: str) -> Iterator[tuple[Answer, Style]]:
    """Yields the ways of passing an answer with reasoning to a template."""
    for calls in ((), (ONE,)):
        for key in ("reasoning_content", "reasoning", "thinking"):
            for style in prober.styles()[:2] if calls else (USUAL,):
                text = "" if calls else content
                yield Answer(content=text, thoughts={key: thoughts}, calls=calls), style
    parts = [{"type": "thinking", "thinking": thoughts}, {"type": "text", "text": content}]
    yield Answer(content=parts), USUAL


def _shown_thoughts(prober: Prober) -> _Shown | None:
    """Returns the texts around reasoning, if the template shows reasoning, and if the texts are the
    same for other words."""
    forms = _forms(prober, _THOUGHTS, _CONTENT)
    checks = _forms(prober, _CHECKED_THOUGHTS, _CHECKED)
    for (answer, style), (check, _) in zip(forms, checks, strict=True):
        text = prober.answer(answer, style, keep=True) or ""
        before, found, rest = text.partition(_THOUGHTS)
        between, found_next, after = rest.partition(ONE.name if answer.calls else _CONTENT)
        if not (found and found_next):
            continue
        other = prober.answer(check, style, keep=True) or ""
        same = before + _CHECKED_THOUGHTS + between
        if answer.calls and other.startswith(same + ONE.name):
            return _Shown(before, between, "", calls=True)
        if not answer.calls and other == same + _CHECKED + after:
            return _Shown(before, between, after)
    return None


def _opened_thoughts(head: str, source: str, texts: list[str], shown: _Shown | None) -> str:
    """Returns the end of `head`, common to all answers, that opens reasoning: every answer then
    begins with reasoning, which may be empty."""
    following = [text[len(head) :] for text in texts]
    if shown is not None:
        following.append(shown.between)
    for tag in tags(head)[:-3:-1]:
        position = head.rindex(tag)
        title = head[position + len(tag) :].strip()
        for closing in closings(tag):
            closed = any(text.lstrip().startswith(closing + title) for text in following)
            if closed or (not title and closing in source and _THINKING.search(tag)):
                return head[position:]
    return ""


def _reasoning(frame: _Frame, shown: _Shown) -> Wrapper | None:
    """Returns the wrapper of the reasoning that an answer shows."""
    begin = frame.body(shown.before)
    for tag in reversed(tags(begin)):
        for closing in closings(tag):
            end = _through(shown.between, closing, begin.rpartition(tag)[2])
            if end:
                return Wrapper(begin, end)
    # Without markup: a sentence ends the prompt, and another one announces the answer.
    begin = begin or frame.thinking
    end = "" if shown.calls else shown.between
    return Wrapper(begin, end) if begin.strip() and end.strip() else None


def _prompted(frame: _Frame, source: str) -> Wrapper | None:
    """Returns the wrapper of reasoning that prompts open, or contain empty."""
    for text in (frame.silent, frame.plain):
        found = _PAIR.search(text)
        if found is None or found[3] not in closings(found[1]):
            continue
        opening, space, closing = found.groups()
        known = frame.thinking.strip() == opening
        if not known and not _THINKING.search(opening):
            continue
        begin = frame.thinking if known else opening + space[: len(space) // 2]
        end = (opening + space + closing).removeprefix(begin) + _space(text[found.end() :])
        return _balanced(begin, end)
    opening = (tags(frame.thinking) or [""])[-1]
    if not opening or not frame.thinking.rstrip().endswith(opening):
        return None
    begin = frame.thinking[frame.thinking.rindex(opening) :]
    candidates = closings(opening)
    for closing in candidates:
        for text in (frame.silent, frame.plain):
            if closing in text:
                return _balanced(begin, closing + _space(text.partition(closing)[2]))
    named = [closing for closing in candidates if closing in source]
    likely = bool(_THINKING.search(opening))
    if (named and frame.silent != frame.thinking) or (candidates and likely):
        return _balanced(begin, (named or candidates)[0])
    return None


def _balanced(begin: str, end: str) -> Wrapper:
    """Returns the wrapper. If only the opening is on its own line, the closing becomes one, too,
    with a blank line after it."""
    space = begin[len(begin.rstrip()) :]
    return Wrapper(begin, space + end + 2 * space if end == end.strip() else end)


def _stripped(prober: Prober) -> Wrapper | None:
    """Returns the wrapper of the reasoning that the template removes from a content."""
    named = tags(prober.source)
    pairs = [(opening, closing) for closing in named for opening in openings(closing)]
    likely = [pair for pair in dict.fromkeys(pairs) if _THINKING.search(pair[1])]
    for opening, closing in likely[:_CANDIDATES]:
        begin, end = f"{opening}\n", f"\n{closing}\n\n"
        content = f"{begin}{_THOUGHTS}{end}{_CONTENT}"
        for followed in (False, True):
            text = prober.answer(Answer(content=content), followed=followed) or ""
            if _CONTENT in text and _THOUGHTS not in text:
                return Wrapper(begin, end)
    return None


def _content(
    frame: _Frame, reasoning: Wrapper | None, ending: str, shown: _Shown | None
) -> Wrapper:
    """Returns the wrapper of text; `ending` is the text after the content of an answer."""
    begin, after = _after_thoughts(frame.plain, reasoning), ending
    if not begin.strip() and reasoning is not None and shown is not None and shown.after:
        # Some models mark the content only after reasoning.
        begin, after = shown.between.removeprefix(reasoning.end), shown.after
    begin = begin.lstrip()
    for tag in reversed(tags(begin)):
        for closing in closings(tag):
            end = _through(after, closing, begin.rpartition(tag)[2])
            if end:
                return Wrapper(begin, end.rstrip())
    return Wrapper(begin, "")


def _content_holds(
    prober: Prober, frame: _Frame, reasoning: Wrapper | None, content: Wrapper
) -> bool:
    text = prober.answer(Answer(content=_CHECKED)) or ""
    rest = _after_thoughts(frame.body(text), reasoning).lstrip()
    return rest.startswith(content.begin + _CHECKED + content.end) or rest.startswith(_CHECKED)


def _after_thoughts(text: str, reasoning: Wrapper | None) -> str:
    """Returns `text`, the beginning of an answer, without empty reasoning."""
    if reasoning is None:
        return text
    begin, end = reasoning.begin.strip(), reasoning.end.strip()
    rest = text.lstrip().removeprefix(begin).lstrip()
    shorter = rest.removeprefix(end).lstrip()
    return shorter if shorter != rest or text.lstrip().startswith(begin) else text


def _through(text: str, closing: str, title: str) -> str:
    """Returns `text` up to and including the marker, the title if the opening marker had one, and
    white space."""
    before, found, after = text.partition(closing)
    if not found:
        return ""
    if title.strip() and after.startswith(title):
        before, found, after = before + found, title, after.removeprefix(title)
    return before + found + _space(after)


def _space(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]
