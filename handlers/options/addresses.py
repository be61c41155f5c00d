"""The texts of options that say where the server is found.

As in `engine.options.values`, every function raises `OptionError` with a sentence that quotes the
text and says what is expected.
"""

import re

from engine.options.values import OptionError, comma_separated, quote

_API_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def hosts(text: str) -> str:
    """Addresses and socket paths, separated by commas."""
    comma_separated(text)
    return text


def api_prefix(text: str) -> str:
    """A path such as /api, without the trailing slash."""
    path = text.removesuffix("/")
    if not _API_PREFIX.fullmatch(path):
        raise OptionError(
            f"{quote(text)} is not a path such as /llm/v2 (a leading slash, then letters, "
            "digits, and . _ ~ -)"
        )
    return path
