"""The host's work that waits until the device computes the next step: texts, stop strings, events.

A token is chosen, and the next step evaluates it, before anybody knows the text that it makes. If
that ends with it, nothing of what was evaluated behind it stays.
"""

from specllama.engine.wire.replies import Event
from specllama.engine.worker.generation.answering import Answering, finish
from specllama.engine.worker.generation.request import Request


class Overlap:
    """Tokens whose texts are not made yet: of each request the newest one at most. It is `enabled`
    where the device computes while the host does something else; otherwise no token waits. Nor does
    one that might have to be taken back from a memory that isn't cuttable."""

    def __init__(self, answering: Answering, *, enabled: bool, is_cuttable: bool) -> None:
        self.enabled = enabled
        self._answering = answering
        self._is_cuttable = is_cuttable
        self._late: dict[int, tuple[Request, int]] = {}  # by id
        self.ended: list[Request] = []
        """Those whose texts have ended with such a token, and who have their slots still: the
        device may compute what is behind it."""

    def defer(self, request: Request, token: int, *, is_final: bool) -> bool:
        """True if `token`, the newest one, is put off until `answer`. What ends the answer whatever
        its text says isn't: the next step must not evaluate it. `is_final` is as in
        `Answering.accept`."""
        if not self.enabled or self._answering.decides(request, token, is_final=is_final):
            return False
        if request.may_end_with_text and not self._is_cuttable:
            return False
        self._late[request.id] = request, token
        return True

    def answer(self) -> list[Event]:
        """The events of all tokens that were put off."""
        events: list[Event] = []
        for id in [*self._late]:
            events += self.answer_one(id)
        return events

    def answer_one(self, id: int) -> list[Event]:
        """Those of one request, if it has any."""
        if (late := self._late.pop(id, None)) is None:
            return []
        request, token = late
        event = self._answering.accept(request, token, is_final=False)
        if request.stop_type != "none":
            self.ended.append(request)
            return finish(request)
        return [event] if event is not None else []

    def drop(self, id: int) -> None:
        """Nobody wants the text of the request any more."""
        self._late.pop(id, None)
