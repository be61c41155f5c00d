"""The tables of the evaluation."""

import hashlib
import re
from pathlib import Path

from specllama.engine.shipped import model_path
from tools.models import outcomes
from tools.models.lessons.held_out.barrier import FAMILIES, of_ability
from tools.models.lessons.held_out.family import EXTRACTION, TOOLS
from tools.models.outcomes import Outcome, report, summary, table, table_of_families, write

ROOT = Path(__file__).parents[3]


def outcome(ability: str, kind: str = "k", **marks: bool) -> Outcome:
    return Outcome(ability=ability, kind=kind, marks=marks, request={}, wanted=None, got=None)


def test_the_table_has_shares() -> None:
    text = table(
        {
            0.0: [outcome("a", right=True), outcome("a", right=False)],
            0.8: [outcome("a", right=True), outcome("a", right=True)],
        }
    )
    assert "| Ability | Mark | Tasks | greedy | temperature 0.8 |" in text
    assert "| a | right | 2 | 50.0 % | 100.0 % |" in text
    assert "| a | right: k | 2 | 50.0 % | 100.0 % |" in text


def test_the_summary_compares_both_sets() -> None:
    known = {0.0: [outcome(TOOLS, right=True)] * 9 + [outcome(TOOLS, right=False)]}
    held_out = {
        0.0: [outcome(TOOLS, right=True), outcome(TOOLS, right=False)],
        0.8: [outcome(EXTRACTION, right=True)] * 3,
    }
    text = summary(known, held_out)
    assert "| tools: tool and arguments | greedy | 9 of 10 (90.0 %) | 1 of 2 (50.0 %) |" in text
    assert "| extraction: all fields | temperature 0.8 | - | 3 of 3 (100.0 %) |" in text
    assert text.count("\n") == 4


def test_families_have_counts_of_their_own_ability() -> None:
    # Both abilities have a family of this name.
    name = "possessive at the beginning"
    assert [each.ability for each in FAMILIES if each.name == name] == [TOOLS, EXTRACTION]
    found = {
        0.0: [
            outcome(TOOLS, name, tool=True, right=True),
            outcome(TOOLS, name, tool=True, right=False),
            outcome(EXTRACTION, name, right=True),
        ]
    }
    calls = table_of_families(TOOLS, found)
    assert "| Family | Held out | right tool, greedy | all right, greedy |" in calls
    assert f"| {name} | phrasings | 2 of 2 | 1 of 2 |" in calls
    assert calls.count("\n") == 2 + len(of_ability(TOOLS))
    assert f"| {name} | phrasings | 1 of 1 |" in table_of_families(EXTRACTION, found)


def test_a_report_has_the_sets_that_were_evaluated() -> None:
    known, held_out = {0.0: [outcome(TOOLS, right=True)]}, {0.0: [outcome(EXTRACTION, right=True)]}
    both = report(known, held_out)
    assert both.index("## Known kinds and held-out") < both.index("## Held-out families: extrac")
    assert both.index("## Held-out families: extraction") < both.index("## Known kinds\n")
    assert "## Held-out families: tools" not in both
    assert report(known, {}).startswith("## Known kinds\n")
    assert "## Known kinds\n" not in report({}, held_out)


def test_the_page_names_the_file(tmp_path: Path) -> None:
    model, page = tmp_path / "m.gguf", tmp_path / "page.md"
    model.write_bytes(b"weights")
    write(page, model, "Table\n")
    text = page.read_text("utf-8")
    assert text.startswith(outcomes.OPENING)
    assert hashlib.sha256(b"weights").hexdigest() in text
    assert text.endswith("Table\n")
    write(page, None, "Table\n")
    assert "SHA-256" not in page.read_text("utf-8")


def test_documents_have_the_figures_of_the_page() -> None:
    page = (ROOT / "docs/reports/abilities.md").read_text("utf-8")
    greedy = r"\| greedy \| \d+ of \d+ \([\d.]+ %\) \| (\d+ of \d+) \("
    calls = re.search(rf"\| {TOOLS}: tool and arguments {greedy}", page)
    extractions = re.search(rf"\| {EXTRACTION}: all fields {greedy}", page)
    assert calls
    assert extractions
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"{calls[1]} with the right call, and {extractions[1]}\n" in readme
    assert calls[1] in (ROOT / "docs/guides/testing.md").read_text("utf-8")
    for ability, found in ((TOOLS, calls[1]), (EXTRACTION, extractions[1])):
        n = sum(len(each.tasks) for each in of_ability(ability))
        assert found.endswith(f" of {n}")


def test_the_page_is_about_the_shipped_model() -> None:
    page = (ROOT / "docs/reports/abilities.md").read_text("utf-8")
    assert hashlib.sha256(model_path().read_bytes()).hexdigest() in page
