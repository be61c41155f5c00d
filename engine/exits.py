"""How processes end, in words."""

import signal


def describe_exit(code: int) -> str:
    """What a process did that ended with the exit status `code`; negative: a signal's number."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
