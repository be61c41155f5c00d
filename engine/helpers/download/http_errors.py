"""Failures of downloads, each as one line for the user with advice."""

import httpx2

_GATED = "GatedRepo"
NETWORK_FAILURES = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, UnicodeError)
"""Exceptions of a request; UnicodeError is raised for an invalid host name."""

_PASSING = {408, 425, 429, 500, 502, 503, 504}


class DownloadError(Exception):
    """A download can't succeed. The message is one line for the user."""


class TransientError(DownloadError):
    """An attempt failed; the next one may succeed."""


def check_status(response: httpx2.Response, what: str) -> None:
    """Raises a DownloadError (a TransientError, if the error may be temporary) if an answer's
    status is an error.

    `what` names the requested file.
    """
    status, host = response.status_code, response.url.host
    if response.is_success or status in (304, 416):  # the caller handles these two
        return
    if response.headers.get("X-Error-Code") == _GATED:
        raise DownloadError(
            f"{what} is gated: accept its terms on {host}, then set --hf-token (or HF_TOKEN) to "
            "a token of that account"
        )
    if status in (401, 403):
        raise DownloadError(
            f"{host} refuses {what} (status {status}): check its name, and set --hf-token (or "
            "HF_TOKEN) if it is private or gated"
        )
    if status == 404:
        raise DownloadError(f"{host} has no {what} (status 404): check the name")
    if status in _PASSING:
        raise TransientError(f"{host} can't serve {what} at the moment (status {status})")
    raise DownloadError(f"{host} answers with status {status} for {what}")


def network_failure(error: Exception, url: str, what: str) -> DownloadError:
    """Returns an exception of the HTTP library as a message for the user."""
    host = _host(url)
    match error:
        case (
            httpx2.UnsupportedProtocol()
            | httpx2.TooManyRedirects()
            | httpx2.InvalidURL()
            | UnicodeError()
        ):
            return DownloadError(f"{host} redirects {what} to an invalid address: {_reason(error)}")
        case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return TransientError(f"{host} does not answer: check the network connection")
        case httpx2.TimeoutException():
            return TransientError(f"{host} stopped sending {what}")
        case httpx2.ConnectError() | httpx2.ProxyError():
            return TransientError(
                f"can't connect to {host} ({_reason(error)}): check the network connection"
            )
    return TransientError(f"the connection to {host} broke off ({_reason(error)})")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _host(url: str) -> str:
    """Returns only the host, as the whole address may contain a password or a signature."""
    try:
        return httpx2.URL(url).host or "the server"
    except httpx2.InvalidURL:
        return "the server"
