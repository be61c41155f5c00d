"""Clients of all APIs: their requests, and the expected answers.

Some clients leave and come back, repeat failed requests, or break off in the middle of a body; some
request responses in the background, or continue stored ones.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from specllama.engine import system
from specllama.handlers.running.ongoing import SECONDS
from tests.simulation.forms import FORMS, TOOL_FORMS, VECTOR_FORMS, Form, Reading
from tests.simulation.http import Answer, Application

REFUSED = {400, 404, 500, 501, 503}
"""The statuses of a request that gets no text."""
KEYS = ("first", "second")
"""The keys of a server that has some."""
RESPONSES = "/v1/responses"
AGAIN = 3
"""How often a client repeats a request that gets no answer."""
MADE = ("completed", "incomplete", "failed", "cancelled")
"""The statuses of a response that doesn't change any more."""


@dataclass
class AskedForm:
    """A request in an API's format, with its received data."""

    number: int
    model: str
    form: Form
    prompt: str
    params: dict[str, Any]
    manner: str = "plain"
    key: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    """More fields of the body."""
    is_stream: bool = False
    answers: list[Answer] = field(default_factory=list)
    """The answers, all in the API's format; the last one is the result."""
    wrong: str = ""
    """The faults that the client itself has found."""

    @property
    def answer(self) -> Answer:
        return self.answers[-1]

    @property
    def body(self) -> dict[str, Any]:
        made = self.form.body(self.prompt, self.params)
        return {"model": self.model, **made, **self.more}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        if self.manner == "kept":
            headers["x-conversation-id"] = f"conversation-{self.number}"
        return headers

    def __str__(self) -> str:
        whose = f" of {self.key}" if self.key else ""
        return f"request {self.number}{whose}, {self.manner}: POST {self.form.path} {self.body}"

    def reading(self, answer: Answer | None = None) -> Reading:
        """Returns the contents of an answer. Raises ValueError if it isn't in the API's format."""
        answer = answer or self.answer
        stream = self.is_stream and answer.status == 200
        return self.form.read(bytes(answer.body), stream=stream)


def any_form(
    number: int, random: Random, model: str, prompt: str, *, embeds: bool, has_keys: bool
) -> AskedForm:
    params = {
        "n_predict": random.choice([1, 2, 5, 10, 40]),
        "temperature": random.choice([0.0, 0.8]),
        "seed": random.randrange(3),
        "stream": random.choice([True, True, False]),
    }
    forms: Sequence[Form] = VECTOR_FORMS if embeds else random.choice([FORMS, FORMS, TOOL_FORMS])
    form = random.choice(forms)
    stream = params["stream"] and form.streams
    manners = ["plain", "plain", "retrying", "half"]
    manners += ["kept", "kept"] if stream and not form.is_ndjson else []
    manners += ["background", "background", "followed"] if form.path == RESPONSES else []
    asked = AskedForm(number, model, form, prompt, params, random.choice(manners))
    asked.is_stream = bool(stream)
    if has_keys:
        asked.key = random.choice([*KEYS, *KEYS, *KEYS, "wrong"])
    if asked.manner in ("background", "followed"):
        asked.more = {"store": True, "background": asked.manner == "background"}
    return asked


async def ask(application: Application, asked: AskedForm, random: Random) -> list[AskedForm]:
    """Sends the request in its manner. Returns the requests that continue its response."""
    match asked.manner:
        case "retrying":
            await _retry(application, asked, random)
        case "half":
            asked.answers.append(await _post(application, asked, is_half=True))
        case "kept":
            await _come_back(application, asked, random)
        case "background":
            await _in_background(application, asked, random)
        case "followed":
            return await _follow(application, asked, random)
        case _:
            asked.answers.append(await _impatient(application, asked, random))
    return []


async def ask_again(application: Application, asked: AskedForm) -> Reading:
    """Returns the answer to the same request without other requests."""
    again = replace(asked, manner="plain", more={**asked.more}, answers=[])
    again.more.pop("background", None)
    if asked.manner == "background":
        again.is_stream = bool(again.params["stream"])
    for _ in range(AGAIN):  # a model may be about to recover from the last fault
        again.answers.append(await _post(application, again))
        if again.answer.status == 200:
            break
        await asyncio.sleep(60.0)
    assert again.answer.status == 200, bytes(again.answer.body)
    return again.reading()


# ---- manners of clients--------------------------------------------------------------------


async def _post(application: Application, asked: AskedForm, **how: Any) -> Answer:
    return await application.ask("POST", asked.form.path, asked.body, headers=asked.headers, **how)


async def _impatient(application: Application, asked: AskedForm, random: Random) -> Answer:
    """Sends the request, reads at a random pace, and sometimes leaves early."""
    patience = random.choice([0.01, 0.1, 1.0]) if random.random() < 0.2 else None
    pace = random.choice([0.0, 0.0, 0.01, 0.2])
    return await _post(application, asked, pace=pace, patience=patience)


async def _retry(application: Application, asked: AskedForm, random: Random) -> None:
    """Sends the request up to `AGAIN` times, until it is answered; waits between attempts or
    not."""
    for _ in range(AGAIN):
        asked.answers.append(await _impatient(application, asked, random))
        if asked.answer.is_whole and asked.answer.status < 500:
            return
        await asyncio.sleep(random.choice([0.0, 0.1, 5.0]))


async def _come_back(application: Application, asked: AskedForm, random: Random) -> None:
    """Leaves a stream that is kept, and reads the rest of it later."""
    first = await _post(application, asked, patience=random.choice([0.01, 0.1, 1.0]))
    left = system.now()
    path = f"/v1/stream?conv_id=conversation-{asked.number}"
    while first.status == 200 and not first.is_whole:
        await asyncio.sleep(random.choice([0.0, 0.1, 5.0]))
        rest = await application.ask(
            "GET",
            f"{path}&from={len(first.body)}",
            headers=asked.headers,
            patience=random.choice([0.1, 1.0, None]),
        )
        if rest.status == 404 and system.now() - left > SECONDS:
            break  # the stream has expired
        if rest.status not in (0, 200):
            asked.wrong = (
                f"the rest of its stream has the status {rest.status}: {bytes(rest.body)!r}"
            )
            break
        first.body += rest.body
        first.is_whole = rest.is_whole
    asked.answers.append(first)


async def _in_background(application: Application, asked: AskedForm, random: Random) -> None:
    """Polls a background response until it has ended; an impatient client cancels it."""
    first = await _impatient(application, asked, random)
    found = re.search(rb'"id": ?"(resp_\w+)"', first.body)
    if first.status != 200 or found is None:
        asked.answers.append(first)
        return
    path = f"{RESPONSES}/{found[1].decode()}"
    patience = random.choice([1, 10, 10_000])
    asked.is_stream = False
    while True:
        last = await application.ask("GET", path, headers=asked.headers)
        if last.status != 200 or json.loads(last.body)["status"] in MADE:
            break
        patience -= 1
        if not patience:
            await application.ask("POST", f"{path}/cancel", headers=asked.headers)
        await asyncio.sleep(random.choice([0.01, 0.1, 1.0]))
    asked.answers.append(last)


async def _follow(application: Application, asked: AskedForm, random: Random) -> list[AskedForm]:
    """The client continues a stored response. Another key must not see that response."""
    asked.answers.append(await _impatient(application, asked, random))
    found = re.search(rb'"id": ?"(resp_\w+)"', asked.answer.body)
    if asked.answer.status != 200 or not asked.answer.is_whole or found is None:
        return []
    if asked.reading().ends != ["whole"]:
        return []
    id = found[1].decode()
    kept = await application.ask("GET", f"{RESPONSES}/{id}", headers=asked.headers)
    text = asked.form.read(bytes(kept.body), stream=False).text if kept.status == 200 else None
    if text != asked.reading().text:
        asked.wrong = f"{text!r} is kept of it: {kept.status}"
    others = {"authorization": f"Bearer {next(key for key in KEYS if key != asked.key)}"}
    if asked.key:
        seen = await application.ask("GET", f"{RESPONSES}/{id}", headers=others)
        if seen.status != 404:
            asked.wrong = f"another key has {seen.status} for it"
    more = {"previous_response_id": id, "store": False}
    next_one = replace(asked, manner="plain", more=more, answers=[], wrong="")
    next_one.answers.append(await _impatient(application, next_one, random))
    return [next_one]


# ---- faults -----------------------------------------------------------------------


def wrong_form(asked: AskedForm) -> str:
    """Returns what is wrong with the form of the answers; "" if it is right."""
    if asked.wrong:
        return asked.wrong
    for answer in asked.answers:
        if wrong := _wrong_answer(asked, answer):
            return wrong
    return ""


def _wrong_answer(asked: AskedForm, answer: Answer) -> str:
    if asked.key == "wrong":
        return "" if answer.status in (0, 401) else f"it has no key, and status {answer.status}"
    if not answer.is_whole:
        if not answer.is_left:
            return "its answer has no end"
        if answer.status != 200 or not asked.is_stream:
            return ""
    elif answer.status != 200 and answer.status not in REFUSED:
        return f"status {answer.status}: {bytes(answer.body)!r}"
    try:
        reading = asked.reading(answer)
    except (ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error} in {bytes(answer.body)!r}"
    if len(reading.ends) > 1 or (answer.is_whole and not reading.ends):
        return f"it has the ends {reading.ends}: {bytes(answer.body)!r}"
    if answer.status != 200 and reading.ends == ["whole"]:
        return f"status {answer.status}, and no error: {bytes(answer.body)!r}"
    return ""


def wrong_text(asked: AskedForm, truth: Reading) -> str:
    """Returns the difference between the text and `truth`, the right answer; "" if there is
    none."""
    reading = asked.reading()
    if not truth.text.startswith(reading.text):
        return f"it has {reading.text!r} in the place of {truth.text!r}"
    if reading.ends == ["whole"] and reading.text != truth.text:
        return f"it ends after {reading.text!r}, and the text is {truth.text!r}"
    return ""
