"""Validates answers against the types of the official libraries, with pydantic.

Reads from stdin a JSON list of [type, answer], with the type as a path of modules and a name.
Prints the errors as a JSON list of texts.
"""

import importlib
import json
import sys
from typing import Any

import pydantic


def errors(path: str, answer: Any) -> list[str]:
    module, _, name = path.rpartition(".")
    adapter = pydantic.TypeAdapter(getattr(importlib.import_module(module), name))
    try:
        adapter.validate_python(answer)
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        return [f"{path} {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found]
    return []


if __name__ == "__main__":
    print(
        json.dumps([said for path, answer in json.load(sys.stdin) for said in errors(path, answer)])
    )
