"""Runs this server on a device, which may be Mesa's software device, and compares it with one on
the CPU.

    python -m contract_tests.gpu [--all] [-k REGEX] [--again] [--table]

First creates an environment whose llama.cpp computes with Vulkan. Without --all, tries one
configuration, and runs most tests of backends and a part of the contract kit. With --all, tries all
configurations that have not passed yet, and runs the other tests and all files of the kit. The exit
code is 1 if something fails.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import psutil

from contract_tests.clients.environments import MissingError
from contract_tests.gpu import environment, results
from contract_tests.gpu.cases import CASES, DEFAULT, ONE, Case
from contract_tests.gpu.memory import CPU
from contract_tests.gpu.named import SOFTWARE
from contract_tests.own.servers import ROOT

WAIT = "1800"
"""Time limit of a test in seconds. A software device compiles each kernel for a while."""
UNIT = (
    *("test_model_options", "test_offload", "test_holdings", "test_room", "test_loaded"),
    *("test_warming", "test_sampler", "test_dry_run"),
)
PART = ("generation/test_semantics.py", "operations/test_answers.py")
INSIDE = "--inside"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m contract_tests.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="store_true", help="all configurations, and the whole kit")
    parser.add_argument("-k", dest="choice", help="only configurations whose names match")
    parser.add_argument("--again", action="store_true", help="also configurations with a result")
    parser.add_argument("--table", action="store_true", help="print the results, run nothing")
    parser.add_argument("--device", default=SOFTWARE, help="the device (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="configurations at the same time (%(default)s)"
    )
    parser.add_argument("--results", type=Path, default=results.RESULTS, help="the results' file")
    parser.add_argument("--python", type=Path, help="an interpreter whose llama.cpp has Vulkan")
    parser.add_argument(
        "--vulkan-include",
        type=Path,
        default=environment.INCLUDE,
        help="the folder of Vulkan's headers (%(default)s)",
    )
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.table:
        stored = results.stored(given.results)
        # At once, so that `| head` doesn't break a second write.
        print(f"{results.table(stored)}\n{results.kit_table(stored)}", end="")
        return 0
    if given.inside:
        signal.signal(signal.SIGTERM, _end)
        return int(not _try(given))
    try:
        python = given.python or environment.make(ROOT / ".nox" / "gpu", ROOT, given.vulkan_include)
    except MissingError as error:
        print(f"gpu: not run, {error}", file=sys.stderr)
        return 1
    return _inside(python)


def _inside(python: Path) -> int:
    """Runs the same command in the environment."""
    variables = {
        "GGML_NO_BACKTRACE": "1",
        "SPECLLAMA_CONTRACT_TIMEOUT": WAIT,
        # The cache of shaders is kept. In a new cache per test, all kernels would be compiled
        # again.
        "MESA_SHADER_CACHE_DIR": str(Path.home() / ".cache"),
        **ONE,
        **os.environ,
    }
    command = [str(python), "-m", "contract_tests.gpu", INSIDE, *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


def _end(*_: object) -> None:
    """Ends all servers with this process, so that they don't keep the device's memory when a time
    limit ends it."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(128 + signal.SIGTERM)


def _try(given: argparse.Namespace) -> bool:
    from contract_tests.gpu.trying import run_kit, tried

    found = results.stored(given.results)
    chosen = [case for case in CASES if is_chosen(case, given)]
    passed = [case.name for case in chosen if found.get(case.name) == results.PASSED]
    left = [case for case in chosen if not given.all or given.again or case.name not in passed]

    def one(case: Case) -> str:
        with tempfile.TemporaryDirectory() as directory:
            return tried(case, Path(directory), given.device)

    alone = [case for case in left if case.is_alone]
    with ThreadPoolExecutor(given.jobs) as pool:
        jobs = {case.name: pool.submit(one, case) for case in left if case not in alone}
        for case in left:
            if case in alone:
                wait(jobs.values())
            said = one(case) if case in alone else jobs[case.name].result()
            found[case.name] = said
            results.store(found, given.results)
            print(f"{case.name}: {said}", flush=True)
    fine = all(found[case.name] == results.PASSED for case in chosen)
    if given.choice is not None:
        return fine
    unit = [f"tests/engine/worker/backend/{name}.py" for name in UNIT]
    pytest = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider"]
    pytest += [f"--timeout={WAIT}", "--durations=10"]
    if not given.all:
        pytest += ["-m", "not long_on_device"]
    fine &= subprocess.run([*pytest, *unit], cwd=ROOT, check=False).returncode == 0
    files = [e for e in results.kit_files() if given.again or not results.is_fine(found.get(e))]
    for file, said in run_kit(files if given.all else PART):
        found[file] = said
        results.store(found, given.results)
        fine &= results.is_fine(said)
    return fine


def is_chosen(case: Case, given: argparse.Namespace) -> bool:
    if case.is_for_software and given.device != SOFTWARE:
        return False
    if case.is_full and given.device in (CPU, SOFTWARE):
        return False  # it would fill the machine's memory
    if given.choice is not None:
        return re.search(given.choice, case.name) is not None
    return given.all or case is DEFAULT


if __name__ == "__main__":
    sys.exit(main())
