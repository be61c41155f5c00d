"""What one option alone can't tell: files, and options that exclude or need each other."""

from collections.abc import Callable
from functools import partial

from engine.options import files
from engine.options.table import Options
from engine.options.values import OptionError
from engine.shipped import model_file

_FLOAT_CACHE_TYPES = ("f32", "f16", "bf16")


def check(options: Options) -> None:
    """Raises `OptionError` for options that can't be had together."""
    if options.hf_file and not options.hf_repo:
        raise OptionError("--hf-file is a file of a repository, which --hf-repo has to name")
    if options.direct_io and options.mlock:
        raise OptionError("--mlock excludes --direct-io, which reads the model past the page cache")
    for text in options.reverse_prompt:
        _named("--reverse-prompt", partial(options.unescaped, text))
    for text in options.dry_sequence_breaker:
        _named("--dry-sequence-breaker", partial(options.unescaped, text))
    if options.reranking and options.pooling not in ("", "rank"):
        raise OptionError(f"--reranking means --pooling rank, not {options.pooling}")
    cache_type_v = options.cache_types()[1]
    if options.flash_attn == "off" and cache_type_v not in _FLOAT_CACHE_TYPES:
        raise OptionError(
            f"--cache-type-v {cache_type_v} needs Flash Attention, which --flash-attn off forbids"
        )
    if bool(options.ssl_cert_file) != bool(options.ssl_key_file):
        given, missing = ("cert", "key") if options.ssl_cert_file else ("key", "cert")
        raise OptionError(f"--ssl-{given}-file needs --ssl-{missing}-file as well")


def check_files(options: Options) -> None:
    """Raises `OptionError` for files that would fail later, when they are needed."""
    if options.model:
        _named("--model", lambda: files.check_model(model_file(options.model)))
    if options.mmproj:
        _named("--mmproj", lambda: files.check_gguf(options.mmproj))
    if options.models_dir:
        _named("--models-dir", lambda: files.check_readable_directory(options.models_dir))
    if options.models_preset:
        _named("--models-preset", lambda: files.read_text(options.models_preset))
    for path, _ in options.lora:
        _named("--lora", partial(files.check_gguf, path))
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
    certificate, key = options.ssl_cert_file, options.ssl_key_file
    if certificate:
        _named("--ssl-cert-file, --ssl-key-file", lambda: files.check_tls(certificate, key))


def _named(name: str, action: Callable[[], object]) -> None:
    try:
        action()
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None
