"""JSON texts of requests as values, or the reason why they are none."""

import gc
from typing import Any

import msgspec

_decoder = msgspec.json.Decoder()


class UndecodableError(ValueError):
    """The bytes are no JSON text; says what is wrong with them."""


def decoded(raw: bytes | bytearray) -> Any:
    """The value of a JSON text. Raises UndecodableError.

    The search for garbage is put off: JSON has no circles, and many objects that come to be at
    once would have it look through all of them again and again.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return _decoder.decode(raw)
    except UnicodeDecodeError as error:
        raise UndecodableError(f"the body is not valid UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        what = str(error).removeprefix("JSON is malformed: ")
        if "truncated" in what:  # which it also says of a lone surrogate at the end of a string
            what = "a value or an escape sequence is incomplete"
        raise UndecodableError(f"the body is not valid JSON: {what}") from None
    except RecursionError:
        raise UndecodableError("the body is nested too deeply") from None
    finally:
        if collects:
            gc.enable()
