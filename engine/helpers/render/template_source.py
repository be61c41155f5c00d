"""Which chat template is in force, and whether it can be parsed."""

import logging
from functools import cache

import msgspec

from specllama.engine.errors import EngineError, server_error
from specllama.engine.helpers.render.render_jobs import TemplateSource
from specllama.engine.helpers.render.renderer import Renderer
from specllama.engine.helpers.render.template.builtin import CHATML
from specllama.engine.options import Options
from specllama.engine.options.files import read_text
from specllama.engine.options.tables.chat import BUILTIN_NAMES
from specllama.engine.wire.replies import ModelInfo

log = logging.getLogger("specllama.engine.chat.rendering")

_read_once = cache(read_text)


def template_source(options: Options, info: ModelInfo, *, tools: bool = False) -> str:
    """The Jinja text, or the name of one of llama.cpp's formats: from the command line, else
    from the model, which may have one of its own for `tools`, else ChatML.

    Raises OptionError if `--chat-template-file` can't be read; the command line has checked it.
    """
    if options.chat.chat_template_file:
        return _read_once(options.chat.chat_template_file)
    for_tools = info.tool_template if tools and options.chat.jinja else ""
    own = for_tools or info.chat_template or info.tool_template
    return options.chat.chat_template or own or CHATML


def tool_template_source(options: Options, info: ModelInfo) -> str:
    """The Jinja text that the model has for requests with tools; "" without one, and where the
    command line has another template."""
    given = options.chat.chat_template_file or options.chat.chat_template
    return "" if given else info.tool_template


def renders_with_jinja(options: Options, source: str) -> bool:
    """Otherwise llama.cpp's own formats are to be used."""
    return options.chat.jinja and source not in BUILTIN_NAMES


def with_tokens(source: str, info: ModelInfo) -> TemplateSource:
    """`source` with the special tokens of its model."""
    return TemplateSource(source, info.bos_token, info.eos_token)


async def examined(renderer: Renderer, options: Options, info: ModelInfo) -> ModelInfo:
    """What requests may use of a model that has been loaded: a template for tools that can't be
    parsed is left out with a warning.

    Raises EngineError with the line and the column if the template for everything else can't be.
    """
    if options.engine.embedding.embeds():
        return info
    if fault := await _fault(renderer, options, info, template_source(options, info)):
        raise server_error(
            f"{fault}; another one is named by --chat-template or --chat-template-file, and "
            "--no-jinja takes llama.cpp's built-in formats"
        )
    for_tools = template_source(options, info, tools=True)
    if fault := await _fault(renderer, options, info, for_tools):
        log.warning("the model's template for tools is left out: %s", fault)
        return msgspec.structs.replace(info, tool_template="")
    return info


async def _fault(renderer: Renderer, options: Options, info: ModelInfo, source: str) -> str:
    """Why a template can't be parsed; "" if it can be, or isn't Jinja."""
    if not renders_with_jinja(options, source):
        return ""
    try:
        await renderer.describe(with_tokens(source, info))
    except EngineError as error:  # one that never ends, say, may do so for some requests alone
        return error.info.message if error.info.final else ""
    return ""
