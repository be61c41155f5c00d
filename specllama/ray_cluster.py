"""The Ray cluster on which `specllama deploy` works: a running one, or a local one for the time of
the command."""

import contextlib
import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import grpc
import ray
from ray import serve
from ray.exceptions import AuthenticationError, RayError
from ray.serve.api import RunTarget
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, LoggingConfig

from specllama.deployment import INGRESS
from specllama.nodes import ClusterError
from specllama.ray_stores import end_stores

STORE_BYTES = 80 << 20
"""The shared memory of a local cluster; tokens take another way. Ray's minimum is 75 MiB."""
CONNECT_SECONDS = 5.0
_QUIET: Any = {"log_level": "ERROR", "enable_access_log": False}
"""Serve's own log: the states of the deployments say the same."""


class State(NamedTuple):
    """The state of one deployment of the application: its processes, and Serve's message."""

    running: int
    starting: int
    stopping: int
    message: str


class Status(NamedTuple):
    """The state of the application: whether all its processes run, or some can't, and those of its
    deployments by name."""

    is_running: bool
    has_failed: bool
    message: str
    deployments: Mapping[str, State]


@contextlib.contextmanager
def local() -> Iterator[None]:
    """Starts a cluster of this machine for the time of the context, and ends its processes then.
    Raises ClusterError."""
    # Ray's processes have sockets in this folder. It is private, and its path is short, since
    # paths of sockets have at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="specllama-", dir="/tmp" if os.name == "posix" else None)
    try:
        _init(
            address="local",
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            _temp_dir=folder,
        )
        yield
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connects to a running cluster of which this machine is a node, by HOST:PORT of its head.
    Raises ClusterError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"{address} is no address: HOST:PORT of the cluster's head, or auto")
    try:  # Ray itself would wait without an end
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"no cluster answers at {address}: {error}") from None
    _init(address=address, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _init(**arguments: Any) -> None:
    try:
        ray.init(namespace="serve", logging_level="error", **arguments)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
    except AuthenticationError as error:
        raise ClusterError(f"the cluster refuses the token: {one_line(str(error))}") from None
    except ConnectionError as error:
        raise ClusterError(
            f"Ray: {one_line(str(error))}; if that cluster runs, this machine has to be one of its "
            "nodes, with the same token (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token)"
        ) from None
    except (RayError, RuntimeError, ValueError) as error:
        raise ClusterError(f"Ray: {one_line(str(error))}") from None


def is_open() -> bool:
    """Returns whether the connected cluster also answers a request without a token: then any
    program that reaches its ports can run code on its machines."""
    with grpc.insecure_channel(ray.get_runtime_context().gcs_address) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")
        try:
            ask(b"", timeout=CONNECT_SECONDS)
        except grpc.RpcError:
            return False  # usually, since the token is missing
    return True


def nodes() -> list[Mapping[str, float]]:
    """Returns the resources of each live node of the connected cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def run(application: serve.Application, name: str) -> None:
    """Starts an application, or updates the one of that name. Returns at once. Raises
    ClusterError."""
    try:
        serve.start(proxy_location="Disabled", logging_config=_QUIET)
        serve.run_many(
            [RunTarget(application, name, None, LoggingConfig(**_QUIET))],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
    except (RayError, RayServeException, ValueError) as error:
        raise ClusterError(f"Ray: {one_line(str(error))}") from None


def status(name: str) -> Status | None:
    """Returns the state of an application, or None if there is no such application. Raises
    ClusterError."""
    try:
        found = serve.status().applications.get(name)
    except (RayError, RayServeException) as error:
        raise ClusterError(f"Ray: {one_line(str(error))}") from None
    if found is None or found.status == ApplicationStatus.NOT_STARTED:
        return None
    return Status(
        found.status == ApplicationStatus.RUNNING,
        found.status == ApplicationStatus.DEPLOY_FAILED,
        reason(found.message),
        {
            each: State(
                state.replica_states.get("RUNNING", 0),
                sum(state.replica_states.get(word, 0) for word in ("STARTING", "UPDATING")),
                state.replica_states.get("STOPPING", 0),
                reason(state.message),
            )
            for each, state in found.deployments.items()
        },
    )


def urls(name: str) -> list[str]:
    """Returns the addresses on which the application's ingresses listen."""
    try:
        answers = serve.get_deployment_handle(INGRESS, name).broadcast("urls").results(timeout_s=60)
    except (RayError, RayServeException, TimeoutError):
        return []
    return list(dict.fromkeys(url for each in answers for url in each))


def delete(name: str) -> None:
    """Lets an application end: its ingresses accept nothing more, and running requests may continue
    for the server's `--drain-timeout`. Returns at once. Raises ClusterError."""
    try:
        serve.delete(name, _blocking=False)
    except (RayError, RayServeException) as error:
        raise ClusterError(f"Ray: {one_line(str(error))}") from None


def forget(name: str) -> None:
    """Discards what the ingresses of an application that has ended stored in the cluster's
    memory."""
    end_stores(name)


# ---- Ray's messages -----------------------------------------------------------------------------

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Exit)(?:\([^)]*\))?: ", re.MULTILINE)


def reason(message: str) -> str:
    """Returns a message of Serve as one line; of a traceback, what was raised last."""
    plain = _COLOR.sub("", message)
    raised = list(_RAISED.finditer(plain))
    if raised and "Traceback" in plain:
        plain = plain[raised[-1].start() :].removeprefix("RuntimeError: ")
    return one_line(plain)


def one_line(text: str) -> str:
    """Returns `text` in one line."""
    return " ".join(_COLOR.sub("", text).split())
