"""Renders chat templates, which are not trusted, in separate processes
(`engine.helpers.render.render_main`), and chooses the template of a model."""

import asyncio
import logging
from functools import cache, partial
from typing import Final

import msgspec

from specllama.engine.chat.request import ChatPrompt, ChatRequest
from specllama.engine.errors import EngineError, invalid_request, server_error
from specllama.engine.helpers.pool import Helper, HelperPool
from specllama.engine.helpers.render.render_jobs import (
    Answer,
    Description,
    RenderJob,
    RenderRefused,
    TemplateSource,
    answer_decoder,
)
from specllama.engine.options import Options
from specllama.engine.options.files import read_text
from specllama.engine.options.tables.chat import BUILTIN_NAMES
from specllama.engine.wire.commands import TEMPLATE_MEMORY, TEMPLATE_SECONDS, template_command
from specllama.engine.wire.framing import JSON, frame
from specllama.engine.wire.process import ChildError
from specllama.engine.wire.replies import ModelInfo

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML's template, for models without a chat template."""


log = logging.getLogger("specllama.engine.helpers.render")

MAX_DESCRIPTIONS: Final = 64
LARGE: Final = 1 << 20  # bytes of a job


class Renderer:
    """Renders chat templates.

    All methods raise EngineError: server_error if the template itself is invalid or the process
    crashes, invalid_request_error if it takes too long or too much memory, unavailable_error after
    `stop`.
    """

    def __init__(
        self, *, time_limit: float = TEMPLATE_SECONDS, memory_limit: int = TEMPLATE_MEMORY
    ) -> None:
        self._time_limit = time_limit
        command = template_command(memory_limit, time_limit)
        self._pool = HelperPool[Answer]("a template process", command, answer_decoder)
        self._descriptions: dict[TemplateSource, Description] = {}

    def prepare(self) -> None:
        """Starts a process before the first job. If that fails, the first job starts it."""
        self._pool.prepare()

    async def prompt(self, template: TemplateSource, request: ChatRequest) -> ChatPrompt:
        """Returns the result of `engine.helpers.render.template.prompt.chat_prompt`; also raises
        its errors."""
        answer = await self._answer(template, request)
        assert isinstance(answer, ChatPrompt)
        return answer

    async def describe(self, template: TemplateSource) -> Description:
        """Returns the `Description` of `template`, which is detected once."""
        if template not in self._descriptions:
            answer = await self._answer(template, None)
            assert isinstance(answer, Description)
            if len(self._descriptions) >= MAX_DESCRIPTIONS:
                self._descriptions.clear()
            self._descriptions[template] = answer
        return self._descriptions[template]

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return self._pool.pids

    async def stop(self) -> None:
        """Ends all processes; open jobs fail."""
        await self._pool.stop()

    async def _answer(self, template: TemplateSource, request: ChatRequest | None) -> Answer:
        try:
            answer = await self._pool.run(partial(self._ask, template=template, request=request))
        except ChildError as e:
            raise server_error("the chat template crashed on this request") from e
        if isinstance(answer, RenderRefused):
            raise EngineError(answer.error)
        return answer

    async def _ask(
        self, helper: Helper[Answer], template: TemplateSource, request: ChatRequest | None
    ) -> Answer:
        """Raises EngineError if the job takes too long, ChildError if it ends the process."""
        known = template in helper.known
        number = helper.known.get(template, len(helper.known))
        try:
            data = frame(RenderJob(number, None if known else template, request), JSON)
        except (UnicodeEncodeError, RecursionError) as e:
            raise invalid_request(f"this request can't be passed to a chat template: {e}") from e
        if len(data) > LARGE:
            await asyncio.sleep(0)  # writing copies the data: let other tasks run first
        try:
            answer = await helper.ask(data, self._time_limit)
        except TimeoutError:
            raise invalid_request(
                f"the chat template takes more than {self._time_limit:g} s for this request and "
                "was stopped"
            ) from None
        except ChildError as e:
            log.error("a template process ended with code %d during a job", e.code)
            raise
        helper.known[template] = number
        helper.is_fit = not (isinstance(answer, RenderRefused) and answer.exhausted)
        return answer


_read_once = cache(read_text)


def template_source(options: Options, info: ModelInfo, *, tools: bool = False) -> str:
    """Returns the template as Jinja text, or as the name of one of llama.cpp's formats: from the
    command line, else from the model, which may have a separate one for `tools`, else ChatML.

    Raises OptionError if `--chat-template-file` can't be read; the command line has checked it.
    """
    if options.chat.chat_template_file:
        return _read_once(options.chat.chat_template_file)
    for_tools = info.tool_template if tools and options.chat.jinja else ""
    own = for_tools or info.chat_template or info.tool_template
    return options.chat.chat_template or own or CHATML


def tool_template_source(options: Options, info: ModelInfo) -> str:
    """Returns the Jinja text of the model's template for requests with tools; "" without one, or if
    the command line sets another template."""
    given = options.chat.chat_template_file or options.chat.chat_template
    return "" if given else info.tool_template


def renders_with_jinja(options: Options, source: str) -> bool:
    """Returns whether to use Jinja; else one of llama.cpp's own formats is used."""
    return options.chat.jinja and source not in BUILTIN_NAMES


def with_tokens(source: str, info: ModelInfo) -> TemplateSource:
    """Returns `source` with the special tokens of its model."""
    return TemplateSource(source, info.bos_token, info.eos_token)


async def examined(renderer: Renderer, options: Options, info: ModelInfo) -> ModelInfo:
    """Returns `info`, the information about a loaded model, for use by requests. A template for
    tools that can't be parsed is removed from it, with a warning.

    Raises EngineError with the line and the column if the main template can't be parsed.
    """
    if options.engine.embedding.embeds():
        return info
    if fault := await _fault(renderer, options, info, template_source(options, info)):
        raise server_error(
            f"{fault}; choose another one with --chat-template or --chat-template-file, or use "
            "llama.cpp's built-in formats with --no-jinja"
        )
    for_tools = template_source(options, info, tools=True)
    if fault := await _fault(renderer, options, info, for_tools):
        log.warning("the model's template for tools is ignored: %s", fault)
        return msgspec.structs.replace(info, tool_template="")
    return info


async def _fault(renderer: Renderer, options: Options, info: ModelInfo, source: str) -> str:
    """Returns why a template can't be parsed; "" if it can, or isn't Jinja."""
    if not renders_with_jinja(options, source):
        return ""
    try:
        await renderer.describe(with_tokens(source, info))
    except EngineError as error:  # an endless loop, for example, may only affect some requests
        return error.info.message if error.info.final else ""
    return ""
