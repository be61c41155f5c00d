"""One configuration: a server on the device, one on the CPU, and what is held of both."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx

from contract_tests.gpu import checks, named, results
from contract_tests.gpu.cases import DEFAULT, Case
from contract_tests.kit.server import SECONDS, wait_until
from contract_tests.own.servers import ROOT, Specllama, model_file, start

_ON_CPU = ("-ngl", "-ot", "-sm", "-ts", "-dev", "-ngld", "-devd", "--rpc")
"""Options with a value that are of devices."""
_ON_CPU_TOO = ("-nkvo", "--no-op-offload", "--no-host", "--backend-sampling", "--no-mmproj-offload")
LONGEST = 300  # characters of a failure


def tried(case: Case, directory: Path, device_name: str = named.SOFTWARE) -> str:
    """`results.PASSED`, or how the failure begins. `device_name` is the one that `-dev` takes."""
    # Of itself it is on where nothing is on a device: other caches, and other slot files.
    alike = ("--reproducible", "off")
    shared = ("--slot-save-path", str(directory), "--slots", "--metrics", *alike)
    model = ("-m", model_file(case.model)) if case.model else ()
    try:
        with ExitStack() as stack:

            def serving(options: tuple[str, ...], *, wait: bool = True) -> Specllama:
                server = start(
                    directory,
                    *(*named.there(options, directory, stack, device_name), *shared, *model),
                    named=bool(model),
                    variables=case.variables,
                    wait=wait,
                )
                stack.callback(server.close)
                return server

            if case.refusal:
                return refused(serving(case.options, wait=False), case.refusal)
            device = serving(case.options)
            checks.told(case, device.get("/props").json()["devices"])
            cpu = serving((*without_devices(case.options), "-dev", "none"))
            checks.CHECKS[case.check](device, cpu)
    except (AssertionError, OSError, httpx.HTTPError) as error:
        return " ".join(str(error).split())[-LONGEST:] or type(error).__name__
    return results.PASSED


def refused(server: Specllama, reason: str) -> str:
    """`results.PASSED` if the server ends, and says why."""
    wait_until(lambda: server.process.poll() is not None, "the server ends")
    said = server.log.read_text("utf-8", "replace").splitlines()[-1:]
    assert server.process.returncode == 1, f"ended with code {server.process.returncode}: {said}"
    assert reason in "".join(said), f"said something else: {said}"
    return results.PASSED


def without_devices(options: tuple[str, ...]) -> list[str]:
    """The options of a server on the CPU."""
    left, found = list(options), []
    while left:
        option = left.pop(0)
        if option in _ON_CPU:
            left.pop(0)
        elif option not in _ON_CPU_TOO:
            found.append(option)
    return found


def run_kit(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What comes of each of these files of the contract kit, against a server on the device."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        server: Specllama | None = None
        options = (*DEFAULT.options, "--slots", "--props", "--metrics")
        for file in files:
            if server is None or server.process.poll() is not None:
                server = start(Path(directory), *options, variables=DEFAULT.variables)
                stack.callback(server.close)
            command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider"]
            command += [f"--timeout={SECONDS}", str(results.KIT / file), "--base-url", server.url]
            yield file, results.of_pytest(_shown(command))


def _shown(command: list[str]) -> list[str]:
    """The lines that a command writes, which are shown as they come."""
    lines = []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return lines
