"""GET and DELETE /v1/stream, POST /v1/streams/lookup: resumable streams."""

import msgspec
from starlette.responses import Response

from specllama.engine.errors import unavailable
from specllama.handlers.http import schemas
from specllama.handlers.http.api_keys import current_owner
from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.http.streams import event_stream
from specllama.handlers.running.ongoing import Owner
from specllama.handlers.running.respond import show
from specllama.handlers.running.runtime import runtime


async def get_stream(conv_id: str, **query: int) -> Response:
    """The bytes of a stream from the offset `from`, a parameter of the query, to its end."""
    streams, owner = runtime().streams, _owner(conv_id)
    stream = streams.get(owner)
    if stream is None and streams.is_preparing(owner):
        raise unavailable("Stream owner model is loading, retry later")
    if stream is None:
        raise RequestError(404, "Stream not found or expired")
    return event_stream(show(stream, query.get("from", 0)))


async def delete_stream(conv_id: str) -> Response:
    """Ends and removes a stream. The answer is 204 even if there is no such stream."""
    runtime().streams.remove(_owner(conv_id))
    return Response(status_code=204, media_type="application/json")


async def lookup_streams(body: schemas.StreamsLookup) -> Response:
    """An array with the state of each stream of the requested conversations."""
    wanted = body.get("conversation_ids") or ()
    found = runtime().streams.find(current_owner(), filter(None, wanted))
    return JSONAnswer([msgspec.to_builtins(stream.status) for stream in found])


def _owner(conversation: str) -> Owner:
    return Owner(current_owner(), conversation)
