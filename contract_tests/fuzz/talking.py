"""One story with a server: what is sent, what came, and what was wrong with it."""

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
"""Seconds after which an answer is too slow that isn't a long text."""
SLEEPY = frozenset((501, 503))


@dataclass(frozen=True)
class Exchange:
    """One request of a story with its answer, and the faults of it."""

    sent: Sent
    answer: Answer
    faults: Sequence[Fault]


@dataclass
class Board:
    """What the clients of a server know together: ids of what others have made."""

    models: Sequence[str] = ()
    responses: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    completions: deque[str] = field(default_factory=lambda: deque(maxlen=40))


class Talk:
    """Sends the requests of one story. Their number and the seed make all that is random."""

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
        """Sends a request and judges its answer; `right` are the statuses that fit the story."""
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
        """The JSON that an operation answers with; None if it is none. `parts` are those of the
        path."""
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
        """Something that has to be so after the last answer."""
        if not condition:
            last = self.exchanges.pop()
            fault = Fault("story", what, last.sent.operation or "")
            self.exchanges.append(Exchange(last.sent, last.answer, [*last.faults, fault]))

    def failed(self, what: str) -> None:
        """The story ends here."""
        sent, answer = Sent("GET", "/"), Answer(End.LEFT, 0.0)
        faults: list[Fault] = []
        if self.exchanges:
            last = self.exchanges.pop()
            sent, answer, faults = last.sent, last.answer, [*last.faults]
        fault = Fault("story", what, sent.operation or "")
        self.exchanges.append(Exchange(sent, answer, [*faults, fault]))
