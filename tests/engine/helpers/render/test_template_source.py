"""The chat template that is used."""

import asyncio

import msgspec
import pytest

from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.renderer import (
    CHATML,
    Renderer,
    examined,
    template_source,
    tool_template_source,
)
from specllama.engine.options import Options
from specllama.engine.wire.replies import ModelInfo
from tests.support.factories import model_info
from tests.support.options_support import model_options

BROKEN = "{% for m in messages %}\n{{ m.content }}\n{% endif %}"
NONE = model_info()
BOTH = model_info(chat_template="plain", tool_template="with tools")


def test_a_model_may_have_a_template_for_tools() -> None:
    options = Options()
    assert template_source(options, BOTH) == "plain"
    assert template_source(options, BOTH, tools=True) == "with tools"
    assert tool_template_source(options, BOTH) == "with tools"


def test_one_template_is_for_all() -> None:
    options = Options()
    for tools in (False, True):
        assert template_source(options, NONE, tools=tools) == CHATML
        only = msgspec.structs.replace(BOTH, tool_template="")
        assert template_source(options, only, tools=tools) == "plain"
        only = msgspec.structs.replace(BOTH, chat_template="")
        assert template_source(options, only, tools=tools) == "with tools"
    assert tool_template_source(options, NONE) == ""


def test_the_command_line_takes_the_place_of_both() -> None:
    options = model_options(chat_template="chatml")
    assert template_source(options, BOTH, tools=True) == "chatml"
    assert tool_template_source(options, BOTH) == ""


def found(options: Options, info: ModelInfo) -> ModelInfo:
    async def run() -> ModelInfo:
        renderer = Renderer()
        try:
            return await examined(renderer, options, info)
        finally:
            await renderer.stop()

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "info"),
    [
        (Options(), model_info(chat_template=BROKEN)),
        (Options(), model_info(tool_template=BROKEN)),  # it is the only one
        (Options(), model_info(chat_template=BROKEN, tool_template="with tools")),
        (model_options(chat_template=BROKEN), BOTH),
    ],
)
def test_a_template_that_cant_be_parsed_is_a_fault(options: Options, info: ModelInfo) -> None:
    with pytest.raises(EngineError, match=r"'endif'.*\(line 3, column 4\).*--chat-template"):
        found(options, info)


@pytest.mark.slow
def test_one_for_tools_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    info = model_info(chat_template="plain", tool_template=BROKEN)
    assert found(Options(), info) == model_info(chat_template="plain")
    assert "line 3, column 4" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "info"),
    [
        (Options(), NONE),
        (Options(), BOTH),
        (Options(), model_info(chat_template="{{ raise_exception('no') }}")),  # for a request
        (model_options(chat_template="chatml"), model_info(chat_template=BROKEN)),
        (model_options(jinja=False), model_info(chat_template=BROKEN)),
        (model_options(embedding=True), model_info(chat_template=BROKEN)),
    ],
)
def test_a_template_that_is_never_parsed_is_no_fault(options: Options, info: ModelInfo) -> None:
    assert found(options, info) == info
