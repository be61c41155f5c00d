"""The sandbox alone turns a hostile template into a prompt, or into an error of the API's kind.

Templates that need limits of time and memory are tested with the processes that run templates.
"""

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.template.template import ChatTemplate
from tests.support.hostile_templates import HOSTILE, Hostile


def rendered(hostile: Hostile) -> str:
    template = ChatTemplate(hostile.source, "<s>", "</s>")
    return template.render([{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize(
    "hostile", [each for each in HOSTILE if each.outcome == "renders"], ids=lambda each: each.name
)
def test_harmless(hostile: Hostile) -> None:
    assert rendered(hostile) == hostile.text


@pytest.mark.parametrize(
    "hostile", [each for each in HOSTILE if each.outcome == "refused"], ids=lambda each: each.name
)
def test_refused(hostile: Hostile) -> None:
    with pytest.raises((EngineError, UnicodeEncodeError)) as error:
        rendered(hostile).encode()
    # Half a character is found only when the prompt leaves the process.
    assert isinstance(error.value, EngineError) == (hostile.name != "lone_surrogate")


def test_names_are_different() -> None:
    assert len({each.name for each in HOSTILE}) == len(HOSTILE)
