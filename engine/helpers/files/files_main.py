"""A process of the built-in tools, which does one job after the other until its stdin ends.

    python -m specllama.engine.helpers.files.files_main BYTES SECONDS       (started by
    engine.helpers.files.toolbox)

Reading from a slow disk and searching with a regular expression may take any time: in this process
they delay no request. BYTES is the limit of the address space, if the platform supports one. The
server ends a process whose job takes more than SECONDS.
"""

import platform
import sys
from typing import Any

import msgspec

import specllama.engine.wire.startup as startup  # the very first of ours
from specllama.engine import system
from specllama.engine.helpers.files.contents import edit_file, read_file, write_file
from specllama.engine.helpers.files.files_jobs import FileAnswer, FileJob, ToolError, job_decoder
from specllama.engine.helpers.files.searching import glob_search, grep_search
from specllama.engine.helpers.files.tree import Tree
from specllama.engine.wire.framing import Started, frame
from specllama.engine.wire.link import Link, do_jobs, take_over


def reply(job: FileJob) -> bytes:
    """Returns the answer to `job` as a frame."""
    exhausted = False
    try:
        result = done(job)
    except ToolError as error:
        result = {"error": str(error)}
    except MemoryError:
        result, exhausted = {"error": "the tool needs too much memory"}, True
    except Exception as error:  # of any kind: the server waits for an answer
        result = {"error": f"the tool failed ({type(error).__name__})"}
    return frame(FileAnswer(msgspec.json.encode(result), exhausted))


def done(job: FileJob) -> dict[str, Any]:
    """Returns the result of `job`. Raises ToolError."""
    arguments = msgspec.json.decode(job.arguments)
    tree = Tree(job.root, job.directory)
    try:
        match job.tool:
            case "read_file":
                return read_file(tree, arguments, as_base64=job.base64)
            case "file_glob_search":
                return glob_search(tree, arguments)
            case "grep_search":
                return grep_search(tree, arguments)
            case "write_file":
                return write_file(tree, arguments)
            case "edit_file":
                return edit_file(tree, arguments)
            case "get_info":
                if tree.kind(tree.directory) != "dir":
                    raise ToolError(f"there is no directory {tree.directory}")
                return {"os": " ".join(platform.uname()).strip(), "cwd": tree.directory}
    finally:
        tree.close()


def main() -> None:
    link: Link[FileJob, Started] = take_over(job_decoder)
    startup.resume_gc()
    do_jobs(link, reply, memory=int(sys.argv[1]), seconds=float(sys.argv[2]))


if __name__ == "__main__":
    main()
    system.leave()
