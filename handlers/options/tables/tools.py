"""Options of the tools that the server runs for clients."""

import os
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Final, get_args

import msgspec

from specllama.engine.helpers.files.files_jobs import SHELL, FileTool
from specllama.engine.helpers.tools.configuration import (
    McpConfiguration,
    check_text,
    read_configuration,
)
from specllama.engine.options import values
from specllama.engine.options.declaration import Opt
from specllama.engine.options.files import check_readable_directory
from specllama.engine.options.values import OptionError
from specllama.handlers.options.addresses import is_local
from specllama.handlers.options.tables.http import HttpOptions


def problem(directory: str) -> str:
    """Returns why commands can't run in a sandbox (`engine.helpers.files.shell.problem`)."""
    from specllama.engine.helpers.files import shell  # imports asyncio, and is rarely needed

    return shell.problem(directory)


_tools = partial(Opt, group="Tools")

ALL: Final = "all"
NAMES: Final = (*get_args(FileTool), SHELL)


def tool_names(text: str) -> tuple[str, ...]:
    """Returns names of built-in tools; `all` stands for all."""
    found = values.comma_separated(text)
    for name in found:
        if name not in (ALL, *NAMES):
            raise OptionError(
                f"unknown tool {values.quote(name)}. available tools: {', '.join(NAMES)}"
            )
    return found


class ToolOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The tools that the server runs for clients, and the MCP servers."""

    tools: Annotated[
        tuple[str, ...],
        _tools(
            names="--tools",
            env="LLAMA_ARG_TOOLS",
            metavar="TOOL,...",
            help="Built-in tools that clients may run with POST /tools, for the files below "
            f"--tools-dir: {', '.join(NAMES)}; {ALL} for all. Commands run in bubblewrap, without "
            "network. Without API keys, the server must be reachable from this machine alone.",
            default="none",
            read=tool_names,
            show=values.show_comma_separated,
        ),
    ] = ()
    agent: Annotated[
        bool,
        _tools(
            names="-ag --agent",
            negative="-no-ag --no-agent",
            env="LLAMA_ARG_AGENT",
            help=f"The same as --tools {ALL}. Unlike in llama-server, /cors-proxy stays off.",
        ),
    ] = False
    tools_dir: Annotated[
        str,
        _tools(
            names="--tools-dir",
            env="LLAMA_ARG_TOOLS_DIR",
            metavar="DIR",
            help="Directory of the built-in tools. They can't leave it, and links don't lead out "
            "of it.",
            default="the working directory",
            file=check_readable_directory,
        ),
    ] = ""
    mcp_servers_config: Annotated[
        str,
        _tools(
            names="--mcp-servers-config",
            env="LLAMA_ARG_MCP_SERVERS_CONFIG",
            metavar="FILE",
            help="JSON file with the MCP servers whose tools clients may run with POST /tools: "
            '{"mcpServers": {"NAME": {"command": ..., "args": [...], "env": {...}}}}, or a `url` '
            "with `headers`. Needs the extra `mcp`: pip install 'specllama[mcp]'.",
            default="none",
        ),
    ] = ""
    mcp_servers_json: Annotated[
        str,
        _tools(
            names="--mcp-servers-json",
            env="LLAMA_ARG_MCP_SERVERS_JSON",
            metavar="JSON",
            help="More MCP servers, as the JSON itself.",
            default="none",
            secret=True,
            read=check_text,
        ),
    ] = ""

    def is_on(self) -> bool:
        """Returns whether the server has built-in tools or MCP servers."""
        return self.agent or bool(self.tools or self.has_mcp())

    def has_mcp(self) -> bool:
        return bool(self.mcp_servers_config or self.mcp_servers_json)

    def names(self) -> tuple[str, ...]:
        """Returns the names of the built-in tools. The shell is left out if only `all` names it,
        and there is no sandbox."""
        if not (self.agent or ALL in self.tools):
            return self.tools
        is_left_out = SHELL not in self.tools and problem(self.directory())
        return tuple(name for name in NAMES if name != SHELL or not is_left_out)

    def directory(self) -> str:
        """Returns the directory of tools, an absolute path without links."""
        return os.path.realpath(self.tools_dir or os.curdir)

    def mcp_servers(self) -> McpConfiguration:
        """Returns the MCP servers. Raises `OptionError`, which names the place of a fault."""
        return read_configuration(self.mcp_servers_config, self.mcp_servers_json)

    def check(self, http: HttpOptions) -> None:
        """Raises `OptionError` if the tools would be open to others than the users of this machine
        and the owners of keys, or can't be used."""
        if not self.is_on():
            return
        given = "--tools" if self.tools else "--agent" if self.agent else "--mcp-servers-config"
        if not (http.api_key or http.api_key_file or http.keys_file):
            if open_to := [host for host in http.hosts() if not is_local(host)]:
                raise OptionError(
                    f"{given} with --host {', '.join(open_to)} needs an API key (--api-key, "
                    "--keys-file): every client could use files and programs of this machine"
                )
            if "*" in http.allowed_hosts:
                raise OptionError(
                    f"{given} with --allowed-hosts * needs an API key (--api-key, --keys-file): "
                    "any web page could use files and programs of this machine"
                )
        if self.tools or self.agent:
            self._check_directory()
        if self.has_mcp() and find_spec("mcp") is None:
            raise OptionError(
                "MCP servers need the package mcp, which is not installed: "
                'pip install "specllama[mcp]"'
            )

    def _check_directory(self) -> None:
        if not {os.open, os.stat, os.readlink, os.mkdir, os.rename} <= os.supports_dir_fd:
            raise OptionError("--tools: this system can't keep tools below a directory")
        directory = self.directory()
        if directory == os.path.dirname(directory):
            raise OptionError(
                f"--tools-dir {directory} is the whole system: name the directory of a project"
            )
        if SHELL in self.tools and (reason := problem(directory)):
            raise OptionError(f"--tools {SHELL} {reason}")

    def remarks(self) -> list[str]:
        """Returns warnings about tools that are left out."""
        found = [f"MCP servers: {each}" for each in self.mcp_servers().remarks]
        every = self.agent or ALL in self.tools
        if every and SHELL not in self.tools and (reason := problem(self.directory())):
            found.append(f"the tool {SHELL} is left out: it {reason}")
        return found
