"""Judges whether an answer is right, documented, or the beginning of the right one."""

import json
import random
from dataclasses import dataclass
from typing import Literal

from contract_tests.kit import contract, lint
from contract_tests.kit.events import read_events
from contract_tests.load import reading
from contract_tests.load.exchange import FOR_EVER, LEFT, Exchange
from contract_tests.load.reading import Parts, Said

VALIDATED = 0.05
"""The share of right answers that are validated against the description; all others always are."""

Outcome = Literal["right", "error", "error in a stream", "cut", "left", "wrong"]


@dataclass(frozen=True)
class Verdict:
    """A verdict on an exchange. `problem` is a fault under any circumstances. Whether an error or a
    cut is a fault depends on other events, which the caller has to judge."""

    outcome: Outcome
    problem: str = ""


class Judge:
    """Has the right answers: their parts, by the names of the asks. With `documented`, answers are
    validated against the description as well."""

    def __init__(self, documented: bool = True, seed: int = 0) -> None:
        self.truth: dict[str, Parts] = {}
        self._documented = documented
        self._dice = random.Random(seed)

    def expected(self, exchange: Exchange) -> Parts | None:
        ask = exchange.ask
        return ask.expected(exchange.number) if ask.expected else self.truth.get(ask.name)

    def verdict(self, exchange: Exchange) -> Verdict:
        try:
            return self._verdict(exchange)
        except (AssertionError, ValueError, LookupError, TypeError, AttributeError) as error:
            return Verdict("wrong", f"{type(error).__name__}: {error}"[:1500])

    def _verdict(self, exchange: Exchange) -> Verdict:
        if exchange.cut == FOR_EVER:
            return Verdict("wrong", f"{FOR_EVER}: waited {exchange.seconds:.0f} s")
        if exchange.status not in (0, 200):
            return self._error(exchange)
        if exchange.cut:
            outcome: Outcome = "left" if exchange.cut == LEFT else "cut"
            beginning = self._beginning(exchange)
            return Verdict("wrong", beginning) if beginning else Verdict(outcome)
        said = self.said(exchange)
        if exchange.ask.stream:
            if problem := _ends(said):
                return Verdict("wrong", problem)
            if said.error is not None:
                self._validate(exchange)
                problem = self._differs(exchange, said, whole=False)
                return Verdict("wrong", problem) if problem else Verdict("error in a stream")
        if problem := self._differs(exchange, said, whole=True):
            return Verdict("wrong", problem)
        if self._dice.random() < VALIDATED:
            self._validate(exchange)
        return Verdict("right")

    def said(self, exchange: Exchange) -> Said:
        """Returns the contents of an answer; for a stream that was cut, its whole documents."""
        ask = exchange.ask
        if ask.stream:
            return reading.read_stream(ask.read, _documents(exchange))
        return reading.read_whole(ask.read, json.loads(exchange.content))

    def _error(self, exchange: Exchange) -> Verdict:
        if exchange.cut:
            return Verdict("cut")
        if self._documented:
            self._validate(exchange)
        return Verdict("error")

    def _beginning(self, exchange: Exchange) -> str:
        """Returns what is wrong with the received part of an answer, or an empty text."""
        if not (exchange.ask.stream and exchange.status == 200):
            return ""
        said = self.said(exchange)
        if said.n_ends > 1 or said.behind:
            return _ends(said)
        return self._differs(exchange, said, whole=False)

    def _differs(self, exchange: Exchange, said: Said, *, whole: bool) -> str:
        truth = self.expected(exchange)
        return "" if truth is None else reading.differs(truth, said.parts, whole)

    def _validate(self, exchange: Exchange) -> None:
        if self._documented:
            contract.check(exchange.response(), exchange.status)


def _ends(said: Said) -> str:
    n = said.n_ends + (said.error is not None)
    if n != 1:
        return f"the stream has {said.n_ends} ends, and {'an' if said.error else 'no'} error"
    return f"{said.behind} documents after the end" if said.behind else ""


def _documents(exchange: Exchange) -> list[str]:
    """Returns the events' data, or the lines, that are complete."""
    content = exchange.content
    if exchange.headers.get("content-type", "").startswith(lint.LINES):
        lines = content.decode("utf-8", "strict" if not exchange.cut else "replace").split("\n")
        assert exchange.cut or not lines[-1], f"the last line has no end: {lines[-1]!r:.300}"
        return [line for line in lines[:-1] if line]
    blocks = content.replace(b"\r\n", b"\n").split(b"\n\n")
    if exchange.cut:
        blocks[-1:] = [b""]
    events = read_events([b"\n\n".join(blocks)])
    return [event.data for event in events]
