"""The results of a run as text: counts, reasons, and the rest grouped by cause."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass

from contract_tests.peer.accepted import MEANINGS, row_of
from contract_tests.peer.comparison import Difference
from contract_tests.peer.request import Request
from contract_tests.peer.row import Extent

EXAMPLES = 6


@dataclass(frozen=True)
class Compared:
    request: Request
    found: list[Difference]

    @property
    def unexplained(self) -> list[Difference]:
        return [each for each in self.found if row_of(self.request, each) is None]

    @property
    def reasons(self) -> set[str]:
        return {row.title for each in self.found if (row := row_of(self.request, each))}

    @property
    def extent(self) -> Extent:
        """The greatest extent of the rows that explain the differences."""
        rows = (row_of(self.request, each) for each in self.found)
        return max((row.extent if row else Extent.VALUES for row in rows), default=Extent.EQUAL)


def counts(results: list[Compared]) -> dict[Extent, int]:
    """Returns the number of requests by extent, for requests whose differences are all accepted."""
    found = Counter(each.extent for each in results if not each.unexplained)
    return {extent: found[extent] for extent in Extent}


def report(results: list[Compared], *, verbose: bool) -> str:
    rest = [each for each in results if each.unexplained]
    lines = [f"{len(results)} requests, of which"]
    lines += [f"  {n:4} {MEANINGS[extent]}" for extent, n in counts(results).items()]
    lines += [
        f"  {len(rest):4} differ without a reason",
        "",
        "Accepted, by reason (a request may have several):",
    ]
    by_reason = Counter(title for each in results for title in each.reasons)
    lines += [f"  {n:4} {title}" for title, n in by_reason.most_common()]
    causes: dict[str, list[tuple[Request, Difference]]] = defaultdict(list)
    for each in rest:
        for difference in each.unexplained:
            causes[difference.cause].append((each.request, difference))
    lines += ["", f"The rest, by cause ({len(causes)}):"]
    for cause, cases in sorted(causes.items(), key=lambda pair: -len(pair[1])):
        lines.append(f"\n{len(cases):4} {cause}")
        shown = cases if verbose else cases[:EXAMPLES]
        for request, difference in shown:
            lines.append(f"       {request.name} ({request.path})")
            if difference.ours or difference.theirs:
                lines.append(f"           ours:   {difference.ours}")
                lines.append(f"           theirs: {difference.theirs}")
            if verbose:
                lines.append(f"           body:   {json.dumps(request.body)[:600]}")
        if len(cases) > len(shown):
            lines.append(f"       and {len(cases) - len(shown)} more")
    return "\n".join(lines)
