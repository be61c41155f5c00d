"""Measures the memory that models will take, in processes of their own, and remembers the results.

A dry run needs llama.cpp, which may end its process; so the program of the engine process does it
(`engine.wire.requests.MeasureMemory`). The user's cache directory has a file for each combination
of the model's files, the options and the machine. If such a file is damaged, or can't be written,
the model is measured again.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from specllama.engine.errors import server_error
from specllama.engine.host import recall, remember, user_cache
from specllama.engine.models.engine_process import HEARTBEAT_TIMEOUT
from specllama.engine.models.memory import limits, unknown_devices
from specllama.engine.options import EngineOptions
from specllama.engine.options.text_values import MemorySize
from specllama.engine.shipped import model_file
from specllama.engine.wire.commands import engine_command
from specllama.engine.wire.devices import Bytes, DeviceMemory
from specllama.engine.wire.engine_log import EngineLog
from specllama.engine.wire.framing import frame
from specllama.engine.wire.process import GRACE, Child
from specllama.engine.wire.replies import LoadFailed, Measured, ToServer, to_server_decoder
from specllama.engine.wire.requests import MeasureMemory

log = logging.getLogger("specllama.engine.models.measuring")

REMEMBERED: Final = 500
"""Maximum number of files in the cache; older ones are removed."""


class MemoryMeter:
    """Determines what models take, and the limits of all models together.

    `sizes` and `margin` (in bytes) are those of `engine.models.memory.limits`.
    """

    def __init__(
        self, sizes: tuple[MemorySize, ...], margin: Bytes, *, log_level: int = logging.WARNING
    ) -> None:
        self._sizes = sizes
        self._margin = margin
        self._log_level = log_level
        self._memory: list[DeviceMemory] | None = None  # before any model was loaded
        self._limits: dict[str, Bytes] = {}
        self._known: dict[str, Measured] = {}  # by digest
        self._turn = asyncio.Lock()  # one process at a time

    async def limits(self) -> Mapping[str, Bytes]:
        """Returns the bytes that all models may take on each device. The first call, which has to
        precede the loading of any model, asks a process for the devices. Raises EngineError
        (server_error) if that fails."""
        async with self._turn:
            await self._look()
        return self._limits

    async def measure(self, options: EngineOptions) -> Measured:
        """Returns what the model of `options`, whose files exist, will take. Raises EngineError
        (server_error) if it can't be measured; usually it can't be loaded either."""
        async with self._turn:
            await self._look()
            digest = await asyncio.to_thread(self._digest, options)
            if (found := self._known.get(digest)) is None:
                place = _place(digest)
                found = None if place is None else await asyncio.to_thread(_recalled, place)
                if found is None:
                    found = await self._ask(options)
                    if place is not None:
                        await asyncio.to_thread(remember, place, found, REMEMBERED, log)
                self._known[digest] = found
        return found

    async def _look(self) -> None:
        """Asks for the devices, once."""
        if self._memory is not None:
            return
        self._memory = (await self._ask(None)).memory
        self._limits = limits(self._sizes, self._margin, self._memory)
        for device in unknown_devices(self._sizes, self._memory):
            known = ", ".join(each.name for each in self._memory)
            log.warning(
                "--models-memory: the memory of %s isn't known; the devices are: %s", device, known
            )

    async def _ask(self, options: EngineOptions | None) -> Measured:
        engine_log = EngineLog("", everything=self._log_level <= logging.DEBUG)
        first = frame(MeasureMemory(options, self._limits, self._log_level))
        try:
            child: Child[ToServer] = await Child.start(
                engine_command(), to_server_decoder, first=first, log=engine_log
            )
        except OSError as error:
            raise server_error(f"no process can be started to measure models: {error}") from None
        found: list[ToServer] = []
        child.listen(found.append)
        try:
            await child.output_end(HEARTBEAT_TIMEOUT)
        except TimeoutError:
            pass  # it gives no sign of life: `reap` kills it
        finally:
            child.listen(None)
            code = await child.reap(GRACE)
        for message in found:
            match message:
                case Measured():
                    return message
                case LoadFailed(message=reason):
                    raise server_error(reason)
        raise server_error(f"the process that measures models ended with code {code}")

    def _digest(self, options: EngineOptions) -> str:
        """Returns a digest of all that decides how much memory a model takes."""
        deciding = (
            [_identity(path) for path in _files(options)],
            msgspec.structs.replace(options, sampling=type(options.sampling)()),
            version("llama-cpp-python"),
            [(each.name, each.total) for each in self._memory or ()],
            sorted(self._limits.items()),
        )
        return blake2b(repr(deciding).encode(), digest_size=16).hexdigest()


def _files(options: EngineOptions) -> list[str]:
    """Returns the files whose contents take memory."""
    model = options.model
    adapters = [path for path, _ in (*model.lora, *model.control_vector_scaled)]
    others = [options.media.mmproj, options.draft.model_draft, *adapters, *model.control_vector]
    return [model_file(model.model), *(path for path in others if path)]


def _identity(path: str) -> tuple[str, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return path, 0, 0
    return os.path.realpath(path), status.st_size, status.st_mtime_ns


def _place(digest: str) -> Path | None:
    """Returns the cache file; None if the user has no cache directory."""
    try:
        return user_cache(os.environ) / "memory" / f"{digest}.json"
    except RuntimeError:
        return None


def _recalled(place: Path) -> Measured | None:
    return recall(place, Measured, log)
