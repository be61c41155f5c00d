"""Stores that several server processes may share: how an option names one, and their errors.

An option has the path of an SQLite file or the URL of a Redis server. The library for Redis is an
extra of the package, so a module that imports it is imported only for such a URL.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.options import OptionError

T = TypeVar("T")

RETRY_SECONDS: Final = 5
"""After this time, a request that a store has failed may be sent again."""
_REDIS = ("redis://", "rediss://", "unix://")


class StoreError(Exception):
    """A store can't be used, or has data that can't be read. The message is one line for the
    administrator."""


class UnavailableStoreError(StoreError):
    """A store can't be used now, for example because its server can't be reached."""


def is_redis(where: str) -> bool:
    """True if `where` is the URL of a Redis server, and not the path of a file."""
    return where.startswith(_REDIS)


def opened(option: str, open_store: Callable[[], T]) -> T:
    """Returns the store that `open_store` opens for a command-line `option`. Raises OptionError."""
    try:
        return open_store()
    except StoreError as error:
        raise OptionError(f"{option} {error}") from error
    except ValueError:  # its message may have a part of the password
        raise OptionError(f"{option}: this is no valid URL of a Redis server") from None
    except ImportError:
        raise OptionError(
            f"{option} needs the library for Redis: pip install 'specllama[redis]'"
        ) from None


def unavailable_store(message: str) -> EngineError:
    """Returns the error of a request that needs a store, while that can't be used."""
    return EngineError(ErrorInfo("unavailable_error", message, retry_after=RETRY_SECONDS))
