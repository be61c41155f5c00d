"""Options of the API for Vertex AI, which sets their variables in the containers that it starts."""

import re
from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options.declaration import Opt
from specllama.engine.options.values import OptionError, quote

_vertex = partial(Opt, group="Server")
_PATH = re.compile(r"[!-\"$-&(->@-~]*")
"""A path: visible ASCII characters without `#`, `?` and `'`."""
PREDICTION = "PREDICTION"
"""The value of `AIP_MODE` in a container for predictions."""


def _route(text: str) -> str:
    """Returns a path, with a slash at its beginning and none at its end."""
    path = "/" + text.strip("/")
    if not _PATH.fullmatch(path):
        raise OptionError(f"{quote(text)} isn't a path")
    return path


class VertexOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Whether the server answers predictions of Vertex AI, and at which port and paths."""

    aip_mode: Annotated[
        str,
        _vertex(
            names="--aip-mode",
            env="AIP_MODE",
            metavar="MODE",
            help="PREDICTION switches POST /predict on, for Vertex AI, and makes --aip-http-port "
            "replace --port. Other modes have no effect.",
            default="none",
        ),
    ] = ""
    aip_http_port: Annotated[
        int,
        _vertex(
            names="--aip-http-port",
            env="AIP_HTTP_PORT",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port of the server with --aip-mode PREDICTION; 0: any free port.",
        ),
    ] = 8080
    aip_health_route: Annotated[
        str,
        _vertex(
            names="--aip-health-route",
            env="AIP_HEALTH_ROUTE",
            metavar="PATH",
            help="Another path of GET /health, with --aip-mode PREDICTION. The path of another "
            "operation stays that operation's.",
            default="none",
            read=_route,
        ),
    ] = ""
    aip_predict_route: Annotated[
        str,
        _vertex(
            names="--aip-predict-route",
            env="AIP_PREDICT_ROUTE",
            metavar="PATH",
            help="Another path of POST /predict, with --aip-mode PREDICTION. It can't be the path "
            "of another operation.",
            default="none",
            read=_route,
        ),
    ] = ""

    def is_on(self) -> bool:
        """Returns whether the server answers predictions."""
        return self.aip_mode == PREDICTION
