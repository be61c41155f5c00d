"""The options of a server, put together from their tables."""

import msgspec

from engine.options import Names, Options, RouterOptions
from engine.options.tables.chat import ChatOptions
from engine.options.tables.compute import ComputeOptions
from engine.options.tables.context import ContextOptions
from engine.options.tables.draft_model import DraftModelOptions
from engine.options.tables.embedding import EmbeddingOptions
from engine.options.tables.entry import EntryOptions
from engine.options.tables.media import MediaInputOptions, MediaOptions
from engine.options.tables.model import ModelOptions
from engine.options.tables.operations import OperationOptions
from engine.options.tables.rope import RopeOptions
from engine.options.tables.sampling import SamplingOptions
from engine.options.tables.slot_files import SlotFileOptions
from engine.options.tables.source import SourceOptions
from engine.options.tables.speculation import SpeculationOptions
from handlers.options.tables.general import GeneralOptions
from handlers.options.tables.http import HttpOptions
from handlers.options.tables.log import LogOptions
from handlers.options.tables.page import PageOptions
from handlers.options.tables.responses import ResponsesOptions


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
