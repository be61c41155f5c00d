"""`python -m tools.models.evaluate`: measures the shipped model's abilities with tasks that it
never saw.

There are two sets. The known kinds of tasks come from the generator of the training's lessons, with
tools, parameters, words and phrasings that are not in the training (see
`tools.models.lessons.source`). The held-out families are written by hand, and the generator knows
no phrasing, word or schema of theirs (see `tools.models.lessons.held_out.barrier`). All are sent to
the API of a live server: one started for the shipped model or `--model FILE`, or the one at
`--base-url`.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import httpx2 as httpx

from specllama.engine.shipped import model_path
from specllama.testing import llm_server
from tools.models.judging import marks_of, marks_of_gap, marks_of_task, schema_of
from tools.models.lessons import calling, conversation, copying, extraction, infill, thinking
from tools.models.lessons.held_out.barrier import FAMILIES
from tools.models.lessons.held_out.family import Family, Task
from tools.models.lessons.lesson import Gap, Lesson
from tools.models.lessons.source import Source
from tools.models.outcomes import Outcome, Outcomes, report, write

T = TypeVar("T")

TEMPERATURES = (0.0, 0.8)
SETS = ("known", "held-out")
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


def evaluate(
    base_url: str, n: int, temperature: float, seed: int, abilities: list[str]
) -> list[Outcome]:
    """Returns the outcomes of `n` tasks of known kinds for each ability."""
    # Abilities have separate seeds, and so different words.
    firsts = {ability: (seed * 100 + i) * MOST for i, ability in enumerate(LESSONS)}
    tasks = [(ability, firsts[ability] + i) for ability in abilities for i in range(n)]
    return _each(base_url, tasks, lambda client, task: _outcome(client, *task, temperature))


def evaluate_held_out(
    base_url: str, temperature: float, seed: int, abilities: list[str]
) -> list[Outcome]:
    """Returns the outcomes of all tasks of the held-out families for these abilities."""
    tasks = [
        (family, task, i)
        for family in FAMILIES
        if family.ability in abilities
        for i, task in enumerate(family.tasks)
    ]
    return _each(base_url, tasks, lambda client, task: _held_out(client, *task, temperature, seed))


def _each(
    base_url: str, tasks: list[T], outcome: Callable[[httpx.Client, T], Outcome]
) -> list[Outcome]:
    with httpx.Client(base_url=base_url, timeout=600) as client:
        pool = ThreadPoolExecutor(4)
        try:
            return list(pool.map(lambda task: outcome(client, task), tasks))
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
            request["response_format"] = _format(schema)
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


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _held_out(
    client: httpx.Client, family: Family, task: Task, i: int, temperature: float, seed: int
) -> Outcome:
    """Returns the outcome of a family's task number `i`. The number determines the order of the
    tools, the format, and whether the model thinks, so that a family has all of these."""
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": task.request}],
        "temperature": temperature,
        "seed": seed * MOST + i,
        "max_tokens": MAX_TOKENS,
        "chat_template_kwargs": {"enable_thinking": i % 2 == 0},
    }
    schema: dict[str, Any] | None = None
    if family.tools:
        first = i % len(family.tools)
        request["tools"] = [*family.tools[first:], *family.tools[:first]]
    if task.fields is not None:
        kind = FORMATS[i % len(FORMATS)]
        if kind == "object":
            request["response_format"] = {"type": "json_object"}
        elif kind == "schema":
            schema = schema_of(task.fields, nullable=family.nullable)
            request["response_format"] = _format(schema)
    choice = _post(client, "/v1/chat/completions", request)["choices"][0]
    return Outcome(
        ability=family.ability,
        kind=family.name,
        marks=marks_of_task(task, choice, schema),
        request=request,
        wanted=list(task.calls) if task.fields is None else task.fields,
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
    parser.add_argument(
        "-n", type=int, default=500, help="tasks of known kinds per ability (%(default)s)"
    )
    parser.add_argument("--set", choices=SETS, help="only this set (default: both)")
    parser.add_argument("--seed", type=int, default=7, help="seed of the tasks (%(default)s)")
    parser.add_argument("--ability", action="append", choices=[*LESSONS], help="only this ability")
    parser.add_argument("--temperature", type=float, action="append", help="only this temperature")
    parser.add_argument("--failures", type=int, default=0, help="failures to print per ability")
    parser.add_argument("--output", type=Path, help="write the table into this page")
    arguments = parser.parse_args()
    abilities = arguments.ability or list(LESSONS)
    known: Outcomes = {}
    held_out: Outcomes = {}
    with _server(arguments.base_url, arguments.model) as base_url:
        for temperature in arguments.temperature or TEMPERATURES:
            if arguments.set != "held-out":
                known[temperature] = evaluate(
                    base_url, arguments.n, temperature, arguments.seed, abilities
                )
                _print_failures(known[temperature], arguments.failures)
            if arguments.set != "known":
                held_out[temperature] = evaluate_held_out(
                    base_url, temperature, arguments.seed, abilities
                )
                _print_failures(held_out[temperature], arguments.failures)
    text = report(known, held_out)
    print(text)
    if arguments.output:
        write(arguments.output, None if arguments.base_url else arguments.model, text)


def _print_failures(outcomes: list[Outcome], most: int) -> None:
    for ability in dict.fromkeys(each.ability for each in outcomes):
        wrong = [e for e in outcomes if e.ability == ability and not e.marks["right"]]
        for each in wrong[:most]:
            last = each.request.get("messages", [each.request])[-1]
            print(f"{ability}/{each.kind} {last}\n  wanted {each.wanted}\n  got    {each.got}")


if __name__ == "__main__":
    main()
