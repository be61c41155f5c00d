"""The faults and answers of a campaign. Decides whether a fault explains an answer."""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import median

from contract_tests.chaos.faults import KILL, SEGV, STOP, STORM, TERM, Fault
from contract_tests.chaos.proxy import HALF_CLOSED, Proxy
from contract_tests.load.asks import SERVER
from contract_tests.load.exchange import Exchange
from contract_tests.load.judging import Verdict
from contract_tests.load.keeper import Keeper

SETTLES = 3.0
"""Seconds after the first right answer in which other requests may still fail from the fault."""
STORY = 8
"""The number of last faults that a story shows."""
MOST = 20
"""The number of stories that are shown in full."""
BY_HELPERS = ("render", "decode", "check", "trial", "fetch")
"""Helper processes. The end of one may be the fault of its input, and then it is a 400."""


@dataclass
class History:
    """`problems` has stories in the order in which they were noticed."""

    faults: list[Fault]
    keeper: Keeper
    proxy: Proxy
    seed: int
    begun: float = field(default_factory=time.monotonic)
    outcomes: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    by_ask: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    problems: list[str] = field(default_factory=list)
    suspects: list[tuple[Exchange, Verdict]] = field(default_factory=list)
    """Unexplained answers so far. The end of a process is noticed a little later than its
    effect."""
    slowest: float = 0.0
    slowest_text: str = ""

    def take(self, exchange: Exchange, verdict: Verdict) -> None:
        """Counts an answer, notes recoveries, and keeps it as a suspect if no fault explains it."""
        self.outcomes[verdict.outcome] += 1
        self.by_ask[exchange.ask.name][verdict.outcome] += 1
        if exchange.seconds > self.slowest:
            self.slowest, self.slowest_text = exchange.seconds, exchange.as_text()
        if exchange.status not in (0, 200):
            self.statuses[f"{exchange.status} {exchange.ask.name}"] += 1
        if verdict.outcome == "right":
            self._recover(exchange)
        if verdict.problem:
            self.problems.append(self.story(verdict.problem, exchange))
        elif self.unexplained(exchange, verdict):
            self.suspects.append((exchange, verdict))

    def review(self, before: float | None = None) -> None:
        """Judges suspects that ended before the time `before`, or all of them."""
        kept = []
        for exchange, verdict in self.suspects:
            if before is not None and exchange.ended >= before:
                kept.append((exchange, verdict))
            elif problem := self.unexplained(exchange, verdict):
                self.problems.append(self.story(problem, exchange))
        self.suspects = kept

    def _recover(self, exchange: Exchange) -> None:
        for fault in self.open():
            since = fault.since()
            if since is not None and exchange.begun > since and fault.harms(exchange.ask.uses):
                fault.recovered = exchange.ended

    def open(self) -> list[Fault]:
        return [each for each in self.faults if each.recovered is None]

    def unexplained(self, exchange: Exchange, verdict: Verdict) -> str:
        """Returns the problem with an answer that is neither right nor wrong by itself, or an empty
        text."""
        match verdict.outcome:
            case "cut" if not self._cut_explained(exchange):
                return "nothing tore the connection, and the server didn't end"
            case "error" | "error in a stream" if not self._error_explained(exchange):
                return f"no fault explains this {verdict.outcome}"
        return ""

    def _cut_explained(self, exchange: Exchange) -> bool:
        if exchange.port in self.proxy.torn:
            return True
        died = any(
            each.at <= exchange.ended + SETTLES
            and (each.back is None or each.back >= exchange.begun)
            for each in self.keeper.deaths
        )
        return died or any(
            fault.begun <= exchange.ended
            and (fault.recovered is None or fault.recovered >= exchange.begun)
            for fault in self.faults
            if fault.target == SERVER and fault.what in (KILL, SEGV, TERM)
        )

    def _error_explained(self, exchange: Exchange) -> bool:
        if self.proxy.torn.get(exchange.port) == HALF_CLOSED:
            return True
        if self.proxy.torn.get(exchange.port) and exchange.status in (400, 408):
            return True
        return any(self._explains(fault, exchange) for fault in self.faults)

    def _explains(self, fault: Fault, exchange: Exchange) -> bool:
        uses = exchange.ask.uses
        if fault.begun > exchange.ended or fault.what == STORM or not fault.harms(uses):
            return False
        over = fault.over()
        if over is not None and over + SETTLES < exchange.begun:
            return False
        if fault.what == STOP and fault.target not in BY_HELPERS:
            return False  # the process is only slow
        if 400 <= exchange.status < 500:
            return fault.target in BY_HELPERS
        return True

    def story(self, problem: str, exchange: Exchange) -> str:
        before = [each for each in self.faults if each.begun <= exchange.ended]
        deaths = [each for each in self.keeper.deaths if each.at <= exchange.ended + SETTLES]
        lines = [
            f"seed {self.seed}, {exchange.begun - self.begun:.1f} to "
            f"{exchange.ended - self.begun:.1f} s: {problem}",
            f"  {exchange.as_text()}",
            f"  its connection: {self.proxy.torn.get(exchange.port, 'not torn')}",
            "  the last faults before:",
            *(f"  {each.as_text(self.begun)}" for each in before[-STORY:]),
            *(f"  the server ended at {each.at - self.begun:.1f} s with code {each.code}"
              for each in deaths[-2:]),
        ]  # fmt: skip
        return "\n".join(lines)

    # ---- tables ---------------------------------------------------------------------------------

    def recoveries(self) -> str:
        """Returns a table of the faults by kind: the number, and the time until the next right
        answer, for faults during which no other fault harmed the same target, and for all."""
        head = (
            "| fault | times | alone | recovery alone, median s | longest s | of all, longest s |"
        )
        rows = [head, "|---|---|---|---|---|---|"]
        kinds: defaultdict[str, list[Fault]] = defaultdict(list)
        for each in self.faults:
            kinds[each.kind].append(each)
        for kind, faults in sorted(kinds.items()):
            times = [seconds for each in faults if (seconds := each.recovery()) is not None]
            alone = [
                seconds
                for each in faults
                if (seconds := each.recovery()) is not None and self._was_alone(each)
            ]
            numbers = f"{median(alone):.2f} | {max(alone):.2f}" if alone else "- | -"
            longest = f"{max(times):.2f}" if len(times) == len(faults) else "never"
            rows.append(f"| {kind} | {len(faults)} | {len(alone)} | {numbers} | {longest} |")
        return "\n".join(rows)

    def _was_alone(self, fault: Fault) -> bool:
        until = fault.over()
        return until is not None and not any(
            each.begun < until and ((over := each.over()) is None or over > fault.begun)
            for each in self.faults
            if each is not fault and each.harms({fault.target})
        )

    def as_text(self) -> str:
        """Returns all faults, and the slowest answer."""
        faults = "\n".join(each.as_text(self.begun) for each in self.faults)
        return f"{faults}\n\nthe slowest answer:\n{self.slowest_text}\n"

    def answers(self) -> str:
        """Returns a table of the outcomes for each kind of request."""
        names = ("right", "error", "error in a stream", "cut", "wrong")
        rows = [f"| request | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
        for ask, counts in [*sorted(self.by_ask.items()), ("all", self.outcomes)]:
            rows.append(f"| {ask} | {' | '.join(str(counts[name]) for name in names)} |")
        return "\n".join(rows)

    def line(self) -> str:
        """Returns a line on the progress."""
        seconds = time.monotonic() - self.begun
        counts = ", ".join(f"{name} {n}" for name, n in sorted(self.outcomes.items()))
        waiting = [each.kind for each in self.open()]
        said = f"; not recovered: {', '.join(waiting)}" if waiting else ""
        return f"{seconds:6.0f} s  {len(self.faults)} faults; {counts}; " \
               f"{len(self.problems)} problems{said}"  # fmt: skip
