"""Validates large bodies in separate processes (`engine.helpers.check.check_main`).

Validating many values and describing their faults holds the GIL. In the server process, it would
block all requests.
"""

import logging
from functools import partial
from typing import Final, cast

import msgspec

from specllama.engine.errors import invalid_request, server_error
from specllama.engine.formats.schema_check import Schema, to_2020_12
from specllama.engine.helpers.check.check_jobs import BodyVerdict, CheckJob, verdict_decoder
from specllama.engine.helpers.pool import Helper, HelperPool
from specllama.engine.wire.commands import check_command
from specllama.engine.wire.framing import frame
from specllama.engine.wire.process import ChildError

log = logging.getLogger("specllama.engine.helpers.check")

TIME_LIMIT: Final = 30.0  # s for one body
MEMORY: Final = 512 << 20  # bytes of address space, in addition to the memory for bodies
PER_BYTE: Final = 10  # bytes per byte of the largest body: in the frame, in the job, decoded
IDLE: Final = 10.0  # s after which a process without a job is ended


class Checker:
    """Validates bodies by their schemas, without blocking the event loop."""

    def __init__(
        self, max_body: int = 64 << 20, *, time_limit: float = TIME_LIMIT, idle: float = IDLE
    ) -> None:
        """`max_body` is the size of the largest body, in bytes."""
        self._time_limit = time_limit
        self._pool = HelperPool[BodyVerdict](
            "a process that checks bodies",
            check_command(MEMORY + PER_BYTE * max_body, time_limit),
            verdict_decoder,
            idle=idle,
        )
        self._schemas: dict[int, tuple[Schema, bytes]] = {}  # by identity, with their JSON

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return self._pool.pids

    async def check(self, schema: Schema, body: bytes | bytearray) -> BodyVerdict:
        """Returns the verdict on `body`, a JSON text.

        Raises EngineError: invalid_request_error if it takes too long, server_error if no process
        can be started, unavailable_error after `stop`.
        """
        try:
            return await self._pool.run(partial(self._ask, schema=schema, body=body))
        except ChildError as error:
            raise server_error("checking the body crashed its process") from error

    async def stop(self) -> None:
        """Ends all processes; open jobs fail."""
        await self._pool.stop()

    async def _ask(
        self, helper: Helper[BodyVerdict], schema: Schema, body: bytes | bytearray
    ) -> BodyVerdict:
        """Raises ChildError if the process ends."""
        number = id(schema)
        source = b"" if number in helper.known else self._source(schema)
        job = CheckJob(number, cast(bytes, body), source)  # both types are written alike
        try:
            verdict = await helper.ask(frame(job), self._time_limit)
        except TimeoutError:
            raise invalid_request(
                f"checking the body takes more than {self._time_limit:g} s"
            ) from None
        except ChildError as error:
            log.error("a process that checks bodies ended with code %d", error.code)
            raise
        helper.known[number] = number
        helper.is_fit = not verdict.exhausted
        return verdict

    def _source(self, schema: Schema) -> bytes:
        if (known := self._schemas.get(id(schema))) is None:
            # Keeping a reference to the schema prevents the reuse of its id.
            known = self._schemas[id(schema)] = (schema, msgspec.json.encode(to_2020_12(schema)))
        return known[1]
