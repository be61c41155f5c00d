"""Probabilities of tokens in answers: the fields of requests for them, and their JSON."""

from collections.abc import Sequence

import msgspec

from specllama.engine.errors import invalid_request
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import TokenProbs
from specllama.handlers.apis.parameters import whole
from specllama.handlers.http import schemas
from specllama.handlers.http.json_answer import lazy

DEFAULT_TOP_LOGPROBS = 20
VALUES = 8  # in the object of a token, approximately


class Probabilities:
    """The form of the probabilities in an answer: `n_top` alternatives for each token, with the
    model's log-probabilities or, with `post_sampling`, the probabilities after sampling. A token's
    text ends before its first incomplete character; its `bytes` are complete."""

    def __init__(self, n_top: int, *, post_sampling: bool) -> None:
        self.n_top = n_top
        self.post_sampling = post_sampling

    def content(self, probs: Sequence[TokenProbs]) -> list[schemas.TokenProbability]:
        """Returns an object for each token."""
        return [self._entry(entry) for entry in probs]

    def later(self, probs: Sequence[TokenProbs]) -> list[schemas.TokenProbability]:
        """Returns the same objects as `content`, but makes each one while the answer is encoded:
        there may be very many."""
        return lazy(self._entry, probs, VALUES * (1 + self.n_top))

    def _entry(self, entry: TokenProbs) -> schemas.TokenProbability:
        top = [self._token(*rival) for rival in entry.top[: self.n_top]]
        piece = entry.piece
        made: schemas.TokenProbability = {
            "id": entry.id,
            "token": whole_text(piece),
            "bytes": list(piece),
        }
        if self.post_sampling:
            made["prob"], made["top_probs"] = entry.value, top
        else:
            made["logprob"], made["top_logprobs"] = entry.value, top
        return made

    def _token(self, id: int, piece: bytes, value: float) -> schemas.TokenAlternative:
        made: schemas.TokenAlternative = {
            "id": id,
            "token": whole_text(piece),
            "bytes": list(piece),
        }
        made["prob" if self.post_sampling else "logprob"] = value
        return made


def whole_text(piece: bytes) -> str:
    """Returns `piece` up to the first byte that isn't part of a valid character."""
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        return piece[: error.start].decode()


def native_probabilities(params: GenerationParams) -> Probabilities | None:
    """Returns the form of the probabilities that `n_probs` requests; None if it is 0."""
    if not params.n_probs:
        return None
    return Probabilities(params.n_probs, post_sampling=params.post_sampling_probs)


ParamsWithProbabilities = tuple[GenerationParams, Probabilities | None]
"""The parameters, with the request's `n_probs`, and the form of the answer's probabilities."""


def text_probabilities(
    body: schemas.CompletionRequest | schemas.InfillRequest, params: GenerationParams
) -> ParamsWithProbabilities:
    """Returns the parameters and probabilities for a completion of texts. `logprobs` is another
    name for `n_probs` there; `n_probs` wins."""
    if body.get("n_probs") is None and (logprobs := body.get("logprobs")) is not None:
        params = msgspec.structs.replace(params, n_probs=whole("n_probs", logprobs))
    return params, native_probabilities(params)


def chat_probabilities(
    body: schemas.ChatOptions, params: GenerationParams
) -> ParamsWithProbabilities:
    """Returns the parameters and probabilities for a chat completion. `logprobs` switches them on
    there, and `top_logprobs` is the number of alternatives.

    Raises EngineError (invalid_request_error) for `top_logprobs` without `logprobs`.
    """
    n_top = body.get("top_logprobs")
    if body.get("logprobs"):
        n_top = DEFAULT_TOP_LOGPROBS if n_top is None else int(n_top)
        # The engine's 0 means no probabilities at all.
        params = msgspec.structs.replace(params, n_probs=max(n_top, 1))
        return params, Probabilities(n_top, post_sampling=params.post_sampling_probs)
    if n_top is not None:
        raise invalid_request("top_logprobs: has no effect unless logprobs is true")
    return params, native_probabilities(params)
