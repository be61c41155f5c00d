"""The options of a server, put together from their tables."""

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
from specllama.handlers.options.tables.general import GeneralOptions, ResponsesOptions
from specllama.handlers.options.tables.http import HttpOptions
from specllama.handlers.options.tables.log import LogOptions
from specllama.handlers.options.tables.page import PageOptions


class ServerOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What a server was started with. `model` is what the command line and variables say of the
    only model, or of all; the other tables are the same for every model."""

    model: Options = Options()
    router: RouterOptions = RouterOptions()
    http: HttpOptions = HttpOptions()
    page: PageOptions = PageOptions()
    responses: ResponsesOptions = ResponsesOptions()
    log: LogOptions = LogOptions()
    general: GeneralOptions = GeneralOptions()


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
        PageOptions,
        OperationOptions,
        SlotFileOptions,
        ResponsesOptions,
        ChatOptions,
        LogOptions,
        GeneralOptions,
    ),
)
"""Every option that a command line may have, in the order of `--help`: tables of one group have
their options together."""
