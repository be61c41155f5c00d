"""Changes of a running deployment: `specllama deploy` again, with another file."""

import contextlib
from pathlib import Path
from typing import Any

import psutil

from contract_tests.deployment.crowd import crowd
from contract_tests.deployment.launching import TINY, Cluster, described, written
from contract_tests.kit.server import Server, alive, wait_until
from contract_tests.own.servers import MODEL

REPLICA = "ray::ServeReplica:specllama:specllama-tiny"
INGRESS = "ray::ServeReplica:specllama:ingress"


def pids(cluster: Cluster, title: str) -> set[int]:
    return {each.pid for each in cluster.processes(title)}


def changed(deployment: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Returns the deployment with other keys of its model."""
    models = {MODEL: {**deployment["models"][MODEL], **keys}}
    return {**deployment, "models": models}


def autoscaled(**settings: int) -> dict[str, Any]:
    """Returns a deployment whose number of replicas follows its load within seconds."""
    deployment = described()
    model = deployment["models"][MODEL]
    del model["replicas"]
    model["autoscaling"] = {
        "upscale_delay_s": 0,
        "downscale_delay_s": 1,
        "metrics_interval_s": 1,
        "look_back_period_s": 2,
        **settings,
    }
    return deployment


def deploy(cluster: Cluster, directory: Path, deployment: dict[str, Any]) -> str:
    done = cluster.deploy(written(directory, deployment))
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_same_file_changes_nothing(cluster: Cluster, directory: Path) -> None:
    deployment = described()
    with cluster.deployed(directory, deployment):
        before = pids(cluster, "ray::ServeReplica")
        deploy(cluster, directory, deployment)
        assert pids(cluster, "ray::ServeReplica") == before


def test_further_replicas_leave_the_others(cluster: Cluster, directory: Path) -> None:
    deployment = described()
    with cluster.deployed(directory, deployment) as server:
        first, ingress = pids(cluster, REPLICA), pids(cluster, INGRESS)
        deploy(cluster, directory, changed(deployment, replicas=2))
        wait_until(lambda: len(server.slots()) == 4, "the slots of both are there")
        assert pids(cluster, REPLICA) > first
        assert pids(cluster, INGRESS) == ingress


def test_no_client_notices_another_option(cluster: Cluster, directory: Path) -> None:
    """Ray Serve replaces one replica after the other, and the ingress with a second one."""
    deployment = described(replicas=2, ingress={"surge": 100})
    with cluster.deployed(directory, deployment) as server:
        before = cluster.processes(REPLICA) + cluster.processes(INGRESS)
        wait_until(lambda: len(server.slots()) == 4, "the slots of both are there")
        with crowd(server) as clients:
            clients.wait_for(12)
            deploy(cluster, directory, changed(deployment, options={**TINY, "parallel": 3}))
            wait_until(lambda: _n_slots(server) == 6, "all slots are new")
            wait_until(lambda: not any(map(alive, before)), "the old processes have ended")
            clients.wait_for(12)
        assert not clients.failures


def test_a_model_sleeps_without_requests(cluster: Cluster, directory: Path) -> None:
    deployment = autoscaled(
        min_replicas=0, max_replicas=1, initial_replicas=0, downscale_to_zero_delay_s=1
    )
    with cluster.deployed(directory, deployment) as server:
        wait_until(lambda: server.get("/health").status_code == 200, "the model is loaded once")
        for _ in range(2):
            wait_until(lambda: not pids(cluster, REPLICA), "there is no replica")
            answer = server.post("/completion", {"prompt": "Hello", "n_predict": 8})
            assert answer.status_code == 200, answer.text


def test_replicas_start_under_load_and_end_after_it(cluster: Cluster, directory: Path) -> None:
    deployment = autoscaled(min_replicas=1, max_replicas=2, target_ongoing_requests=1)
    with cluster.deployed(directory, deployment) as server:
        assert len(pids(cluster, REPLICA)) == 1
        with crowd(server) as clients:
            wait_until(lambda: _n_slots(server) == 4, "a second replica is used")
            clients.wait_for(12)
        wait_until(lambda: _n_slots(server) == 2, "one replica is left")
        wait_until(lambda: len(pids(cluster, REPLICA)) == 1, "the process has ended")
        assert not clients.failures


def _n_slots(server: Server) -> int:
    with contextlib.suppress(AssertionError, psutil.Error):
        return len(server.slots())
    return 0
