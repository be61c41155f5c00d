"""`python -m tools.models.evaluate`: measures the shipped model's abilities with tasks that it
never saw.

The tasks' tools, parameters, words and phrasings are not in the training (see
`tools.models.lessons.source`, and `KNOWN_TO_US` for the limits of that). They are sent to the API
of a live server: one started for the shipped model or `--model FILE`, or the one at `--base-url`.
"""

import argparse
import hashlib
import json
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2 as httpx

from specllama.engine.shipped import model_path
from specllama.testing import llm_server
from tools.models.judging import Marks, marks_of, marks_of_gap, schema_of
from tools.models.lessons import calling, conversation, copying, extraction, infill, thinking
from tools.models.lessons.lesson import Gap, Lesson
from tools.models.lessons.source import Source

TEMPERATURES = (0.0, 0.8)
KNOWN_TO_US = (
    "The authors of the lessons saw the failures of earlier models in the first 200 tasks of each "
    "ability, and wrote\nsimilar lessons, also with tools that do the same under other names. So "
    "expect lower scores for your own\nprompts.\n\n"
)
MAX_TOKENS = 500
MOST = 100_000
"""The largest number of tasks per ability."""
FORMATS = ("free", "object", "schema")
"""The ways to request an extraction: without a format, as any JSON object, by a schema."""
LESSONS: dict[str, Callable[[Source], Lesson | Gap]] = {
    calling.ABILITY: calling.lesson,
    extraction.ABILITY: extraction.lesson,
    conversation.ABILITY: conversation.lesson,
    thinking.ABILITY: thinking.lesson,
    copying.ABILITY: copying.lesson,
    infill.ABILITY: infill.lesson,
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a task. `marks` are true or false: `right`, and further marks of this kind of
    task."""

    ability: str
    kind: str
    marks: Marks
    request: dict[str, Any] = field(repr=False)
    wanted: Any
    got: Any


def evaluate(
    base_url: str, n: int, temperature: float, seed: int, abilities: list[str]
) -> list[Outcome]:
    with httpx.Client(base_url=base_url, timeout=600) as client:
        # Abilities have separate seeds, and so different words.
        firsts = {ability: (seed * 100 + i) * MOST for i, ability in enumerate(LESSONS)}
        tasks = [(ability, firsts[ability] + i) for ability in abilities for i in range(n)]
        pool = ThreadPoolExecutor(4)
        try:
            return list(
                pool.map(lambda task: _outcome(client, task[0], task[1], temperature), tasks)
            )
        finally:
            # After an error or a signal, no more tasks are sent, and pending answers are dropped.
            pool.shutdown(wait=False, cancel_futures=True)


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
    kind, schema = lesson.kind, None
    if lesson.tools:
        request["tools"] = list(lesson.tools)
    if ability == extraction.ABILITY:
        kind = FORMATS[seed % len(FORMATS)]
        if kind == "object":
            request["response_format"] = {"type": "json_object"}
            schema = {"type": "object"}
        elif kind == "schema":
            schema = schema_of(json.loads(lesson.answer["content"]))
            request["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema},
            }
    if ability == thinking.ABILITY:
        kind = f"{kind}, {'with' if lesson.thinks else 'without'} a thought"
    answer = _post(client, "/v1/chat/completions", request)
    choice = answer["choices"][0]
    return Outcome(
        ability=ability,
        kind=kind,
        marks=marks_of(lesson, choice, schema),
        request=request,
        wanted=lesson.answer,
        got=choice["message"],
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
    return Outcome(
        ability=gap.ability,
        kind=gap.kind,
        marks=marks_of_gap(gap, answer),
        request=request,
        wanted=gap.middle,
        got=answer["content"],
    )


def _post(client: httpx.Client, path: str, request: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=request)
    answer.raise_for_status()
    result: dict[str, Any] = answer.json()
    return result


Scores = dict[tuple[str, str], list[bool]]


def scores(outcomes: list[Outcome]) -> Scores:
    """Returns the marks by ability and name, and the right ones by kind."""
    found: Scores = defaultdict(list)
    for each in outcomes:
        for name, mark in each.marks.items():
            found[each.ability, name].append(mark)
        found[each.ability, f"right: {each.kind}"].append(each.marks["right"])
    return found


def table(by_temperature: dict[float, list[Outcome]]) -> str:
    """Returns the scores as Markdown."""
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
        "Written by `python -m tools.models.evaluate`; edit that, not this page.\n\n"
        "The tasks have tools, parameters, words and phrasings that were not in the training. They "
        "are sent to the\nAPI of a live server.\n\n" + KNOWN_TO_US + named + text,
        "utf-8",
        newline="\n",
    )


@contextmanager
def _server(base_url: str | None, model: Path) -> Iterator[str]:
    if base_url is not None:
        yield base_url
        return
    # Raises an exception, so that the server ends, too.
    signal.signal(signal.SIGTERM, _leave)
    with llm_server("--parallel", "4", "--threads", "1", model=str(model)) as server:
        yield server.base_url


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.models.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-url", help="use a running server (default: start one)")
    parser.add_argument(
        "--model", type=Path, default=model_path(), help="model (default: the shipped)"
    )
    parser.add_argument("-n", type=int, default=500, help="tasks per ability (%(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="seed of the tasks (%(default)s)")
    parser.add_argument("--ability", action="append", choices=[*LESSONS], help="only this ability")
    parser.add_argument("--temperature", type=float, action="append", help="only this temperature")
    parser.add_argument("--failures", type=int, default=0, help="failures to print per ability")
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
