"""A process that validates bodies, one after the other, until its stdin ends.

    python -m specllama.engine.helpers.check.check_main BYTES SECONDS       (started by
    engine.helpers.check.checker)

BYTES is the limit of the address space, if the platform supports one. The server ends a process
whose job takes more than SECONDS. If the server no longer exists, an alarm ends it.
"""

import sys

import msgspec
from jsonschema_rs import Draft202012Validator

import specllama.engine.wire.startup as startup  # the very first of ours
from specllama.engine import system
from specllama.engine.formats.schema_check import UndecodableError, decoded
from specllama.engine.formats.schema_errors import sentence
from specllama.engine.helpers.check.check_jobs import BodyVerdict, CheckJob, job_decoder
from specllama.engine.wire.framing import Started, frame
from specllama.engine.wire.link import Link, do_jobs, take_over


class CheckJobs:
    """Validates bodies, and keeps the compiled validators."""

    def __init__(self) -> None:
        self._validators: dict[int, Draft202012Validator] = {}

    def reply(self, job: CheckJob) -> bytes:
        """Returns the verdict on `job` as a frame."""
        try:
            return frame(self.verdict(job))
        except MemoryError:
            return frame(BodyVerdict(exhausted=True))

    def verdict(self, job: CheckJob) -> BodyVerdict:
        if job.source:
            self._validators[job.schema] = Draft202012Validator(msgspec.json.decode(job.source))
        try:
            body = decoded(job.body)
        except UndecodableError as error:
            return BodyVerdict(str(error))
        validator = self._validators[job.schema]
        if validator.is_valid(body):
            return BodyVerdict()
        fault = sentence(validator, body)
        return BodyVerdict(str(fault), fault.discreet)


def main() -> None:
    link: Link[CheckJob, Started] = take_over(job_decoder)
    startup.resume_gc()
    do_jobs(link, CheckJobs().reply, memory=int(sys.argv[1]), seconds=float(sys.argv[2]))


if __name__ == "__main__":
    main()
    system.leave()
