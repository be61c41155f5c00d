"""A template process: does one job after the other until its stdin ends.

    python -m engine.chat.rendering.child BYTES SECONDS       (started by
    engine.chat.rendering.parent)

A template comes with a downloaded model, and requests choose what it works on: in here it may
loop for ever or fill the memory without harm to the server. BYTES is the limit of the address
space, where the platform can set one. The server ends a process whose job takes more than SECONDS;
if the server is no more, an alarm does.
"""

import os
import signal
import sys
from contextlib import suppress
from typing import BinaryIO

import msgspec

import engine.processes.collecting as collecting  # the very first
from engine.chat.detect.detect import detect
from engine.chat.rendering.messages import (
    Answer,
    Description,
    Job,
    Ready,
    Refused,
    TemplateSource,
    job_decoder,
    renderer_frame,
)
from engine.chat.syntax import OutputSyntax
from engine.chat.template.caps import probe
from engine.chat.template.prompt import chat_prompt
from engine.chat.template.template import ChatTemplate
from engine.errors import EngineError, invalid_request
from engine.processes.framing import HEADER
from engine.processes.limits import limit_memory, set_alarm

MAX_MESSAGE = 4096  # characters of an error
ORPHAN_FACTOR = 2  # times SECONDS: by then the server would have acted


_Known = tuple[ChatTemplate, OutputSyntax]


class Jobs:
    """Answers jobs; keeps the templates that it has compiled, or why they can't be."""

    def __init__(self) -> None:
        self._templates: dict[int, _Known | EngineError] = {}

    def reply(self, job: Job) -> bytearray:
        """The answer to `job`, ready to be written."""
        try:
            return renderer_frame(self._answer(job))
        except EngineError as e:
            # The words may be the template's own.
            message = e.info.message.encode(errors="replace").decode()
            info = msgspec.structs.replace(e.info, message=message[:MAX_MESSAGE])
        except MemoryError:
            info = invalid_request("The chat template needs too much memory for this request").info
        except RecursionError:
            info = invalid_request("This request is nested too deeply for the chat template").info
        except UnicodeEncodeError:
            info = invalid_request("The chat template makes text that is not Unicode").info
        return renderer_frame(Refused(info))

    def _answer(self, job: Job) -> Answer:
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
    memory, seconds = int(sys.argv[1]), float(sys.argv[2])
    # Frames go to the real stdout; what anything prints goes to stderr.
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Signals to the whole process group are for the server, which closes stdin at its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    limit_memory(memory)
    jobs = Jobs()
    collecting.resume()
    with suppress(BrokenPipeError):  # the server is gone
        _write(sink, renderer_frame(Ready()))
        while (job := _receive(source)) is not None:
            set_alarm(ORPHAN_FACTOR * seconds)
            reply = jobs.reply(job)
            set_alarm(0)
            _write(sink, reply)


def _receive(source: BinaryIO) -> Job | None:
    header = source.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    body = source.read(length)
    return job_decoder.decode(body) if len(body) == length else None


def _write(sink: BinaryIO, data: bytearray) -> None:
    sink.write(data)
    sink.flush()


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)
