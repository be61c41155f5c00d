"""The server's side of the built-in tools: files in separate processes
(`engine.helpers.files.files_main`), commands in a sandbox (`engine.helpers.files.shell`)."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final, cast

import msgspec

from specllama.engine.errors import EngineError
from specllama.engine.helpers.files.definitions import TOOLS, BuiltinTool
from specllama.engine.helpers.files.files_jobs import (
    SHELL,
    FileAnswer,
    FileJob,
    FileTool,
    ToolError,
    answer_decoder,
    integer,
    text,
)
from specllama.engine.helpers.files.shell import MAX_COMMAND, MAX_OUTPUT, SECONDS, ShellCommand
from specllama.engine.helpers.files.tree import Tree
from specllama.engine.helpers.pool import Helper, HelperPool
from specllama.engine.wire.commands import bare_environment, files_command
from specllama.engine.wire.framing import frame
from specllama.engine.wire.process import ChildError

log = logging.getLogger("specllama.engine.helpers.files")

MEMORY_LIMIT: Final = 1 << 30  # bytes of address space, including the interpreter
TIME_LIMIT: Final = 30.0  # s of one job
IDLE: Final = 60.0  # s after which a process without a job is ended
MAX_COMMANDS: Final = 4  # at a time; others wait


class Toolbox:
    """The tools `names`, for the files below the directory `root`."""

    def __init__(self, names: Iterable[str], root: str, *, time_limit: float = TIME_LIMIT) -> None:
        """`root` is an absolute path without links; `time_limit` is that of a file tool in
        seconds."""
        wanted = frozenset(names)
        self.root = root
        self.tools: Mapping[str, BuiltinTool] = {
            name: tool for name, tool in TOOLS.items() if name in wanted
        }
        self._time_limit = time_limit
        self._commands = asyncio.Semaphore(MAX_COMMANDS)
        self._pool = HelperPool[FileAnswer](
            "a process of the built-in tools",
            files_command(MEMORY_LIMIT, time_limit),
            answer_decoder,
            env=bare_environment(),
            idle=IDLE,
        )

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes, without commands."""
        return self._pool.pids

    async def run(
        self, name: str, arguments: dict[str, Any], *, directory: str = "", base64: bool = False
    ) -> dict[str, Any]:
        """Returns the result of a tool, or an object with `error`. `directory` is the one that
        relative paths begin at. Cancelling ends the work."""
        try:
            if name == SHELL:
                async with aclosing(self.stream(arguments, directory)) as output:
                    return {"plain_text_response": "".join([piece async for piece in output])}
            job = FileJob(
                tool=cast(FileTool, name),
                arguments=msgspec.json.encode(arguments),
                root=self.root,
                directory=directory,
                base64=base64,
            )
            answer = await self._pool.run(partial(self._ask, job=job), cancels=True)
        except ToolError as error:
            return {"error": str(error)}
        except EngineError as error:
            return {"error": error.info.message}
        except ChildError as error:
            log.error("a process of the built-in tools ended with code %d", error.code)
            return {"error": "the tool's process ended"}
        return cast("dict[str, Any]", msgspec.json.decode(answer.result))

    async def stream(
        self, arguments: Mapping[str, Any], directory: str
    ) -> AsyncGenerator[str, None]:
        """Yields the output of a shell command, and its exit code at the end. Raises ToolError.
        Closing the iterator ends the command."""
        command = text(arguments, "command")
        if len(command.encode()) > MAX_COMMAND or "\0" in command:
            raise ToolError(f"the command has more than {MAX_COMMAND} bytes, or a null character")
        running = ShellCommand(
            self.root,
            self._directory(directory),
            command,
            integer(arguments, "timeout", SECONDS),
            integer(arguments, "max_output_size", MAX_OUTPUT),
        )
        async with self._commands:
            try:
                async with aclosing(running.output()) as output:
                    async for piece in output:
                        yield piece
            except OSError as error:
                raise ToolError(f"failed to spawn process: {error.strerror}") from None
        yield running.how_it_ended

    async def stop(self) -> None:
        """Ends all processes; open calls fail. Commands end with their requests."""
        await self._pool.stop()

    def _directory(self, directory: str) -> str:
        """Returns the absolute path of the directory of a command. Raises ToolError."""
        tree = Tree(self.root, directory)
        try:
            os.close(tree.open_directory(tree.directory))
            return tree.directory
        finally:
            tree.close()

    async def _ask(self, helper: Helper[FileAnswer], job: FileJob) -> FileAnswer:
        """Raises ToolError, and ChildError if the process ends."""
        try:
            answer = await helper.ask(frame(job), self._time_limit)
        except TimeoutError:
            raise ToolError(f"the tool took more than {self._time_limit:g} s") from None
        helper.is_fit = not answer.exhausted
        return answer
