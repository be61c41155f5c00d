"""`specllama deploy`: serves models on several machines with Ray Serve."""

import argparse
import logging
import os
import secrets
import signal
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from specllama import STARTED, __version__, logs
from specllama.deployment import (
    INGRESS,
    PROCESS_KEYS,
    Deployment,
    DeploymentError,
    read,
)
from specllama.engine.options.files import reason
from specllama.engine.shipped import MODEL_NAME
from specllama.nodes import ClusterError, misfits
from specllama.terminal import above_bars

if TYPE_CHECKING:
    from specllama.ray_cluster import Status

log = logging.getLogger("specllama.deploy")

NAME = "specllama"
INTERRUPTED = 130
AUTO = "auto"
_PAUSE = 0.5  # s between two looks at the state
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOPBACK = ("127.", "localhost", "::1", "[::1]")

ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for other systems, which works on Linux, too: with "0", the processes of a cluster
use the loopback address."""
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TOKEN_FILE = Path("~/.ray/auth_token")
_LOCAL = {
    ON_LOOPBACK: "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    # Each engine process that a replica starts would log a line about it.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
"""Variables for the processes of a local cluster."""


def main(argv: Sequence[str]) -> int:
    """Deploys the models of a file. Returns 0, 1 after one line about an error, or 130 after a
    second Ctrl-C."""
    given = _parser().parse_args(argv)
    if given.example:
        print(example(), end="")
        return 0
    try:
        with Signals() as signals:
            return _Command(given, signals).run()
    except (DeploymentError, ClusterError) as error:
        print(f"specllama deploy: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specllama deploy",
        description="Serves models on several machines with Ray Serve: replicas of each model, and "
        "processes that answer HTTP. Without a cluster it starts one of this machine alone, until "
        "Ctrl-C. On a running cluster it starts the deployment, or changes it to what the file "
        "says, and returns when all processes are ready; --delete ends the deployment. The machine "
        "of this command has to be a node of that cluster. Needs: pip install 'specllama[ray]'",
    )
    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", help="the file that describes the deployment"
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="the cluster: HOST:PORT of its head, or auto, the one of this machine (default: "
        "RAY_ADDRESS; without it, a cluster of this machine alone)",
    )
    parser.add_argument("--name", default=NAME, help=f"name of the deployment (default: {NAME})")
    parser.add_argument(
        "--check",
        action="store_true",
        help="check the file, and with a cluster also whether the processes fit; deploy nothing",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for further nodes if the processes don't fit, as for a cluster that adds nodes "
        "by itself, instead of an error",
    )
    parser.add_argument("--delete", action="store_true", help="end the deployment on the cluster")
    parser.add_argument("--example", action="store_true", help="print an example of CONFIG")
    return parser


def example() -> str:
    """Returns a file for one machine with two cores, with an explanation of each key."""
    keys = "\n".join(
        textwrap.fill(f"{name}: {about}", 99, initial_indent="#   ", subsequent_indent="#     ")
        for name, about in PROCESS_KEYS.items()
    )
    return f"""\
# A deployment for `specllama deploy`, with the shipped model, for a machine with two cores.

# Options of specllama, without the dashes, such as host, port, keys-file, metrics, drain-timeout.
# On a cluster, set host: by default the server listens on the loopback address of its machine.
server:
  port: 8080

# The processes that answer HTTP.
{INGRESS}:
  replicas: 1
  cpus: 0.5

# The models, by their names in requests. Keys of a model, and of {INGRESS}:
{keys}
#   options: the model's options, as in a preset file: model, hf-repo, ctx-size, parallel, ...
models:
  {MODEL_NAME}:
    replicas: 2
    cpus: 0.5
    options:
      ctx-size: 4096
      parallel: 2
      threads: 1
"""


class Signals:
    """A context in which the first Ctrl-C or SIGTERM only sets `received`, and a second one raises
    KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received = False
        self._previous = {each: signal.getsignal(each) for each in _SIGNALS}

    def __enter__(self) -> "Signals":
        self.handle()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def handle(self) -> None:
        """Handles signals from now on, also if a library has handlers of its own."""
        for number in _SIGNALS:
            signal.signal(number, self._receive)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True


class _Command:
    def __init__(self, given: argparse.Namespace, signals: Signals) -> None:
        self._given = given
        self._signals = signals
        address = given.address or os.environ.get("RAY_ADDRESS", "")
        self._address: str = _latest() if address == AUTO else address
        self._shown: dict[str, str] = {}  # what was logged last about each deployment

    def run(self) -> int:
        if self._given.delete:
            return self._delete()
        if self._given.config is None:
            raise DeploymentError("name the file of the deployment; --example prints one")
        text = _read_text(self._given.config)
        # On a cluster, the files are those of other machines.
        here = not self._address
        deployment = read(text, self._given.config, server_files=here, model_files=here)
        logs.configure(deployment.server.log)
        if self._given.check and not self._address:
            print(f"{self._given.config}: {_summary(deployment)}")
            return 0
        _prepare(self._address)
        _import_ray()
        from specllama import ray_cluster
        from specllama.ray_serve import build

        application = build(text, self._given.config)
        if not self._address:
            log.info("starting a Ray cluster of this machine")
        with ray_cluster.connected(self._address) if self._address else ray_cluster.local():
            self._signals.handle()
            if ray_cluster.is_open():
                _warn_of_open_cluster()
            self._check_nodes(deployment)
            if self._given.check:
                print(f"{self._given.config}: {_summary(deployment)}; they fit")
                return 0
            ray_cluster.run(application, self._given.name)
            if not self._wait_until_running(deployment):
                return self._stopped_early()
            urls = ray_cluster.urls(self._given.name)
            _announce(deployment, urls, self._hints(deployment))
            if not self._address:
                self._stay(deployment)
                self._end()
        return 0

    def _check_nodes(self, deployment: Deployment) -> None:
        from specllama import ray_cluster

        for line in misfits(deployment, ray_cluster.nodes()):
            if not self._given.wait:
                raise ClusterError(f"{line}; --wait waits for further nodes")
            log.warning("%s", line)

    # ---- states ------------------------------------------------------------------------------

    def _wait_until_running(self, deployment: Deployment) -> bool:
        """Returns False if a signal came first. Raises ClusterError if the deployment fails."""
        while not self._signals.received:
            status = self._look(deployment)
            if status is not None and status.is_running:
                return True
            if status is not None and status.has_failed:
                raise ClusterError(self._failure(status))
            time.sleep(_PAUSE)
        return False

    def _failure(self, status: "Status") -> str:
        messages = [
            f"{name}: {state.message}"
            for name, state in status.deployments.items()
            if state.message and not state.running
        ]
        found = "; ".join(messages) or status.message
        if self._address:
            found += "; the deployment is still there, and --delete removes it"
        return found

    def _look(self, deployment: Deployment) -> "Status | None":
        """Returns the state, and logs what is new."""
        from specllama import ray_cluster

        status = ray_cluster.status(self._given.name)
        for name, state in {} if status is None else status.deployments.items():
            wanted = deployment.ingress if name == INGRESS else deployment.models.get(name)
            n = wanted.n_first if wanted is not None and wanted.autoscaling is None else None
            line = f"{state.running}{'' if n is None else f' of {n}'} running"
            line += f", {state.starting} starting" if state.starting else ""
            line += f", {state.stopping} stopping" if state.stopping else ""
            self._log(name, line, logging.INFO)
            if state.message:
                self._log(f"{name}: message", state.message, logging.WARNING)
        return status

    def _log(self, key: str, line: str, level: int) -> None:
        if self._shown.get(key) != line:
            self._shown[key] = line
            log.log(level, "%s: %s", key.removesuffix(": message"), line)

    # ---- the end -----------------------------------------------------------------------------

    def _stay(self, deployment: Deployment) -> None:
        """Returns after a signal."""
        while not self._signals.received:
            self._look(deployment)
            time.sleep(_PAUSE)

    def _stopped_early(self) -> int:
        if self._address:
            log.warning("the deployment goes on at the cluster; --delete ends it")
        return 0

    def _end(self) -> None:
        """Ends the deployment, and waits until its requests have ended."""
        from specllama import ray_cluster

        log.info("running requests may end; press Ctrl-C again to stop at once")
        ray_cluster.delete(self._given.name)
        while ray_cluster.status(self._given.name) is not None:
            time.sleep(_PAUSE)
        ray_cluster.forget(self._given.name)

    def _delete(self) -> int:
        if not self._address:
            raise ClusterError("--delete needs a cluster: --address or RAY_ADDRESS")
        _prepare(self._address)
        _import_ray()
        from specllama import ray_cluster

        with ray_cluster.connected(self._address):
            self._signals.handle()
            if ray_cluster.status(self._given.name) is None:
                raise ClusterError(f"the cluster has no deployment {self._given.name}")
            self._end()
        print(f"{self._given.name} is deleted", file=sys.stderr)
        return 0

    def _hints(self, deployment: Deployment) -> list[str]:
        if not self._address:
            return []
        found = [f"  end    specllama deploy --delete --address {self._address}"]
        if self._given.name != NAME:
            found[0] += f" --name {self._given.name}"
        if all(host.startswith(_LOOPBACK) for host in deployment.server.http.hosts()):
            found.append(
                "  note   only the machine of the ingress can reach it: set host in the section "
                "server"
            )
        return found


# ---- parts of the command -----------------------------------------------------------------------


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeploymentError(f"{path}: {reason(error)}") from None


def _latest() -> str:
    """Returns the address of the latest cluster that was started on this machine, or of which it
    has become a node. Raises ClusterError."""
    path = Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray", "ray_current_cluster")
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        raise ClusterError(
            "this machine is no node of a Ray cluster: start one with `ray start`, or give "
            "--address HOST:PORT"
        ) from None


def _prepare(address: str) -> None:
    """Sets variables that Ray reads when it is imported. A cluster without authentication is used
    only if RAY_AUTH_MODE says so, and never started."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if address:
        if address.startswith(_LOOPBACK):  # Ray would take another address of this machine
            os.environ.setdefault(ON_LOOPBACK, "0")
        return
    os.environ.update(_LOCAL)
    if not (sys.stderr.isatty() and not os.environ.get("NO_COLOR")):
        os.environ["RAY_COLOR_PREFIX"] = "0"
    if not any(os.environ.get(name) for name in _TOKENS) and not _TOKEN_FILE.expanduser().exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_urlsafe(32)


def _warn_of_open_cluster() -> None:
    """Raises ClusterError unless the user wants a cluster without authentication."""
    text = "the cluster asks for no token: any program that reaches its ports can run code on it"
    if os.environ["RAY_AUTH_MODE"] != "disabled":
        raise ClusterError(f"{text}; with RAY_AUTH_MODE=disabled it is used nevertheless")
    log.warning("%s", text)


def _import_ray() -> None:
    try:
        import_module("specllama.ray_cluster")
    except ImportError as error:
        if (error.name or "").startswith("specllama"):
            raise
        raise ClusterError(f"it needs Ray Serve: pip install 'specllama[ray]' ({error})") from None


def _summary(deployment: Deployment) -> str:
    kinds = [*deployment.models.items(), (INGRESS, deployment.ingress)]
    return ", ".join(f"{name} x {processes.n_first}" for name, processes in kinds)


def _announce(deployment: Deployment, urls: Sequence[str], hints: Sequence[str]) -> None:
    """Prints the banner for people, and logs that the deployment is ready."""
    options = deployment.server
    ready = f"ready in {time.perf_counter() - STARTED:.1f} s"
    if not (options.log.is_json() or options.log.log_disable):
        lines = [*_banner(deployment, urls, ready), *hints]
        with above_bars():
            print("\n".join(lines), file=sys.stderr, flush=True)
    fields = {"version": __version__, "models": list(deployment.models), "urls": list(urls)}
    log.info("%s", ready, extra={"fields": fields, "in_banner": True})


def _banner(deployment: Deployment, urls: Sequence[str], ready: str) -> Iterator[str]:
    yield f"specllama {__version__} on Ray Serve, {ready}"
    for name, processes in deployment.models.items():
        n = processes.n_first
        yield f"  model  {name}: {n} {'replica' if n == 1 else 'replicas'}"
    yield from (f"  API    {url}" for url in urls)
    web = [url for url in urls if not url.startswith("unix:")][:1]
    if deployment.server.page.ui and not deployment.server.page.path:
        yield from (f"  chat   {url}/" for url in web)
    yield from (f"  docs   {url}/docs" for url in web)
