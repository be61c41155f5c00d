"""Renders chat templates, which are not trusted, in processes of their own
(`engine.helpers.render.render_main`)."""

import asyncio
import logging
from functools import partial
from typing import Final

from specllama.engine.chat.prompt import ChatPrompt
from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import EngineError, invalid_request, server_error
from specllama.engine.helpers.pool import Helper, HelperPool
from specllama.engine.helpers.render.render_jobs import (
    Answer,
    Description,
    Job,
    Refused,
    TemplateSource,
    answer_decoder,
)
from specllama.engine.wire.commands import TEMPLATE_MEMORY, TEMPLATE_SECONDS, template_command
from specllama.engine.wire.framing import JSON, frame
from specllama.engine.wire.process import ChildError

log = logging.getLogger("specllama.engine.helpers.render")

MAX_DESCRIPTIONS: Final = 64
LARGE: Final = 1 << 20  # bytes of a job


class Renderer:
    """Renders chat templates.

    All methods raise EngineError: server_error if the template itself is not valid or the process
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
        """Starts a process before it is needed. If that fails, the first job that needs it does."""
        self._pool.prepare()

    async def prompt(self, template: TemplateSource, request: ChatRequest) -> ChatPrompt:
        """`engine.helpers.render.template.prompt.chat_prompt`, whose errors are raised, too."""
        answer = await self._answer(template, request)
        assert isinstance(answer, ChatPrompt)
        return answer

    async def describe(self, template: TemplateSource) -> Description:
        """The traits of `template`; detected once."""
        if template not in self._descriptions:
            answer = await self._answer(template, None)
            assert isinstance(answer, Description)
            if len(self._descriptions) >= MAX_DESCRIPTIONS:
                self._descriptions.clear()
            self._descriptions[template] = answer
        return self._descriptions[template]

    @property
    def pids(self) -> list[int]:
        """The ids of the present processes."""
        return self._pool.pids

    async def stop(self) -> None:
        """Ends all processes; open jobs end with an error."""
        await self._pool.stop()

    async def _answer(self, template: TemplateSource, request: ChatRequest | None) -> Answer:
        try:
            answer = await self._pool.run(partial(self._ask, template=template, request=request))
        except ChildError as e:
            raise server_error("the chat template crashed on this request") from e
        if isinstance(answer, Refused):
            raise EngineError(answer.error)
        return answer

    async def _ask(
        self, helper: Helper[Answer], template: TemplateSource, request: ChatRequest | None
    ) -> Answer:
        """Raises EngineError if the job takes too long, ChildError if it ends the process."""
        known = template in helper.known
        number = helper.known.get(template, len(helper.known))
        try:
            data = frame(Job(number, None if known else template, request), JSON)
        except (UnicodeEncodeError, RecursionError) as e:
            raise invalid_request(f"this request can't be given to a chat template: {e}") from e
        if len(data) > LARGE:
            await asyncio.sleep(0)  # writing it copies it: others have their turn first
        try:
            answer = await helper.ask(data, self._time_limit)
        except TimeoutError:
            raise invalid_request(
                f"the chat template takes more than {self._time_limit:g} s for this request and "
                "was stopped"
            ) from None
        except ChildError as e:
            log.error("a template process ended with code %d, in the middle of a job", e.code)
            raise
        helper.known[template] = number
        helper.is_fit = not (isinstance(answer, Refused) and answer.exhausted)
        return answer
