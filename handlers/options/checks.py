"""What one option of the server alone can't tell."""

from specllama.engine.options.checks import named
from specllama.engine.options.values import OptionError
from specllama.handlers.options import files
from specllama.handlers.options.composition import ServerOptions


def check_server(options: ServerOptions) -> None:
    """Raises `OptionError` for options of the server that can't be had together."""
    http = options.http
    if bool(http.ssl_cert_file) != bool(http.ssl_key_file):
        given, missing = ("cert", "key") if http.ssl_cert_file else ("key", "cert")
        raise OptionError(f"--ssl-{given}-file needs --ssl-{missing}-file as well")


def check_server_files(options: ServerOptions) -> None:
    """Raises `OptionError` for files that concern several options."""
    log = options.log
    if log.log_file and not log.log_disable:
        named("--log-file", lambda: files.check_writable(log.log_file))
    certificate, key = options.http.ssl_cert_file, options.http.ssl_key_file
    if certificate:
        named("--ssl-cert-file, --ssl-key-file", lambda: files.check_tls(certificate, key))
