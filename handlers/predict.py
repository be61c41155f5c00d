"""POST /predict in Vertex AI's format: several requests of other operations, each an instance."""

import asyncio
from typing import Any, Final

import msgspec
from starlette.responses import Response

from specllama.engine.errors import EngineError, invalid_request, not_supported
from specllama.handlers.http import schemas
from specllama.handlers.http.api_keys import current_key
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.http.errors import STATUS, HttpFailure
from specllama.handlers.http.log_fields import warn_ignored
from specllama.handlers.http.subrequests import Subrequests, subrequests
from specllama.handlers.running.run_in_thread import run_in_thread

FORMAT: Final = "@requestFormat"
MAX_ANSWERS: Final = 64 << 20
"""The limit for the bytes of all predictions of a request, which are in memory together."""


async def predict(body: schemas.PredictRequest) -> Response:
    """An object with a prediction for each instance: the answer of the instance's operation, or its
    error."""
    requests = subrequests()
    if requests is None:
        raise not_supported(
            "This server does not support predictions. Start it with `--aip-mode PREDICTION`"
        )
    predictions = _Predictions(requests)
    content = await until_disconnect(predictions.of(body["instances"]))
    return Response(content, media_type="application/json")


class _Predictions:
    """The predictions of one request. An API key with a limit of concurrent requests makes as many
    at once."""

    def __init__(self, requests: Subrequests) -> None:
        self._requests = requests
        self._n_left = MAX_ANSWERS
        key = current_key()
        limit = 0 if key is None else key.concurrency
        self._turns = asyncio.Semaphore(limit) if limit else None

    async def of(self, instances: list[Any]) -> bytes:
        """Returns the JSON of the answer."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._prediction(each)) for each in instances]
        return b'{"predictions":[' + b",".join(task.result() for task in tasks) + b"]}"

    async def _prediction(self, instance: dict[str, Any]) -> bytes:
        """Returns the JSON of the prediction for an instance."""
        try:
            if self._turns is None:
                return await self._answer(instance)
            async with self._turns:
                return await self._answer(instance)
        except EngineError as error:
            return msgspec.json.encode(HttpFailure(STATUS[error.info.type], error.info).envelope())

    async def _answer(self, instance: dict[str, Any]) -> bytes:
        """Raises EngineError for an instance that stands for no operation, or whose answer is too
        large."""
        named = instance.get(FORMAT)
        if named is None:
            raise invalid_request(f"{FORMAT}: this field of an instance is required")
        path = self._requests.operations.get(named)
        if path is None:
            names = self._requests.operations
            known = ", ".join(sorted(name for name in names if not name.startswith("/")))
            raise invalid_request(f"{FORMAT}: there is no such operation; there are {known}")
        if instance.get("stream"):
            warn_ignored("stream: a prediction can't be a stream")
        payload = {**instance, "stream": False}
        del payload[FORMAT]
        raw = await run_in_thread(msgspec.json.encode, payload)
        answer = await self._requests.post(path, raw, self._take)
        if answer.is_cut:
            raise invalid_request(
                f"the predictions of this request have more than {MAX_ANSWERS} bytes: "
                "send several requests"
            )
        if answer.media_type == "application/json":
            return answer.content or b"null"
        return msgspec.json.encode(answer.content.decode("utf-8", "replace") or None)

    def _take(self, n_bytes: int) -> bool:
        if n_bytes > self._n_left:
            return False
        self._n_left -= n_bytes
        return True
