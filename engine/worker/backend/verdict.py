"""Tests llama.cpp's kernels in a child process, and stores the verdict.

The user's cache directory has a file for each combination of library and processor. If a file is
damaged, or can't be written, the test is repeated at the next start.
"""

import enum
import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from specllama.engine.errors import BackendError
from specllama.engine.host import Processor, recall, user_cache, write_whole
from specllama.engine.wire.commands import describe_exit

log = logging.getLogger("specllama.engine.kernels")

WRONG = 3
"""The probe's exit status if a product is wrong; its output names the product."""
PROBE = (sys.executable, "-P", "-m", "specllama.engine.worker.backend.probe")
PROBE_TIMEOUT = 120.0  # s; usually takes one or two
LOCK_TIMEOUT = 2 * PROBE_TIMEOUT  # s

_FAULTS = {"SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGABRT"}
"""Signals that end a process because of a fault of its own."""


class Measure(enum.StrEnum):
    """Measures against wrong kernels, from the fastest to the safest."""

    AS_BUILT = "as-built"
    REFUSED = "refused"
    """The instruction sets in `engine.worker.backend.kernels.TRIED` are switched off."""
    PLAIN = "plain"
    """All kernels for rearranged weights are off."""


class KernelVerdict(msgspec.Struct, frozen=True):
    """The first measure under which products are right, and the first failure; "" if there was
    none."""

    measure: Measure
    reason: str = ""


class InconclusiveError(Exception):
    """The result of the probe allows no conclusion about the kernels."""


def find(
    library: Path,
    processor: Processor,
    environ: Mapping[str, str],
    probe: Sequence[str] = PROBE,
    *,
    afresh: bool = False,
) -> KernelVerdict:
    """The verdict on `library`: the stored one, or (always if `afresh`) from a new test. `probe` is
    the child's command, to which the measure is appended; tests use another one.

    Raises `BackendError` if no measure helps."""
    place = _place(library, processor, environ)
    if place is None:
        return _try(probe)[0]
    known = partial(recall, place, KernelVerdict, log)
    if not afresh and (verdict := known()):
        return verdict
    with _one_at_a_time(place):
        if not afresh and (verdict := known()):  # another process may have stored it meanwhile
            return verdict
        verdict, is_certain = _try(probe)
        if is_certain:
            _remember(place, verdict)
        return verdict


def _try(probe: Sequence[str]) -> tuple[KernelVerdict, bool]:
    """The verdict, and whether it is certain."""
    reason = ""
    for measure in Measure:
        try:
            failure = run_probe(probe, measure)
        except InconclusiveError as error:
            # Inconclusive: neither trust the kernels nor rule the library out.
            careful = Measure.REFUSED if measure is Measure.AS_BUILT else measure
            return KernelVerdict(careful, reason or str(error)), False
        if not failure:
            return KernelVerdict(measure, reason), True
        reason = reason or failure
    raise BackendError(
        f"the installed llama.cpp can't compute on this processor ({reason}); install it again, "
        "so that it is built for this one: "
        "pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python"
    )


def run_probe(probe: Sequence[str], measure: Measure) -> str:
    """The failure under `measure`; "" if all products are right. Raises `InconclusiveError`."""
    try:
        done = subprocess.run(
            [*probe, measure],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # otherwise a failed assertion starts gdb
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InconclusiveError(f"they could not be tested: {error}") from None
    if done.returncode == 0:
        return ""
    if done.returncode == WRONG:
        return done.stdout.decode("utf-8", "replace").strip() or "a product is wrong"
    how = f"the process that tested them {describe_exit(done.returncode)}"
    if how.rpartition(" ")[2] in _FAULTS:
        return how
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    raise InconclusiveError(": ".join([how, *lines[-1:]]))


# ---- files ------------------------------------------------------------------------------


def _place(library: Path, processor: Processor, environ: Mapping[str, str]) -> Path | None:
    """The file of the verdict; None if the user has no cache directory. Hashing ggml's CPU library
    takes one or two milliseconds."""
    with open(library, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(repr((processor.name, sorted(processor.flags))).encode())
    with suppress(RuntimeError):  # no home
        return user_cache(environ) / "kernels" / f"{digest.hexdigest()}.json"
    return None


def _remember(place: Path, verdict: KernelVerdict) -> None:
    try:
        write_whole(place, msgspec.json.encode(verdict))
    except OSError as error:
        log.info("the verdict on llama.cpp's kernels can't be stored: %s", error)


@contextmanager
def _one_at_a_time(place: Path) -> Iterator[None]:
    """Lets processes that start together wait for the first one's verdict. If the lock fails, each
    makes its own."""
    from filelock import FileLock  # rarely needed, and slow to import

    lock = FileLock(place.with_suffix(".lock"))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=LOCK_TIMEOUT)
    except (OSError, NotImplementedError) as error:
        log.info("the verdict on the kernels can't be locked: %s", error)
    try:
        yield
    finally:
        lock.release()
