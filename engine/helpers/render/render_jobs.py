"""The messages between the server and a template process.

They are frames (`engine.wire.framing`) with JSON inside: requests contain JSON, whose integers are
unbounded, whereas msgpack's have 64 bits. A process works on one job at a time, so messages need no
ids. Each `RenderJob` is answered with one `Answer`.
"""

import msgspec

from specllama.engine.chat.request import ChatPrompt, ChatRequest
from specllama.engine.chat.syntax import OutputSyntax
from specllama.engine.errors import ErrorInfo
from specllama.engine.helpers.render.template.caps import Caps
from specllama.engine.wire.framing import Started


class TemplateSource(msgspec.Struct, frozen=True):
    """A chat template in Jinja, and the special tokens of its model."""

    source: str
    bos_token: str = ""
    eos_token: str = ""


class RenderJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job for the prompt of `request`, or, without a request, for the `Description` of a
    template.

    `template` is a number for the template. `source` is only sent with the first job for it.
    """

    template: int
    source: TemplateSource | None = None
    request: ChatRequest | None = None


class Description(msgspec.Struct, frozen=True, tag="description"):
    """The capabilities of a template, and the syntax of the model's answers."""

    caps: Caps
    syntax: OutputSyntax


class RenderRefused(msgspec.Struct, frozen=True, tag="refused", omit_defaults=True):
    """The job failed. `exhausted`: the process ran out of memory. Its memory may still be full, so
    it can't do another job."""

    error: ErrorInfo
    exhausted: bool = False


Answer = ChatPrompt | Description | RenderRefused

job_decoder = msgspec.json.Decoder(RenderJob)
answer_decoder = msgspec.json.Decoder(Started | Answer)
