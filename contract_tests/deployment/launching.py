"""Starts deployments on Ray Serve, and clusters for them."""

import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from contract_tests.kit.server import SECONDS, OwnServer, Server, alive, wait_until
from contract_tests.own.servers import MODEL, ROOT, engine_processes, environment, free_port

TINY: dict[str, Any] = {"ctx-size": 4096, "parallel": 2, "threads": 1}
"""Options of the shipped model."""


def described(
    *, replicas: int = 1, options: Mapping[str, Any] = TINY, **parts: Any
) -> dict[str, Any]:
    """Returns a deployment of the shipped model on a free port. `parts` are further sections, and
    their keys are added to the usual ones."""
    found: dict[str, Any] = {
        "server": {"port": free_port(), "metrics": True, "log-timestamps": True},
        "ingress": {"cpus": 0.1},
        "models": {MODEL: {"replicas": replicas, "cpus": 0.2, "options": dict(options)}},
    }
    for section, content in parts.items():
        found[section] = {**found.get(section, {}), **content}
    return found


def written(directory: Path, deployment: Mapping[str, Any], name: str = "deploy.yaml") -> Path:
    path = directory / name
    path.write_text(yaml.safe_dump(deployment, sort_keys=False), "utf-8")
    return path


def command(*argv: object) -> list[str]:
    return [sys.executable, "-m", "specllama", "deploy", *map(str, argv)]


def run(*argv: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `specllama deploy *argv`, which has to end by itself."""
    return subprocess.run(
        command(*argv),
        env=environment(**variables),
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


class Local(OwnServer):
    """A deployment on a cluster that `specllama deploy` has started for itself."""

    def engines(self) -> list[psutil.Process]:
        return engine_processes(self.process.pid)

    def processes(self, title: str) -> list[psutil.Process]:
        """Returns the processes of the cluster whose title or command begins so."""
        return titled(psutil.Process(self.process.pid), title)


@contextmanager
def local(directory: Path, deployment: Mapping[str, Any]) -> Iterator[Local]:
    """Starts a deployment on a cluster of its own, and waits until it is ready."""
    log = directory / "deploy.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command(written(directory, deployment)),
            env=environment(),
            cwd=ROOT,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )

    def address() -> str | None:
        text = log.read_text("utf-8", "replace")
        assert process.poll() is None, f"it ended with code {process.returncode}:\n{text}"
        found = re.search(r"^  API +(\S+)", text, re.MULTILINE)
        return found[1] if found else None

    processes: list[psutil.Process] = []
    try:
        server = Local(process, log, wait_until(address, "the deployment is ready"))
        server.wait_until_ready()
        processes = psutil.Process(process.pid).children(recursive=True)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
        wait_until(lambda: not any(map(alive, processes)), "its processes have ended")


def titled(top: psutil.Process, title: str) -> list[psutil.Process]:
    """Returns the processes below `top` whose command line begins with a title."""
    found = []
    for each in top.children(recursive=True):
        try:
            if " ".join(each.cmdline()).startswith(title):
                found.append(each)
        except psutil.Error:
            continue
    return found


class Cluster:
    """A running cluster. `specllama deploy` needs `address` and `variables`."""

    def __init__(
        self, process: subprocess.Popen[str], address: str, variables: Mapping[str, str]
    ) -> None:
        self.process = process
        self.address = address
        self.variables = variables

    @classmethod
    @contextmanager
    def start(
        cls, directory: Path, *, cpus: int, nodes: int, has_token: bool = True
    ) -> Iterator["Cluster"]:
        variables = {"RAY_AUTH_MODE": "disabled"}
        if has_token:
            variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_urlsafe(32)}
        variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # the loopback address
        # A short path, for sockets.
        folder = tempfile.mkdtemp(prefix="specllama-", dir="/tmp")
        log = directory / f"cluster-{nodes}.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "contract_tests.deployment.cluster_main"),
                    *(str(cpus), str(nodes), folder),
                ],
                env=environment(
                    RAY_USAGE_STATS_ENABLED="0", GRPC_ENABLE_FORK_SUPPORT="0", **variables
                ),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                encoding="utf-8",
            )
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"[\d.]+:\d+", address), log.read_text("utf-8", "replace")
        children = psutil.Process(process.pid).children(recursive=True)
        try:
            yield cls(process, address, variables)
        finally:
            process.stdin.close()
            process.wait(SECONDS)
            wait_until(lambda: not any(map(alive, children)), "the cluster has ended")
            shutil.rmtree(folder, ignore_errors=True)

    def processes(self, title: str) -> list[psutil.Process]:
        """Returns the cluster's processes whose title begins so."""
        return titled(psutil.Process(self.process.pid), title)

    def remove_node(self) -> None:
        """Ends the processes of the youngest node."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("remove", file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "removed\n"

    def deploy(self, path: Path, *argv: object) -> subprocess.CompletedProcess[str]:
        """Runs `specllama deploy` with this cluster."""
        return run(path, "--address", self.address, *argv, **self.variables)

    @contextmanager
    def deployed(self, directory: Path, deployment: Mapping[str, Any]) -> Iterator[Server]:
        """Deploys, and deletes the deployment at the end."""
        done = self.deploy(written(directory, deployment))
        assert done.returncode == 0, done.stderr
        found = re.search(r"^  API +(\S+)", done.stderr, re.MULTILINE)
        assert found, done.stderr
        try:
            yield Server(found[1])
        finally:
            self.delete()

    def delete(self, *argv: object) -> None:
        """Deletes a deployment."""
        gone = run("--delete", "--address", self.address, *argv, **self.variables)
        assert gone.returncode == 0, gone.stderr
