"""The options of a server, combined from their tables."""

import msgspec

from specllama.engine.options import Names, Options, RouterOptions
from specllama.engine.options.tables.chat import ChatOptions
from specllama.engine.options.tables.compute import ComputeOptions
from specllama.engine.options.tables.context import ContextOptions
from specllama.engine.options.tables.draft_model import DraftModelOptions
from specllama.engine.options.tables.embedding import EmbeddingOptions
from specllama.engine.options.tables.model import ModelOptions
from specllama.engine.options.tables.multimodal import MediaInputOptions, MediaOptions
from specllama.engine.options.tables.operations import OperationOptions, SlotFileOptions
from specllama.engine.options.tables.rope import RopeOptions
from specllama.engine.options.tables.sampling import SamplingOptions
from specllama.engine.options.tables.source import EntryOptions, SourceOptions
from specllama.engine.options.tables.speculation import SpeculationOptions
from specllama.handlers.options.tables.general import GeneralOptions, ResponsesOptions, UsageOptions
from specllama.handlers.options.tables.http import HttpOptions
from specllama.handlers.options.tables.log import LogOptions
from specllama.handlers.options.tables.page import PageOptions
from specllama.handlers.options.tables.tools import ToolOptions
from specllama.handlers.options.tables.tracing import TracingOptions
from specllama.handlers.options.tables.vertex import VertexOptions


class ServerOptions(msgspec.Struct, kw_only=True, frozen=True):
    """All options of one server. `model` has the options of the only model, or the defaults for all
    models, from the command line and the environment; the other tables apply to all models."""

    model: Options = Options()
    router: RouterOptions = RouterOptions()
    http: HttpOptions = HttpOptions()
    vertex: VertexOptions = VertexOptions()
    page: PageOptions = PageOptions()
    responses: ResponsesOptions = ResponsesOptions()
    usage: UsageOptions = UsageOptions()
    tools: ToolOptions = ToolOptions()
    log: LogOptions = LogOptions()
    tracing: TracingOptions = TracingOptions()
    general: GeneralOptions = GeneralOptions()

    def port(self) -> int:
        """Returns the port that the server listens on; 0: any free one."""
        return self.vertex.aip_http_port if self.vertex.is_on() else self.http.port


NAMES = Names(
    ServerOptions,
    (
        ModelOptions,
        ContextOptions,
        ComputeOptions,
        RopeOptions,
        SamplingOptions,
        SpeculationOptions,
        EmbeddingOptions,
        DraftModelOptions,
        MediaOptions,
        SourceOptions,
        MediaInputOptions,
        RouterOptions,
        EntryOptions,
        HttpOptions,
        VertexOptions,
        PageOptions,
        OperationOptions,
        SlotFileOptions,
        ResponsesOptions,
        UsageOptions,
        ToolOptions,
        ChatOptions,
        LogOptions,
        TracingOptions,
        GeneralOptions,
    ),
)
"""Every option of the command line, in the order of `--help`, which lists tables of one group
together."""
