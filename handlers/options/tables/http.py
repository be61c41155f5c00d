"""Options of HTTP: addresses, keys, TLS, limits."""

from functools import partial
from typing import Annotated

import msgspec

from specllama.engine.options import values
from specllama.engine.options.declaration import INT32_MAX, Opt
from specllama.handlers.options import addresses, files
from specllama.handlers.options.keys_file import KeyTable, read_keys

_http = partial(Opt, group="Server")


class HttpOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Addresses, access control and limits of the HTTP server."""

    host: Annotated[
        str,
        _http(
            names="--host",
            env="LLAMA_ARG_HOST",
            metavar="ADDRESS,...",
            help="Addresses to listen on; one that ends with .sock is the path of a UNIX socket.",
            read=addresses.hosts,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        _http(
            names="--port",
            env="LLAMA_ARG_PORT",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port to listen on; 0 selects a free port and prints it.",
        ),
    ] = 8080
    reuse_port: Annotated[
        bool,
        _http(
            names="--reuse-port",
            env="LLAMA_ARG_REUSE_PORT",
            help="Let several servers listen on the same port, if the system supports it. The "
            "system distributes the connections.",
        ),
    ] = False
    api_prefix: Annotated[
        str,
        _http(
            names="--api-prefix",
            env="LLAMA_ARG_API_PREFIX",
            metavar="PATH",
            help="Path prefix of all operations, such as /llm.",
            default="none",
            read=addresses.api_prefix,
        ),
    ] = ""
    api_key: Annotated[
        tuple[str, ...],
        _http(
            names="--api-key",
            env="LLAMA_API_KEY",
            metavar="KEY,...",
            help="API keys. Each request must contain one of them.",
            default="none (no key required)",
            repeats=True,
            read=values.comma_separated,
            show=values.show_comma_separated,
        ),
    ] = ()
    api_key_file: Annotated[
        str,
        _http(
            names="--api-key-file",
            env="LLAMA_ARG_API_KEY_FILE",
            metavar="FILE",
            help="File with more API keys, one per line; lines that begin with # are comments.",
            default="none",
            file=files.api_keys,
        ),
    ] = ""
    keys_file: Annotated[
        str,
        _http(
            names="--keys-file",
            env="LLAMA_ARG_KEYS_FILE",
            metavar="FILE",
            help="TOML file of API keys with names, and what each may do: see docs/keys.md. A "
            "change of the file takes effect without a restart. Beside it, the keys of --api-key "
            "and --api-key-file may do everything.",
            default="none",
        ),
    ] = ""
    cache_per_key: Annotated[
        bool,
        _http(
            names="--cache-per-key",
            env="LLAMA_ARG_CACHE_PER_KEY",
            help="Don't share cached prompts between API keys. Otherwise a client could infer "
            "from response times what others have sent. `cache` in --keys-file overrides this for "
            "a key.",
        ),
    ] = False
    ssl_key_file: Annotated[
        str,
        _http(
            names="--ssl-key-file",
            env="LLAMA_ARG_SSL_KEY_FILE",
            metavar="FILE",
            help="Private key for HTTPS, in PEM format, without a passphrase.",
            default="none (plain HTTP)",
        ),
    ] = ""
    ssl_cert_file: Annotated[
        str,
        _http(
            names="--ssl-cert-file",
            env="LLAMA_ARG_SSL_CERT_FILE",
            metavar="FILE",
            help="Certificate for HTTPS, in PEM format.",
            default="none (plain HTTP)",
        ),
    ] = ""
    allowed_hosts: Annotated[
        tuple[str, ...],
        _http(
            names="--allowed-hosts",
            env="LLAMA_ARG_ALLOWED_HOSTS",
            metavar="NAME,...",
            help="Host names that requests may use, in addition to localhost and IP addresses; * "
            "allows all. Requests with other names are answered with 403.",
            default="none if all addresses are local to this machine, else all",
            read=addresses.host_names,
            show=values.show_comma_separated,
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        _http(
            names="--cors-origins",
            env="LLAMA_ARG_CORS_ORIGINS",
            metavar="ORIGIN,...",
            help="Origins of web pages that may use the server; * allows all, localhost allows "
            "those of this machine.",
            read=addresses.origins,
            show=values.show_comma_separated,
        ),
    ] = ("*",)
    cors_methods: Annotated[
        tuple[str, ...],
        _http(
            names="--cors-methods",
            env="LLAMA_ARG_CORS_METHODS",
            metavar="METHOD,...",
            help="Methods that web pages may use (CORS).",
            read=addresses.header_list,
            show=values.show_comma_separated,
        ),
    ] = ("GET", "POST", "DELETE", "OPTIONS")
    cors_headers: Annotated[
        tuple[str, ...],
        _http(
            names="--cors-headers",
            env="LLAMA_ARG_CORS_HEADERS",
            metavar="NAME,...",
            help="Header fields that web pages may send (CORS); * allows all.",
            read=addresses.header_list,
            show=values.show_comma_separated,
        ),
    ] = ("*",)
    cors_credentials: Annotated[
        bool,
        _http(
            names="--cors-credentials",
            negative="--no-cors-credentials",
            env="LLAMA_ARG_CORS_CREDENTIALS",
            help="Let web pages send credentials, such as cookies (CORS).",
        ),
    ] = True
    timeout: Annotated[
        int,
        _http(
            names="-to --timeout",
            env="LLAMA_ARG_TIMEOUT",
            metavar="SECONDS",
            min=1,
            max=INT32_MAX,
            help="Maximum time to wait for a client that neither sends nor reads.",
        ),
    ] = 600
    head_timeout: Annotated[
        int,
        _http(
            names="--head-timeout",
            env="LLAMA_ARG_HEAD_TIMEOUT",
            metavar="SECONDS",
            min=1,
            max=INT32_MAX,
            help="Maximum time from the first to the last byte of a request's head; a slower "
            "request is answered with 408.",
        ),
    ] = 60
    max_body_size: Annotated[
        int,
        _http(
            names="--max-body-size",
            env="LLAMA_ARG_MAX_BODY_SIZE",
            metavar="MIB",
            min=1,
            max=1000,  # a prompt has to fit into one frame (engine.wire.framing)
            help="Maximum size of a request body in MiB; larger bodies are answered with 413. Some "
            "operations have lower limits. If all bodies together exceed eight times this "
            "size, the answer is 503.",
        ),
    ] = 64
    drain_timeout: Annotated[
        int,
        _http(
            names="--drain-timeout",
            env="LLAMA_ARG_DRAIN_TIMEOUT",
            metavar="SECONDS",
            min=0,
            max=INT32_MAX,
            help="Maximum time that running requests may continue after Ctrl-C or SIGTERM.",
        ),
    ] = 10

    def hosts(self) -> list[str]:
        """Returns the addresses and socket paths to listen on; never empty."""
        return list(dict.fromkeys(values.comma_separated(self.host)))

    def api_keys(self) -> list[str]:
        """Returns the keys of `--api-key` and `--api-key-file`; empty if no key is required.

        Raises `OptionError` if the file can't be read or contains no key.
        """
        keys = list(self.api_key)
        if self.api_key_file:
            keys += files.api_keys(self.api_key_file)
        return list(dict.fromkeys(keys))

    def named_keys(self) -> dict[str, KeyTable]:
        """Returns the tables in the file of `--keys-file`, by the names of the keys.

        Raises `OptionError` if the file is invalid, or has a key of `--api-key` or
        `--api-key-file`.
        """
        if not self.keys_file:
            return {}
        return read_keys(self.keys_file, self.api_keys())
