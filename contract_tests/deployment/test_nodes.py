"""A node of a cluster ends, with everything on it."""

from pathlib import Path

from contract_tests.deployment.crowd import crowd
from contract_tests.deployment.launching import TINY, Cluster, described
from contract_tests.kit.server import wait_until
from contract_tests.own.servers import MODEL


def test_a_node_takes_only_its_own_requests_with_it(cluster: Cluster, directory: Path) -> None:
    """The remaining replica serves alone, while the other one waits for a node."""
    each = {"replicas": 2, "cpus": 1.5, "options": TINY}
    deployment = described(ingress={"resources": {"head": 0.1}}, models={MODEL: each})
    with cluster.deployed(directory, deployment) as server:
        wait_until(lambda: len(server.slots()) == 4, "the slots of both are there")
        with crowd(server) as clients:
            clients.wait_for(12)
            cluster.remove_node()
            wait_until(lambda: len(server.slots()) == 2, "the slots of one are left")
            clients.wait_for(12)
        assert clients.failures.keys() <= {"500 server_error"}
        assert sum(clients.failures.values()) <= 2, clients.outcomes
        assert server.get("/health").status_code == 200
