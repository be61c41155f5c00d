"""Access to operations: the security schemes of the description (a bearer token, and keys in
headers or in the query), and the middleware that applies them.

This module always uses its own functions to check a credential. The names of functions in the
description are for Connexion's command line (`handlers.binding.connexion_command`).
"""

from collections.abc import Callable
from typing import Any, Literal

from connexion.lifecycle import ConnexionRequest
from connexion.middleware.abstract import ROUTING_CONTEXT
from connexion.middleware.security import SecurityMiddleware
from connexion.security import ApiKeySecurityHandler, BearerSecurityHandler
from connexion.spec import Specification
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from specllama.handlers.binding.errors import METHODS
from specllama.handlers.http.api_keys import KeyRing, key_of, refused
from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.hosts import is_foreign
from specllama.handlers.http.log_fields import log_fields_of
from specllama.handlers.options.keys_file import Access

Verify = Callable[[ConnexionRequest], Any]


def _api_keys(request: ConnexionRequest) -> KeyRing:
    keys: KeyRing = request.scope["state"]["runtime"].api_keys
    return keys


def bearer_info(token: str, request: ConnexionRequest) -> dict[str, str] | None:
    """Returns an empty dictionary, as there are no facts about the client, if the token is valid;
    otherwise None."""
    return {} if _api_keys(request).find(token.encode()) else None


def api_key_info(api_key: str, request: ConnexionRequest) -> dict[str, str] | None:
    """Returns an empty dictionary if the key is valid, otherwise None."""
    return {} if _api_keys(request).find(api_key.encode()) else None


class _Bearer(BearerSecurityHandler):  # type: ignore[misc]  # connexion has no types
    # Connexion rejects a request without credentials before it calls the check function, so a
    # server without keys has to accept it here.
    def _resolve_func(self, security_scheme: dict[str, Any]) -> Callable[..., Any]:
        return bearer_info

    def _get_verify_func(self, token_info_func: Callable[..., Any]) -> Verify:
        verify: Verify = super()._get_verify_func(token_info_func)
        return lambda request: verify(request) if _api_keys(request) else {}


class _ApiKey(ApiKeySecurityHandler):  # type: ignore[misc]  # connexion has no types
    def _resolve_func(self, security_scheme: dict[str, Any]) -> Callable[..., Any]:
        return api_key_info

    def _get_verify_func(
        self, api_key_info_func: Callable[..., Any], loc: str, name: str, required_scopes: list[str]
    ) -> Verify:
        verify: Verify = super()._get_verify_func(api_key_info_func, loc, name, required_scopes)
        return lambda request: verify(request) if _api_keys(request) else {}


SECURITY_MAP = {"bearer": _Bearer, "apiKey": _ApiKey}
"""Connexion's `security_map`."""


class Security(SecurityMiddleware):  # type: ignore[misc]
    """Checks API keys and origins. A server without keys accepts every request. With keys, unknown
    paths need one, too, and a key must allow the operation's group, `x-access`. Operations with
    `x-refuses-foreign-origins` reject pages of other origins."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._own_pages_only: set[str] = set()  # by operationId
        self._access: dict[str, Access | Literal["public"]] = {}  # by operationId

    def add_api(self, specification: Specification, **options: Any) -> None:
        super().add_api(specification, **options)
        for item in specification["paths"].values():
            for method in item.keys() & METHODS:
                operation = item[method]
                self._access[operation["operationId"]] = operation.get("x-access", "admin")
                if operation.get("x-refuses-foreign-origins"):
                    self._own_pages_only.add(operation["operationId"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        operation: str | None = scope["extensions"][ROUTING_CONTEXT]["operation_id"]
        name = operation.rpartition(".")[2] if operation else ""
        if name in self._own_pages_only and is_foreign(scope):
            raise RequestError(
                403, "pages of this origin may not do this unless --cors-origins names the origin"
            )
        if not scope["state"]["runtime"].api_keys:
            await self.app(scope, receive, send)
            return
        key = key_of(scope)
        if key is not None:
            log_fields_of(scope).key = key.name
            access = self._access.get(name, "public")
            if access != "public" and access not in key.access:
                raise RequestError(403, refused(key, access))
        elif operation is None:
            raise HTTPException(401)
        await super().__call__(scope, receive, send)
