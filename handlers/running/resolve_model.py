"""Finds the model of a request."""

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
from specllama.engine.wire.requests import Terms
from specllama.handlers.http.api_keys import current_key
from specllama.handlers.http.current import current_scope, until_disconnect
from specllama.handlers.http.log_fields import log_fields
from specllama.handlers.running.admission import leased
from specllama.handlers.running.runtime import Runtime, runtime
from specllama.handlers.running.terms import Wishes, current_terms

MAX_ALLOWED = 20  # names in the message about a model that a key doesn't allow


@dataclass(frozen=True)
class ResolvedModel:
    """The catalog entry of one request's model."""

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

    def terms(self, wishes: Wishes) -> Terms:
        """Returns the terms of the current request."""
        return current_terms(wishes, default_priority=self.options.operations.default_priority)

    async def engine(self) -> EngineClient:
        """Returns the model's engine, which stays loaded to the end of this request.

        Raises EngineError: unavailable_error if the model can't be loaded, or, in a server of one
        model, while it is loading; invalid_request_error if the model isn't loaded and this request
        may not load it.
        """
        return await (await self.lease()).engine()

    async def lease(self) -> Lease:
        """Leases the engine to the end of this request. Raises as `engine` does."""
        pool = self.current.pool
        lease = pool.lease_now(self.entry)
        if lease is None:
            lease = await until_disconnect(pool.lease(self.entry, autoload=self.autoload))
        current_scope()["state"]["leases"].callback(lease.release)
        leased()
        return lease


def resolve_model(
    body: Mapping[str, Any] | None = None, *, unknown: ErrorType = "invalid_request_error"
) -> ResolvedModel:
    """Returns the model that the current request names in its `body` or by `?model=`; the default
    model if it names none.

    Raises EngineError: of type `unknown` for a name that the catalog doesn't have,
    permission_error for a model that the request's API key doesn't allow.
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
    """Returns the entry with the name or alias `name`; the default model without a name. A suffix
    `:latest`, which Ollama's clients add to names without a tag, is ignored unless a model has it.

    Raises EngineError: of type `unknown`, whose message has similar names, or permission_error for
    a model that the current request's API key doesn't allow.
    """
    catalog = current.catalog
    name = name or catalog.default
    entry = catalog.find(name) or catalog.find(name.removesuffix(":latest"))
    if entry is None:
        raise EngineError.of(unknown, not_found(current, name))
    check_allowed(entry.name, *entry.aliases)
    return entry


def check_allowed(*names: str) -> None:
    """Raises EngineError (permission_error) if the current request's API key doesn't allow the
    model with these names."""
    key = current_key()
    if key is None or key.models is None or key.may_use(names):
        return
    allowed = sorted(key.models)
    shown = ", ".join([*allowed[:MAX_ALLOWED], "..."] if len(allowed) > MAX_ALLOWED else allowed)
    raise EngineError.of(
        "permission_error",
        f"the key {key.name!r} may not use the model {names[0][:200]!r}, only {shown or 'none'}",
    )


def is_allowed(entry: CatalogEntry) -> bool:
    """True unless the current request's API key doesn't allow the model."""
    key = current_key()
    return key is None or key.may_use((entry.name, *entry.aliases))


def allowed_names(current: Runtime) -> list[str]:
    """Returns the names of all models that the current request's API key allows."""
    return [entry.name for entry in current.catalog.entries.values() if is_allowed(entry)]


def listed(current: Runtime) -> list[CatalogEntry]:
    """Returns the models that the client of the current request can list."""
    return [entry for entry in current.catalog.listed() if is_allowed(entry)]


def not_found(current: Runtime, name: str) -> str:
    """Returns the error message for a model name that doesn't exist."""
    entries = current.catalog.entries
    near = ", ".join(each for each in current.catalog.near(name) if is_allowed(entries[each]))
    hint = f"did you mean one of these: {near}?" if near else "GET /models lists all models"
    return f"model {name[:200]!r} not found; {hint}"
