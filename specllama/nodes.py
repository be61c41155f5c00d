"""Compares the processes of a deployment with the nodes of a cluster: what they reserve, and what
the nodes have."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from specllama.deployment import Deployment, Processes

Amounts: TypeAlias = Mapping[str, float]
"""Resources by Ray's names: CPU, GPU, and others that nodes declare."""


class ClusterError(Exception):
    """The cluster can't be used. The message is one line for the user."""


_UNITS = {"CPU": "CPU", "GPU": "GPU"}
_NOT_RESERVED = ("memory", "object_store_memory", "node:", "accelerator_type:")
"""The beginnings of names of resources that every node has."""


def misfits(deployment: Deployment, nodes: Sequence[Amounts]) -> list[str]:
    """Returns one line for each reason why the processes can't all start on `nodes`; each node is
    given by everything that it has."""
    lines = [
        f"{processes.place}: {what} needs {shown(processes.reserved())} for each {unit}, and no "
        f"node has that: {described(nodes)}"
        for what, unit, processes in _kinds(deployment)
        if not any(_fits(processes.reserved(), node) for node in nodes)
    ]
    return lines or list(_too_many(deployment, nodes))


def described(nodes: Sequence[Amounts]) -> str:
    """Returns the nodes in words, equal ones together."""
    if not nodes:
        return "the cluster has no node"
    kinds = Counter(shown(_reservable(node)) for node in nodes)
    parts = [f"{f'{n} nodes' if n > 1 else 'a node'} with {what}" for what, n in kinds.items()]
    return f"the cluster has {', and '.join(parts)}"


def shown(amounts: Amounts) -> str:
    """Returns resources in words: "2 CPUs and 1 GPU"."""
    parts = []
    for name, n in amounts.items():
        unit = _UNITS.get(name)
        if unit is None:
            parts.append(f"{n:g} of {name!r}")
        else:
            parts.append(f"{n:g} {unit}{'' if n == 1 else 's'}")
    return " and ".join(parts) or "nothing"


def _too_many(deployment: Deployment, nodes: Sequence[Amounts]) -> Iterator[str]:
    """Yields a line for each resource of which the nodes together have too little."""
    wanted: Counter[str] = Counter()
    users: dict[str, list[str]] = {}
    for what, _, processes in _kinds(deployment):
        for name, n in processes.reserved().items():
            wanted[name] += n * processes.n_first  # type: ignore[assignment]  # a float is fine
            users.setdefault(name, []).append(f"{processes.n_first} x {n:g} for {what}")
    for name, n in wanted.items():
        there = sum(node.get(name, 0.0) for node in nodes)
        if n > there + 1e-6:
            needs = shown({name: round(n, 4)})
            yield (
                f"{deployment.ingress.place.rpartition(':')[0]}: all processes together need "
                f"{needs} ({', '.join(users[name])}); {described(nodes)}"
            )


def _kinds(deployment: Deployment) -> Iterator[tuple[str, str, Processes]]:
    """Yields each kind of processes: its name, the name of one of them, and their number."""
    for name, processes in deployment.models.items():
        yield f"the model {name}", "replica", processes
    yield "ingress", "process", deployment.ingress


def _fits(wanted: Amounts, node: Amounts) -> bool:
    return all(node.get(name, 0.0) + 1e-6 >= n for name, n in wanted.items())


def _reservable(node: Amounts) -> dict[str, float]:
    """Returns the resources that a deployment may reserve, with the number of GPUs also if there
    are none."""
    found = {"CPU": node.get("CPU", 0.0), "GPU": node.get("GPU", 0.0)}
    others = {
        name: n
        for name, n in node.items()
        if name not in found and not name.startswith(_NOT_RESERVED)
    }
    return found | others
