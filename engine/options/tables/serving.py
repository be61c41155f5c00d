"""Options of the server around the model."""

from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from engine.options import values
from engine.options.declaration import INT32_MAX, Opt, Switch
from engine.options.tables.catalog import CatalogOptions

_server = partial(Opt, group="Server", scope="server")
_operation = partial(Opt, group="Server")  # what may be asked of a model
_chat = partial(Opt, group="Chat templates")
_log = partial(Opt, group="Logging", scope="server")
_general = partial(Opt, group="General", scope="server")


class ServingOptions(CatalogOptions, kw_only=True, frozen=True):
    """How to serve: HTTP, chat templates, logging."""

    # ---- server -------------------------------------------------------------------------

    host: Annotated[
        str,
        _server(
            names="--host",
            env="LLAMA_ARG_HOST",
            metavar="ADDRESS,...",
            help="Addresses to listen on; one that ends with .sock is the path of a UNIX socket.",
            read=values.hosts,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        _server(
            names="--port",
            env="LLAMA_ARG_PORT",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port to listen on; 0 takes a free one and prints it.",
        ),
    ] = 8080
    api_prefix: Annotated[
        str,
        _server(
            names="--api-prefix",
            env="LLAMA_ARG_API_PREFIX",
            metavar="PATH",
            help="Path before every operation's own path, such as /llm.",
            default="none",
            read=values.api_prefix,
        ),
    ] = ""
    api_key: Annotated[
        tuple[str, ...],
        _server(
            names="--api-key",
            env="LLAMA_API_KEY",
            metavar="KEY,...",
            help="Keys of which a client must send one.",
            default="none (everybody may)",
            repeats=True,
            read=values.comma_separated,
            show=values.show_comma_separated,
        ),
    ] = ()
    api_key_file: Annotated[
        str,
        _server(
            names="--api-key-file",
            metavar="FILE",
            help="File with more keys, one on a line; lines that begin with # are comments.",
            default="none",
        ),
    ] = ""
    ssl_key_file: Annotated[
        str,
        _server(
            names="--ssl-key-file",
            env="LLAMA_ARG_SSL_KEY_FILE",
            metavar="FILE",
            help="Private key for HTTPS, in PEM format and without a passphrase.",
            default="none (plain HTTP)",
        ),
    ] = ""
    ssl_cert_file: Annotated[
        str,
        _server(
            names="--ssl-cert-file",
            env="LLAMA_ARG_SSL_CERT_FILE",
            metavar="FILE",
            help="Certificate for HTTPS, in PEM format.",
            default="none (plain HTTP)",
        ),
    ] = ""
    timeout: Annotated[
        int,
        _server(
            names="-to --timeout",
            env="LLAMA_ARG_TIMEOUT",
            metavar="SECONDS",
            min=1,
            max=INT32_MAX,
            help="How long to wait for a client that neither sends nor reads.",
        ),
    ] = 600
    max_body_size: Annotated[
        int,
        _server(
            names="--max-body-size",
            env="LLAMA_ARG_MAX_BODY_SIZE",
            metavar="MIB",
            min=1,
            max=1000,  # a prompt has to fit into one frame (engine.processes.framing)
            help="Largest request body, in MiB; a larger one is answered with 413.",
        ),
    ] = 64
    drain_timeout: Annotated[
        int,
        _server(
            names="--drain-timeout",
            env="LLAMA_ARG_DRAIN_TIMEOUT",
            metavar="SECONDS",
            min=0,
            max=INT32_MAX,
            help="How long Ctrl-C or SIGTERM lets running requests go on.",
        ),
    ] = 10
    slots: Annotated[
        bool,
        _operation(
            names="--slots",
            negative="--no-slots",
            env="LLAMA_ARG_ENDPOINT_SLOTS",
            help="Offer GET /slots.",
        ),
    ] = True
    slots_text: Annotated[
        bool,
        _operation(
            names="--slots-text",
            env="LLAMA_SERVER_SLOTS_DEBUG",
            help="Let GET /slots show prompts, generated texts and what else comes from clients.",
        ),
    ] = False
    props: Annotated[
        bool,
        _operation(
            names="--props",
            env="LLAMA_ARG_ENDPOINT_PROPS",
            help="Allow POST /props.",
        ),
    ] = False
    metrics: Annotated[
        bool,
        _operation(
            names="--metrics",
            env="LLAMA_ARG_ENDPOINT_METRICS",
            help="Offer GET /metrics, for Prometheus.",
        ),
    ] = False
    slot_save_path: Annotated[
        str,
        _operation(
            names="--slot-save-path",
            metavar="DIR",
            help="Directory of the files that POST /slots/{id_slot} saves and restores.",
            default="none (the operation is switched off)",
        ),
    ] = ""
    responses_db: Annotated[
        str,
        _server(
            names="--responses-db",
            env="LLAMA_ARG_RESPONSES_DB",
            metavar="FILE",
            help="SQLite database that keeps the responses of /v1/responses until they are "
            "deleted; made if it isn't there.",
            default="none (the last ones are kept in memory)",
        ),
    ] = ""

    # ---- chat templates -----------------------------------------------------------------

    jinja: Annotated[
        bool,
        _chat(
            names="--jinja",
            negative="--no-jinja",
            env="LLAMA_ARG_JINJA",
            help="Render chat templates with the Jinja engine; without, llama.cpp's built-in "
            "formats are used.",
        ),
    ] = True
    chat_template: Annotated[
        str,
        _chat(
            names="--chat-template",
            env="LLAMA_ARG_CHAT_TEMPLATE",
            metavar="TEMPLATE",
            help="A Jinja template, or the name of one of llama.cpp's built-in formats.",
            default="the model's own",
            replaces=("chat_template_file",),
        ),
    ] = ""
    chat_template_file: Annotated[
        str,
        _chat(
            names="--chat-template-file",
            env="LLAMA_ARG_CHAT_TEMPLATE_FILE",
            metavar="FILE",
            help="File with a Jinja template.",
            default="the model's own",
            replaces=("chat_template",),
        ),
    ] = ""
    chat_template_kwargs: Annotated[
        dict[str, Any],
        _chat(
            names="--chat-template-kwargs",
            env="LLAMA_CHAT_TEMPLATE_KWARGS",
            metavar="JSON",
            help='Variables for the template, as a JSON object such as {"enable_thinking":false}.',
            default="none",
            read=values.json_object,
            show=values.show_json,
        ),
    ] = msgspec.field(default_factory=dict)

    reasoning_format: Annotated[
        Literal["auto", "none", "deepseek", "deepseek-legacy"],
        _chat(
            names="--reasoning-format",
            env="LLAMA_ARG_THINK",
            metavar="FORMAT",
            help="Where the model's thoughts go: with none they stay in the content as they were "
            "generated, with deepseek (and auto) they are taken out into reasoning_content, with "
            "deepseek-legacy they are in both places.",
        ),
    ] = "auto"
    reasoning_budget: Annotated[
        int,
        _chat(
            names="--reasoning-budget",
            env="LLAMA_ARG_THINK_BUDGET",
            metavar="N",
            min=-1,
            max=0,
            help="How much the model may think: -1 without a limit, 0 not at all.",
        ),
    ] = -1
    prefill_assistant: Annotated[
        bool,
        _chat(
            names="--prefill-assistant",
            negative="--no-prefill-assistant",
            env="LLAMA_ARG_PREFILL_ASSISTANT",
            help="Let the model go on with a last message that is the assistant's; without, it "
            "is a whole message, and the model answers anew.",
        ),
    ] = True

    # ---- logging ------------------------------------------------------------------------

    verbosity: Annotated[
        int,
        _log(
            names="-lv --verbosity --log-verbosity",
            env="LLAMA_LOG_VERBOSITY",
            metavar="N",
            min=0,
            max=INT32_MAX,
            help="What to log: 0 fatal errors only, 1 errors, 2 warnings, 3 information, "
            "4 and above everything.",
            replaces=("verbose",),
        ),
    ] = 3
    verbose: Annotated[
        bool,
        _log(names="-v --verbose --log-verbose", help="Log everything.", replaces=("verbosity",)),
    ] = False
    log_disable: Annotated[bool, _log(names="--log-disable", help="Log nothing.")] = False
    log_file: Annotated[
        str,
        _log(
            names="--log-file",
            env="LLAMA_LOG_FILE",
            metavar="FILE",
            help="Append the log to a file as well.",
            default="none",
        ),
    ] = ""
    log_format: Annotated[
        Literal["text", "json"],
        _log(
            names="--log-format",
            env="LLAMA_ARG_LOG_FORMAT",
            metavar="FORMAT",
            help="How to write the log: text for people, or json, with one object in each line.",
        ),
    ] = "text"
    log_colors: Annotated[
        Switch,
        _log(
            names="--log-colors",
            env="LLAMA_LOG_COLORS",
            metavar="[on|off|auto]",
            help="Colour the log; auto does so on a terminal.",
            bare="on",
            read=values.switch,
        ),
    ] = "auto"
    log_prefix: Annotated[
        bool,
        _log(
            names="--log-prefix",
            negative="--no-log-prefix",
            env="LLAMA_LOG_PREFIX",
            help="Begin each line of the log with its level and its source.",
        ),
    ] = True
    log_timestamps: Annotated[
        bool,
        _log(
            names="--log-timestamps",
            negative="--no-log-timestamps",
            env="LLAMA_LOG_TIMESTAMPS",
            help="Begin each line of the log with the time.",
        ),
    ] = False

    # ---- general ------------------------------------------------------------------------

    help: Annotated[
        bool, _general(names="-h --help --usage", help="Print this overview and exit.")
    ] = False
    version: Annotated[
        bool, _general(names="--version", help="Print the versions of server and engine and exit.")
    ] = False
    list_devices: Annotated[
        bool,
        _general(names="--list-devices", help="Print the devices that can take layers and exit."),
    ] = False
