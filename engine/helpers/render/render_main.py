"""A template process: does one job after the other until its stdin ends.

    python -m specllama.engine.helpers.render.render_main BYTES SECONDS       (started by
    engine.helpers.render.renderer)

A template comes with a downloaded model, and requests choose its input. In this process it may loop
for ever or fill the memory without harm to the server. BYTES is the limit of the address space, if
the platform supports one. The server ends a process whose job takes more than SECONDS. If the
server no longer exists, an alarm ends it.
"""

import sys

import msgspec

import specllama.engine.wire.startup as startup  # the very first
from specllama.engine import system
from specllama.engine.chat.syntax import OutputSyntax
from specllama.engine.errors import EngineError, invalid_request
from specllama.engine.helpers.render.detect.detect import detect
from specllama.engine.helpers.render.render_jobs import (
    Answer,
    Description,
    RenderJob,
    RenderRefused,
    TemplateSource,
    job_decoder,
)
from specllama.engine.helpers.render.template.caps import probe
from specllama.engine.helpers.render.template.prompt import chat_prompt
from specllama.engine.helpers.render.template.template import ChatTemplate
from specllama.engine.wire.framing import JSON, Started, frame
from specllama.engine.wire.link import Link, do_jobs, take_over

MAX_MESSAGE = 4096  # characters of an error

_Known = tuple[ChatTemplate, OutputSyntax]


class RenderJobs:
    """Answers jobs, and keeps the compiled templates, or the errors of their compilation."""

    def __init__(self) -> None:
        self._templates: dict[int, _Known | EngineError] = {}

    def reply(self, job: RenderJob) -> bytes:
        """Returns the answer to `job` as a frame."""
        exhausted = False
        try:
            return frame(self._answer(job), JSON)
        except EngineError as e:
            # The message may be the template's own.
            message = e.info.message.encode(errors="replace").decode()
            info = msgspec.structs.replace(e.info, message=message[:MAX_MESSAGE])
        except MemoryError:
            info = invalid_request("the chat template needs too much memory for this request").info
            exhausted = True
        except RecursionError:
            info = invalid_request("this request is nested too deeply for the chat template").info
        except UnicodeEncodeError:
            info = invalid_request("the chat template produces invalid Unicode").info
        return frame(RenderRefused(info, exhausted), JSON)

    def _answer(self, job: RenderJob) -> Answer:
        if job.source is not None:
            self._templates[job.template] = _compiled(job.source)
        known = self._templates[job.template]
        if isinstance(known, EngineError):
            raise known
        template, syntax = known
        if job.request is None:
            return Description(probe(template), syntax)
        return chat_prompt(template, syntax, job.request)


def _compiled(source: TemplateSource) -> _Known | EngineError:
    try:
        template = ChatTemplate(source.source, source.bos_token, source.eos_token)
    except EngineError as e:
        return e
    return template, detect(template)


def main() -> None:
    link: Link[RenderJob, Started] = take_over(job_decoder, JSON)
    startup.resume_gc()
    do_jobs(link, RenderJobs().reply, memory=int(sys.argv[1]), seconds=float(sys.argv[2]))


if __name__ == "__main__":
    main()
    system.leave()
