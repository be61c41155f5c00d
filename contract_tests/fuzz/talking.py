"""One story with a server: its requests, the answers, and their faults."""

import random
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from contract_tests.fuzz.judging import STRICT, Fault, Rules, judge
from contract_tests.fuzz.requests import Maker
from contract_tests.fuzz.wire import Answer, Connection, End, Sent, json_request
from contract_tests.kit import contract

PATIENCE = 60.0
"""Seconds after which an answer is too slow, unless its text is long."""
SLEEPY = frozenset((501, 503))


@dataclass(frozen=True)
class Exchange:
    """One request of a story with its answer and faults."""

    sent: Sent
    answer: Answer
    faults: Sequence[Fault]


@dataclass
class Board:
    """Ids of things that the clients of a server have made, shared by all clients."""

    models: Sequence[str] = ()
    responses: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    completions: deque[str] = field(default_factory=lambda: deque(maxlen=40))


class Talk:
    """Sends the requests of one story. Its number and the seed determine all random choices."""

    def __init__(
        self,
        seed: str,
        connection: Connection,
        board: Board,
        rules: Rules = STRICT,
        model: str = "",
    ) -> None:
        self.dice = random.Random(seed)
        self.maker = Maker(self.dice, board.models, model)
        self.values = self.maker.values
        self.board = board
        self.exchanges: list[Exchange] = []
        self._connection = connection
        self._rules = rules

    @property
    def target(self) -> Any:
        return self._connection.target

    def send(self, sent: Sent, right: Collection[int] = ()) -> Answer:
        """Sends a request and judges its answer. `right` are the statuses that fit the story."""
        answer = self._connection.exchange(sent, PATIENCE)
        faults = [*judge(sent, answer, self._rules)]
        allowed = {*right, *(SLEEPY if self._rules.unready else ())}
        if right and answer.end is End.WHOLE and answer.status not in allowed and not faults:
            said = answer.content[:300].decode("utf-8", "replace")
            what = f"{answer.status} where the story has {sorted(right)}: {said}"
            faults.append(Fault("story", what, sent.operation or ""))
        self.exchanges.append(Exchange(sent, answer, faults))
        return answer

    def ask(
        self,
        operation: str,
        body: Any = None,
        *,
        right: Collection[int] = (200,),
        query: Mapping[str, Any] | None = None,
        header: tuple[str, str] | None = None,
        leaves: float | None = None,
        **parts: str,
    ) -> Any:
        """Returns the JSON answer of an operation; None if the answer is no JSON. `parts` are
        parameters of the path."""
        each = contract.operations()[operation]
        path = each.path
        for name, value in parts.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        if query:
            path += f"?{urlencode(query)}"
        headers = (header,) if header else ()
        body = self.maker.naming(operation, body)
        if body is None:
            sent = Sent(each.method.upper(), path, operation, headers, leaves=leaves)
        else:
            made = json_request(each.method.upper(), path, operation, body, *headers)
            sent = Sent(
                made.method, path, operation, made.headers, made.content, body, leaves=leaves
            )
        answer = self.send(sent, right)
        return answer.json if answer.status < 300 else None

    def claim(self, condition: bool, what: str) -> None:
        """Adds a fault unless the condition holds after the last answer."""
        if not condition:
            last = self.exchanges.pop()
            fault = Fault("story", what, last.sent.operation or "")
            self.exchanges.append(Exchange(last.sent, last.answer, [*last.faults, fault]))

    def failed(self, what: str) -> None:
        """Adds a fault that ends the story."""
        sent, answer = Sent("GET", "/"), Answer(End.LEFT, 0.0)
        faults: list[Fault] = []
        if self.exchanges:
            last = self.exchanges.pop()
            sent, answer, faults = last.sent, last.answer, [*last.faults]
        fault = Fault("story", what, sent.operation or "")
        self.exchanges.append(Exchange(sent, answer, [*faults, fault]))
