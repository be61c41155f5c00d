"""Compares the description with that of the last release.

`python -m tools.compat` exits with 1 if CHANGELOG.md doesn't announce a breaking change, or
announces a change that doesn't exist. `--list` prints all breaking changes. `--record` stores the
description of the version that is about to be released.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from specllama.handlers.description import description_path
from specllama.handlers.http.description import Node, bundle, public
from tools.compat.announcements import announced, verdict
from tools.compat.comparison import breaks

RELEASED = Path(__file__).with_name("released")
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.compat",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="print all breaking changes")
    parser.add_argument("--record", action="store_true", help="store the present description")
    parser.add_argument("--released", type=Path, help="compare with this description")
    options = parser.parse_args(argv)
    today = public(bundle(description_path()))
    if options.record:
        print(f"stored as {_record(today)}")
        return 0
    path = options.released or last_release()
    before: Node = json.loads(path.read_bytes())
    found = breaks(before, today)
    if options.list:
        print(*found, sep="\n")
    unannounced, unused = verdict(found, announced(CHANGELOG.read_text("utf-8")))
    for each in unannounced:
        print(f"not announced: {each}")
    for pattern in unused:
        print(f"no change matches the announcement: {pattern}")
    version = before["info"]["version"]
    print(f"{len(found)} breaking changes since {version}, {len(unannounced)} not announced")
    if unannounced:
        print("CHANGELOG.md announces them under '### Breaking', see tools/compat/announcements.py")
    return 1 if unannounced or unused else 0


def last_release() -> Path:
    """Returns the path of the newest version's description."""
    return max(RELEASED.glob("*.json"), key=lambda path: [int(n) for n in path.stem.split(".")])


def _record(document: Node) -> Path:
    path = RELEASED / f"{document['info']['version']}.json"
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", "utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
