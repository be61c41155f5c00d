"""Which chat template is in force."""

import msgspec

from engine.chat.template.builtin import CHATML
from engine.options import Options
from handlers.running.templates import template_source, tool_template_source
from tests.support.factories import model_info
from tests.support.options_support import model_options

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
