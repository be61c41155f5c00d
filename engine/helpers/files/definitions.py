"""The built-in tools as clients and models see them."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from specllama.engine.helpers.files import shell
from specllama.engine.helpers.files.contents import MAX_TEXT
from specllama.engine.helpers.files.files_jobs import SHELL
from specllama.engine.helpers.files.searching import MAX_RESULTS


class BuiltinTool(NamedTuple):
    """A tool: its texts, the JSON schema of its arguments, and whether it changes anything."""

    name: str
    title: str
    description: str
    parameters: dict[str, Any]
    writes: bool = False


def _schema(required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | {"required": required.split()} if required else schema


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


def _flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "description": description}


_PATTERNS: Final = (
    "A pattern without a slash, such as *.py, is compared with file names; one with a slash, such "
    "as src/**/*.py, with the ends of paths."
)
_LEFT_OUT: Final = (
    "Directories such as .git, node_modules and build are not searched, and links are not followed."
)

TOOLS: Final[Mapping[str, BuiltinTool]] = {
    tool.name: tool
    for tool in (
        BuiltinTool(
            "read_file",
            "Read file",
            f"Returns the text of a file of at most {MAX_TEXT} bytes, or the given lines of a "
            "larger one.",
            _schema(
                "path",
                path=_text("Path of the file."),
                start_line=_number("First line, counted from 1. Default: 1."),
                end_line=_number("Last line. Default: the end of the file."),
                append_loc=_flag("Whether each line begins with its number and an arrow."),
            ),
        ),
        BuiltinTool(
            "file_glob_search",
            "File search",
            f"Lists the files below a directory whose paths match a pattern. {_PATTERNS} "
            f"{_LEFT_OUT}",
            _schema(
                "path",
                path=_text("Directory to search."),
                include=_text("Pattern of the paths to list. Default: ** (all)."),
                exclude=_text("Pattern of paths to leave out."),
                type=_text('"file" (default), "dir" for directories, or "all".'),
                max_depth=_number("Levels of directories; 1 is the directory alone. Default: all."),
                limit=_number(f"Number of results, at most {MAX_RESULTS}, the default."),
            ),
        ),
        BuiltinTool(
            "grep_search",
            "Grep search",
            f"Returns the lines of text files that match a regular expression. {_PATTERNS} "
            f"{_LEFT_OUT}",
            _schema(
                "path pattern",
                path=_text("File or directory to search."),
                pattern=_text("Regular expression, or a plain text if literal is true."),
                include=_text("Pattern of the files to search. Default: ** (all)."),
                exclude=_text("Pattern of files to leave out."),
                return_line_numbers=_flag("Whether results have line numbers."),
                literal=_flag("Whether the pattern is a plain text."),
                ignore_case=_flag("Whether upper and lower case are the same."),
                context_lines=_number("Lines to show before and after each match. Default: 0."),
            ),
        ),
        BuiltinTool(
            SHELL,
            "Execute shell command",
            "Runs a shell command and returns its output and exit code. It has no network, and "
            "sees only the directory of tools and the system's programs.",
            _schema(
                "command",
                command=_text("The command, for sh."),
                timeout=_number(
                    f"Time limit in seconds, at most {shell.MAX_SECONDS}. Default: {shell.SECONDS}."
                ),
                max_output_size=_number(
                    f"Limit of the output in bytes, at most {shell.MAX_OUTPUT}, the default."
                ),
            ),
            writes=True,
        ),
        BuiltinTool(
            "write_file",
            "Write file",
            "Creates a file with its directories, or replaces its contents.",
            _schema(
                "path content",
                path=_text("Path of the file."),
                content=_text("The new contents."),
            ),
            writes=True,
        ),
        BuiltinTool(
            "edit_file",
            "Edit file",
            "Replaces texts in a file. Each old text has to occur exactly once, and the texts must "
            "not overlap.",
            _schema(
                "path edits",
                path=_text("Path of the file."),
                edits={
                    "type": "array",
                    "description": "The replacements. All refer to the file as it is now.",
                    "items": _schema(
                        "old_text new_text",
                        old_text=_text("Text in the file, with enough around it to be unique."),
                        new_text=_text("Text to put in its place."),
                    ),
                },
            ),
            writes=True,
        ),
        BuiltinTool(
            "get_info",
            "Get runtime info",
            "Returns the operating system, and the directory that relative paths begin at.",
            _schema(""),
        ),
    )
}
"""In the order of llama-server."""
