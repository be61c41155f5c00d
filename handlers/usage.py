"""GET /v1/usage: what each API key has used."""

from collections.abc import Sequence

from starlette.responses import Response

from specllama.handlers.http import schemas
from specllama.handlers.http.api_keys import current_key
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.runtime import runtime
from specllama.handlers.running.usage import GROUPS, Group, UsageQuery, UsageRow


async def get_usage(
    since: int = 0,
    until: int | None = None,
    group_by: Sequence[Group] = GROUPS,
    limit: int = 100,
    offset: int = 0,
) -> Response:
    """A page of rows: those of the request's own key, or all rows for an administrator. Raises
    EngineError (server_error) if the database of usage fails."""
    key = current_key()
    is_own = key is not None and "admin" not in key.access
    query = UsageQuery(
        key=key.name if key is not None and is_own else None,
        since=since,
        until=until,
        group_by=group_by,
        limit=limit + 1,
        offset=offset,
    )
    rows = await runtime().admission.usage.rows(query)
    answer: schemas.UsagePage = {
        "object": "list",
        "data": [_shown(row) for row in rows[:limit]],
        "has_more": len(rows) > limit,
    }
    return JSONAnswer(answer)


def _shown(row: UsageRow) -> schemas.UsageRow:
    used = row.usage
    shown: schemas.UsageRow = {
        "requests": used.requests,
        "refused": used.refused,
        "prompt_tokens": used.prompt_tokens,
        "cached_tokens": used.cached_tokens,
        "generated_tokens": used.generated_tokens,
        "media": used.media,
        "seconds": used.seconds,
    }
    if row.key is not None:
        shown["key"] = row.key
    if row.model is not None:
        shown["model"] = row.model
    if row.hour is not None:
        shown["hour"] = row.hour
    return shown
