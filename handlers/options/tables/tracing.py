"""Options of traces."""

from functools import partial
from importlib.util import find_spec
from typing import Annotated

import msgspec

from specllama.engine.options.declaration import Opt
from specllama.engine.options.values import OptionError
from specllama.handlers.options import addresses

_tracing = partial(Opt, group="Logging")
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


class TracingOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Whether and where to export traces of requests. The standard variables of OpenTelemetry
    (OTEL_...) have all other settings."""

    otel: Annotated[
        bool,
        _tracing(
            names="--otel",
            env="LLAMA_ARG_OTEL",
            help="Export traces of requests with OpenTelemetry, as OTLP over HTTP. The standard "
            "variables apply, such as OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_SERVICE_NAME. Needs "
            "the extra `otel`: pip install 'specllama[otel]'.",
        ),
    ] = False
    otel_endpoint: Annotated[
        str,
        _tracing(
            names="--otel-endpoint",
            env="LLAMA_ARG_OTEL_ENDPOINT",
            metavar="URL",
            help="Address of the collector of traces, such as http://localhost:4318; /v1/traces is "
            "added. Switches --otel on.",
            default="the standard variables, or else http://localhost:4318",
            read=addresses.collector,
        ),
    ] = ""

    def is_on(self) -> bool:
        """Returns whether traces are exported."""
        return self.otel or bool(self.otel_endpoint)

    def check(self) -> None:
        """Raises `OptionError` if traces are to be exported, and OpenTelemetry isn't installed."""
        if self.is_on() and not all(map(_is_installed, _NEEDED)):
            raise OptionError(
                "--otel needs OpenTelemetry, which is not installed: pip install 'specllama[otel]'"
            )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package around it is missing
        return False
