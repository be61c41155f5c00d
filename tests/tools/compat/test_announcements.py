"""The announcements of CHANGELOG.md, and the last release."""

import json

import pytest

from specllama import __version__
from tools.compat.__main__ import CHANGELOG, RELEASED, last_release
from tools.compat.announcements import announced, verdict
from tools.compat.comparison import Break

CHANGES = """# Changelog

## [Unreleased]

### Breaking

- The field `a` is gone, everywhere.
  <!-- breaks: * request.a: is gone -->
- `GET /slots` has no names.
  <!-- breaks: GET /slots 200[].name: is gone -->

### Added

- <!-- breaks: nothing here -->

## [0.1.0]

### Breaking

- <!-- breaks: long ago -->
"""
GONE = Break("POST /do", "request.a", "is gone")


def test_announcements_are_those_of_the_unreleased_part() -> None:
    assert announced(CHANGES) == ["* request.a: is gone", "GET /slots 200[].name: is gone"]
    assert announced("# Changelog\n\n## [Unreleased]\n\n### Added\n") == []


def test_an_announcement_needs_a_sentence() -> None:
    with pytest.raises(ValueError, match="no sentence"):
        announced(CHANGES.replace("- The field `a` is gone, everywhere.\n  ", "- "))
    with pytest.raises(ValueError, match="no sentence"):
        announced(CHANGES.replace("- The field `a` is gone, everywhere.\n  ", ""))


def test_an_unannounced_change_is_reported() -> None:
    other = Break("POST /do", "", "is gone")
    assert verdict([GONE, other], announced(CHANGES)).unannounced == [other]


def test_an_announcement_without_a_change_is_reported() -> None:
    assert verdict([GONE], announced(CHANGES)).unused == ["GET /slots 200[].name: is gone"]


def test_a_pattern_matches_whole_lines() -> None:
    assert verdict([GONE], ["* request.a"]).unannounced == [GONE]
    assert verdict([Break("GET /slots", "200[]xname", "is gone")], ["GET /slots 200[].*"]).unused


def test_the_last_release_is_kept() -> None:
    released = [line for line in CHANGELOG.read_text("utf-8").splitlines() if line[:4] == "## ["]
    newest = released[1].partition("[")[2].partition("]")[0]
    assert last_release() == RELEASED / f"{newest}.json"
    assert json.loads(last_release().read_bytes())["info"]["version"] == newest
    parts = [[int(n) for n in version.split(".")] for version in (newest, __version__)]
    assert parts[0] <= parts[1]
