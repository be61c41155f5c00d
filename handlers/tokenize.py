"""POST /tokenize and /detokenize."""

from typing import cast

from starlette.responses import Response

from specllama.handlers.apis.native.request import parse_part
from specllama.handlers.http import schemas
from specllama.handlers.http.json_answer import JSONAnswer, lazy
from specllama.handlers.running.resolve_model import resolve_model
from specllama.handlers.running.run_in_thread import run_in_thread


async def tokenize(body: schemas.TokenizeRequest) -> Response:
    """The token ids of a text, or of token ids and texts; with `with_pieces`, also the text of
    each token. Raises EngineError (invalid_request_error) for a token that the vocabulary doesn't
    have."""
    engine = await resolve_model(body).engine()
    content = await run_in_thread(parse_part, body.get("content") or [], "content")
    tokens = await engine.tokenize(
        content,
        add_special=bool(body.get("add_special")),
        parse_special=body.get("parse_special") is not False,
        with_pieces=bool(body.get("with_pieces")),
    )
    answer: schemas.TokenizeResponse = {"tokens": cast("list[schemas.IdOrPiece]", tokens.tokens)}
    if (pieces := tokens.pieces) is not None:

        def piece(id: int) -> schemas.TokenPiece:
            return {"id": id, "piece": pieces[id]}

        answer["tokens"] = lazy(piece, tokens.tokens, 3)
    return JSONAnswer(answer)


async def detokenize(body: schemas.DetokenizeRequest) -> Response:
    """The text of tokens. Raises EngineError (invalid_request_error) for a token that the
    vocabulary doesn't have."""
    engine = await resolve_model(body).engine()
    # JSON has one kind of number: 12.0 is a valid token id.
    tokens = list(map(int, body.get("tokens") or ()))
    return JSONAnswer({"content": await engine.detokenize(tokens)})
