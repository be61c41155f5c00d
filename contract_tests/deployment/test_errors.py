"""What `specllama deploy` says about files and clusters that can't be used."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contract_tests.deployment.launching import Cluster, described, run, written
from contract_tests.own.servers import MODEL, free_port


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the only error line of a failed command."""
    said = f"code {done.returncode}: {done.stdout}{done.stderr}"
    assert done.returncode == 1, said
    begin = "specllama deploy: error: "
    lines = [line for line in done.stderr.splitlines() if line.startswith(begin)]
    assert len(lines) == 1, said
    assert "Traceback" not in done.stderr, said
    return lines[0].removeprefix(begin)


def with_model(**keys: Any) -> dict[str, Any]:
    deployment = described()
    deployment["models"][MODEL].update(keys)
    return deployment


def test_a_model_that_fits_no_node(cluster: Cluster, directory: Path) -> None:
    path = written(directory, with_model(gpus=4))
    [line] = [
        number for number, text in enumerate(path.read_text().splitlines(), 1) if MODEL in text
    ]
    assert one_line(cluster.deploy(path)) == (
        f"{path}:{line + 1}: the model {MODEL} needs 0.2 CPUs and 4 GPUs for each replica, and no "
        "node has that: the cluster has a node with 2 CPUs and 0 GPUs and 1 of 'head', and a node "
        "with 2 CPUs and 0 GPUs; --wait waits for further nodes"
    )


def test_more_processes_than_the_nodes_hold(cluster: Cluster, directory: Path) -> None:
    path = written(directory, with_model(replicas=5, cpus=1))
    assert "all processes together need 5.1 CPUs (5 x 1 for the model" in one_line(
        cluster.deploy(path)
    )


def test_a_check_deploys_nothing(cluster: Cluster, directory: Path) -> None:
    done = cluster.deploy(written(directory, described(replicas=2)), "--check")
    assert done.returncode == 0, done.stderr
    assert "asks for no token" not in done.stderr
    assert done.stdout.endswith(f": {MODEL} x 2, ingress x 1; they fit\n")
    gone = run("--delete", "--address", cluster.address, **cluster.variables)
    assert one_line(gone) == "the cluster has no deployment specllama"


def test_a_model_that_cannot_be_loaded(cluster: Cluster, directory: Path) -> None:
    """The message names the reason once, after Ray Serve's third attempt."""
    broken = directory / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    done = cluster.deploy(written(directory, with_model(options={"model": str(broken)})))
    try:
        said = one_line(done)
        assert said.startswith(f"{MODEL}: the model could not be loaded: ")
        assert said.endswith("the deployment is still there, and --delete removes it")
        assert done.stderr.count("WARNING") == 1, done.stderr
    finally:
        cluster.delete()


def test_a_file_that_another_machine_lacks(cluster: Cluster, directory: Path) -> None:
    """The nodes' own check finds it, as the files are on their disks."""
    deployment = with_model(options={"model": "/nonexistent/model.gguf"})
    try:
        assert "/nonexistent/model.gguf" in one_line(cluster.deploy(written(directory, deployment)))
    finally:
        cluster.delete()


def test_a_file_that_this_machine_lacks(directory: Path) -> None:
    """A cluster of one machine isn't even started."""
    path = written(directory, with_model(options={"model": "/nonexistent/model.gguf"}))
    assert "/nonexistent/model.gguf" in one_line(run(path))


@pytest.mark.parametrize("token", ["another token, which is as long as one", ""])
def test_a_wrong_token(cluster: Cluster, directory: Path, token: str) -> None:
    path = written(directory, described())
    variables = {**cluster.variables, "RAY_AUTH_TOKEN": token, "HOME": str(directory)}
    said = one_line(run(path, "--address", cluster.address, **variables))
    assert "token" in said


def test_a_cluster_without_a_token(directory: Path) -> None:
    """It isn't used unless that is asked for, and then with a warning."""
    path = written(directory, described())
    with Cluster.start(directory, cpus=1, nodes=1, has_token=False) as cluster:
        safe = {**cluster.variables, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 40 * "t"}
        said = one_line(run(path, "--address", cluster.address, "--check", **safe))
        assert said.startswith("the cluster asks for no token: ")
        done = cluster.deploy(path, "--check")
        assert done.returncode == 0, done.stderr
        assert "the cluster asks for no token" in done.stderr


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:PORT", "no cluster answers at 127.0.0.1:"),
        ("somewhere", "somewhere is no address: HOST:PORT of the cluster's head, or auto"),
        ("auto", "this machine is no node of a Ray cluster: start one with `ray start`, or give"),
    ],
)
def test_an_address_without_a_cluster(directory: Path, address: str, said: str) -> None:
    done = run(
        written(directory, described()),
        *("--address", address.replace("PORT", str(free_port()))),
        RAY_AUTH_TOKEN="a token that no cluster has, 40 letters.",
        RAY_TMPDIR=str(directory),
    )
    assert one_line(done).startswith(said)


def test_a_taken_port(cluster: Cluster, directory: Path) -> None:
    """The message is the server's, with the reason."""
    import socket

    deployment = described()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        deployment["server"]["port"] = taken.getsockname()[1]
        try:
            said = one_line(cluster.deploy(written(directory, deployment)))
        finally:
            cluster.delete()
    assert "cannot listen on 127.0.0.1 port" in said


def test_ray_is_not_installed(directory: Path) -> None:
    hidden = directory / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "ray.py").write_text('raise ModuleNotFoundError("No module named ray", name="ray")')
    path = written(directory, described())
    code = f"import sys; sys.path.insert(0, {str(hidden)!r}); from specllama.cli import main; "
    code += f"sys.exit(main(['deploy', {str(path)!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False
    )
    assert one_line(done).startswith("it needs Ray Serve: pip install 'specllama[ray]' (")
