"""Operations of other servers that this one refuses.

An undocumented path would be answered with 404, like a mistyped address. These answers say instead
that the feature isn't available. The requests' bodies are not read.
"""

from starlette.responses import Response

from specllama.engine.errors import EngineError, not_supported


async def list_server_tools() -> Response:
    """Raises EngineError (feature_disabled)."""
    raise EngineError.of("feature_disabled", "this feature is disabled")


run_server_tool = list_server_tools
get_through_proxy = list_server_tools
post_through_proxy = list_server_tools


async def create_conversation() -> Response:
    """Raises EngineError (not_supported_error)."""
    raise not_supported(
        "this server stores no conversations; previous_response_id continues from a response"
    )


async def get_conversation(conversation_id: str) -> Response:
    """Raises EngineError (not_found_error): no conversation exists."""
    raise EngineError.of("not_found_error", f"there is no conversation {conversation_id[:200]!r}")


update_conversation = get_conversation
delete_conversation = get_conversation
list_conversation_items = get_conversation
create_conversation_items = get_conversation


async def get_conversation_item(conversation_id: str, item_id: str) -> Response:
    """Raises EngineError (not_found_error), as for the conversation itself."""
    return await get_conversation(conversation_id)


delete_conversation_item = get_conversation_item


async def compact_response() -> Response:
    """Raises EngineError (not_supported_error)."""
    raise not_supported(
        "this server does not compact conversations; truncation: auto leaves out the oldest turns"
    )
