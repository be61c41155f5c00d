"""What a request may use, by its API key."""

from specllama.engine.wire.requests import NO_TERMS, Terms
from specllama.handlers.http.api_keys import current_key


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
