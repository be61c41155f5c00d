"""Findings as Markdown, HTML, JUnit's XML and JSON."""

import html
import json
import re
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

from contract_tests.kit.findings import Finding, Findings

# Characters that XML can't contain, even escaped.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SHOWN = 600
"""Characters of an answer that reports for people show."""


def summary(findings: Findings) -> str:
    return ", ".join(f"{number} {verdict}" for verdict, number in findings.counts().items())


def as_json(findings: Findings) -> str:
    return json.dumps(findings.document(), indent=2, ensure_ascii=False) + "\n"


# ---- Markdown ------------------------------------------------------------------------------


def as_markdown(findings: Findings) -> str:
    return "\n".join(_markdown(findings)) + "\n"


def _markdown(findings: Findings) -> Iterator[str]:
    offer = findings.offer
    yield f"# {_cell(offer.server)} against its description"
    yield ""
    yield f"{summary(findings)}."
    yield from _remarks(findings)
    yield ""
    yield "| | |"
    yield "|---|---|"
    for feature, value in offer.features.items():
        yield f"| {feature} | {_cell(value)} |"
    yield ""
    yield "| operation | verdict | checks | |"
    yield "|---|---|---|---|"
    for each in findings:
        yield f"| `{each.operation}` | {each.verdict} | {_checks(each)} | {_cell(note(each))} |"
    deviating = [each for each in findings if each.deviations]
    if deviating:
        yield ""
        yield "## Deviations"
    for each in deviating:
        yield ""
        yield f"### {each.operation}"
        for deviation in each.deviations:
            times = f" ({deviation.times} checks)" if deviation.times > 1 else ""
            yield ""
            yield f"**{_line(deviation.check)}**{times}"
            yield from _block("sh", deviation.request)
            yield from _block("text", f"expected: {deviation.expected}")
            yield from _block("text", f"received: {deviation.came[:SHOWN]}")
    if findings.unclear:
        yield ""
        yield "## Unclear"
        yield ""
        for text in findings.unclear:
            yield f"- {_line(text)[:300]}"


def _remarks(findings: Findings) -> Iterator[str]:
    if not findings.is_whole:
        yield ""
        yield "**Not all tests were run.**"
    if findings.ended:
        yield ""
        yield "**The server stopped answering**, with this request:"
        yield from _block("sh", findings.ended)


def _block(language: str, text: str) -> Iterator[str]:
    # Longer than any fence in the text.
    longest = max((len(each) for each in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield ""
    yield f"{fence}{language}"
    yield text
    yield fence


def _checks(finding: Finding) -> str:
    if finding.deviations:
        failed = sum(each.times for each in finding.deviations)
        return f"{failed} of {finding.passed + failed} failed"
    return str(finding.passed or "")


def note(finding: Finding) -> str:
    """Returns one line about a finding: its first deviation, or why it isn't offered."""
    if finding.deviations:
        text = finding.deviations[0].expected or finding.deviations[0].check
        more = len(finding.deviations) - 1
        return _line(text)[:120] + (f" (and {more} more)" if more else "")
    return finding.absent or ""


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|").replace("<", "&lt;")


# ---- HTML ----------------------------------------------------------------------------------

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid #ccc; padding: .3em .6em; text-align: left; vertical-align: top }
pre { background: #f4f4f4; overflow-x: auto; padding: .6em; white-space: pre-wrap }
.conforms { color: #17692b } .deviates { color: #b3180f; font-weight: bold }
.not { color: #666 }
"""


def as_html(findings: Findings) -> str:
    """Returns one page without links to other files."""
    title = f"{findings.offer.server} against its description"
    body = "".join(_html(findings, title))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def _html(findings: Findings, title: str) -> Iterator[str]:
    yield f"<h1>{_(title)}</h1>\n<p>{_(findings.offer.url)}: {_(summary(findings))}.</p>\n"
    if not findings.is_whole:
        yield "<p><b>Not all tests were run.</b></p>\n"
    if findings.ended:
        yield f"<p><b>The server stopped answering</b>:</p><pre>{_(findings.ended)}</pre>\n"
    yield "<table>\n"
    for feature, value in findings.offer.features.items():
        yield f"<tr><th>{_(feature)}</th><td>{_(value)}</td></tr>\n"
    yield "</table>\n<h2>Operations</h2>\n<table>\n"
    yield "<tr><th>operation</th><th>verdict</th><th>checks</th><th></th></tr>\n"
    for each in findings:
        kind = each.verdict.partition(" ")[0]
        yield (
            f"<tr><td><code>{_(each.operation)}</code></td>"
            f'<td class="{kind}">{each.verdict}</td><td>{_checks(each)}</td><td>{_(note(each))}'
        )
        for deviation in each.deviations:
            times = f" ({deviation.times} checks)" if deviation.times > 1 else ""
            yield (
                f"<details><summary>{_(deviation.check)}{times}</summary>"
                f"<pre>{_(deviation.request)}</pre>expected<pre>{_(deviation.expected)}</pre>"
                f"came<pre>{_(deviation.came)}</pre></details>"
            )
        yield "</td></tr>\n"
    yield "</table>\n"
    if findings.unclear:
        yield "<h2>Unclear</h2>\n<ul>\n"
        yield from (f"<li>{_(text)}</li>\n" for text in findings.unclear)
        yield "</ul>\n"


_ = html.escape


# ---- JUnit ---------------------------------------------------------------------------------


def as_junit(findings: Findings) -> str:
    """Returns a test suite with one case per operation, and one more per further deviation."""
    suite = ElementTree.Element("testsuite", name="specllama-contract")
    failures = skipped = 0
    for each in findings:
        name = {"name": each.operation, "classname": f"contract.{each.tag or 'connection'}"}
        if each.verdict in ("conforms", "deviates"):
            for deviation in each.deviations:
                case = ElementTree.SubElement(suite, "testcase", name)
                failure = ElementTree.SubElement(
                    case, "failure", message=_xml(_line(deviation.check))
                )
                said = (deviation.request, f"expected: {deviation.expected}", deviation.came)
                failure.text = _xml("\n\n".join(said))
                failures += 1
            if not each.deviations:
                ElementTree.SubElement(suite, "testcase", name)
        else:
            case = ElementTree.SubElement(suite, "testcase", name)
            message = _xml(": ".join(filter(None, (each.verdict, each.absent))))
            ElementTree.SubElement(case, "skipped", message=message)
            skipped += 1
    if not findings.is_whole:
        case = ElementTree.SubElement(suite, "testcase", name="all tests are run")
        ElementTree.SubElement(case, "failure", message="not all tests were run")
        failures += 1
    if findings.ended:
        case = ElementTree.SubElement(suite, "testcase", name="the server keeps answering")
        ElementTree.SubElement(case, "failure").text = _xml(findings.ended)
        failures += 1
    numbers = {"tests": len(suite), "failures": failures, "skipped": skipped, "errors": 0}
    suite.attrib.update({name: str(number) for name, number in numbers.items()})
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, "unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _xml(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)


REPORTS: dict[str, Callable[[Findings], str]] = {
    "md": as_markdown,
    "html": as_html,
    "junit": as_junit,
    "json": as_json,
}
