"""The security schemes of the description: a bearer's token, and the header `x-api-key`.

The functions that check a credential are fixed here: the names in the description are for
Connexion's command line (`handlers.binding.connexion_command`).
"""

from collections.abc import Callable
from typing import Any

from connexion.lifecycle import ConnexionRequest
from connexion.security import ApiKeySecurityHandler, BearerSecurityHandler

from specllama.handlers.http.api_keys import is_api_key

Verify = Callable[[ConnexionRequest], Any]


def _api_keys(request: ConnexionRequest) -> tuple[bytes, ...]:
    keys: tuple[bytes, ...] = request.scope["state"]["runtime"].api_keys
    return keys


def bearer_info(token: str, request: ConnexionRequest) -> dict[str, str] | None:
    """An empty dictionary if the token is valid, or None. Nothing else is known of its bearer."""
    return {} if is_api_key(token, _api_keys(request)) else None


def api_key_info(api_key: str, request: ConnexionRequest) -> dict[str, str] | None:
    """The same for the header `x-api-key`."""
    return {} if is_api_key(api_key, _api_keys(request)) else None


class _Bearer(BearerSecurityHandler):  # type: ignore[misc]  # connexion has no types
    # Connexion never asks a check function about a request that has no credentials, so a
    # server without keys has to be let through here.
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
