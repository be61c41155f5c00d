"""Runs one configuration: a server on the device, one on the CPU, and the check of both."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from contract_tests.gpu import checks, memory, named, results
from contract_tests.gpu.cases import DEFAULT, Case
from contract_tests.kit.server import SECONDS, wait_until
from contract_tests.own.servers import ROOT, Specllama, model_file, start

_ON_CPU = ("-ngl", "-ot", "-sm", "-ts", "-dev", "-ngld", "-devd", "--rpc")
"""Options of devices that have a value."""
_ON_CPU_TOO = ("-nkvo", "--no-op-offload", "--no-host", "--backend-sampling", "--no-mmproj-offload")
LONGEST = 300  # characters of a failure


def tried(case: Case, directory: Path, device_name: str = named.SOFTWARE) -> str:
    """Returns `results.PASSED`, or the end of the failure. `device_name` is a value for
    `-dev`."""
    # Without a device, `--reproducible` would be on by default, with other caches and slot files.
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
                    router=case.is_router,
                    variables=case.variables,
                    wait=wait,
                )
                stack.callback(server.close)
                return server

            if case.n_left:
                stack.enter_context(memory.filled(device_name, case.n_left))
            if case.refusal:
                return refused(serving(case.options, wait=False), case.refusal)
            device = serving(case.options)
            if case.check in memory.CHECKS:
                memory.CHECKS[case.check](device, device_name)
                return results.PASSED
            if device_name != memory.CPU:
                checks.located(case, device.get("/props").json()["devices"])
            cpu = serving((*without_devices(case.options), "-dev", "none"))
            checks.CHECKS[case.check](device, cpu)
    except Exception as error:  # whatever it is, the other configurations are tried
        return f"{type(error).__name__}: {' '.join(str(error).split())[-LONGEST:]}"
    return results.PASSED


def refused(server: Specllama, reason: str) -> str:
    """Returns `results.PASSED` if the server ends with this reason."""
    wait_until(lambda: server.process.poll() is not None, "the server ends")
    said = server.log.read_text("utf-8", "replace").splitlines()[-1:]
    assert server.process.returncode == 1, f"ended with code {server.process.returncode}: {said}"
    assert re.search(reason, "".join(said)), f"another reason: {said}"
    return results.PASSED


def without_devices(options: tuple[str, ...]) -> list[str]:
    """Returns the options for a server on the CPU."""
    left, found = list(options), []
    while left:
        option = left.pop(0)
        if option in _ON_CPU:
            left.pop(0)
        elif option not in _ON_CPU_TOO:
            found.append(option)
    return found


def run_kit(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the result of each of these files of the contract kit, against a server on the
    device."""
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
    """Returns the lines that a command writes, and prints them as they arrive."""
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
