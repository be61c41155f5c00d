"""The texts that the shipped tokenizer was trained on: Python's own manual and library.

They differ a little between Python versions, so the trained merges are committed (`merges.txt`),
and this module runs only to make new ones.
"""

import importlib
import inspect
from collections.abc import Iterator

# Long, well-commented modules from many corners of the library: protocols, text, numbers, dates.
MODULES = (
    "argparse", "ast", "asyncio.base_events", "asyncio.streams", "asyncio.tasks", "bdb",
    "calendar", "cmd", "collections", "concurrent.futures._base", "configparser", "contextlib",
    "csv", "dataclasses", "decimal", "difflib", "doctest", "email.header", "email.message",
    "enum", "fractions", "functools", "heapq", "html.parser", "http.client", "http.cookies",
    "http.server", "importlib.metadata", "inspect", "ipaddress", "json.decoder", "json.encoder",
    "logging", "logging.handlers", "mailbox", "mimetypes", "multiprocessing.pool", "optparse",
    "os", "pathlib", "pdb", "pickle", "platform", "pydoc", "queue", "random", "selectors",
    "shutil", "smtplib", "socket", "socketserver", "sqlite3", "ssl", "statistics", "string",
    "subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit", "tokenize",
    "traceback", "typing", "unittest.case", "unittest.mock", "urllib.parse", "urllib.request",
    "uuid", "weakref", "xml.dom.minidom", "zipfile",
)  # fmt: skip
PROSE_WEIGHT = 4
"""The weight of the manual relative to the code, because chats are mostly prose."""


def texts() -> Iterator[str]:
    """Yields the texts one by one, always in the same order."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        for _ in range(PROSE_WEIGHT):
            yield topics[name]
    for module in MODULES:
        yield inspect.getsource(importlib.import_module(module))
