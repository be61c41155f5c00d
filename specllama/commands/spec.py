"""`specllama spec`: writes the description that the server serves, whole or in part, in several
versions of OpenAPI."""

import argparse
import sys
from collections.abc import Sequence

from specllama.handlers.description import (
    as_json,
    as_yaml,
    description_path,
    served_description,
)
from specllama.handlers.http.openapi_versions import VERSIONS, in_version
from specllama.handlers.http.selection import UnknownTagError, of_tags


def main(argv: Sequence[str]) -> int:
    """Prints the description; 0, or 1 after one line about a tag that isn't there."""
    parser = argparse.ArgumentParser(
        prog="specllama spec",
        description="Writes the OpenAPI description of the server, as one document.",
    )
    parser.add_argument(
        "--openapi",
        choices=VERSIONS,
        default="3.0",
        help="version of OpenAPI (default: 3.0, as GET /openapi.json has it)",
    )
    parser.add_argument("--format", choices=("yaml", "json"), default="yaml", help="default: yaml")
    parser.add_argument(
        "--tag",
        action="append",
        metavar="TAG",
        help="only the operations of this tag, and what they refer to; may be given several times",
    )
    parser.add_argument(
        "--path",
        action="store_true",
        help="print the path of server.yaml instead, which `connexion run` takes",
    )
    given = parser.parse_args(argv)
    if given.path:
        print(description_path())
        return 0
    document = served_description()
    if given.tag:
        try:
            document = of_tags(document, given.tag)
        except UnknownTagError as error:
            print(f"specllama spec: error: {error}", file=sys.stderr)
            return 1
    write = as_json if given.format == "json" else as_yaml
    sys.stdout.write(write(in_version(document, given.openapi)).decode().rstrip("\n") + "\n")
    return 0
