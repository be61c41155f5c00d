"""A Ray cluster with several nodes, all on this machine.

    python -m contract_tests.deployment.cluster_main CPUS NODES FOLDER

It prints the address, and ends with its stdin. A line `remove` there ends the youngest node. The
first node has the resource `head`.
"""

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    cpus, n_nodes, folder = sys.argv[1:]
    each = {
        "num_cpus": int(cpus),
        "object_store_memory": 80 << 20,
        "include_dashboard": False,
    }
    head = {**each, "temp_dir": folder, "resources": {"head": 1}}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(**each) for _ in range(int(n_nodes) - 1)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line == "remove\n":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            print("removed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
