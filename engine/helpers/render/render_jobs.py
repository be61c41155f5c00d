"""The messages between the server and a template process.

They go as frames (`engine.wire.framing`) with JSON inside: what requests hold is JSON, whose
integers have no bounds, whereas those of msgpack have 64 bits. A process works on one job at a
time, so messages need no ids; each `RenderJob` is answered with one `Answer`.
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
    """The prompt for `request`, or, without one, the `Description` of a template.

    `template` is a number for the template; `source` is what it is, and comes along with the
    first job for it.
    """

    template: int
    source: TemplateSource | None = None
    request: ChatRequest | None = None


class Description(msgspec.Struct, frozen=True, tag="description"):
    """The capabilities of a template, and the syntax of the model's answers."""

    caps: Caps
    syntax: OutputSyntax


class RenderRefused(msgspec.Struct, frozen=True, tag="refused", omit_defaults=True):
    """The job failed. `exhausted`: the process ran out of memory. What filled it may still be
    there, so the process is not fit for another job."""

    error: ErrorInfo
    exhausted: bool = False


Answer = ChatPrompt | Description | RenderRefused

job_decoder = msgspec.json.Decoder(RenderJob)
answer_decoder = msgspec.json.Decoder(Started | Answer)
