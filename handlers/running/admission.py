"""What a request may use, by its API key: its terms for the scheduler, and the cached texts that it
shares."""

from specllama.engine.wire.requests import NO_TERMS, Terms
from specllama.handlers.http.api_keys import ApiKey, current_key
from specllama.handlers.running.runtime import runtime


def current_terms() -> Terms:
    """Returns the terms for the scheduler of the current request, by its key."""
    key = current_key()
    if key is None:
        return NO_TERMS
    return Terms(
        weight=key.weight,
        priority=key.priority,
        key_name=key.name,
        cache_bytes=key.cache_mib << 20,
    )


def keeps_to_itself(key: ApiKey | None) -> bool:
    """True if the cached texts of a key serve only its own requests: by its `cache`, otherwise by
    `--cache-per-key`.

    Of two keys that share their texts, each can find out by the time of an answer what the other
    one has sent. A key that keeps to itself can't, and its own texts reveal nothing.
    """
    if key is None or key.cache is None:
        return runtime().options.http.cache_per_key
    return key.cache == "own"
