"""`python -m tools.models.evaluate`: what the shipped model can do, by tasks that it never saw.

The tasks' tools, parameters, words and phrasings are not in the training (see
`tools.models.lessons.source`). They go through the API of a live server: one that is started for
the shipped model or `--model FILE`, or the one at `--base-url`.
"""

import argparse
import ast
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx

from engine.shipped import model_path
from specllama.testing import llm_server
from tools.models.lessons import calling, conversation, copying, extraction, infill
from tools.models.lessons.lesson import Gap, Lesson
from tools.models.lessons.source import Source

TEMPERATURES = (0.0, 0.8)
MAX_TOKENS = 500
LESSONS: dict[str, Callable[[Source], Lesson | Gap]] = {
    calling.ABILITY: calling.lesson,
    extraction.ABILITY: extraction.lesson,
    conversation.ABILITY: conversation.lesson,
    copying.ABILITY: copying.lesson,
    infill.ABILITY: infill.lesson,
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`marks` are true or false: `right`, and what else there is to say of this kind of task."""

    ability: str
    kind: str
    marks: dict[str, bool]
    request: dict[str, Any] = field(repr=False)
    wanted: Any
    got: Any


def evaluate(
    base_url: str, n: int, temperature: float, seed: int, abilities: list[str]
) -> list[Outcome]:
    with httpx.Client(base_url=base_url, timeout=600) as client, ThreadPoolExecutor(4) as pool:
        tasks = [(ability, seed * 1_000_000 + i) for ability in abilities for i in range(n)]
        return list(pool.map(lambda task: _outcome(client, task[0], task[1], temperature), tasks))


def _outcome(client: httpx.Client, ability: str, seed: int, temperature: float) -> Outcome:
    lesson = LESSONS[ability](Source(seed, held_out=True))
    if isinstance(lesson, Gap):
        return _infill(client, lesson, temperature, seed)
    request: dict[str, Any] = {
        "messages": lesson.messages,
        "temperature": temperature,
        "seed": seed,
        "max_tokens": MAX_TOKENS,
        "chat_template_kwargs": {"enable_thinking": lesson.thinks},
    }
    if lesson.tools:
        request["tools"] = list(lesson.tools)
    if ability == extraction.ABILITY:
        request |= _format(seed, json.loads(lesson.answer["content"]))
    answer = _post(client, "/v1/chat/completions", request)
    choice = answer["choices"][0]
    message = choice["message"]
    marks = {
        "right": _is_right(lesson, message),
        "ends": choice["finish_reason"] != "length",
        "thinks as told": bool(message.get("reasoning_content")) == lesson.thinks,
    }
    if lesson.tools:
        marks["valid"] = _is_valid(lesson, message)
    return Outcome(
        ability=ability,
        kind=lesson.kind,
        marks=marks,
        request=request,
        wanted=lesson.answer,
        got=message,
    )


def _infill(client: httpx.Client, gap: Gap, temperature: float, seed: int) -> Outcome:
    request = {
        "input_prefix": gap.prefix,
        "input_suffix": gap.suffix,
        "temperature": temperature,
        "seed": seed,
        "n_predict": 200,
    }
    answer = _post(client, "/infill", request)
    marks = {
        "right": _parses(f"{gap.prefix}{answer['content']}{gap.suffix}"),
        "exact": answer["content"] == gap.middle,
        "ends": answer["stop_type"] != "limit",
    }
    return Outcome(
        ability=gap.ability,
        kind=gap.kind,
        marks=marks,
        request=request,
        wanted=gap.middle,
        got=answer["content"],
    )


def _format(seed: int, wanted: dict[str, Any]) -> dict[str, Any]:
    """A third without a format, a third as any JSON object, a third by a schema."""
    if seed % 3 == 0:
        return {}
    if seed % 3 == 1:
        return {"response_format": {"type": "json_object"}}
    types = {str: "string", int: "integer", float: "number", bool: "boolean"}
    schema = {
        "type": "object",
        "properties": {key: {"type": types[type(value)]} for key, value in wanted.items()},
        "required": list(wanted),
        "additionalProperties": False,
    }
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        }
    }


def _is_right(lesson: Lesson, message: dict[str, Any]) -> bool:
    content = message.get("content") or ""
    calls = message.get("tool_calls") or []
    wanted = lesson.answer.get("tool_calls") or []
    if wanted or calls:
        return [_call(each) for each in calls] == [_call(each) for each in wanted]
    if lesson.ability == extraction.ABILITY:
        return bool(_parsed(content) == json.loads(lesson.answer["content"]))
    if lesson.facts:
        return all(fact in content for fact in lesson.facts)
    return bool(content.strip() == lesson.answer["content"].strip())


def _is_valid(lesson: Lesson, message: dict[str, Any]) -> bool:
    """True if each call is of a tool that there is, with JSON arguments that it has."""
    known = {each["function"]["name"]: each["function"]["parameters"] for each in lesson.tools}
    for each in message.get("tool_calls") or []:
        name, arguments = _call(each)
        if name not in known or not isinstance(arguments, dict):
            return False
        schema = known[name]
        if not set(schema.get("required", ())) <= set(arguments) <= set(schema["properties"]):
            return False
    return "<tool_call>" not in (message.get("content") or "")


def _call(call: dict[str, Any]) -> tuple[str, Any]:
    return call["function"]["name"], _parsed(call["function"]["arguments"])


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _post(client: httpx.Client, path: str, request: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=request)
    answer.raise_for_status()
    result: dict[str, Any] = answer.json()
    return result


Scores = dict[tuple[str, str], list[bool]]


def scores(outcomes: list[Outcome]) -> Scores:
    """The marks by ability and name, and the right ones by kind."""
    found: Scores = defaultdict(list)
    for each in outcomes:
        for name, mark in each.marks.items():
            found[each.ability, name].append(mark)
        found[each.ability, f"right: {each.kind}"].append(each.marks["right"])
    return found


def table(by_temperature: dict[float, list[Outcome]]) -> str:
    """The scores as Markdown."""
    columns = {temperature: scores(each) for temperature, each in by_temperature.items()}
    rows = [
        "| Ability | Mark | Tasks | " + " | ".join(_title(each) for each in columns) + " |",
        "| --- | --- | --: |" + " --: |" * len(columns),
    ]
    keys = {key: None for each in columns.values() for key in each}
    for ability, name in sorted(keys, key=lambda key: (key[0], ":" in key[1], key[1])):
        marks = [each.get((ability, name), []) for each in columns.values()]
        shares = " | ".join(_share(each) for each in marks)
        rows.append(f"| {ability} | {name} | {max(map(len, marks))} | {shares} |")
    return "\n".join(rows) + "\n"


def _title(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature}"


def _share(marks: list[bool]) -> str:
    return f"{100 * sum(marks) / len(marks):.1f} %" if marks else "-"


def _write(path: Path, model: Path | None, text: str) -> None:
    named = ""
    if model is not None:
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        named = f"The file's SHA-256 is `{digest}`.\n\n"
    path.write_text(
        "# What the shipped model can do\n\n"
        "`nox -s evaluate` writes this page: tasks with tools, parameters, words and phrasings "
        "that were\nnot in the training, through the API of a live server.\n\n" + named + text,
        "utf-8",
        newline="\n",
    )


@contextmanager
def _server(base_url: str | None, model: Path) -> Iterator[str]:
    if base_url is not None:
        yield base_url
        return
    with llm_server("--parallel", "4", "--threads", "1", model=str(model)) as server:
        yield server.base_url


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.models.evaluate", description=__doc__)
    parser.add_argument("--base-url", help="of a running server (default: start one)")
    parser.add_argument("--model", type=Path, default=model_path(), help="(default: the shipped)")
    parser.add_argument("-n", type=int, default=200, help="tasks for each ability (%(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="of the tasks (%(default)s)")
    parser.add_argument("--ability", action="append", choices=[*LESSONS], help="only this one")
    parser.add_argument("--temperature", type=float, action="append", help="only this one")
    parser.add_argument("--failures", type=int, default=0, help="print so many of each ability")
    parser.add_argument("--output", type=Path, help="write the table into this page")
    arguments = parser.parse_args()
    abilities = arguments.ability or list(LESSONS)
    by_temperature: dict[float, list[Outcome]] = {}
    with _server(arguments.base_url, arguments.model) as base_url:
        for temperature in arguments.temperature or TEMPERATURES:
            found = evaluate(base_url, arguments.n, temperature, arguments.seed, abilities)
            by_temperature[temperature] = found
            for ability in abilities:
                wrong = [e for e in found if e.ability == ability and not e.marks["right"]]
                for each in wrong[: arguments.failures]:
                    last = each.request.get("messages", [each.request])[-1]
                    print(
                        f"{ability}/{each.kind} {last}\n  wanted {each.wanted}\n  got    {each.got}"
                    )
    text = table(by_temperature)
    print(text)
    if arguments.output:
        _write(arguments.output, None if arguments.base_url else arguments.model, text)


if __name__ == "__main__":
    main()
