"""Template processes: their answers, and the limits for hostile templates."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract_tests.kit.server import SECONDS, alive
from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import EngineError
from specllama.engine.helpers.pool import PROCESSES
from specllama.engine.helpers.render.detect.detect import detect
from specllama.engine.helpers.render.render_jobs import TemplateSource
from specllama.engine.helpers.render.renderer import CHATML, Renderer
from specllama.engine.helpers.render.template.prompt import chat_prompt
from specllama.engine.helpers.render.template.template import ChatTemplate
from tests.support.chat_fixtures import FIXTURES, TOOLS, Fixture
from tests.support.hostile_templates import HOSTILE, Hostile

pytestmark = pytest.mark.slow

CHAT = TemplateSource(CHATML)
HELLO = ChatRequest(messages=[{"role": "user", "content": "Hello"}])
HELLO_PROMPT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
FOR_EVER = TemplateSource(
    "{% if messages[0].content == 'loop' %}"
    + "{% for i in range(99999) %}" * 4
    + "{% endfor %}" * 4
    + "{% endif %}fine"
)
HOARD = TemplateSource(
    "{% set ns = namespace(x='x') %}"
    "{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
)
LOOP = ChatRequest(messages=[{"role": "user", "content": "loop"}])
OUTCOMES = {
    "refused": "invalid_request_error",
    "invalid": "server_error",
    "huge": "invalid_request_error",
    "endless": "invalid_request_error",
    "crash": "server_error",
}
SHORT = 1.0  # s; for what never ends


@asynccontextmanager
async def rendering(**options: Any) -> AsyncIterator[Renderer]:
    renderer = Renderer(**options)
    try:
        yield renderer
    finally:
        await renderer.stop()
        assert renderer.pids == []


async def killed(renderer: Renderer, but: int = -1) -> int:
    """The id of a process of `renderer`, other than `but`, once it is there and was killed."""
    while not (pids := [pid for pid in renderer.pids if pid != but]):
        await asyncio.sleep(0.01)
    os.kill(pids[0], signal.SIGKILL)
    return pids[0]


def test_a_prompt_and_a_description() -> None:
    async def run() -> None:
        async with rendering() as renderer:
            prompt = await renderer.prompt(CHAT, HELLO)
            assert prompt.text == HELLO_PROMPT
            description = await renderer.describe(CHAT)
            assert description.caps["supports_string_content"]
            assert not description.caps["supports_tools"]
            assert description.syntax == detect(ChatTemplate(CHATML))
            assert len(renderer.pids) == 1

    asyncio.run(run())


@pytest.mark.parametrize("given", FIXTURES, ids=lambda given: given.name)
def test_the_process_answers_as_the_functions_do(given: Fixture) -> None:
    request = ChatRequest(messages=HELLO.messages, tools=TOOLS)
    template = given.template()

    async def run() -> None:
        async with rendering() as renderer:
            source = TemplateSource(given.source, given.bos, given.eos)
            prompt = await renderer.prompt(source, request)
            assert prompt == chat_prompt(template, detect(template), request)
            assert (await renderer.describe(source)).syntax == detect(template)

    asyncio.run(run())


def test_numbers_of_any_size_and_all_characters_arrive() -> None:
    async def run() -> None:
        async with rendering() as renderer:
            source = TemplateSource("{{ number }}{{ messages[0].content }}")
            text = "\x00\u2028é𝄞\ufeff"
            request = ChatRequest(
                messages=[{"role": "user", "content": text}],
                template_variables={"number": 10**30},
            )
            assert (await renderer.prompt(source, request)).text == f"{10**30}{text}"
            request.messages[0]["content"] = "\ud800"
            with pytest.raises(EngineError) as error:
                await renderer.prompt(source, request)
            assert error.value.info.type == "invalid_request_error"

    asyncio.run(run())


@pytest.mark.parametrize("given", HOSTILE, ids=lambda given: given.name)
def test_after_any_template_the_next_one_renders(given: Hostile) -> None:
    async def run() -> None:
        limit = SECONDS if given.outcome == "renders" else SHORT
        async with rendering(time_limit=limit, memory_limit=1 << 29) as renderer:
            source = TemplateSource(given.source)
            if given.outcome == "renders":
                prompt = await renderer.prompt(source, HELLO)
                assert given.text is None or prompt.text == given.text
            else:
                with pytest.raises(EngineError) as error:
                    await renderer.prompt(source, HELLO)
                assert error.value.info.type in (OUTCOMES[given.outcome], "invalid_request_error")
                assert len(error.value.info.message) < 5000
            renderer._time_limit = SECONDS
            assert (await renderer.prompt(CHAT, HELLO)).text == HELLO_PROMPT

    asyncio.run(run())


def test_a_template_that_takes_too_long_is_stopped_with_an_error() -> None:
    async def run() -> None:
        async with rendering(time_limit=SECONDS) as renderer:
            await renderer.describe(FOR_EVER)
            (before,) = renderer.pids
            renderer._time_limit = SHORT
            with pytest.raises(EngineError, match=r"takes more than 1 s .* stopped") as error:
                await renderer.prompt(FOR_EVER, LOOP)
            assert error.value.info.type == "invalid_request_error"
            assert not psutil.pid_exists(before)
            renderer._time_limit = SECONDS
            assert (await renderer.prompt(FOR_EVER, HELLO)).text == "fine"

    asyncio.run(run())


def test_a_slow_template_holds_up_neither_the_event_loop_nor_other_requests() -> None:
    async def run() -> None:
        async with rendering(time_limit=SECONDS) as renderer:
            slow = asyncio.create_task(renderer.prompt(FOR_EVER, LOOP))
            texts = [(await renderer.prompt(CHAT, HELLO)).text for _ in range(20)]
            assert texts == [HELLO_PROMPT] * 20
            assert not slow.done()
            await renderer.stop()
            with pytest.raises(EngineError):
                await slow

    asyncio.run(run())


def test_many_requests_at_once_share_the_processes() -> None:
    async def run() -> None:
        async with rendering() as renderer:
            requests = [
                ChatRequest(messages=[{"role": "user", "content": str(number)}])
                for number in range(50)
            ]
            prompts = await asyncio.gather(*(renderer.prompt(CHAT, r) for r in requests))
            for number, prompt in enumerate(prompts):
                assert prompt.text == HELLO_PROMPT.replace("Hello", str(number))
            assert len(renderer.pids) <= PROCESSES

    asyncio.run(run())


def test_a_client_that_leaves_does_not_mix_up_the_answers() -> None:
    async def run() -> None:
        async with rendering() as renderer:
            await renderer.prompt(CHAT, HELLO)
            long = ChatRequest(messages=[{"role": "user", "content": "x"}] * 5000)
            for delay in (0.0, 0.0, 0.001, 0.01):
                left = asyncio.create_task(renderer.prompt(CHAT, long))
                await asyncio.sleep(delay)
                left.cancel()
                with suppress(asyncio.CancelledError):
                    await left
                assert (await renderer.prompt(CHAT, HELLO)).text == HELLO_PROMPT

    asyncio.run(run())


def test_a_process_that_dies_is_replaced() -> None:
    async def run() -> None:
        async with rendering(time_limit=SECONDS) as renderer:
            await renderer.prompt(FOR_EVER, HELLO)
            broken = asyncio.create_task(renderer.prompt(FOR_EVER, LOOP))
            first = await killed(renderer)
            second = await killed(renderer, but=first)  # the job was tried again
            assert second != first
            with pytest.raises(EngineError, match="crashed") as error:
                await broken
            assert error.value.info.type == "server_error"
            assert (await renderer.prompt(CHAT, HELLO)).text == HELLO_PROMPT

    asyncio.run(run())


def test_the_end_of_an_idle_process_is_not_noticed() -> None:
    async def run() -> None:
        async with rendering() as renderer:
            for delay in (0.0, 0.0, 0.001, 0.1):
                assert (await renderer.prompt(CHAT, HELLO)).text == HELLO_PROMPT
                await killed(renderer)
                await asyncio.sleep(delay)
            assert (await renderer.prompt(CHAT, HELLO)).text == HELLO_PROMPT

    asyncio.run(run())


def test_a_process_that_ran_out_of_memory_does_nothing_more() -> None:
    async def run() -> None:
        async with rendering(memory_limit=1 << 29) as renderer:
            await renderer.prompt(CHAT, HELLO)
            before = renderer.pids
            with pytest.raises(EngineError, match="too much memory"):
                await renderer.prompt(HOARD, HELLO)
            assert renderer.pids == []
            assert (await renderer.prompt(CHAT, HELLO)).text == HELLO_PROMPT
            assert renderer.pids != before

    asyncio.run(run())


def test_after_the_end_there_is_no_more_rendering() -> None:
    async def run() -> None:
        renderer = Renderer()
        await renderer.prompt(CHAT, HELLO)
        (pid,) = renderer.pids
        await renderer.stop()
        await renderer.stop()
        assert not psutil.pid_exists(pid)
        with pytest.raises(EngineError) as error:
            await renderer.prompt(CHAT, HELLO)
        assert error.value.info.type == "unavailable_error"

    asyncio.run(run())


ORPHANS = """
import asyncio, sys
from specllama.engine.helpers.render.renderer import Renderer
from tests.engine.helpers.render.test_renderer import CHAT, FOR_EVER, HELLO, LOOP

async def main():
    renderer = Renderer(time_limit=3.0)
    while len(renderer.pids) < 2:
        both = (renderer.prompt(FOR_EVER, HELLO) for _ in range(2))
        await asyncio.gather(*both, return_exceptions=True)  # on a slow machine, once more
    endless = asyncio.create_task(renderer.prompt(FOR_EVER, LOOP))
    while not renderer._pool._busy:
        await asyncio.sleep(0)
    print(*renderer.pids, flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_server_leaves_no_process_behind() -> None:
    """Neither the idle process nor the one with an endless template remains."""
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
        text=True,
    ) as server:
        assert server.stdout is not None
        children = [psutil.Process(int(pid)) for pid in server.stdout.readline().split()]
        assert len(children) == 2
        server.kill()
    while any(map(alive, children)):
        time.sleep(0.05)


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_a_process_that_could_not_be_prepared_is_started_by_the_next_job(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any, **__: Any) -> Any:
        raise error("not now")

    async def run() -> None:
        async with rendering() as renderer:
            with monkeypatch.context() as patch:
                patch.setattr("specllama.engine.helpers.pool.Child.start_for_jobs", refused)
                renderer.prepare()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert (await renderer.prompt(CHAT, HELLO)).text == HELLO_PROMPT

    asyncio.run(run())
