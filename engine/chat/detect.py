"""Finds out from a chat template how its model writes thoughts, text and calls of tools.

The template is rendered with probe conversations whose words are unmistakable; what stands around
them is the syntax. Nothing is believed that doesn't explain further renderings, too: a template
whose calls can't be explained has none. About twenty to fifty renderings; callers keep the result.
"""

import re
from collections.abc import Iterator

import msgspec

from engine.chat.call_finding import ONE, find_calls, shows_calls
from engine.chat.probing import Answer, Prober, Style
from engine.chat.syntax import OutputSyntax, Wrapper
from engine.chat.tags import closings, common_prefix, openings, tags
from engine.chat.template import ChatTemplate

_CONTENT, _THOUGHTS = "Zqcontent", "Zqthoughts"
_CHECKED, _CHECKED_THOUGHTS = "Another answer,\nin 2 lines", "Other ideas\n\nabout it"
_THINKING = re.compile("think|thought|reason|reflect", re.IGNORECASE)
_PAIR = re.compile(r"(<[^<>{}\s]+>|\[[A-Z_]+\])(\s*)(<[^<>{}\s]+>|\[/?[A-Z_]+\])")
_CANDIDATES = 6  # closing markers named in the source of a template that are tried out


class _Frame(msgspec.Struct, frozen=True):
    """What stands between the question and the answer, and what the prompt for an answer has
    beyond that: with thinking and without."""

    head: str
    plain: str  # of an answer of text: what is between the head and the text
    thinking: str
    silent: str

    def body(self, text: str) -> str:
        """A rendered answer without the head, or without as much of it as it has."""
        return text[len(common_prefix(self.head, text)) :]


class _Shown(msgspec.Struct, frozen=True):
    """A rendered answer, cut at its thoughts and at what comes after them."""

    before: str
    between: str
    after: str


def detect(template: ChatTemplate) -> OutputSyntax:
    """The syntax of the answers of the model that `template` belongs to.

    Never raises. What is not found is None, also where a template contradicts itself.
    """
    prober = Prober(template)
    plain = prober.answer(Answer(content=_CONTENT))
    prompts = [prober.prompt(thinking) for thinking in (True, False)]
    if plain is None or _CONTENT not in plain or prompts[0] is None or prompts[1] is None:
        return OutputSyntax()
    before, _, ending = plain.partition(_CONTENT)
    shown = _shown_thoughts(prober)
    style, calling = next(
        (
            (style, text)
            for style in prober.styles()
            if (text := shows_calls(prober, style)) is not None
        ),
        (None, ""),
    )
    everything = [plain, *prompts, calling, *((shown.before,) if shown else ())]
    if any("<|channel|>" in text and "<|message|>" in text for text in everything if text):
        return OutputSyntax(harmony=True)

    head = common_prefix(before, *prompts, *([shown.before] if shown else []))
    opened = _opened_thoughts(head, prober.source, [before, *prompts], shown)
    head = head[: len(head) - len(opened)]
    frame = _Frame(head, *(text[len(head) :] for text in (before, *prompts)))
    reasoning = _reasoning(frame, shown) if shown else None
    reasoning = reasoning or _prompted(frame, prober.source) or _stripped(prober)
    content = _content(frame, reasoning, ending, shown)
    if content.begin and not _content_holds(prober, frame, reasoning, content):
        content = Wrapper()
    end_of_turn = ending.removeprefix(content.end)

    def body(text: str) -> str:
        rest = _after_thoughts(frame.body(text), reasoning)
        empty = (content.begin + content.end) if content.end else ""
        return rest.lstrip().removeprefix(empty) if empty else rest

    calls = None
    if style is not None:
        for style in prober.styles():
            calls = calls or find_calls(prober, style, body, end_of_turn)
    return OutputSyntax(reasoning, content, calls)


def _forms(prober: Prober, thoughts: str, content: str) -> Iterator[tuple[Answer, Style]]:
    """The ways of giving a template an answer with thoughts."""
    for calls in ((), (ONE,)):
        for key in ("reasoning_content", "reasoning", "thinking"):
            for style in prober.styles()[:2] if calls else (Style(),):
                text = "" if calls else content
                yield Answer(content=text, thoughts={key: thoughts}, calls=calls), style
    parts = [{"type": "thinking", "thinking": thoughts}, {"type": "text", "text": content}]
    yield Answer(content=parts), Style()


def _shown_thoughts(prober: Prober) -> _Shown | None:
    """How the template shows thoughts, if it does and does so with other words as well."""
    forms = _forms(prober, _THOUGHTS, _CONTENT)
    checks = _forms(prober, _CHECKED_THOUGHTS, _CHECKED)
    for (answer, style), (check, _) in zip(forms, checks, strict=True):
        text = prober.answer(answer, style, keep=True) or ""
        before, found, rest = text.partition(_THOUGHTS)
        between, found_next, after = rest.partition(ONE.name if answer.calls else _CONTENT)
        if not (found and found_next):
            continue
        other = prober.answer(check, style, keep=True) or ""
        next_text = "" if answer.calls else _CHECKED
        if other.startswith(before + _CHECKED_THOUGHTS + between + next_text):
            return _Shown(before, between, "" if answer.calls else after)
    return None


def _opened_thoughts(head: str, source: str, texts: list[str], shown: _Shown | None) -> str:
    """What at the end of `head`, common to all answers, is the opening of thoughts: it is where
    every answer begins with thoughts, be they empty."""
    tag = (tags(head) or [""])[-1]
    if not tag or not head.rstrip().endswith(tag):
        return ""
    following = [text[len(head) :] for text in texts]
    if shown is not None:
        following.append(shown.between)
    for closing in closings(tag):
        closed = any(text.lstrip().startswith(closing) for text in following)
        if closed or (closing in source and _THINKING.search(tag)):
            return head[head.rindex(tag) :]
    return ""


def _reasoning(frame: _Frame, shown: _Shown) -> Wrapper | None:
    """The wrapper of thoughts that an answer shows."""
    begin = frame.body(shown.before)
    for tag in reversed(tags(begin)):
        for closing in closings(tag):
            end = _through(shown.between, closing)
            if end:
                return Wrapper(begin, end)
    # Not markup: a sentence that the prompt ends with, and one that announces the answer.
    begin = begin or frame.thinking
    end = shown.between if shown.after else ""
    return Wrapper(begin, end) if begin.strip() and end.strip() else None


def _prompted(frame: _Frame, source: str) -> Wrapper | None:
    """The wrapper of thoughts that prompts open, or show empty."""
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
        return Wrapper(begin, end)
    opening = (tags(frame.thinking) or [""])[-1]
    if not opening or not frame.thinking.rstrip().endswith(opening):
        return None
    begin = frame.thinking[frame.thinking.rindex(opening) :]
    space = begin.removeprefix(opening)
    candidates = closings(opening)
    for closing in candidates:
        for text in (frame.silent, frame.plain):
            if closing in text:
                return Wrapper(begin, space + closing + _space(text.partition(closing)[2]))
    named = [closing for closing in candidates if closing in source]
    if named or (candidates and _THINKING.search(opening)):
        return Wrapper(begin, space + (named or candidates)[0])
    return None


def _stripped(prober: Prober) -> Wrapper | None:
    """The wrapper of the thoughts that the template takes out of a content."""
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
    """The wrapper of text; `ending` is what follows the text of an answer."""
    begin, after = _after_thoughts(frame.plain, reasoning), ending
    if not begin.strip() and reasoning is not None and shown is not None and shown.after:
        # Some models mark the text only where it comes after thoughts.
        begin, after = shown.between.removeprefix(reasoning.end), shown.after
    begin = begin.lstrip()
    for tag in reversed(tags(begin)):
        for closing in closings(tag):
            end = _through(after, closing)
            if end:
                return Wrapper(begin, end.rstrip())
    return Wrapper()


def _content_holds(
    prober: Prober, frame: _Frame, reasoning: Wrapper | None, content: Wrapper
) -> bool:
    text = prober.answer(Answer(content=_CHECKED)) or ""
    rest = _after_thoughts(frame.body(text), reasoning).lstrip()
    return rest.startswith(content.begin + _CHECKED + content.end) or rest.startswith(_CHECKED)


def _after_thoughts(text: str, reasoning: Wrapper | None) -> str:
    """`text`, the beginning of an answer, without thoughts that are empty."""
    if reasoning is None:
        return text
    begin, end = reasoning.begin.strip(), reasoning.end.strip()
    rest = text.lstrip().removeprefix(begin).lstrip()
    shorter = rest.removeprefix(end).lstrip()
    return shorter if shorter != rest or text.lstrip().startswith(begin) else text


def _through(text: str, marker: str) -> str:
    """`text` through the marker and the white space after it; "" without it."""
    before, found, after = text.partition(marker)
    return before + found + _space(after) if found else ""


def _space(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]
