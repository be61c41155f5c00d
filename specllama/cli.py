"""The program `specllama`: llama-server's command line."""

import logging
import os
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specllama import STARTED, __version__, early_signals
from specllama.commands import COMMANDS, run
from specllama.engine.options import OptionError
from specllama.engine.options.names import suggestion
from specllama.engine.shipped import MODEL_NAME
from specllama.engine.wire import head_start, startup
from specllama.engine.wire.commands import engine_command, template_command
from specllama.handlers.binding.deferred_imports import deferred_imports
from specllama.handlers.options import ServerOptions, given, parse, remarks
from specllama.handlers.options.completion import bash_completion, fish_completion, zsh_completion
from specllama.handlers.options.help import help_text
from specllama.terminal import above_bars

if TYPE_CHECKING:
    from specllama.engine.catalog.catalog import Catalog
    from specllama.engine.catalog.entry import CatalogEntry
    from specllama.engine.catalog.presets import RemotePreset
    from specllama.listen import Listeners

log = logging.getLogger("specllama")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code: 0, or 1 after one line about an error."""
    try:
        code = _main(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _main(words: Sequence[str]) -> int:
    if words and words[0] in COMMANDS:
        return run(words[0], [*words[1:]])
    if words and words[0] == "serve":
        words = words[1:]
    try:
        options = parse(words, os.environ)
        if options.general.help:
            _print_help()
        elif options.general.version:
            print(_versions())
        elif options.general.license:
            _print_licenses()
        elif options.general.completion_bash:
            print(bash_completion(_words()), end="")
        elif options.general.completion_zsh:
            print(zsh_completion(_words()), end="")
        elif options.general.completion_fish:
            print(fish_completion(_words()), end="")
        elif options.general.list_devices:
            return _print_devices(options)
        elif options.general.cache_list:
            _print_cache()
        else:
            return _run(options, words)
    except OptionError as error:
        # A word that isn't an option may be a misspelled command.
        stray = words[0] if words and not words[0].startswith("-") else ""
        return _fail(f"{error}{suggestion(stray, {'serve', *COMMANDS})}; see specllama --help")
    except KeyboardInterrupt:
        pass
    return 0


def _words() -> dict[str, tuple[str, ...]]:
    """Returns the commands, each with the words that may come next."""
    return {"serve": (), **{name: each.actions for name, each in COMMANDS.items()}}


def _run(options: ServerOptions, argv: Sequence[str]) -> int:
    startup.pause_gc()
    early_signals.handle()
    # Connexion imports Starlette's test client, which warns about a test library.
    warnings.filterwarnings("ignore", message="Using `httpx`", module="connexion")
    # Imported late, so that --help and errors in options are fast.
    from specllama import logs
    from specllama.engine.catalog.catalog import open_catalog
    from specllama.listen import ListenError, Listeners

    logs.configure(options.log)
    for warning in remarks(options, argv, os.environ):
        log.warning("%s", warning)
    remote = _remote_preset(options)
    catalog = open_catalog(options.model, options.router, given(argv, os.environ), remote)
    try:
        http = options.http
        with Listeners(http.hosts(), options.port(), reuse_port=http.reuse_port) as listeners:
            return _serve(options, catalog, listeners)
    except ListenError as error:
        return _fail(str(error))


def _remote_preset(options: ServerOptions) -> "RemotePreset | None":
    if not options.model.source.hf_repo:
        return None  # without importing asyncio and more
    import asyncio

    from specllama.engine.helpers.download.downloader import find_remote_preset

    return asyncio.run(find_remote_preset(options.model, os.environ))


def _serve(options: ServerOptions, catalog: "Catalog", listeners: "Listeners") -> int:
    if (first := catalog.first()) is not None:
        _begin_to_load(first, options)
    else:
        head_start.withdraw()
    with deferred_imports():
        from specllama.serve import ServeError, serve
    scheme = "https" if options.http.ssl_cert_file else "http"
    urls = listeners.urls(scheme, options.http.api_prefix)
    try:
        if early_signals.received():
            return 0
        serve(
            options,
            catalog,
            listeners,
            on_listening=lambda: log.info("listening on %s", ", ".join(urls)),
            on_ready=lambda: _announce(options, catalog, urls),
        )
    except ServeError as error:
        return _fail(str(error))
    finally:
        head_start.withdraw()
    return 0


def _begin_to_load(entry: "CatalogEntry", options: ServerOptions) -> None:
    """Lets an engine process load the model while this process imports the server. If the model has
    to be measured first, the process does that, later."""
    from specllama.engine.wire.framing import frame
    from specllama.engine.wire.requests import Load

    load = frame(Load(entry.options.engine, options.log.engine_level()))
    head_start.begin(engine_command(), b"" if options.router.measures() else load, logs=True)
    if not entry.options.engine.embedding.embeds():
        head_start.begin(template_command())


def _fail(message: str) -> int:
    print(f"specllama: error: {message}", file=sys.stderr)
    return 1


def _print_help() -> None:
    terminal = sys.stdout.isatty()
    width = max(80, min(120, shutil.get_terminal_size().columns)) if terminal else 100
    bold = terminal and not os.environ.get("NO_COLOR")
    shown = {name: (each.arguments, each.summary) for name, each in COMMANDS.items()}
    sys.stdout.write(help_text(width, bold, shown))


def _versions() -> str:
    import importlib.metadata
    import platform

    bindings = importlib.metadata.version("llama-cpp-python")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"specllama {__version__} (llama-cpp-python {bindings}, {python}, {sys.platform})"


def _print_licenses() -> None:
    """Prints the licenses of the program, of its required packages, and of the libraries in its
    page."""
    import importlib.metadata
    import importlib.resources
    import re

    print(f"specllama {__version__}: MIT")
    asked = importlib.metadata.requires("specllama") or []
    names = {re.split(r"[^A-Za-z0-9._-]", line)[0] for line in asked if "extra ==" not in line}
    for name in sorted(names, key=str.lower):
        try:
            metadata = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # needed only on another platform
        kinds = [each for each in metadata.get_all("Classifier") or [] if "License ::" in each]
        given = metadata.get_all("License-Expression") or metadata.get_all("License") or [""]
        license = given[0].split("\n")[0] or ", ".join(k.rpartition(" :: ")[2] for k in kinds)
        print(f"{name} {metadata['Version']}: {license or 'see the package'}")
    vendored = importlib.resources.files("specllama.handlers") / "webui" / "vendor" / "licenses.txt"
    print(vendored.read_text("utf-8"), end="")


def _print_devices(options: ServerOptions) -> int:
    # Only here, the server's program itself loads llama.cpp, instead of an engine process. It ends
    # afterwards.
    from specllama.engine.worker.backend import (
        BackendError,
        add_rpc_servers,
        initialize,
        list_devices,
    )

    try:
        initialize()
        add_rpc_servers(options.model.engine.compute.rpc)
    except BackendError as error:
        return _fail(str(error))
    print("Available devices:")
    for line in list_devices() or ["(none: everything runs on the CPU)"]:
        print(f"  {line}")
    return 0


def _print_cache() -> None:
    from specllama.engine.catalog.catalog import cache_list

    for line in cache_list(os.environ):
        print(line)


def _announce(options: ServerOptions, catalog: "Catalog", urls: Sequence[str]) -> None:
    """Prints the banner for people, and logs that the server is ready."""
    ready = f"ready in {time.perf_counter() - STARTED:.1f} s"
    if not (options.log.is_json() or options.log.log_disable):
        _print_banner(catalog, urls, ready, has_page=options.page.ui and not options.page.path)
    fields = {"version": __version__, "model": catalog.default, "urls": list(urls)}
    log.info("%s", ready, extra={"fields": fields, "in_banner": True})


def _print_banner(catalog: "Catalog", urls: Sequence[str], ready: str, *, has_page: bool) -> None:
    lines = [f"specllama {__version__}, {ready}"]
    n_others = len(catalog.listed()) - 1
    if not catalog.router:
        lines.append(f"  model  {catalog.default}")
        options = catalog.entries[catalog.default].options
        if draft := options.source.hf_repo_draft or options.engine.draft.model_draft:
            lines.append(f"  draft  {draft}")
    elif n_others:
        lines.append(f"  model  {catalog.default}, and {n_others} more: see GET /models")
    elif catalog.default != MODEL_NAME:
        lines.append(f"  model  {catalog.default}")
    else:
        lines.append(f"  model  {catalog.default}: a tiny model for tests, shipped with specllama")
        lines.append("         to load your own: specllama -m model.gguf")
    lines += [f"  API    {url}" for url in urls]
    web = [url for url in urls if not url.startswith("unix:")]
    if has_page:
        lines += [f"  chat   {url}/" for url in web[:1]]
    lines += [f"  docs   {url}/docs" for url in web[:1]]
    with above_bars():
        print("\n".join(lines), file=sys.stderr, flush=True)
