"""The results of testing a server, by operation."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from contract_tests.kit import contract
from contract_tests.kit.discovery import Offer

Verdict = Literal["conforms", "deviates", "not offered", "not checked"]
VERDICTS: tuple[Verdict, ...] = ("conforms", "deviates", "not offered", "not checked")
ELSEWHERE = "other requests"
"""The name for requests outside the described operations: unknown paths, connections."""


@dataclass
class Deviation:
    """One way in which a server differs from the description."""

    check: str
    """The test that failed, as a sentence."""
    request: str
    """The request as a curl command."""
    expected: str
    came: str
    times: int = 1
    """The number of tests with the same failure."""


@dataclass
class Finding:
    """The result for one operation."""

    operation: str
    tag: str
    passed: int = 0
    deviations: list[Deviation] = field(default_factory=list)
    absent: str | None = None

    @property
    def verdict(self) -> Verdict:
        if self.deviations:
            return "deviates"
        if self.absent is not None:
            return "not offered"
        return "conforms" if self.passed else "not checked"


class Findings:
    """All findings about one server. `ended` is the request after which it stopped answering, if it
    did. `is_whole` is False if the tests were interrupted."""

    def __init__(self, offer: Offer, operations: Iterable[str] | None = None) -> None:
        """Creates empty findings for all operations, or for `operations` (method and path)."""
        chosen = None if operations is None else set(operations)
        self.offer = offer
        self.unclear: list[str] = []
        self.ended: str | None = None
        self.is_whole = True
        self._findings = {
            each.name: Finding(
                each.name, each.definition["tags"][0], absent=offer.absent.get(each.name)
            )
            for each in contract.operations().values()
            if chosen is None or each.name in chosen
        }
        self._elsewhere = Finding(ELSEWHERE, "")
        self._news: list[str] = []

    def passed(self, operations: Iterable[str]) -> None:
        """Counts a passed test for each operation that it requested."""
        for name in set(operations):
            if name in self._findings:
                self._findings[name].passed += 1

    def deviates(self, operation: str | None, deviation: Deviation) -> None:
        finding = self._findings.get(operation or "", self._elsewhere)
        for known in finding.deviations:
            if _gist(known.expected) == _gist(deviation.expected):
                known.times += 1
                return
        finding.deviations.append(deviation)
        self._news.append(f"{finding.operation}: {deviation.check}")

    def news(self) -> list[str]:
        """Returns the deviations since the last call, one line each."""
        news, self._news = self._news, []
        return news

    def __iter__(self) -> Iterator[Finding]:
        yield from self._findings.values()
        if self._elsewhere.deviations:
            yield self._elsewhere

    @property
    def conforms(self) -> bool:
        """True if there is no deviation and all tests could run."""
        return self.is_whole and not self.ended and not any(each.deviations for each in self)

    def counts(self) -> dict[Verdict, int]:
        counted = Counter(each.verdict for each in self._findings.values())
        return {verdict: counted[verdict] for verdict in VERDICTS}

    def document(self) -> dict[str, Any]:
        """Returns all findings as JSON data."""
        offer = asdict(self.offer)
        return {
            "server": {name: offer[name] for name in ("url", "server", "models", "features")},
            "counts": self.counts(),
            "operations": [{"verdict": each.verdict, **asdict(each)} for each in self],
            "unclear": self.unclear,
            "ended": self.ended,
            "is_whole": self.is_whole,
        }


def _gist(text: str) -> str:
    """Returns the beginning of an expectation without numbers and ids, to recognize equal
    reasons."""
    return re.sub(r"\w*\d\w*", "#", text)[:200]
