"""JSON texts of requests as values, or the reason why they are none."""

import gc
import re
from typing import Any

import msgspec

_decoder = msgspec.json.Decoder()

_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, which some editors put in front."""
_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rb"\\u(?<!\\\\u)(?:%b(?!\\u%b)|(?<!\\u%b\\u)%b)" % (_HIGH, _LOW, _HIGH, _LOW))
"""Half of a surrogate pair, as programs write it that cut a text inside of an emoji. A pattern that
begins with bytes and not with a condition is ten times as fast, so one right behind a backslash,
which may be text, isn't found."""


class UndecodableError(ValueError):
    """The bytes are no JSON text; says what is wrong with them."""


def decoded(raw: bytes | bytearray) -> Any:
    """The value of a JSON text. Raises UndecodableError.

    A byte order mark in front is passed over, and a lone surrogate becomes U+FFFD.

    The search for garbage is put off: JSON has no circles, and many objects that come to be at
    once would have it look through all of them again and again.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return _decoded(raw[len(_MARK) :] if raw.startswith(_MARK) else raw)
    except UnicodeDecodeError as error:
        raise UndecodableError(f"the body is not valid UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        what = str(error).removeprefix("JSON is malformed: ")
        if "truncated" in what:
            what = "a value or an escape sequence is incomplete"
        raise UndecodableError(f"the body is not valid JSON: {what}") from None
    except RecursionError:
        raise UndecodableError("the body is nested too deeply") from None
    finally:
        if collects:
            gc.enable()


def _decoded(raw: bytes | bytearray) -> Any:
    try:
        return _decoder.decode(raw)
    except msgspec.DecodeError:
        whole = _LONE.sub(rb"\\ufffd", raw)
        if whole == raw:
            raise
        return _decoder.decode(whole)
