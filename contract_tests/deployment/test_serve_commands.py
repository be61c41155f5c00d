"""Ray Serve's own commands with the application `specllama.ray_serve:application`."""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from contract_tests.deployment.launching import Cluster, described, written
from contract_tests.kit.server import SECONDS, Server, wait_until
from contract_tests.own.servers import ROOT, environment

NAME = "another"
GREETING = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}


def serve_run(cluster: Cluster, *argv: object) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from ray.serve.scripts import cli; cli()", "run"),
            *("--non-blocking", "--address", cluster.address, *map(str, argv)),
        ],
        env=environment(**cluster.variables),
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def asked(deployment: dict[str, Any]) -> Any:
    server = Server(f"http://127.0.0.1:{deployment['server']['port']}")

    def ready() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return server.get("/health").status_code == 200
        return False

    wait_until(ready, "the server is ready")
    return server.ask("/v1/chat/completions", GREETING)


def test_the_sections_are_the_arguments_in_a_config(cluster: Cluster, directory: Path) -> None:
    deployment = described()
    config = {
        "proxy_location": "Disabled",
        "applications": [
            {
                "name": NAME,
                "route_prefix": None,
                "import_path": "specllama.ray_serve:application",
                "args": deployment,
            }
        ],
    }
    path = directory / "serve.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    serve_run(cluster, path)
    try:
        assert asked(deployment)["usage"]["completion_tokens"] == 8
    finally:
        cluster.delete("--name", NAME)


def test_the_path_of_a_file_is_the_argument(cluster: Cluster, directory: Path) -> None:
    """The cluster is the one of the test above: it has no proxies of Serve."""
    deployment = described()
    path = written(directory, deployment)
    where = ("specllama.ray_serve:application", f"config={path}")
    serve_run(cluster, "--name", NAME, *where)
    try:
        assert asked(deployment)["usage"]["completion_tokens"] == 8
    finally:
        cluster.delete("--name", NAME)
