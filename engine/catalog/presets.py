"""Preset files: options of models, in sections of an INI file.

    version = 1

    [*]                    ; for all models
    ctx-size = 8192

    [user/repo:Q4_K_M]     ; the model's name
    n-gpu-layers = 20
    load-on-startup = true

A line contains a section's name, a setting, or nothing. A comment begins with ; or #, at the
beginning of a line or of a value, or after a space. So a value may contain both characters, as
lists of samplers do. There are no quotes, escapes, or continuation lines.
"""

import re
from collections.abc import Set
from functools import partial
from typing import Final, NamedTuple

import msgspec

from specllama.engine.formats.gguf_names import MAX_PRESET, PRESET
from specllama.engine.options import (
    Layer,
    Names,
    OptionError,
    ProtectingError,
    Setting,
    check_layer,
    files,
    layer_remarks,
    values,
)
from specllama.engine.options.values import legible, quote

# ---- Options in a preset file of a repository on the Hub. The file is not trusted: it may choose
# models of the Hub and how they run, but can't access anything else on this machine or in its
# network.
#
# Excluded are options with files or folders (`model`, `lora`, `chat-template-file`), addresses
# (`rpc`, `model-url`), the token, or operations for clients (`props`), and options that
# depend on the machine: its processors, its disk, and its use of memory.


_MODEL: Final = "alias hf_repo hf_file mmproj_auto tags sleep_idle_seconds warmup"
_DRAFT: Final = """
    hf_repo_draft ctx_size_draft cache_type_k_draft cache_type_v_draft n_gpu_layers_draft
    cpu_moe_draft n_cpu_moe_draft threads_draft threads_batch_draft spec_replace
    spec_draft_backend_sampling
"""
_CONTEXT: Final = """
    ctx_size parallel batch_size ubatch_size cont_batching kv_unified reproducible defrag_thold
    cache_type_k cache_type_v swa_full ctx_checkpoints checkpoint_min_step cache_prompt
    cache_reuse cache_ram cache_idle_slots kv_unified_per_slot context_shift spm_infill
    slot_prompt_similarity
"""
_MEDIA: Final = "mmproj_offload image_min_tokens image_max_tokens mtmd_batch_max_tokens"
_DEVICES: Final = """
    threads threads_batch n_gpu_layers split_mode tensor_split main_gpu cpu_moe n_cpu_moe n_cpu_ffn
    fit fit_target fit_ctx flash_attn kv_offload op_offload mmap
"""
_ROPE: Final = """
    rope_scaling rope_scale rope_freq_base rope_freq_scale
    yarn_orig_ctx yarn_ext_factor yarn_attn_factor yarn_beta_slow yarn_beta_fast
"""
_SAMPLING: Final = """
    n_predict keep seed samplers sampler_seq ignore_eos logit_bias temp dynatemp_range dynatemp_exp
    top_k top_p min_p typical top_nsigma xtc_probability xtc_threshold
    repeat_last_n repeat_penalty presence_penalty frequency_penalty
    dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breaker
    mirostat mirostat_lr mirostat_ent adaptive_target adaptive_decay
    grammar json_schema json_whitespace jump_forward backend_sampling reverse_prompt special escape
"""
_EMBEDDING: Final = "embedding reranking pooling embd_normalize"
_CHAT: Final = """
    jinja chat_template chat_template_kwargs reasoning_format reasoning_budget reasoning
    reasoning_effort reasoning_preserve skip_chat_parsing prefill_assistant
"""

ALLOWED: Final = frozenset(
    " ".join(
        (_MODEL, _DRAFT, _CONTEXT, _MEDIA, _DEVICES, _ROPE, _SAMPLING, _EMBEDDING, _CHAT)
    ).split()
)
"""The permitted options, by their fields' names."""


EVERYWHERE = "*"
"""The name of the section for all models."""

STOP_TIMEOUT = 10
"""Seconds that the requests of an unloaded model may continue, if the file doesn't set them."""

_VERSION = "1"
_LINE_MAX = 1 << 16  # characters, enough for a chat template on one line
_TIMEOUT_MAX = 2**31 - 1  # s

_NEWLINE = re.compile(r"\r\n|\r|\n")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_COMMENT = re.compile(r"(?:^|[ \t])[;#].*")
_HEADER = re.compile(r"\[([^\]]*)\]\s*(?:[;#].*)?")


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one model in a preset file. `name` is as written there, `line` is the line of
    the header (0 if the file has no section for all models, and this is that section)."""

    name: str
    line: int
    layer: Layer
    load_on_startup: bool = False
    pin: bool = False  # never unloaded to make room for other models
    stop_timeout: int = STOP_TIMEOUT  # s
    dedup_cache_models: bool = False  # hide the cache's entry of the same file

    @property
    def place(self) -> str:
        """The place of the section, for messages."""
        where = f"{self.layer.source}:{self.line}" if self.line else self.layer.source
        return f"{where}: [{legible(self.name)}]"


class PresetRefused(msgspec.Struct, frozen=True, kw_only=True):
    """A section that can't be used, for this `reason`. `layer` contains its valid settings."""

    reason: str
    layer: Layer


class Presets(msgspec.Struct, frozen=True, kw_only=True):
    """A preset file. A model's options are those of `everywhere.layer`, overridden by those of its
    section. The other attributes of a section are already combined with those of `everywhere`."""

    everywhere: Section
    sections: dict[str, Section]  # by name, in the order of the file
    refused: dict[str, PresetRefused] = {}  # by name
    warnings: tuple[str, ...] = ()  # one line each, for the user


class RemotePreset(msgspec.Struct, frozen=True, kw_only=True):
    """The preset file of a repository on the Hub, and its path on this machine."""

    repository: str  # user/repo
    path: str


def read(path: str, names: Names, repository: str = "") -> Presets:
    """Reads the file at `path`, whose keys are among `names`. Checks the keys and values of all
    options, but not whether the options are compatible, as other sources add more. A section with
    an invalid key or value is refused; the other sections are kept. If the file comes from a
    `repository` of the Hub, a section with a key that isn't in `ALLOWED` is refused, too.

    Raises `OptionError` with one line that names the file, and the line in it: for an invalid file,
    for errors in the section of all models, and for a key that was meant to protect the server.
    """
    source = legible(f"{repository}/{PRESET}" if repository else path)
    drafts = _drafts(source, files.read_text(path, MAX_PRESET))
    allowed = ALLOWED if repository else None
    section = partial(_section, names, source, allowed)
    everywhere = section(EVERYWHERE, drafts.pop(EVERYWHERE, _Draft(0, [])), None)
    sections, refused = {}, {}
    for name, draft in drafts.items():
        try:
            sections[name] = section(name, draft, everywhere)
        except ProtectingError:
            raise
        except OptionError as error:
            usable = _usable(names, Layer(source, tuple(draft.settings)), allowed)
            refused[name] = PresetRefused(reason=str(error), layer=usable)
    return Presets(
        everywhere=everywhere,
        sections=sections,
        refused=refused,
        warnings=tuple(
            remark
            for part in (everywhere, *sections.values())
            for remark in layer_remarks(names, part.layer)
        ),
    )


class _Draft(NamedTuple):
    """A section as written."""

    line: int
    settings: list[Setting]


def _drafts(source: str, text: str) -> dict[str, _Draft]:
    """Returns the sections by name, in the order of the file."""
    drafts: dict[str, _Draft] = {}
    current: list[Setting] | None = None
    for number, raw in enumerate(_NEWLINE.split(text), 1):
        place = f"{source}:{number}"
        line = _content(place, raw)
        if not line:
            continue
        if line.startswith("["):
            name = _section_name(place, line)
            if name in drafts:
                raise OptionError(f"{place}: [{name}] already exists, in line {drafts[name].line}")
            drafts[name] = _Draft(number, [])
            current = drafts[name].settings
            continue
        setting = _setting(place, line, number)
        if current is not None:
            current.append(setting)
        else:
            _check_version(place, setting)
    return drafts


def _content(place: str, raw: str) -> str:
    """Returns the line without white space at its ends; "" if it is a comment."""
    if len(raw) > _LINE_MAX:
        raise OptionError(f"{place}: the line is longer than {_LINE_MAX} characters")
    control = _CONTROL.search(raw)
    if control:
        raise OptionError(f"{place}: the line contains a control character ({quote(control[0])})")
    line = raw.strip()
    return "" if line.startswith((";", "#")) else line


def _section_name(place: str, line: str) -> str:
    header = _HEADER.fullmatch(line)
    name = header[1].strip() if header else ""
    if not name:
        raise OptionError(f"{place}: {quote(line)} does not look like [name of a model]")
    return name


def _setting(place: str, line: str, number: int) -> Setting:
    key, equals, value = line.partition("=")
    key = key.strip()
    if not (key and equals):
        raise OptionError(f"{place}: {quote(line)} is neither key = value nor [name of a model]")
    return Setting(key, _COMMENT.sub("", value.strip()).strip(), number)


def _check_version(place: str, setting: Setting) -> None:
    if setting.key != "version":
        raise OptionError(
            f"{place}: {legible(setting.key)} is before the first section (put options for all "
            f"models into [{EVERYWHERE}])"
        )
    if setting.value != _VERSION:
        raise OptionError(
            f"{place}: version {quote(setting.value)} is unknown, only {_VERSION} is supported"
        )


def _section(
    names: Names,
    source: str,
    allowed: Set[str] | None,
    name: str,
    draft: _Draft,
    everywhere: Section | None,
) -> Section:
    """Returns the section, combined with `everywhere`, after checking its keys and values."""
    load = everywhere.load_on_startup if everywhere else False
    pin = everywhere.pin if everywhere else False
    timeout = everywhere.stop_timeout if everywhere else STOP_TIMEOUT
    dedup = everywhere.dedup_cache_models if everywhere else False
    settings = []
    for setting in draft.settings:
        try:
            match setting.key:
                case "load-on-startup":
                    load = values.flag(setting.value)
                case "pin":
                    pin = values.flag(setting.value)
                case "stop-timeout":
                    timeout = values.integer(setting.value, 0, _TIMEOUT_MAX)
                case "dedup-cache-models":
                    dedup = values.flag(setting.value)
                case _:
                    settings.append(setting)
        except OptionError as error:
            raise OptionError(f"{source}:{setting.line}: {setting.key}: {error}") from None
    layer = Layer(source, tuple(settings))
    check_layer(names, layer, allowed)
    return Section(
        name=name,
        line=draft.line,
        layer=layer,
        load_on_startup=load,
        pin=pin,
        stop_timeout=timeout,
        dedup_cache_models=dedup,
    )


def _usable(names: Names, layer: Layer, allowed: Set[str] | None) -> Layer:
    """Returns the layer without the settings that are invalid on their own."""

    def is_usable(setting: Setting) -> bool:
        try:
            check_layer(names, Layer(layer.source, (setting,)), allowed)
        except OptionError:
            return False
        return True

    return Layer(layer.source, tuple(filter(is_usable, layer.settings)))
