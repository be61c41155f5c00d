"""The model that a request is for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.errors import EngineError, ErrorType
from specllama.engine.helpers.render.renderer import Renderer
from specllama.engine.models.client import EngineClient
from specllama.engine.models.records import Lease
from specllama.engine.options import Options
from specllama.engine.wire.replies import ModelInfo
from specllama.handlers.http.current import current_scope, until_disconnect
from specllama.handlers.http.log_fields import log_fields
from specllama.handlers.running.runtime import Runtime, runtime


@dataclass(frozen=True)
class ResolvedModel:
    """One entry of the catalog, as the handler of one request sees it."""

    current: Runtime
    entry: CatalogEntry
    autoload: bool

    @property
    def name(self) -> str:
        """The model's id in the API."""
        return self.entry.name

    @property
    def options(self) -> Options:
        return self.entry.options

    @property
    def renderer(self) -> Renderer:
        return self.current.renderer

    @property
    def info(self) -> ModelInfo | None:
        """The facts about the model from its last loading; None if it was never loaded."""
        return self.current.pool.status(self.name).info

    async def engine(self) -> EngineClient:
        """The model's engine, which stays loaded to the end of this request.

        Raises EngineError (unavailable_error) if it can't be loaded, or, in a server of one
        model, while it is loading; invalid_request_error if it isn't loaded and must not be.
        """
        return await (await self.lease()).engine()

    async def lease(self) -> Lease:
        """The right to the engine to the end of this request; raises as `engine` does."""
        pool = self.current.pool
        lease = pool.lease_now(self.entry)
        if lease is None:
            lease = await until_disconnect(pool.lease(self.entry, autoload=self.autoload))
        current_scope()["state"]["leases"].callback(lease.release)
        return lease


def resolve_model(
    body: Mapping[str, Any] | None = None, *, unknown: ErrorType = "invalid_request_error"
) -> ResolvedModel:
    """The model that the current request names, in its `body` or by `?model=`; the default one
    if it names none.

    Raises EngineError of type `unknown` for a name that the catalog doesn't have.
    """
    current = runtime()
    string = current_scope()["query_string"]
    query = QueryParams(string) if string else {}
    name = (body or {}).get("model") or query.get("model")
    autoload = query.get("autoload")
    entry = find(current, name, unknown)
    log_fields().model = entry.name
    return ResolvedModel(
        current,
        entry,
        current.options.router.models_autoload if autoload is None else autoload.lower() == "true",
    )


def find(current: Runtime, name: str | None, unknown: ErrorType) -> CatalogEntry:
    """The entry of that name or alias; Ollama's clients add `:latest` to a name without a tag.

    Raises EngineError of type `unknown`, which names similar ones.
    """
    catalog = current.catalog
    if not name:
        return catalog.entries[catalog.default]
    entry = catalog.find(name) or catalog.find(name.removesuffix(":latest"))
    if entry is None:
        raise EngineError.of(unknown, not_found(current, name))
    return entry


def not_found(current: Runtime, name: str) -> str:
    """What to say about a name that no model has."""
    near = ", ".join(current.catalog.near(name))
    hint = f"did you mean one of these: {near}?" if near else "GET /models lists all models"
    return f"model {name[:200]!r} not found; {hint}"
