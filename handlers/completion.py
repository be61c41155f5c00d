"""POST /completion in the native format, POST /v1/completions in OpenAI's."""

from starlette.responses import Response

from specllama.handlers.apis.generate import Dialect, generate
from specllama.handlers.apis.native.format import completion_form
from specllama.handlers.apis.native.request import read_completion
from specllama.handlers.apis.openai.request import read_text_completion
from specllama.handlers.apis.openai.text_format import text_form
from specllama.handlers.http import schemas

_NATIVE = Dialect(read=read_completion, form=completion_form)
_TEXT = Dialect(read=read_text_completion, form=text_form)


async def create_completion(body: schemas.CompletionRequest) -> Response:
    """An object for one prompt, an array of objects for several, or events with `stream`."""
    return await generate(_NATIVE, body)


create_completion_alias = create_completion


async def create_openai_completion(body: schemas.OpenAICompletionRequest) -> Response:
    """A text_completion object with a choice per prompt, or chunks of one with `stream`."""
    return await generate(_TEXT, body)
