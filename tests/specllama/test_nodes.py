"""The comparison of a deployment with the nodes of a cluster."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from specllama.deployment import read
from specllama.engine.shipped import MODEL_NAME
from specllama.nodes import described, misfits, shown

Nodes = list[Mapping[str, float]]
LARGE = {"CPU": 64.0, "GPU": 8.0, "memory": 1e12, "node:10.0.0.1": 1.0}


def found(nodes: Nodes, ingress: Any = None, **model: Any) -> list[str]:
    sections = {"ingress": ingress or {}, "models": {MODEL_NAME: model}}
    return misfits(read(yaml.safe_dump(sections, sort_keys=False), "deploy.yaml"), nodes)


def test_one_machine_with_two_cores() -> None:
    assert not found([{"CPU": 2.0}])


def test_a_replica_needs_a_node_that_has_everything() -> None:
    """The GPUs of one node and the CPUs of another one don't help."""
    nodes: Nodes = [{"CPU": 2.0, "GPU": 8.0}, {"CPU": 64.0}]
    assert not found([*nodes, LARGE], cpus=4, gpus=4)
    assert found(nodes, cpus=4, gpus=4) == [
        f"deploy.yaml:4: the model {MODEL_NAME} needs 4 CPUs and 4 GPUs for each replica, and no "
        "node has that: the cluster has a node with 2 CPUs and 8 GPUs, and a node with 64 CPUs "
        "and 0 GPUs"
    ]


def test_the_ingress_has_to_fit_as_well() -> None:
    [line] = found([{"CPU": 4.0}], {"resources": {"front": 1}})
    assert line.startswith(
        "deploy.yaml:2: ingress needs 1 CPU and 1 of 'front' for each process, and no node"
    )


def test_all_processes_together() -> None:
    assert not found([{"CPU": 2.0}, {"CPU": 2.0}], replicas=3)
    assert found([{"CPU": 2.0}, {"CPU": 2.0}], replicas=4) == [
        "deploy.yaml: all processes together need 5 CPUs (4 x 1 for the model "
        f"{MODEL_NAME}, 1 x 1 for ingress); the cluster has 2 nodes with 2 CPUs and 0 GPUs"
    ]


def test_parts_of_a_cpu_add_up() -> None:
    assert not found([{"CPU": 1.0}], {"cpus": 0.1}, cpus=0.3, replicas=3)


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({"min_replicas": 0, "max_replicas": 9}, True),
        ({"min_replicas": 1, "max_replicas": 9}, True),
        ({"min_replicas": 1, "max_replicas": 9, "initial_replicas": 2}, False),
        ({"min_replicas": 2, "max_replicas": 9}, False),
        ({"max_replicas": 9}, True),
    ],
)
def test_autoscaling_begins_with_few(settings: dict[str, int], fits: bool) -> None:
    assert (not found([{"CPU": 2.0}], autoscaling=settings)) == fits


def test_nodes_in_words() -> None:
    assert described([]) == "the cluster has no node"
    assert described([LARGE, LARGE]) == "the cluster has 2 nodes with 64 CPUs and 8 GPUs"
    assert shown({}) == "nothing"
