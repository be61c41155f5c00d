"""The names of the files that slots are saved to."""

import re

from specllama.engine.errors import invalid_request

# Separators, what Windows forbids, control characters, look-alikes of dot and slash, and what
# is no character at all.
_FORBIDDEN = re.compile(
    '[/\\\\:*?"<>|\x00-\x1f\x7f-\x9f\u2215\u2216\uff0e\ufffd\ufeff\ud800-\udfff]'
)
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
MAX_NAME = 255  # bytes, of every common file system


def check_name(name: str) -> None:
    """Checks that `name` is a plain file name, on every system, and leads nowhere else.

    Raises EngineError (invalid_request_error).
    """
    shown = name if len(name) <= 60 else name[:57] + "..."
    if not name:
        raise invalid_request("filename: the name is empty")
    if _FORBIDDEN.search(name):
        raise invalid_request(f"filename: {shown!r} has a character that no file name may have")
    if ".." in name or name == "." or name[0] == " " or name[-1] in " .":
        raise invalid_request(f"filename: {shown!r} is not a plain file name")
    if len(name.encode()) > MAX_NAME:
        raise invalid_request(f"filename: {shown!r} is longer than {MAX_NAME} bytes")
    if _DEVICE.fullmatch(name):
        raise invalid_request(f"filename: {shown!r} is the name of a device on some systems")
