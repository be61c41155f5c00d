"""What one option alone can't tell: files, and options that exclude or need each other."""

from collections.abc import Callable
from functools import partial

from engine.embedded import model_file
from engine.options import files
from engine.options.table import Options
from engine.options.values import OptionError

_FLOAT_CACHE_TYPES = ("f32", "f16", "bf16")


def check(options: Options) -> None:
    """Raises `OptionError` for options that would fail later, when a model is loaded."""
    if options.model:
        _named("--model", lambda: files.check_gguf(model_file(options.model)))
    for path, _ in options.lora:
        _check_adapter(path)
    if options.slot_save_path:
        _named("--slot-save-path", lambda: files.check_directory(options.slot_save_path))
    if options.cache_disk:
        _named("--cache-disk", lambda: files.check_directory(options.cache_disk))
    if options.api_key_file:
        _named("--api-key-file", lambda: files.api_keys(options.api_key_file))
    if options.chat_template_file:
        _named("--chat-template-file", lambda: files.read_text(options.chat_template_file))
    if options.grammar_file:
        _named("--grammar-file", options.generation_defaults)
    if options.json_schema_file:
        _named("--json-schema-file", options.generation_defaults)
    if options.log_file and not options.log_disable:
        _named("--log-file", lambda: files.check_writable(options.log_file))
    for name, paths in (
        ("--control-vector", options.control_vector),
        ("--control-vector-scaled", [path for path, _ in options.control_vector_scaled]),
    ):
        for path in paths:
            _named(name, partial(files.check_gguf, path))
    if options.direct_io and options.mlock:
        raise OptionError("--mlock excludes --direct-io, which reads the model past the page cache")
    for text in options.reverse_prompt:
        _named("--reverse-prompt", partial(options.unescaped, text))
    for text in options.dry_sequence_breaker:
        _named("--dry-sequence-breaker", partial(options.unescaped, text))
    _check_tls(options)
    if options.reranking and options.pooling not in ("", "rank"):
        raise OptionError(f"--reranking means --pooling rank, not {options.pooling}")
    if options.flash_attn == "off" and options.cache_type_v not in _FLOAT_CACHE_TYPES:
        raise OptionError(
            f"--cache-type-v {options.cache_type_v} needs Flash Attention, "
            "which --flash-attn off forbids"
        )


def _check_adapter(path: str) -> None:
    _named("--lora", lambda: files.check_gguf(path))


def _check_tls(options: Options) -> None:
    certificate, key = options.ssl_cert_file, options.ssl_key_file
    if certificate and key:
        _named("--ssl-cert-file, --ssl-key-file", lambda: files.check_tls(certificate, key))
    elif certificate or key:
        given, missing = ("cert", "key") if certificate else ("key", "cert")
        raise OptionError(f"--ssl-{given}-file needs --ssl-{missing}-file as well")


def _named(name: str, action: Callable[[], object]) -> None:
    try:
        action()
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None
