"""Reads a command line and environment variables into `ServerOptions`."""

from collections.abc import Mapping, Sequence

from specllama.engine.options import Given
from specllama.engine.options.checks import check, check_files, named
from specllama.engine.options.declaration import compose
from specllama.engine.options.parser import gather, unknown_variables, vain_options
from specllama.engine.options.values import OptionError
from specllama.handlers.options import files
from specllama.handlers.options.addresses import is_local
from specllama.handlers.options.composition import NAMES, ServerOptions

# ---- checks of several options of the server ---------------------------------------------


def check_server(options: ServerOptions) -> None:
    """Raises `OptionError` for contradictory options of the server."""
    http = options.http
    if bool(http.ssl_cert_file) != bool(http.ssl_key_file):
        given, missing = ("cert", "key") if http.ssl_cert_file else ("key", "cert")
        raise OptionError(f"--ssl-{given}-file needs --ssl-{missing}-file as well")
    options.tracing.check()
    options.tools.check(http)


def check_server_files(options: ServerOptions) -> None:
    """Raises `OptionError` for invalid files in options of the server."""
    log = options.log
    if log.log_file and not log.log_disable:
        named("--log-file", lambda: files.check_writable(log.log_file))
    if options.http.keys_file:
        named("--keys-file", options.http.named_keys)
    if options.tools.has_mcp():
        options.tools.mcp_servers()
    certificate, key = options.http.ssl_cert_file, options.http.ssl_key_file
    if certificate:
        named("--ssl-cert-file, --ssl-key-file", lambda: files.check_tls(certificate, key))


def given(argv: Sequence[str], environ: Mapping[str, str]) -> Given:
    """Returns the words of a command line (without the program's name) and the variables, with the
    names of all options."""
    return Given(NAMES, environ, argv)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> ServerOptions:
    """Returns the options from variables and from a command line (without the program's name),
    which wins.

    Checks the options and the files that they name, unless one of the options only prints
    information (`--help`, `--version`, `--list-devices`, `--cache-list`, ...). Raises
    `OptionError`.
    """
    options = compose(ServerOptions, gather(given(argv, environ), ()))
    if not options.general.any():
        check(options.model)
        check_server(options)
        check_files(options)
        check_server_files(options)
    return options


def from_environ(environ: Mapping[str, str]) -> ServerOptions:
    """Returns the options from variables only."""
    return parse([], environ)


def remarks(options: ServerOptions, argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Returns warnings about options without effect, and about a server that is open to other
    machines."""
    found = unknown_variables(NAMES, environ)
    found += vain_options(given(argv, environ))
    engine, router = options.model.engine, options.router
    http = options.http
    open_to = [host for host in http.hosts() if not is_local(host)]
    if open_to and not (http.keys_file or http.api_keys()):
        where = ", ".join(open_to)
        found.append(
            f"--host {where}: every client that can reach it may use the server; set --api-key or "
            "--keys-file to require a key"
        )
    if options.vertex.is_on() and "port" in gather(given(argv, environ), ()):
        found.append(f"--port has no effect: --aip-http-port is {options.vertex.aip_http_port}")
    drafts = bool(engine.draft.model_draft or options.model.source.hf_repo_draft)
    if drafts and engine.embedding.embeds():
        found.append("--model-draft has no effect: embeddings have no next tokens to propose")
    if engine.draft.spec_replace and not drafts:
        found.append("--spec-replace has no effect without --model-draft")
    if engine.context.reproducible == "on":
        found += [
            f"--reproducible: with {name}, texts depend on more than their requests"
            for name in engine.irreproducible()
        ]
    if router.models_dir or router.models_preset:
        vain = "--models-dir" if router.models_dir else "--models-preset"
        for name in ("model", "hf_repo", "model_url", "docker_repo"):
            field = NAMES.fields[name]
            if field.of(options):
                found.append(f"{vain} has no effect: {field.canonical} names the only model")
    return found + options.tools.remarks()
