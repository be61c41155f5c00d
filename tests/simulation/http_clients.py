"""Clients of all APIs, and what their answers have to be."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.forms import FORMS, Form, Reading
from tests.simulation.http import Answer, Application

REFUSED = {400, 404, 500, 501, 503}
"""The statuses of a request that gets no text."""


@dataclass
class AskedForm:
    """A request in the form of an API: what it has got."""

    number: int
    model: str
    form: Form
    prompt: str
    params: dict[str, Any]
    answer: Answer = field(default_factory=Answer)
    patience: float | None = None

    @property
    def body(self) -> dict[str, Any]:
        return {"model": self.model, **self.form.body(self.prompt, self.params)}

    def __str__(self) -> str:
        return f"request {self.number}: POST {self.form.path} {self.body}"

    def reading(self) -> Reading:
        """Raises ValueError for what isn't of the form."""
        stream = self.params["stream"] and self.answer.status == 200
        return self.form.read(bytes(self.answer.body), stream=stream)


def any_form(number: int, random: Random, model: str, prompt: str) -> AskedForm:
    params = {
        "n_predict": random.choice([1, 2, 5, 10, 40]),
        "temperature": random.choice([0.0, 0.8]),
        "seed": random.randrange(3),
        "stream": random.choice([True, True, False]),
    }
    return AskedForm(number, model, random.choice(FORMS), prompt, params)


async def ask(application: Application, asked: AskedForm, random: Random) -> None:
    """Sends the request, and reads its answer at some pace, for as long as the client likes."""
    asked.patience = random.choice([0.01, 0.1, 1.0]) if random.random() < 0.2 else None
    pace = random.choice([0.0, 0.0, 0.01, 0.2])
    asked.answer = await application.ask(
        "POST", asked.form.path, asked.body, pace=pace, patience=asked.patience
    )


async def ask_again(application: Application, asked: AskedForm) -> Reading:
    """What the same request gets when nothing else goes on."""
    again = AskedForm(asked.number, asked.model, asked.form, asked.prompt, asked.params)
    again.answer = await application.ask("POST", again.form.path, again.body)
    assert again.answer.status == 200, bytes(again.answer.body)
    return again.reading()


def wrong_form(asked: AskedForm) -> str:
    """What is wrong with the form of the answer; "" if nothing is."""
    answer = asked.answer
    if not answer.is_whole:
        if asked.patience is None:
            return "its answer has no end"
        if answer.status != 200 or not asked.params["stream"]:
            return ""
    elif answer.status != 200 and answer.status not in REFUSED:
        return f"status {answer.status}: {bytes(answer.body)!r}"
    try:
        reading = asked.reading()
    except (ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error} in {bytes(answer.body)!r}"
    if len(reading.ends) > 1 or (answer.is_whole and not reading.ends):
        return f"it has the ends {reading.ends}: {bytes(answer.body)!r}"
    if answer.status != 200 and reading.ends == ["whole"]:
        return f"status {answer.status}, and no error: {bytes(answer.body)!r}"
    return ""


def wrong_text(asked: AskedForm, truth: Reading) -> str:
    """What is wrong with the text, if `truth` is right; "" if nothing is."""
    reading = asked.reading()
    if not truth.text.startswith(reading.text):
        return f"it has {reading.text!r} in the place of {truth.text!r}"
    if reading.ends == ["whole"] and reading.text != truth.text:
        return f"it ends behind {reading.text!r}, and the text is {truth.text!r}"
    return ""
