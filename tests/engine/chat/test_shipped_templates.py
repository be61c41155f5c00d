"""The chat templates that llama.cpp ships: prompts like llama-server's, and answers that come back.

Needs llama.cpp's sources: `nox -s templates -- --llama-cpp FOLDER`.
"""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from specllama.engine.chat.output import ChatMessage
from specllama.engine.chat.request import ChatRequest
from specllama.engine.chat.syntax import OutputSyntax, begun_by
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.detect.detect import detect
from specllama.engine.helpers.render.detect.matching import common_prefix
from specllama.engine.helpers.render.template.adapting import adapted
from specllama.engine.helpers.render.template.caps import KEEP_REASONING, traits_of
from specllama.engine.helpers.render.template.prompt import chat_prompt
from specllama.engine.helpers.render.template.template import ChatTemplate
from tests.support.chat_strategies import parse
from tests.support.shipped_templates import ANSWERS, CONVERSATIONS, TOOLS, digest, shipped, user

RECORD = shipped()
DOCUMENT = Path(__file__).parents[3] / "docs" / "reports" / "templates.md"
DIFFERENT, LOST = "Where prompts differ", "Answers that are parsed differently"
BOS = "<s>"
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
QUESTION = "Zq question"
MARK = "Zqcontent"
NEXT_TURN = "<|START_OF_TURN_TOKEN|>"  # Command R+ closes no turn
_END = re.compile(r"\s*<[^<>]*>\s*$")


@pytest.fixture(scope="module")
def directory(request: pytest.FixtureRequest) -> Path:
    folder: str | None = request.config.getoption("--llama-cpp")
    if not folder:
        pytest.skip("no templates: --llama-cpp FOLDER names llama.cpp's sources")
    return Path(folder) / "models" / "templates"


@lru_cache(maxsize=2)
def compiled(path: Path) -> tuple[ChatTemplate, OutputSyntax]:
    template = ChatTemplate(path.read_text(encoding="utf-8"), BOS, "</s>")
    return template, detect(template)


def listed(heading: str) -> dict[str, set[str]]:
    """Returns the entries of the table under this heading of the document, by template."""
    found: dict[str, set[str]] = {}
    section = DOCUMENT.read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    for line in section.partition("\n## ")[0].splitlines():
        if row := re.match(r"\| `([^`]+)` \| ([a-z, ]+) \| ", line):
            found.setdefault(row[1], set()).update(row[2].split(", "))
    return found


def test_the_record_is_of_all_templates(directory: Path) -> None:
    assert {path.stem for path in directory.glob("*.jinja")} == RECORD.keys()
    assert listed(DIFFERENT).keys() | listed(LOST).keys() <= RECORD.keys()


@pytest.mark.parametrize("name", RECORD)
def test_prompts_are_those_of_llama_server(directory: Path, name: str) -> None:
    """Except for the templates that the document lists, which all differ."""
    template, syntax = compiled(directory / f"{name}.jinja")
    different = set()
    for conversation, body in CONVERSATIONS.items():
        expected = RECORD[name].prompts[conversation]
        messages = json.loads(json.dumps(body["messages"]))
        request = ChatRequest(messages=messages, tools=body.get("tools", []))
        try:
            prompt = chat_prompt(template, syntax, request).text.removeprefix(BOS)
        except EngineError:
            assert expected is None, f"{conversation} fails here, and not there"
            continue
        if expected is None or digest(prompt) != expected:
            different.add(conversation)
    assert different == listed(DIFFERENT).get(name, set())


@pytest.mark.parametrize("name", RECORD)
def test_a_conversation_without_messages(directory: Path, name: str) -> None:
    """A prompt, unless the template itself refuses."""
    template, syntax = compiled(directory / f"{name}.jinja")
    request = ChatRequest(messages=[])
    if name in ("Qwen3.5-4B", "Spark2.5", "fireworks-ai-llama-3-firefunction-v2"):
        with pytest.raises(
            EngineError, match="messages: there are none before the answer, and the"
        ):
            chat_prompt(template, syntax, request)
        return
    chat_prompt(template, syntax, request)


@pytest.mark.parametrize("name", RECORD)
def test_answers_come_back(directory: Path, name: str) -> None:
    """Whole, and cut into any two pieces."""
    template, syntax = compiled(directory / f"{name}.jinja")
    written, lost = [], listed(LOST).get(name, set())
    for kind, answer in ANSWERS.items():
        body = _written(template, syntax, answer)
        if body is None:
            continue
        text, options = body
        expected = _said(answer)
        if kind in lost:
            assert _parsed(parse(syntax, [text], tools=SCHEMAS, **options)) != expected
            continue
        written.append(kind)
        for cut in range(len(text) + 1):
            found = parse(syntax, [text[:cut], text[cut:]], tools=SCHEMAS, **options)
            assert _parsed(found) == expected, (kind, text[:cut], text[cut:])
    assert written == RECORD[name].answers


def _rule(number: int, role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": f"Rule {number}."}


def _asked(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Question {number}."}


ANSWER: dict[str, Any] = {"role": "assistant", "content": "Answer 1."}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": TOOLS[0]["function"]["name"], "arguments": '{"city": "Bern"}'},
        }
    ],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call00001", "content": "Result 1."}
ONE, TWO = "Rule 1.", "Rule 2."
SYSTEMS: dict[str, tuple[Any, list[str]]] = {
    "two": ([_rule(1), _rule(2), _asked(1)], [ONE, TWO, "Question 1."]),
    "developer": ([_rule(1), _rule(2, "developer"), _asked(1)], [ONE, TWO, "Question 1."]),
    "middle": (
        [_rule(1), _asked(1), ANSWER, _rule(2), _asked(2)],
        ["Question 1.", "Answer 1.", TWO, "Question 2."],
    ),
    "before an answer": (
        [_asked(1), _rule(2), ANSWER, _asked(2)],
        ["Question 1.", TWO, "Answer 1.", "Question 2."],
    ),
    "end": ([_asked(1), ANSWER, _asked(2), _rule(2)], ["Answer 1.", "Question 2.", TWO]),
    "alone": ([_rule(1)], [ONE]),
    "in a call": ([_asked(1), CALL, _rule(2), RESULT], ["Question 1.", TWO]),
    "after a result": ([_asked(1), CALL, RESULT, _rule(2)], ["Result 1.", TWO]),
    "after a result, answered": (
        [_asked(1), CALL, RESULT, _rule(2), ANSWER, _asked(2)],
        ["Result 1.", TWO, "Answer 1.", "Question 2."],
    ),
}
"""Conversations with system messages where agents put them, and texts in the order in which their
prompt has them."""


@pytest.mark.parametrize("name", RECORD)
def test_system_messages_are_read_where_they_stand(directory: Path, name: str) -> None:
    template, syntax = compiled(directory / f"{name}.jinja")
    for place, (messages, order) in SYSTEMS.items():
        tools = TOOLS if CALL in messages else []
        text = chat_prompt(template, syntax, ChatRequest(messages=messages, tools=tools)).text
        places = [text.find(each) for each in order]
        assert -1 not in places, (place, text)
        assert places == sorted(places), (place, text)
        assert all(text.count(rule) <= 1 for rule in (ONE, TWO)), (place, text)


@pytest.mark.parametrize("name", RECORD)
def test_a_text_is_the_same_in_one_part(directory: Path, name: str) -> None:
    """For every role, both parts are shown, without their form."""
    template, syntax = compiled(directory / f"{name}.jinja")

    def shown(messages: Any, at: int, content: Any) -> str:
        messages = [*messages[:at], {**messages[at], "content": content}, *messages[at + 1 :]]
        tools = TOOLS if CALL in messages else []
        return chat_prompt(template, syntax, ChatRequest(messages=messages, tools=tools)).text

    for messages, at in (
        ([_rule(1), _asked(1)], 0),
        ([_rule(1, "developer"), _asked(1)], 0),
        ([_asked(1), ANSWER, _rule(2), _asked(2)], 2),
        ([_asked(1)], 0),
        ([_asked(1), ANSWER, _asked(2)], 1),
        ([_asked(1), CALL, RESULT], 2),
        ([_asked(1), CALL, RESULT, ANSWER, _asked(2)], 2),
    ):
        whole = messages[at]["content"]
        part = {"type": "text", "text": whole}
        assert shown(messages, at, [part]) == shown(messages, at, whole)
        two = shown(messages, at, [part, {"type": "text", "text": "Zq more."}])
        assert 0 <= two.find(whole) < two.find("Zq more."), two
        assert "'type': 'text'" not in two


Said = tuple[str, str, list[tuple[str, Any]]]


def _said(answer: dict[str, Any]) -> Said:
    calls = [call["function"] for call in answer.get("tool_calls", [])]
    thoughts = answer.get("reasoning_content", "")
    called = [(call["name"], json.loads(call["arguments"])) for call in calls]
    return answer["content"], thoughts, called


def _parsed(message: ChatMessage) -> Said:
    calls = [(call.name, json.loads(call.arguments)) for call in message.calls]
    return message.content.strip(), message.reasoning.strip(), calls


def _written(
    template: ChatTemplate, syntax: OutputSyntax, answer: dict[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    """Returns the text that the template writes for `answer` after the prompt, and how to parse it;
    None if it doesn't write all of it as one answer."""
    asked = user(QUESTION)
    rendered = _after_question(template, syntax, [asked, answer])
    if rendered is None or not all(word in rendered for word in _words(answer)):
        return None
    prompt = chat_prompt(template, syntax, ChatRequest(messages=[asked], tools=TOOLS))
    opening = _after_question(template, syntax, [asked], open_turn=True) or ""
    head = common_prefix(opening, rendered)
    begin = syntax.reasoning.begin.strip() if syntax.reasoning else ""
    if head == opening:
        options = {"thinking": prompt.thinking, "prompt": opening}
    else:
        opened = bool(begin) and head.rstrip().endswith(begin)
        thinking = opened or (prompt.thinking and "reasoning_content" in answer)
        options = {"thinking": thinking, "prompt": head}
    text = rendered[len(head) :]
    if head != opening:
        # Something else may stand between the question and the prompt for an answer.
        text = text.removeprefix(begun_by(opening, text))
    return _without_end(template, syntax, text, answer), options


def _words(answer: dict[str, Any]) -> list[str]:
    content, thoughts, calls = _said(answer)
    return [word for word in (content, thoughts, *(name for name, _ in calls)) if word]


def _after_question(
    template: ChatTemplate,
    syntax: OutputSyntax,
    messages: list[dict[str, Any]],
    *,
    open_turn: bool = False,
) -> str | None:
    given = adapted(messages, traits_of(template))
    if len(given) != len(messages):
        return None
    variables = {"enable_thinking": syntax.thinks, **KEEP_REASONING}
    try:
        text = template.render(
            given, tools=TOOLS, add_generation_prompt=open_turn, variables=variables
        )
    except EngineError:
        return None
    return text.rpartition(QUESTION)[2]


def _without_end(
    template: ChatTemplate, syntax: OutputSyntax, text: str, answer: dict[str, Any]
) -> str:
    """`text` without what ends the turn, which is no text of the model's."""
    text = text.partition(NEXT_TURN)[0]
    plain = _after_question(
        template, syntax, [user(QUESTION), {**ANSWERS["text"], "content": MARK}]
    )
    end = (plain or "").rpartition(MARK)[2].partition(NEXT_TURN)[0]
    for ending in (end.strip(), end.strip().removeprefix(syntax.content.end.strip())):
        if ending and text.rstrip().endswith(ending):
            return text.rstrip().removesuffix(ending)
    calls = syntax.calls
    last = calls.parts[-1] if calls else ""
    closing = (calls.end if calls else "") or (last if isinstance(last, str) else "")
    if "tool_calls" in answer and not text.rstrip().endswith(closing.strip()):
        return _END.sub("", text)  # some end an answer with calls in another way
    return text
