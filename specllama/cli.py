"""The program `specllama`: llama-server's command line."""

import importlib.metadata
import logging
import os
import platform
import shutil
import signal
import sys
import warnings
from collections.abc import Sequence

from engine.options import (
    OptionError,
    Options,
    help_text,
    parse,
    remarks,
)
from specllama import __version__

log = logging.getLogger("specllama")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code: 0, or 1 after one line about an error."""
    try:
        argv = sys.argv[1:] if argv is None else argv
        options = parse(argv, os.environ)
        if options.help:
            _print_help()
        elif options.version:
            print(_versions())
        elif options.list_devices:
            return _print_devices(options)
        else:
            return _run(options, remarks(options, argv, os.environ))
    except OptionError as error:
        return _fail(f"{error}; see specllama --help")
    except KeyboardInterrupt:
        pass
    return 0


def _run(options: Options, in_vain: Sequence[str]) -> int:
    # Until the server handles signals itself, they just end the program.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Connexion imports Starlette's test client, which has an opinion on test libraries.
    warnings.filterwarnings("ignore", message="Using `httpx`", module="connexion")
    # Imported late, so that --help and a wrong option answer without loading all of it.
    from specllama import logs
    from specllama.listen import ListenError, Listeners
    from specllama.serve import ServeError, serve

    logs.configure(options)
    for remark in in_vain:
        log.warning("%s", remark)
    try:
        with Listeners(options.hosts(), options.port) as listeners:
            scheme = "https" if options.ssl_cert_file else "http"
            urls = listeners.urls(scheme, options.api_prefix)
            serve(options, listeners, lambda: _print_banner(options, urls))
    except (ListenError, ServeError) as error:
        return _fail(str(error))
    return 0


def _fail(message: str) -> int:
    print(f"specllama: error: {message}", file=sys.stderr)
    return 1


def _print_help() -> None:
    terminal = sys.stdout.isatty()
    width = max(80, min(120, shutil.get_terminal_size().columns)) if terminal else 100
    sys.stdout.write(help_text(width, bold=terminal and not os.environ.get("NO_COLOR")))


def _versions() -> str:
    bindings = importlib.metadata.version("llama-cpp-python")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"specllama {__version__} (llama-cpp-python {bindings}, {python}, {sys.platform})"


def _print_devices(options: Options) -> int:
    # The one place outside the engine process that loads llama.cpp: the program ends here.
    from engine.backend import BackendError, add_rpc_servers, initialize, list_devices

    initialize()
    try:
        add_rpc_servers(options.rpc)
    except BackendError as error:
        return _fail(str(error))
    print("Available devices:")
    for line in list_devices() or ["(none: everything runs on the CPU)"]:
        print(f"  {line}")
    return 0


def _print_banner(options: Options, urls: Sequence[str]) -> None:
    lines = [f"specllama {__version__}"]
    if options.model:
        lines.append(f"  model  {options.model}")
    else:
        lines.append("  model  the tiny one that ships with specllama, for trying things out")
        lines.append("         to load your own: specllama -m model.gguf")
    lines += [f"  API    {url}" for url in urls]
    web = [url for url in urls if not url.startswith("unix:")]
    lines += [f"  docs   {url}/docs" for url in web[:1]]
    print("\n".join(lines), file=sys.stderr, flush=True)
