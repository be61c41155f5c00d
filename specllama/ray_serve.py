"""specllama on Ray Serve: ingresses, which answer HTTP, and for each model replicas, each with an
engine process.

An ingress is the whole server, except for engine processes: its supervisors have fleets of
replicas (`engine.fleet`), which it reaches by connections of its own. Serve places the processes on
machines, replaces and scales them. For each text there is one call of Serve, open until the text
has ended, that carries no tokens: the calls tell Serve the load of each replica, and whether it may
end.

`application` makes the application, for `specllama deploy`, `serve run` and `serve deploy`.
"""

import asyncio
import contextvars
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import ray
import yaml
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from specllama import __version__, logs
from specllama.deployment import INGRESS, Deployment, DeploymentError, Processes, part, read
from specllama.engine.fleet.channel import Address
from specllama.engine.fleet.gate import Gate
from specllama.engine.fleet.replicas import CONNECT_SECONDS, Replicas, WaitsForReplicas, discovery
from specllama.engine.models.lifecycle import SERVING
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import Options, replaced
from specllama.handlers.running.admission import MEMORY, open_buckets
from specllama.handlers.running.runtime import ServerParts, open_responses
from specllama.listen import Listeners
from specllama.ray_stores import buckets_of, responses_of, stores_of
from specllama.serve import ApiServer

log = logging.getLogger("specllama.ray_serve")

CALLS = 100_000
"""Maximum of Serve's calls at a replica at the same time. The engine process has its own limits
(`--max-queue`), with documented errors."""
DRAIN_SECONDS = 600.0
"""How long the texts of a replica may continue that Serve stops."""
_LOOK = 0.02  # s between two looks at the replicas


# ---- Replicas of a model ------------------------------------------------------------------------


class Replica:
    """Loads a model in an engine process, and accepts the connections of ingresses."""

    async def __init__(  # type: ignore[misc]  # as Serve has it
        self, text: str, source: str, model: str
    ) -> None:
        deployment = read(text, source, server_files=True, model_files=True)
        logs.configure(deployment.server.log)
        self._gate = Gate(__version__)
        # Serve ends idle replicas, if it is configured to.
        options = replaced(deployment.options[model], sleep_idle_seconds=-1)
        self._supervisor = Supervisor(
            options,
            start_process=self._gate.start_process,
            log_level=deployment.server.log.engine_level(),
        )
        self._supervisor.model = model
        self._gate.guard(self._supervisor)
        self._supervisor.start()
        await self._supervisor.loaded()
        self.check_health()
        self._address = await self._gate.open(ray.util.get_node_ip_address())

    def record_replica_metadata(self) -> dict[str, Any]:
        """Returns the address for ingresses; Serve passes it to their routers."""
        return {"address": msgspec.to_builtins(self._address)}

    def check_health(self) -> None:
        """Raises RuntimeError if the model can't be served, so that Serve replaces the replica."""
        if self._supervisor.state in ("failed", "stopped"):
            raise RuntimeError(f"the model could not be loaded: {self._supervisor.failure}")

    async def hold(self, ids: Sequence[int], replica: str = "") -> None:
        """Waits until the texts `ids` have ended. `replica` is for the router."""
        await self._gate.ended(ids)

    async def __del__(self) -> None:
        # An ingress may have sent a text in the moment in which Serve chose this replica to end.
        await self._gate.drain()
        await self._gate.close()
        await self._supervisor.stop()


# ---- Ingresses ----------------------------------------------------------------------------------


class ToNamedReplica(RequestRouter):  # type: ignore[misc]  # ray has no types here
    """Sends a call to the replica that its argument `replica` names, or to any one without it. The
    choice has been made (`engine.fleet.placing`). Serve copies this module to other processes by
    value, so the class imports what each process has once."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        from specllama.engine.fleet.replicas import GoneError

        name = pending_request.kwargs.get("replica") if pending_request is not None else None
        if not name or pending_request is None:
            return [candidate_replicas]
        for replica in candidate_replicas:
            if replica.replica_id.unique_id == name:
                return [[replica]]
        if not pending_request.future.done():
            pending_request.future.set_exception(GoneError(name))
        return [candidate_replicas]  # without one, Serve would ask again and again

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        from specllama.engine.fleet.replicas import discovery

        super().update_replicas(replicas)
        known = {
            each.replica_id.unique_id: Address(**each.replica_metadata["address"])
            for each in replicas
            if "address" in each.replica_metadata
        }
        discovery.publish(self._deployment_id.name, known)


class _Calls:
    """Serve's calls to the replicas of one model, one for each text."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, replica: str, ids: Sequence[int]) -> None:
        """Begins a call to a replica, which ends with the texts `ids`."""
        self._start(list(ids), replica)

    def wake(self) -> None:
        """Lets Serve start a replica if there is none."""
        self._start([], "")

    def _start(self, ids: list[int], replica: str) -> None:
        # In an empty context: Serve would count the call as a part of the current request.
        call = self._call(ids, replica)
        task = asyncio.create_task(call, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, ids: list[int], replica: str) -> None:
        response = self._handle.hold.remote(ids, replica=replica)
        try:
            await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except Exception as error:  # of any kind; the text itself has another way
            log.debug("a call of Serve ended: %r", error)


class _IngressServer(ApiServer):
    """A server that waits for replicas before it accepts connections: it may replace another one,
    whose clients should notice nothing."""

    is_connected: Callable[[], bool] = staticmethod(lambda: True)
    """Whether all replicas that there are can be used."""

    async def before_listening(self) -> None:
        for _ in range(round(CONNECT_SECONDS / _LOOK)):
            if self.is_connected():
                return
            await asyncio.sleep(_LOOK)


class Ingress:
    """The server of the API, on its own port."""

    async def __init__(  # type: ignore[misc]  # as Serve has it
        self, text: str, source: str, handles: Mapping[str, DeploymentHandle]
    ) -> None:
        deployment = read(text, source, server_files=True)
        options = deployment.server
        logs.configure(options.log)
        self._supervisors: dict[str, Supervisor] = {}  # by the name of the deployment
        self._listeners = Listeners(options.http.hosts(), options.port(), reuse_port=True)
        self._scheme = "https" if options.http.ssl_cert_file else "http"
        self._prefix = options.http.api_prefix
        listening = asyncio.Event()
        self._server = _IngressServer.of(
            options,
            deployment.catalog(),
            self._listeners,
            on_listening=listening.set,
            parts=_parts(partial(self._supervise, deployment, handles)),
        )
        self._server.handles_signals = False
        self._server.is_connected = self._is_connected
        self._serving = asyncio.create_task(self._server.serve(self._listeners.tcp))
        first = asyncio.create_task(listening.wait())
        await asyncio.wait({self._serving, first}, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        self.check_health()

    def _is_connected(self) -> bool:
        for deployment, supervisor in self._supervisors.items():
            known = discovery.known(deployment)
            if known is None or (known and supervisor.state not in SERVING):
                return False
        return True

    def check_health(self) -> None:
        """Raises RuntimeError if the server has ended, so that Serve replaces the process."""
        if self._serving.done():
            reason = self._server.failures[0] if self._server.failures else "it has ended"
            raise RuntimeError(f"the server does not run: {reason}")

    async def urls(self) -> list[str]:
        """Returns the URLs on which the server listens, with this machine's address."""
        found = self._listeners.urls(self._scheme, self._prefix)
        here = ray.util.get_node_ip_address()
        for everywhere in ("0.0.0.0", "[::]"):
            found = [url.replace(f"//{everywhere}:", f"//{here}:") for url in found]
        return found

    async def __del__(self) -> None:
        self._server.should_exit = True
        await asyncio.wait({self._serving})
        self._listeners.close()

    def _supervise(
        self,
        deployment: Deployment,
        handles: Mapping[str, DeploymentHandle],
        options: Options,
        **arguments: Any,
    ) -> Supervisor:
        """Returns the supervisor of a model whose processes are replicas."""
        model = next(name for name, each in deployment.options.items() if each is options)
        calls = _Calls(handles[model])
        replicas = Replicas(__version__, calls.open, calls.wake)
        discovery.watch(handles[model].deployment_name, replicas.update)
        supervisor = Supervisor(
            options,
            fetch=_is_elsewhere,
            start_process=replicas.start_process,
            restarts=WaitsForReplicas(),
            **arguments,
        )
        self._supervisors[handles[model].deployment_name] = supervisor
        return supervisor


def _parts(supervise: Callable[..., Supervisor]) -> ServerParts:
    """Returns the parts of an ingress. Stores that would be in its own memory are in an actor, so
    that all ingresses share them."""
    actor = stores_of(serve.get_replica_context().app_name)
    return ServerParts(
        supervise=supervise,
        open_responses=lambda where: open_responses(where) if where else responses_of(actor),
        open_buckets=lambda where: buckets_of(actor) if where == MEMORY else open_buckets(where),
    )


async def _is_elsewhere(options: Options, on_progress: object) -> Options:
    """Takes the place of a download: the replicas have the model's files."""
    return options


# ---- The application ----------------------------------------------------------------------------


def application(args: dict[str, Any]) -> serve.Application:
    """Returns the Serve application of a deployment. `args` has the path of its file, `config`, or
    the file's sections themselves.

    Raises DeploymentError.
    """
    path = args.get("config")
    if path is None:
        return build(yaml.safe_dump(args, sort_keys=False), "args")
    if len(args) > 1:
        raise DeploymentError("args: give either config, the path of a file, or its sections")
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise DeploymentError(f"{path}: {getattr(error, 'strerror', error)}") from None
    return build(text, path)


def build(text: str, source: str) -> serve.Application:
    """Returns the Serve application of the deployment that `text` describes.

    Each process gets the part of the text on which it depends. `serve.run` replaces the processes
    whose part has changed, and no others.

    Raises DeploymentError.
    """
    deployment = read(text, source)
    router = RequestRouterConfig(request_router_class="specllama.ray_serve.ToNamedReplica")
    handles = {}
    for name, processes in deployment.models.items():
        own = part(text, name)
        replicas = serve.deployment(
            Replica,
            name=name,
            request_router_config=router,
            **_scale(processes, deployment.options[name].engine.context.n_slots()),
        )
        handles[name] = _versioned(replicas, own).bind(own, source, name)
    own = part(text)
    # Serve's check that no calls are open precedes the end of the listener.
    ingress = serve.deployment(
        Ingress,
        name=INGRESS,
        graceful_shutdown_wait_loop_s=0.1,
        **_scale(deployment.ingress, CALLS),
    )
    return _versioned(ingress, own).bind(own, source, handles)


def _versioned(deployment: serve.Deployment, text: str) -> serve.Deployment:
    """Returns a deployment that Serve regards as unchanged while `text` is the same. Without a
    version, `serve.run` would replace all processes each time."""
    digest = hashlib.sha256(f"{__version__}\n{text}".encode()).hexdigest()
    return deployment.options(version=digest[:16], _internal=True)


def _scale(processes: Processes, target: int) -> dict[str, Any]:
    """Returns Serve's options for the number of processes, and for what each reserves. `target` is
    the default of the calls at which autoscaling adds a process."""
    reserved: dict[str, Any] = {"num_cpus": processes.cpus, "num_gpus": processes.gpus}
    if processes.resources:
        reserved["resources"] = dict(processes.resources)
    found: dict[str, Any] = {
        "ray_actor_options": reserved,
        "max_ongoing_requests": CALLS,
        "graceful_shutdown_timeout_s": DRAIN_SECONDS,
        "max_surge_percent": processes.surge,
    }
    if processes.autoscaling is None:
        return {**found, "num_replicas": processes.replicas}
    settings = {"target_ongoing_requests": target, **processes.autoscaling}
    try:
        found["autoscaling_config"] = AutoscalingConfig(**settings)
    except ValueError as error:
        raise DeploymentError(f"{processes.place}: autoscaling: {_first_line(error)}") from None
    return found


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
