"""The result of a run, as text: counts, reasons, and the rest grouped by cause."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass

from contract_tests.peer.accepted import reason
from contract_tests.peer.comparison import Difference
from contract_tests.peer.request import Request

EXAMPLES = 6


@dataclass(frozen=True)
class Compared:
    request: Request
    found: list[Difference]

    @property
    def unexplained(self) -> list[Difference]:
        return [each for each in self.found if reason(self.request, each) is None]

    @property
    def reasons(self) -> set[str]:
        return {title for each in self.found if (title := reason(self.request, each))}


def report(results: list[Compared], *, verbose: bool) -> str:
    equal = sum(not each.found for each in results)
    explained = [each for each in results if each.found and not each.unexplained]
    rest = [each for each in results if each.unexplained]
    lines = [
        f"{len(results)} requests: {equal} equal, {len(explained)} differ as accepted, "
        f"{len(rest)} differ.",
        "",
        "Accepted, by reason (a request may have several):",
    ]
    counts = Counter(title for each in results for title in each.reasons)
    lines += [f"  {n:4} {title}" for title, n in counts.most_common()]
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
