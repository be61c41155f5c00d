"""`python -m benchmarks.routing`: rules for the choice of a replica, compared by simulation.

The rule of `engine.fleet.placing` is the real code; replicas and time are simulated. All rules get
the same requests. The same seed gives the same figures, except for the times of `--choices`.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random

from benchmarks.routing_policies import (
    ConsistentHashing,
    LeastLoaded,
    Ours,
    Policy,
    PowerOfTwo,
    RoundRobin,
)
from benchmarks.routing_replicas import Replica, Running, Speed
from benchmarks.routing_requests import Conversations, Habits, Request, read_trace
from specllama.engine.fleet.placing import WORK_WEIGHT, Placing, WantedPrompt
from specllama.engine.wire.stats import ReplicaLoad


@dataclass(frozen=True)
class Result:
    """The measured part of a run: requests that arrived after the warm-up."""

    done: Sequence[Running]
    busy: Sequence[float]
    """Seconds of work of each replica, from the warm-up to the last arrival."""
    seconds: float
    """From the warm-up to the last arrival."""

    @property
    def cached(self) -> float:
        """The share of the prompt tokens that were in the cache."""
        return sum(r.n_cached for r in self.done) / sum(r.request.n_tokens for r in self.done)

    def first_token(self, part: float) -> float:
        """The time to the first token, in seconds, which `part` of the requests don't exceed."""
        times = sorted(each.began - each.request.at for each in self.done)
        return times[min(len(times) - 1, int(part * len(times)))]

    @property
    def of_token(self) -> float:
        """The mean time between tokens of an answer, in seconds; the median of the requests."""
        times = sorted((each.ended - each.began) / each.request.n_answer for each in self.done)
        return times[len(times) // 2]

    @property
    def utilisation(self) -> float:
        """The part of the time in which a replica works; the mean of all."""
        return sum(self.busy) / len(self.busy) / self.seconds

    @property
    def balance(self) -> float:
        """The work of the busiest replica, as a multiple of the mean."""
        return max(self.busy) * len(self.busy) / sum(self.busy)


def simulate(
    requests: Sequence[Request],
    policy: Policy,
    n: int,
    speed: Speed,
    *,
    delay: float = 0.05,
    warm_up: float = 0.0,
) -> Result:
    """Sends the requests (in the order of their arrival) to `n` replicas, until all have ended. A
    report arrives `delay` seconds after it was made. Requests that arrive before `warm_up` aren't
    measured."""
    replicas = [Replica(number, speed) for number in range(n)]
    last = requests[-1].at
    done: list[Running] = []
    order = count()
    events: list[tuple[float, int, Callable[[float], None]]] = []
    newest = [0] * n  # the number of each replica's newest plan
    n_open = len(requests)
    busy: list[float] = []

    def at(when: float, event: Callable[[float], None]) -> None:
        heappush(events, (when, next(order), event))

    def plan(replica: Replica) -> None:
        newest[replica.number] = number = newest[replica.number] + 1

        def work(now: float) -> None:
            if newest[replica.number] == number:  # no request has changed the time
                finish(replica, now)

        if (when := replica.next_event()) < float("inf"):
            at(when, work)

    def finish(replica: Replica, now: float) -> None:
        nonlocal n_open
        began, ended = replica.finish(now)
        if began:
            policy.began(began, now)
        elif ended:
            policy.ended(ended, now)
            n_open -= 1
            if ended.request.at >= warm_up:
                done.append(ended)
        plan(replica)

    def report(replica: Replica) -> Callable[[float], None]:
        def send(now: float) -> None:
            load, (added, removed) = replica.load(now), replica.cache.changes()
            number = replica.number
            at(now + delay, lambda now: policy.report(number, load, added, removed, now))
            if n_open and policy.report_seconds:
                at(now + policy.report_seconds, send)

        return send

    def note_work(now: float) -> None:
        for replica in replicas:
            replica.advance(now)
            busy.append(replica.busy)

    if policy.report_seconds:
        for replica in replicas:  # evenly distributed over the interval
            at(policy.report_seconds * replica.number / n, report(replica))
    at(warm_up, note_work)
    at(last, note_work)
    for request in requests:
        while events and events[0][0] <= request.at:
            when, _, event = heappop(events)
            event(when)
        replica = replicas[policy.place(request, request.at)]
        replica.start(request, request.at)
        plan(replica)
    while n_open:
        when, _, event = heappop(events)
        event(when)
    work = [after - before for before, after in zip(busy[:n], busy[n:], strict=True)]
    return Result(done, work, last - warm_up)


# ---- the tables ---------------------------------------------------------------------------

AGES = (0.25, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between two reports."""
STALE = (10.0, 30.0)
"""The same, in the tables that compare rules. Ray Serve's replicas report every 10 s by default."""
SIZES = (10, 100, 1_000, 10_000)
PROMPTS = (32, 256, 2_000)
"""The numbers of members, and of blocks of a prompt, for the table of choices."""
COLUMNS = ("cached", "first token p50", "p99", "of a token", "working", "max/mean")


@dataclass(frozen=True)
class Plan:
    """The options that all runs have in common."""

    speed: Speed
    seed: int
    delay: float
    warm_up: float
    work_weight: float = WORK_WEIGHT

    def ours(self, n: int, report_seconds: float) -> Policy:
        speed = self.speed
        return Ours(n, speed.block, self.seed, report_seconds, speed.n_slots, self.work_weight)

    def policies(self, n: int, report_seconds: float) -> dict[str, Policy]:
        """Returns the rules, by their names in the table."""
        return {
            **{
                f"ours, reports each {interval:g} s": self.ours(n, interval)
                for interval in (report_seconds, *STALE)
            },
            "hashing of the prefix": ConsistentHashing(n, by_conversation=False),
            "hashing of the conversation": ConsistentHashing(n, by_conversation=True),
            "least loaded": LeastLoaded(n, self.seed),
            "power of two": PowerOfTwo(n, self.seed),
            "round robin": RoundRobin(n),
        }

    def run(self, requests: Sequence[Request], policy: Policy, n: int) -> Result:
        return simulate(requests, policy, n, self.speed, delay=self.delay, warm_up=self.warm_up)

    def generated(self, habits: Habits, n: int, load: float, seconds: float) -> list[Request]:
        """Returns the requests of generated conversations for `n` replicas, `seconds` long after
        the warm-up. `load` is their work without caches, as a part of the time of the replicas."""
        block, n_sample = self.speed.block, 2000
        sample = Conversations(habits, block, self.seed + 1)
        works = [self.speed.alone(r) for _ in range(n_sample) for r in sample.conversation(0.0)]
        per_second = load * n * n_sample / sum(works)
        conversations = Conversations(habits, block, self.seed)
        return conversations.requests(per_second, self.warm_up + seconds)


def cells(result: Result) -> list[str]:
    """Returns the cells of one result, in the order of `COLUMNS`."""
    return [
        f"{result.cached:.1%}",
        f"{1e3 * result.first_token(0.5):,.0f} ms",
        f"{1e3 * result.first_token(0.99):,.0f} ms",
        f"{1e3 * result.of_token:.1f} ms",
        f"{result.utilisation:.0%}",
        f"{result.balance:.2f}",
    ]


def row(first: str, *others: str) -> None:
    """Prints a row of a Markdown table."""
    print("| " + " | ".join((first, *others)) + " |", flush=True)


def head(first: str, *others: str) -> None:
    """Prints the head of a Markdown table."""
    print()
    row(first, *others)
    print("|---" + "|--:" * len(others) + "|")


def choice_seconds(n: int, n_blocks: int, seed: int, n_choices: int = 300) -> float:
    """Returns the processor time of one choice among `n` members. Half of the members hold one half
    of each prompt, which has `n_blocks` blocks; one member holds all of it."""
    random = Random(seed)
    placing = Placing(random, 64, n_most=1 << 20)
    load = ReplicaLoad(n_slots=16, prompt_seconds=1e-4)
    common = [random.getrandbits(64) for _ in range(n_blocks // 2)]
    for member in range(n):
        placing.join(member, load, 0.0)
        if member % 2 == 0:
            placing.report(member, load, common, (), 0.0)
    prompts = []
    for _ in range(n_choices):
        own = [random.getrandbits(64) for _ in range(n_blocks - len(common))]
        placing.report(random.randrange(0, n, 2), load, own, (), 0.0)
        prompts.append(WantedPrompt(64 * n_blocks + 20, [*common, *own]))
    began = time.process_time()
    for prompt in prompts:
        placing.place(prompt, 0.1)
    return (time.process_time() - began) / n_choices


def compare(plan: Plan, options: argparse.Namespace, habits: Callable[[int], Habits]) -> None:
    """Prints a table of the rules for each size, then a table of the intervals of reports."""
    trace = read_trace(options.trace) if options.trace else None

    def requests_for(n: int) -> Sequence[Request]:
        return trace or plan.generated(habits(n), n, options.load, options.seconds)

    for n in options.replicas:
        requests = requests_for(n)
        head(f"{n:,} replicas, {len(requests):,} requests", *COLUMNS)
        for name, policy in plan.policies(n, options.report_seconds).items():
            row(name, *cells(plan.run(requests, policy, n)))
    if n := options.ages:
        requests = requests_for(n)
        head(f"{n:,} replicas, {len(requests):,} requests", *COLUMNS)
        for interval in AGES:
            result = plan.run(requests, plan.ours(n, interval), n)
            row(f"reports each {interval:g} s", *cells(result))


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    pass


def _parser() -> argparse.ArgumentParser:
    speed, habits = Speed(), Habits(1)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing",
        description=__doc__,
        epilog=f"A trace: {read_trace.__doc__}",
        formatter_class=_Help,
    )
    run = parser.add_argument_group("runs").add_argument
    run("--replicas", type=int, nargs="+", default=[10, 100], metavar="N", help="sizes of fleets")
    run("--ages", type=int, default=30, metavar="N", help="size for the table of intervals, or 0")
    run("--seconds", type=float, default=90.0, help="simulated time that is measured")
    run("--warm-up", type=float, default=60.0, help="simulated time before it")
    run("--seed", type=int, default=1, help="of the requests, and of random choices")
    run("--report-seconds", type=float, default=1.0, help="time between reports of a replica")
    run("--delay", type=float, default=0.05, help="seconds until a report arrives")
    run("--work-weight", type=float, default=WORK_WEIGHT, help="another weight of work for ours")
    run("--choices", action="store_true", help="only measure the processor time of a choice")

    of = parser.add_argument_group("requests").add_argument
    of("--trace", type=Path, metavar="FILE", help="recorded requests, instead of generated ones")
    of("--load", type=float, default=1.0, help="work without caches per replica, in s/s")
    of("--tenants", type=float, default=3.0, help="different system prompts for each replica")
    of("--zipf", type=float, default=habits.zipf, help="exponent of the tenants' shares")
    of("--message", type=int, default=habits.message, help="mean tokens of a user's message")
    of("--answer", type=int, default=habits.answer, help="mean tokens of an answer")
    of("--turns", type=float, default=habits.turns, help="mean requests of a conversation")
    of("--pause", type=float, default=habits.pause, help="mean seconds between these")
    of(
        "--bursts",
        type=float,
        default=habits.bursts,
        help="share of conversations that are bursts: requests about one document of "
        f"{habits.document} tokens, within {habits.burst_seconds} s",
    )
    of("--questions", type=int, default=habits.questions, help="requests of a burst")

    model = parser.add_argument_group(
        "replicas",
        "The defaults are measured values of 8 billion parameters on an H200, from "
        "docs/reports/gpu.md.",
    ).add_argument
    model("--prompt-ms", type=float, default=1e3 * speed.prompt, help="time of a prompt token")
    model("--step-ms", type=float, default=1e3 * speed.step, help="time of a step without texts")
    model("--text-ms", type=float, default=1e3 * speed.text, help="time of each text in a step")
    model(
        "--target-ms",
        type=float,
        default=1e3 * speed.target,
        help="time of a step with a part of a prompt beside texts (--target-itl-ms)",
    )
    model("--slots", type=int, default=speed.n_slots, help="slots of a replica")
    model("--cache", type=int, default=speed.n_cached, help="tokens in the cache of a replica")
    model("--block", type=int, default=speed.block, help="tokens of a block")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.choices:
        head("members", *(f"{n:,} blocks" for n in PROMPTS))
        for n in SIZES:
            times = (choice_seconds(n, n_blocks, options.seed) for n_blocks in PROMPTS)
            row(f"{n:,}", *(f"{1e6 * each:,.0f} us" for each in times))
        return
    speed = Speed(
        prompt=1e-3 * options.prompt_ms,
        step=1e-3 * options.step_ms,
        text=1e-3 * options.text_ms,
        target=1e-3 * options.target_ms,
        n_slots=options.slots,
        n_cached=options.cache,
        block=options.block,
    )

    def habits(n: int) -> Habits:
        return Habits(
            n_tenants=max(1, round(options.tenants * n)),
            zipf=options.zipf,
            message=options.message,
            answer=options.answer,
            turns=options.turns,
            pause=options.pause,
            bursts=options.bursts,
            questions=options.questions,
        )

    warm_up = 0.0 if options.trace else options.warm_up
    plan = Plan(speed, options.seed, options.delay, warm_up, options.work_weight)
    compare(plan, options, habits)


if __name__ == "__main__":
    main()
