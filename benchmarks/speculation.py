"""`python -m benchmarks.speculation`: several tokens per step, compared with one token per step.

Each variant is a server with its own options, or another request to the same server. The variants
take turns, round after round. A figure is the median over the rounds. A ratio is the median of the
rounds' ratios, shown with the worst ratio.
"""

import argparse
import asyncio
import contextlib
import json
import shlex
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.client import ClientError, Connection
from benchmarks.scenarios import words
from benchmarks.servers import Command, Server, specllama_command, started
from benchmarks.serving import MODELS
from tools.models.build import ensure

STREAMS = (1, 4, 8)
DRAFTS = {"bench-100m": "bench-draft"}
"""The draft models of our own models. Any other model is its own draft model."""
N_DRAFT = 3
"""Tokens of a draft with simulated acceptance: llama-server's default."""
WARM_UP = 1_000_000  # a seed that no round uses

READING = {
    "type": "object",
    "properties": {
        "temperature_celsius": {"type": "integer", "minimum": 0, "maximum": 50},
        "wind_direction": {"enum": ["north", "east", "south", "west"]},
        "is_raining": {"type": "boolean"},
        "humidity_percent": {"type": "integer", "minimum": 0, "maximum": 100},
        "sensor_status": {"enum": ["working", "degraded", "failed"]},
        "battery_is_low": {"type": "boolean"},
        "altitude_in_meters": {"type": "integer", "minimum": 0, "maximum": 9000},
        "reading_quality": {"enum": ["good", "fair", "poor"]},
    },
    "required": [
        *("temperature_celsius", "wind_direction", "is_raining", "humidity_percent"),
        *("sensor_status", "battery_is_low", "altitude_in_meters", "reading_quality"),
    ],
    "additionalProperties": False,
}
"""Eight fixed keys with numbers, booleans and enums: the model chooses little of a document."""

SPACES = [" " * n for n in range(1, 9)] + ["\n", "\n\n", "\n\n\n", "\t", "\t\t", "\r", "\r\n"]
"""White space that a model wouldn't use if it writes compact JSON."""

LINES = [
    f"    total_{n} = compute_{n}({'right' if n % 4 else 'left'}, offset={n * 7})"
    for n in range(12)
]
"""Lines of code, a fourth of which changes in the copy."""


@dataclass(frozen=True)
class Plan:
    """The amount to measure. A stream has `texts` in a row, of at most `tokens` each."""

    rounds: int
    streams: Sequence[int]
    tokens: int
    texts: int


@dataclass(frozen=True)
class Models:
    """The model files of the servers."""

    model: Path
    draft: Path


@dataclass(frozen=True)
class Variant:
    """A row of the table: the options of a server, and the fields of its requests. The server has
    the command `peer`, or is specllama if that is empty."""

    name: str
    options: tuple[str, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    peer: str = ""


@dataclass
class Turn:
    """The measurements of one turn of one variant."""

    seconds: float
    n_tokens: int = 0
    n_texts: int = 0
    n_characters: int = 0
    n_proposed: int = 0
    n_accepted: int = 0

    def add(self, answer: dict[str, Any]) -> None:
        timings = answer["timings"]
        self.n_tokens += int(timings["predicted_n"])
        self.n_texts += answer.get("stop_type") == "eos"
        self.n_characters += len(answer["content"])
        self.n_proposed += int(timings.get("draft_n", 0))
        self.n_accepted += int(timings.get("draft_n_accepted", 0))


Request = dict[str, Any]


async def as_it_is(_: Connection, request: Request) -> Request:
    return request


@dataclass(frozen=True)
class Scenario:
    """`requests` returns the requests of one stream, sent one after the other; the first
    `n_unmeasured` are not measured. `prepare` adapts a request to a server. All variants are
    compared with the first one in `variants`, and with the last one of each peer."""

    requests: Callable[[Plan, int], list[Request]]
    variants: Callable[[Models], list[Variant]]
    for_peers: Callable[[Models], list[Variant]] = lambda _: [Variant("")]
    n_unmeasured: int = 0
    prepare: Callable[[Connection, Request], Awaitable[Request]] = as_it_is


# ---- the scenarios -----------------------------------------------------------------------------


def short_prompts(plan: Plan, seed: int) -> list[Request]:
    return [
        {"prompt": words(100 * seed + n, 12), "n_predict": plan.tokens, "seed": seed}
        for n in range(plan.texts)
    ]


def free_or_json(plan: Plan, seed: int) -> list[Request]:
    """Returns requests at temperature 1. A document ends by itself; free text needs `n_predict`."""
    return [{**request, "temperature": 1.0} for request in short_prompts(plan, seed)]


def again(plan: Plan, seed: int) -> list[Request]:
    """Returns the same request twice."""
    return short_prompts(plan, seed)[:1] * 2


def retry(plan: Plan, seed: int) -> list[Request]:
    """Returns the same prompt twice, with different seeds, so that the first answer is no help."""
    first, second = again(plan, seed)
    return [first, {**second, "seed": seed + 1, "temperature": 3.0}]


def copying(plan: Plan, seed: int) -> list[Request]:
    """Returns a request to repeat a text with a small change."""
    body = "\n".join(f"{line}  # {words(seed + n, 2)}" for n, line in enumerate(LINES))
    prompt = f"Repeat this code, but rename `left` to `first`.\n\n{body}\n\nThe code:\n\n"
    return [{"prompt": prompt, "n_predict": plan.tokens, "temperature": 0.0, "ignore_eos": True}]


def dictated(plan: Plan, seed: int) -> list[Request]:
    """Returns the same request for a model that can't copy: a grammar dictates the text."""
    [request] = copying(plan, seed)
    text = request["prompt"].split("\n\n")[1].replace("(left,", "(first,")
    return [{**request, "ignore_eos": False, "jump_forward": False, "grammar": text}]


async def dictate(connection: Connection, request: Request) -> Request:
    """Turns the text in `grammar` into a grammar of its tokens. Each of them is sampled, since
    `jump_forward` is off."""
    asked = {"content": request["grammar"]}
    tokens = json.loads(await connection.request("POST", "/tokenize", asked))["tokens"]
    return {**request, "grammar": "root ::= " + " ".join(f"<[{token}]>" for token in tokens)}


FREE: Request = {"ignore_eos": True}
JSON: Request = {"json_schema": READING}


def json_variants(_: Models) -> list[Variant]:
    forms = ("flexible", "compact", "spaced")
    found = [Variant("free text", fields=FREE)]
    found += [Variant(form, fields={**JSON, "json_whitespace": form}) for form in forms]
    found.append(
        Variant(
            "flexible, none wanted", fields={**JSON, "logit_bias": [[t, False] for t in SPACES]}
        )
    )
    return found + [
        Variant(
            f"{form}, no jump",
            fields={**JSON, "json_whitespace": form, "jump_forward": False},
        )
        for form in forms
    ]


def json_of_peers(_: Models) -> list[Variant]:
    return [Variant("free text", fields=FREE), Variant("schema", fields=JSON)]


def text_variants(_: Models) -> list[Variant]:
    return [
        Variant("without"),
        Variant("radix", ("--spec-type", "radix")),
        Variant("ngram-simple", ("--spec-type", "ngram-simple")),
        Variant("spec-default", ("--spec-default",)),
    ]


def copies_of_peers(_: Models) -> list[Variant]:
    return [Variant("ngram-simple", ("--spec-type", "ngram-simple")), Variant("")]


def draft_variants(models: Models) -> list[Variant]:
    """Returns variants with two kinds of draft models. The model itself as draft model is the worst
    case, as it can only cost time: its proposals for a greedy text are always right without a
    bound (`--spec-draft-p-min 0`), but with random weights it never reaches the usual bound. The
    small draft model has a simulated acceptance."""
    own = ("--model-draft", str(models.model))
    greedy = {**FREE, "temperature": 0.0}
    return [
        Variant("without", fields=greedy),
        Variant("itself", (*own, "--spec-draft-p-min", "0"), greedy),
        Variant("itself, not sure", own, greedy),
        *made_up(models),
    ]


def drafts_of_peers(models: Models) -> list[Variant]:
    return [*made_up(models), Variant("", fields=FREE)]


def made_up(models: Models) -> list[Variant]:
    """Returns variants with simulated acceptance, with the same options for all servers."""
    draft = (
        *("--spec-type", "draft-simple", "--spec-draft-model", str(models.draft)),
        *("--spec-draft-p-min", "0", "--spec-draft-n-max", str(N_DRAFT), "--spec-synth-rates"),
    )
    return [
        Variant(f"{chance:g} right", (*draft, rates(chance)), FREE) for chance in (1.0, 0.75, 0.0)
    ]


def rates(chance: float) -> str:
    """Returns the acceptance rates of N_DRAFT tokens, if each token has this `chance`
    provided that all previous ones were accepted."""
    return ",".join(f"{chance**n:g}" for n in range(1, N_DRAFT + 1))


SCENARIOS = {
    "copy": Scenario(copying, text_variants, copies_of_peers),
    "dictated": Scenario(dictated, text_variants, copies_of_peers, prepare=dictate),
    "schema-keys": Scenario(free_or_json, json_variants, json_of_peers),
    "draft": Scenario(short_prompts, draft_variants, drafts_of_peers),
    "again": Scenario(again, text_variants, n_unmeasured=1),
    "retry": Scenario(retry, text_variants, n_unmeasured=1),
}


# ---- measuring ---------------------------------------------------------------------------------


async def measure(
    server: Server, variant: Variant, scenario: Scenario, plan: Plan, n_streams: int, seed: int
) -> Turn:
    """Measures one turn: all streams start together, and it lasts until the last one ends."""
    texts = [scenario.requests(plan, seed + 17 * index) for index in range(n_streams)]

    async def one(connection: Connection, requests: list[Request]) -> list[dict[str, Any]]:
        answers = []
        for request in requests:
            body = {"model": server.model, **request, **variant.fields}
            answers.append(json.loads(await connection.request("POST", "/completion", body)))
        return answers

    async with contextlib.AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(Connection(server.url)) for _ in range(n_streams)
        ]
        n = scenario.n_unmeasured
        pairs = [
            (connection, [await scenario.prepare(connection, each) for each in text])
            for connection, text in zip(connections, texts, strict=True)
        ]
        await asyncio.gather(*[one(connection, each[:n]) for connection, each in pairs])
        begun = time.perf_counter()
        answers = await asyncio.gather(*[one(connection, each[n:]) for connection, each in pairs])
        turn = Turn(time.perf_counter() - begun)
    for answer in [answer for stream in answers for answer in stream]:
        turn.add(answer)
    return turn


Results = dict[str, list[Turn]]


def run_rounds(
    servers: Sequence[tuple[Variant, Server]],
    scenario: Scenario,
    plan: Plan,
    n_streams: int,
    console: Console,
) -> Results:
    """Returns the turns of every variant, one per round."""
    results: Results = {variant.name: [] for variant, _ in servers}
    for variant, server in servers:
        asyncio.run(measure(server, variant, scenario, plan, n_streams, WARM_UP))
    for number in range(plan.rounds):
        console.print(f"round {number + 1}/{plan.rounds}, streams: {n_streams}", style="dim")
        # Every other round has the reverse order, so that no variant always follows the same one.
        for variant, server in servers if number % 2 == 0 else reversed(servers):
            seed = 1000 * (number + 1) + 100 * n_streams
            turn = asyncio.run(measure(server, variant, scenario, plan, n_streams, seed))
            results[variant.name].append(turn)
    return results


def table(title: str, results: Results, references: Sequence[str]) -> Table:
    """Returns a table with a row for each variant: its rates per second, and their ratio to those
    of each of `references`."""
    view = Table(title=title, caption="x: ratio of the tokens/s; median and worst of the rounds")
    for name in ("", "tokens/s", "texts/s", "characters/s", "proposed", "right"):
        view.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name in references:
        view.add_column(f"x {name}", justify="right", no_wrap=True)
    for name, turns in results.items():
        row = [name]
        for what in ("n_tokens", "n_texts", "n_characters"):
            value = statistics.median(getattr(turn, what) / turn.seconds for turn in turns)
            row.append(f"{value:,.1f}")
        n_proposed = sum(turn.n_proposed for turn in turns)
        n_accepted = sum(turn.n_accepted for turn in turns)
        row += [f"{n_proposed:,}", f"{n_accepted / n_proposed:.0%}" if n_proposed else "-"]
        for reference in references:
            ratios = [
                (a.n_tokens / a.seconds) / (b.n_tokens / b.seconds)
                for a, b in zip(turns, results[reference], strict=True)
            ]
            row.append(f"{statistics.median(ratios):.2f}, {min(ratios):.2f}")
        view.add_row(*row)
    return view


def _peer_command(
    template: str, options: Sequence[str], model: Path, port: int, threads: int
) -> list[str]:
    values = {"model": str(model), "port": str(port), "threads": str(threads)}
    return [*[part.format(**values) for part in shlex.split(template)], *options]


def _our_command(options: Sequence[str], model: Path, port: int, threads: int) -> list[str]:
    return [*specllama_command(model, port, threads), *options]


def main() -> int:
    arguments = parse_arguments()
    console = Console() if sys.stdout.isatty() else Console(width=160)
    collected: dict[str, dict[int, Results]] = {}
    try:
        models = chosen_models(arguments.model, arguments.draft)
        for name in arguments.scenario or SCENARIOS:
            collected[name] = {}
            for n_streams, view in run(name, SCENARIOS[name], models, arguments, console):
                collected[name][n_streams] = view
    except ClientError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        plain = json.dumps(collected, indent=2, default=vars)
        arguments.json.write_text(plain)
    return 0


def chosen_models(name: str, draft: str) -> Models:
    """Returns the files of the models that the command line names."""
    model = MODELS[name]() if name in MODELS else Path(name)
    if draft:
        return Models(model, Path(draft))
    return Models(model, ensure(DRAFTS[name]) if name in DRAFTS else model)


def run(
    name: str, scenario: Scenario, models: Models, arguments: argparse.Namespace, console: Console
) -> list[tuple[int, Results]]:
    """Runs a scenario with each number of streams, and prints its tables."""
    plan = Plan(arguments.rounds, arguments.streams or STREAMS, arguments.tokens, arguments.texts)
    variants, references = rows(scenario, models, arguments.only or [], arguments.peer)
    commands: dict[tuple[str, ...], Command] = {
        (variant.peer, *variant.options): (
            partial(_peer_command, variant.peer, variant.options)
            if variant.peer
            else partial(_our_command, variant.options)
        )
        for variant in variants
    }
    found: list[tuple[int, Results]] = []
    with contextlib.ExitStack() as stack:
        servers = {
            key: stack.enter_context(
                started(" ".join(key) or "specllama", command, models.model, arguments.threads)
            )
            for key, command in commands.items()
        }
        pairs = [(variant, servers[variant.peer, *variant.options]) for variant in variants]
        for n_streams in plan.streams:
            results = run_rounds(pairs, scenario, plan, n_streams, console)
            title = f"{name}, streams: {n_streams}, threads: {arguments.threads}"
            console.print(table(title, results, references))
            found.append((n_streams, results))
    return found


def rows(
    scenario: Scenario, models: Models, only: Sequence[str], peers: Sequence[tuple[str, str]]
) -> tuple[list[Variant], list[str]]:
    """Returns all variants that take turns, and the names of the reference variants. If `only`
    names variants, the others are left out, except the references. `peers` has the names and
    commands of other servers, whose variants are added."""
    ours = scenario.variants(models)
    variants = [ours[0], *[each for each in ours[1:] if not only or each.name in only]]
    references = [ours[0].name]
    for peer, command in peers:
        theirs = [
            replace(each, name=f"{peer} {each.name}".strip(), peer=command)
            for each in scenario.for_peers(models)
        ]
        variants += [each for each in theirs[:-1] if not only or each.name in only] + theirs[-1:]
        references.append(theirs[-1].name)
    return variants, references


def parse_arguments() -> argparse.Namespace:
    def named(text: str) -> tuple[str, str]:
        name, found, command = text.partition("=")
        if not found or not name or not command:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND")
        return name, command

    def positive(text: str) -> int:
        value = int(text)
        if value < 1:
            raise argparse.ArgumentTypeError(f"{value} is less than 1")
        return value

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speculation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        default="bench-100m",
        help=f"{', '.join(MODELS)}, or a GGUF file (default: %(default)s). The scenario copy needs "
        "a trained model, which can repeat a text",
    )
    parser.add_argument(
        "--draft", default="", metavar="FILE", help="draft model with the same vocabulary"
    )
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="default: all")
    parser.add_argument(
        "--only", action="append", metavar="VARIANT", help="variant to run, beside the first one"
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        type=named,
        metavar="NAME=COMMAND",
        help="another server that takes turns; {model}, {port} and {threads} are filled in",
    )
    parser.add_argument("--threads", type=positive, default=2, help="default: %(default)s")
    parser.add_argument("--streams", type=positive, action="append", help="default: 1, 4, 8")
    parser.add_argument("--rounds", type=positive, default=5, help="default: %(default)s")
    parser.add_argument(
        "--tokens", type=positive, default=160, help="limit of each text (default: %(default)s)"
    )
    parser.add_argument(
        "--texts", type=positive, default=2, help="texts per stream (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
