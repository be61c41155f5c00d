"""Searches all tracked text files for the banned phrases of `contract_tests/kit/plain_words.py`."""

import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from contract_tests.kit import plain_words

pytestmark = pytest.mark.slow  # they start git

ROOT = Path(__file__).parents[1]
TYPES = {"py", "pyi", "md", "yaml", "yml", "toml", "ini", "js", "mjs", "ts", "html", "css", "sh"}
TYPES |= {"txt"}

EXEMPT = {
    "contract_tests/kit/plain_words.py": "the list itself",
    "tests/test_plain_words.py": "the tests of the search",
    "tools/models/lessons/*": "training lessons and their prompts",
}
"""Patterns of paths that aren't searched, each with the reason."""

PROMPTS = {'("None of them.", "No", False),': "tests/tools/models/test_judging.py"}
"""Lines that contain a banned phrase in a prompt or in a model's output, with their file."""


def tracked() -> Iterator[str]:
    """Yields the paths of the text files to search."""
    command = ("git", "ls-files", "-z")
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this folder is no clone of the repository")
    for path in sorted(listed.stdout.split("\0")):
        if path.rpartition(".")[2] in TYPES and (ROOT / path).is_file():
            yield path


def problems(path: str, text: str) -> Iterator[str]:
    lines = text.splitlines()
    for hit in plain_words.search(text):
        if PROMPTS.get(lines[hit.line - 1].strip()) != path:
            yield f"{path}:{hit.line}: {hit}"


def test_texts_have_no_banned_phrase() -> None:
    found = [
        problem
        for path in tracked()
        if not any(fnmatch(path, pattern) for pattern in EXEMPT)
        for problem in problems(path, (ROOT / path).read_text("utf-8"))
    ]
    assert not found, "\n".join(["", *found])


def test_exemptions_are_needed() -> None:
    exempt = {
        pattern
        for pattern in EXEMPT
        for path in tracked()
        if fnmatch(path, pattern) and list(plain_words.search((ROOT / path).read_text("utf-8")))
    }
    assert exempt == EXEMPT.keys()
    for line, path in PROMPTS.items():
        assert line in map(str.strip, (ROOT / path).read_text("utf-8").splitlines())
        assert list(plain_words.search(line))


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("It has none of them.", "none of"),
        ("It has none\n    # of them.", "none # of"),
        ('"It has none "\n    "of them."', 'none " "of'),
        ("> None\n> of them.", "None > of"),
        ("Those who ask", "Those who"),
        ("That is personification.", "personification"),
        ("what came", "what came"),
    ],
)
def test_phrases_are_found(text: str, phrase: str) -> None:
    [hit] = plain_words.search(text)
    assert (hit.line, hit.phrase) == (1, phrase)


@pytest.mark.parametrize(
    "text", ["unheard-of", "is_told", "None\nofficial = 1", "a nonentity of note", "At most."]
)
def test_other_words_are_not_found(text: str) -> None:
    assert not list(plain_words.search(text))
