"""Engine processes that exist in name only, so that every race can be staged."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from specllama.engine.helpers.download.downloader import FetchError, Transfer
from specllama.engine.models.client import EngineClient
from specllama.engine.models.engine_process import EngineProcess
from specllama.engine.models.generation import Generation
from specllama.engine.models.lifecycle import ProcessLife, Restarts
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import EngineOptions, Options
from specllama.engine.params import GenerationParams
from specllama.engine.wire.engine_log import EngineLog
from specllama.engine.wire.framing import sender
from specllama.engine.wire.replies import LoadFailed, Progress, Ready, ToServer
from specllama.engine.wire.requests import Prompt
from tests.support.factories import model_info

INFO = model_info()


def generate(
    client: EngineClient, prompt: Prompt, params: GenerationParams, **options: Any
) -> Generation:
    """Starts one generation, with the `options` of `generate_all`."""
    [generation] = client.generate_all(prompt, [params], **options)
    return generation


class PaperPipe:
    """The stdin of a process that reads nothing."""

    def __init__(self) -> None:
        self._closed = False

    def write(self, data: bytes) -> None:
        assert not self._closed

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True


class PaperChild:
    """Replaces `engine.wire.process.Child`, without a process."""

    failure = None
    pid = 0
    first_id = 1

    def __init__(self) -> None:
        self.stdin = PaperPipe()
        self._on_message: Callable[[ToServer], None] | None = None
        self._unheard: list[ToServer] = []
        self._exited = asyncio.Event()
        self._code = 0

    @property
    def is_alive(self) -> bool:
        return not self._exited.is_set()

    def sender(self) -> Callable[[object], None]:
        pipe: Any = self.stdin
        return sender(pipe)

    def say(self, message: ToServer) -> None:
        """Delivers a message of the engine to the server."""
        if self._on_message is not None:
            self._on_message(message)
        else:
            self._unheard.append(message)

    def exit(self, code: int) -> None:
        """Ends the engine."""
        if self.is_alive:
            self._code = code
            self._exited.set()

    def listen(self, on_message: Callable[[ToServer], None] | None) -> None:
        self._on_message = on_message
        while on_message is not None and self._unheard:
            on_message(self._unheard.pop(0))

    async def output_end(self, silence: float) -> None:
        await self._exited.wait()

    async def end(self, seconds: float) -> bool:
        self.stdin.close()
        await asyncio.sleep(0)
        self.exit(0)
        return True

    def kill(self) -> None:
        self.exit(-9)

    async def reap(self, grace: float = 0.0) -> int:
        await self._exited.wait()
        self.stdin.close()
        return self._code


class AtOnce(Restarts):
    """`Restarts` without pauses."""

    def after(self, life: ProcessLife) -> float | None:
        return None if super().after(life) is None else 0.0


class PaperSupervisor(Supervisor):
    """The supervisor of an engine that a test controls."""

    all: ClassVar[list["PaperSupervisor"]] = []  # emptied for each test

    def __init__(self, options: Options) -> None:
        super().__init__(
            options,
            fetch=self._download_files,
            start_process=self._start_child,
            restarts=AtOnce(),
        )
        self.name = options.engine.model.alias
        self.child: PaperChild | None = None
        self.started_with: EngineOptions | None = None
        self.n_children = 0
        self._files: asyncio.Future[Options] | None = None
        PaperSupervisor.all.append(self)

    async def _start_child(
        self, options: EngineOptions, engine_log: EngineLog, log_level: int
    ) -> EngineProcess:
        self.child, self.started_with = (child := PaperChild()), options
        self.n_children += 1
        await asyncio.sleep(0)
        given: Any = child
        return EngineProcess(given)

    async def _download_files(
        self, options: Options, on_progress: Callable[[Transfer], None]
    ) -> Options:
        self._files = asyncio.get_running_loop().create_future()
        return await self._files

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.is_alive

    @property
    def downloads(self) -> bool:
        """True while its download runs."""
        return self._files is not None and not self._files.done()

    # ---- controls for tests --------------------------------------------------------------

    def say(self, message: ToServer) -> None:
        assert self.child is not None
        self.child.say(message)

    def become_ready(self) -> None:
        self.say(Ready(INFO))

    def fail(self, reason: str, exit_code: int = 1) -> None:
        """Reports that the model can't be loaded, and ends the process."""
        self.say(LoadFailed(reason))
        self.crash(exit_code)

    def crash(self, exit_code: int = -9) -> None:
        assert self.child is not None
        self.child.exit(exit_code)

    async def fall_asleep(self) -> None:
        """Unloads the model as after --sleep-idle-seconds."""
        assert self._process is not None
        await self._doze(self._process)
        await self._changes.until(lambda: self.state != "dozing")

    def make_progress(self, fraction: float) -> None:
        self.say(Progress(fraction))

    def download(self, n_done: int, n_total: int) -> None:
        self._on_transfer(Transfer("model.gguf", n_done, n_total))

    def downloaded(self) -> None:
        assert self._files is not None
        if not self._files.done():
            self._files.set_result(self.options)

    def fail_download(self, reason: str) -> None:
        assert self._files is not None
        if not self._files.done():
            self._files.set_exception(FetchError(reason))
