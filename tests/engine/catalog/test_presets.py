"""Options in layers: preset files, shortcuts, and options back to a command line."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specllama.engine.catalog.presets import STOP_TIMEOUT, read
from specllama.engine.options import Layer, OptionError, Setting, layer_remarks, unavailable
from specllama.engine.options.names import protects
from specllama.handlers.options import NAMES, parse
from specllama.handlers.options.arguments import arguments, preset
from tests.support.option_values import NO_FILES, chosen, keys, many, settings_of
from tests.support.options_support import FIELDS, model_options
from tests.support.preset_files import presets, section, written


def error(text: str, directory: Path) -> str:
    """The message of the file's reader, without the file's name."""
    path = written(text, directory)
    try:
        [alone] = read(path, NAMES).refused.values()  # a section
        message = alone.reason
    except OptionError as error:
        message = str(error)
    assert "\n" not in message
    assert message.startswith(path)
    return message.removeprefix(path)


# ---- the file ----------------------------------------------------------------------------

EXAMPLE = """\
version = 1

; for all models
[*]
c = 8192
n-gpu-layer = 8

[ggml-org/MY-MODEL-GGUF:Q8_0]
chat-template = chatml
n-gpu-layers = 123
jinja = true
c = 4096
LLAMA_ARG_CACHE_RAM = 0
mmproj = ./first.gguf
mmproj = /second.gguf

[custom_model]
model = /models/my-awesome-model-Q4_K_M.gguf
"""


def test_the_documented_example(tmp_path: Path) -> None:
    name = "ggml-org/MY-MODEL-GGUF:Q8_0"
    assert section(EXAMPLE, tmp_path, name) == model_options(
        ctx_size=4096, n_gpu_layers=123, chat_template="chatml", cache_ram=0, mmproj="/second.gguf"
    )
    assert section(EXAMPLE, tmp_path, "custom_model", ["-c", "1", "-np", "2"]) == model_options(
        model="/models/my-awesome-model-Q4_K_M.gguf", ctx_size=1, parallel=2, n_gpu_layers=8
    )
    found = presets(EXAMPLE, tmp_path)
    assert list(found.sections) == [name, "custom_model"]
    assert found.sections[name].line == 8
    assert found.sections["custom_model"].place.endswith("models.ini:17: [custom_model]")
    assert not found.warnings


def test_the_example_of_the_page_on_preset_files(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "presets.md").read_text()
    example = page.split("```ini\n")[1].split("```")[0]
    found = presets(example, tmp_path)
    assert not found.warnings
    known, coder = found.sections
    assert section(example, tmp_path, known) == model_options(
        ctx_size=8192, n_gpu_layers=20, alias="gemma, chat", mmap=False
    )
    assert found.sections[known].load_on_startup
    assert section(example, tmp_path, coder).engine.context.cache_reuse == 256
    assert found.sections[coder].stop_timeout == 60


NAME = (
    st.text(st.characters(exclude_characters="]", exclude_categories=["C", "Z"]), min_size=1)
    | st.from_regex("[a-z]{1,9}/[A-Za-z0-9]{1,9}:Q[0-9]_K", fullmatch=True)
).filter(lambda name: name != "*")
SPACE = st.text(" \t", max_size=2)
NOISE = st.sampled_from(["", " ", "# c = 1", "; [b]", "\t;"])


def on_a_line(text: str) -> bool:
    """True if a value can be written in a file."""
    return (
        text == text.strip()
        and not any(ord(c) < 32 or ord(c) == 127 for c in text)
        and not text.startswith((";", "#"))
        and not any(mark in text for mark in (" ;", " #"))
    )


@st.composite
def models(draw: st.DrawFn) -> list[Setting]:
    wanted = draw(chosen(tuple(NO_FILES)))
    lines = settings_of(wanted, lambda field: draw(st.sampled_from(keys(field))))
    return [line for line in lines if on_a_line(line.value)]


@given(
    st.dictionaries(NAME | st.just("*"), models(), max_size=4),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.data(),
)
@many
def test_written_text_is_read_back(
    tmp_path: Path,
    wanted: dict[str, list[Setting]],
    newline: str,
    marked: bool,
    data: st.DataObject,
) -> None:
    lines = ["version = 1"] if data.draw(st.booleans()) else []
    numbers: dict[str, list[int]] = {}
    for name, of_section in wanted.items():
        lines.append(f"{data.draw(SPACE)}[{data.draw(SPACE)}{name}{data.draw(SPACE)}]")
        numbers[name] = []
        for line in of_section:
            lines.append(data.draw(NOISE))
            equals = f"{data.draw(SPACE)}={data.draw(SPACE)}"
            lines.append(line.key + equals + line.value + data.draw(st.sampled_from(["", " ; x"])))
            numbers[name].append(len(lines))
    found = presets("\ufeff" * marked + newline.join(lines), tmp_path)
    assert list(found.sections) == [name for name in wanted if name != "*"]
    for name, of_section in wanted.items():
        part = found.everywhere if name == "*" else found.sections[name]
        assert [(s.key, s.value) for s in part.layer.settings] == [
            (s.key, s.value) for s in of_section
        ]
        assert [s.line for s in part.layer.settings] == numbers[name]


PIECES = st.sampled_from(
    ["[a]", "[", "]", "[*]", "=", "c", "version", "1", ";", "#", "\n", "\r", " ", "\0", "\ufeff",
     "port", "no-mmap", "true", "hf-repo", "model", "fim-qwen-3b-default", "\u2028", "ä", "--c"]
)  # fmt: skip


def refused(data: bytes, directory: Path) -> str:
    """The line with which the file is refused, or ''."""
    path = directory / "any.ini"
    path.write_bytes(data)
    try:
        found = read(str(path), NAMES)
    except OptionError as refusal:
        return str(refusal)
    return next((each.reason for each in found.refused.values()), "")


@given(st.lists(PIECES).map("".join) | st.text(st.characters(exclude_categories=["Cs"])))
@example("[a]\nfim-qwen-3b-default=1\ngpt-oss-20b-default=1")
@example("[a\u2028]\n[a\u2028]")
@example("[a]\nx\u2028y = 1")
@many
def test_any_text_is_read_or_refused_in_one_line(tmp_path: Path, text: str) -> None:
    message = refused(text.encode(), tmp_path)
    assert len(message.splitlines()) <= 1
    assert not message or str(tmp_path / "any.ini") in message


@given(st.binary(max_size=300))
@many
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    assert len(refused(data, tmp_path).splitlines()) <= 1


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("[*]\nctx-sze = 1", ":2: ctx-sze: ", "unknown key (did you mean ctx-size?)"),
        ("[a]\napi-keyfile = x", ":2: api-keyfile: ", "meant to protect the server"),
        ("[a]\nqq = 1\nallowed_origins = x", ":3: allowed_origins: ", "meant to protect"),
        ("[a]\nctx-size = many", ":2: ctx-size: ", '"many" is not a whole number'),
        ("[a]\nctx-size =", ":2: ", "not a whole number"),
        ("[a]\nmmap = maybe", ":2: mmap: ", "neither on nor off"),
        ("[a]\nno-mmap = maybe", ":2: no-mmap: ", "neither on nor off"),
        ("[a]\nfim-qwen-3b-default = maybe", ":2: ", "neither on nor off"),
        ("[a]\nctx-size 4096", ":2: ", "neither key = value nor [name of a model]"),
        ("[a]\n= 4096", ":2: ", "neither key = value"),
        ("[a\nc = 1", ":1: ", "does not look like [name of a model]"),
        ("[]", ":1: ", "does not look like [name of a model]"),
        ("[a] b", ":1: ", "does not look like [name of a model]"),
        ("[a]\n[b]\n[a]", ":3: ", "[a] already exists, in line 1"),
        ("[*]\n[ * ]", ":2: ", "[*] already exists, in line 1"),
        ("version = 2", ":1: ", 'version "2" is unknown'),
        ("version =", ":1: ", 'version "" is unknown'),
        ("version = 1\nc = 1", ":2: c ", "before the first section"),
        ("load-on-startup = 1", ":1: ", "before the first section"),
        ("[a]\nload-on-startup = yes", ":2: load-on-startup: ", "neither on nor off"),
        ("[a]\nstop-timeout = -1", ":2: stop-timeout: ", "out of range"),
        ("[a]\nstop-timeout = 1.5", ":2: stop-timeout: ", "not a whole number"),
        ("[a]\nstop-timeout = 99999999999", ":2: ", "out of range"),
        ("[a]\nc = 1\0", ":2: ", "control character"),
        ("[a]\n; \x0b", ":2: ", "control character"),
        ("[a]\nalias = " + "x" * 70_000, ":2: ", "longer than 65536 characters"),
        ("[a]\nmodel = x\nhf-repo = a/b", ":3: hf-repo: ", "excludes --model"),
        ("[a]\nhf-repo = nothing", ":2: hf-repo: ", "does not look like USER/REPO"),
        ("[*]\nc = x\n[a]", ":2: c: ", "not a whole number"),
        ("[a]\r\n\r\nc = x", ":3: c: ", "not a whole number"),
    ],
)  # fmt: skip
def test_errors_name_the_line(tmp_path: Path, text: str, place: str, reason: str) -> None:
    message = error(text, tmp_path)
    assert message.startswith(place)
    assert reason in message


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("[a]\n\nctx-sze = 1", ":3: ctx-sze: ", "unknown key (did you mean ctx-size?)"),
        ("[a]\nfim-qwen-3b-defalt = 1", ":2: ", "did you mean fim-qwen-3b-default?"),
        ("[a]\nLLAMA_ARG_CTX_SIZ = 1", ":2: ", "did you mean LLAMA_ARG_CTX_SIZE?"),
        ("[a]\nqqqqqqq = 1", ":2: ", "unknown key"),
        ("[a]\n--ctx-size = 1", ":2: ", "without leading dashes"),
        ("[a]\nspec-ngram-size-n = 1", ":2: spec-ngram-size-n is not available: ", "removed"),
    ],
)
def test_an_unknown_key_refuses_its_section_alone(
    tmp_path: Path, text: str, place: str, reason: str
) -> None:
    found = presets(text + "\n[b]\nc = 5\n", tmp_path)
    assert list(found.sections) == ["b"]
    message = found.refused["a"].reason.removeprefix(str(tmp_path / "models.ini"))
    assert message.startswith(place)
    assert reason in message


@pytest.mark.parametrize("key", ["model-draft", "model_draft", "LLAMA_ARG_MODEL_DRAFT"])
def test_a_draft_model_is_one_of_a_section(tmp_path: Path, key: str) -> None:
    path = tmp_path / "draft.gguf"
    path.write_bytes(b"GGUF")
    assert section(f"[a]\n{key} = {path}", tmp_path) == model_options(model_draft=str(path))


@pytest.mark.parametrize("key", ["video-ffmpeg-dir", "video_ffmpeg_dir"])
def test_keys_without_effect_are_taken_with_a_warning(tmp_path: Path, key: str) -> None:
    text = f"[a]\nc = 5\n{key} = 7"
    assert section(text, tmp_path) == model_options(ctx_size=5)
    [warning] = presets(text, tmp_path).warnings
    assert (
        f":3: {key} has no effect: a library decodes videos, and no program is started for them"
        in warning
    )


def test_two_shortcuts_exclude_each_other(tmp_path: Path) -> None:
    message = error("[a]\nfim-qwen-3b-default = 1\ngpt-oss-20b-default = 1", tmp_path)
    assert "--fim-qwen-3b-default excludes --gpt-oss-20b-default" in message


def test_files_that_are_none(tmp_path: Path) -> None:
    big, latin, odd = tmp_path / "big", tmp_path / "latin", tmp_path / "odd\n.ini"
    big.write_bytes(b";" * (2 << 20))
    latin.write_bytes(b"[a]\nalias = \xe4")
    odd.write_text("[a]\nx")
    for path, reason in (
        (tmp_path / "missing", "cannot open"),
        (tmp_path, "is a directory"),
        (big, "larger than 1 MiB"),
        (latin, "not a UTF-8 text"),
        (odd, 'odd\\n.ini":2: '),
    ):
        with pytest.raises(OptionError) as caught:
            read(str(path), NAMES)
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_option_names_the_file(tmp_path: Path) -> None:
    path = written("[a]", tmp_path)
    assert parse(["--models-preset", path], {}).router.models_preset == path
    with pytest.raises(OptionError, match=r"^--models-preset: cannot open"):
        parse(["--models-preset", path + "x"], {})
    assert parse(["--models-dir", str(tmp_path)], {}).router.models_dir == str(tmp_path)
    with pytest.raises(OptionError, match=r"^--models-dir: .*is not a directory"):
        parse(["--models-dir", path], {})


# ---- contents of a section ----------------------------------------------------------------


def test_comments_and_values(tmp_path: Path) -> None:
    text = "[a]\nalias = x=y,a#b ; c\nsamplers = top_k;top_p # d\njinja = off;\nchat-template=;no"
    assert error(text, tmp_path).startswith(":4: jinja: ")
    options = section(text.replace("off;", "off ;"), tmp_path)
    assert options.engine.model.alias == "x=y,a#b"
    assert options.engine.sampling.samplers == ("top_k", "top_p")
    assert not options.chat.jinja
    assert options.chat.chat_template == ""


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("word", [("true", "false"), ("on", "off"), ("1", "0"),
                                  ("enabled", "disabled")])  # fmt: skip
def test_flags_and_their_negations(tmp_path: Path, word: tuple[str, str], on: bool) -> None:
    text = "[a]\n" + "\n".join(
        f"{key} = {word[not on]}"
        for key in ("mlock", "no-mmap", "LLAMA_ARG_NO_REPACK", "no-kvu", "kv_unified", "ndio")
    )
    options = section(text, tmp_path)
    assert (options.engine.model.mlock, options.engine.model.mmap, options.engine.model.repack) == (
        on,
        not on,
        not on,
    )
    assert (options.engine.context.kv_unified, options.engine.model.direct_io) == (on, not on)


def test_options_that_add_up_do_so_within_a_layer_only(tmp_path: Path) -> None:
    text = "[*]\nlora = g\nr = stop\n[a]\nlora = x\nlora-scaled = y:2\n[b]\nc = 1"
    assert section(text, tmp_path).engine.model.lora == (("x", 1.0), ("y", 2.0))
    assert section(text, tmp_path, "b").engine.model.lora == (("g", 1.0),)
    assert section(text, tmp_path, argv=["--lora", "z"]).engine.model.lora == (("z", 1.0),)
    assert section(text, tmp_path).engine.sampling.reverse_prompt == ("stop",)


def test_two_values_in_one(tmp_path: Path) -> None:
    options = section("[a]\ncontrol-vector-layer-range = 2 5", tmp_path)
    assert options.engine.model.control_vector_layer_range == (2, 5)


def test_when_to_load_and_how_long_to_wait(tmp_path: Path) -> None:
    text = (
        "[*]\nload-on-startup=1\nstop-timeout=3\npin=1\n[a]\n"
        "[b]\nload-on-startup=0\nstop-timeout=0\npin=0"
    )
    found = presets(text, tmp_path)
    a, b = found.sections.values()
    assert (found.everywhere.load_on_startup, found.everywhere.stop_timeout) == (True, 3)
    assert (a.load_on_startup, a.stop_timeout) == (True, 3)
    assert (b.load_on_startup, b.stop_timeout) == (False, 0)
    assert (found.everywhere.pin, a.pin, b.pin) == (True, True, False)
    plain = presets("[a]", tmp_path)
    assert not plain.sections["a"].load_on_startup
    assert plain.sections["a"].stop_timeout == STOP_TIMEOUT == 10
    assert not plain.everywhere.layer.settings
    assert plain.everywhere.line == 0


def test_duplicates_in_the_cache(tmp_path: Path) -> None:
    some = presets("[a]\nhf-repo = u/r\ndedup-cache-models = true\n[b]", tmp_path)
    assert [each.dedup_cache_models for each in some.sections.values()] == [True, False]
    every = presets("[*]\ndedup-cache-models = 1\n[a]\n[b]\ndedup-cache-models = 0", tmp_path)
    assert [each.dedup_cache_models for each in every.sections.values()] == [True, False]


def test_names_for_models(tmp_path: Path) -> None:
    options = section("[a]\nalias = x, y\ntags = big,for code", tmp_path)
    assert options.engine.model.aliases() == ["x", "y"]
    assert options.entry.tags == ("big", "for code")


def test_options_as_a_section(tmp_path: Path) -> None:
    argv = [
        "-m",
        "specllama-tiny",
        "-c",
        "512",
        "--alias",
        "b",
        "--tags",
        "c",
        "--no-slots",
        "-to",
        "5",
    ]
    options = parse([*argv, "--samplers", "top_k;min_p", "--temp", "0.5"], {}).model
    text = preset("a", options)
    again = section(text, tmp_path)
    assert (again.engine.model.aliases(), again.entry.tags) == ([], ())
    assert preset("a", again) == text
    assert arguments(again) == [
        word for word in arguments(options) if word not in ("--alias", "b", "--tags", "c")
    ]
    assert preset("a", model_options(chat_template="1\n2")).endswith("= 1\\\n2\n")


SERVER_KEYS = sorted(
    {key for f in FIELDS.values() if not NAMES.concerns_model(f) for key in keys(f)}
    | {key for key, option in unavailable.KEYS.items() if option.of_server}
)


@pytest.mark.parametrize("key", SERVER_KEYS)
def test_options_of_the_whole_server_have_no_effect(tmp_path: Path, key: str) -> None:
    text = f"[a]\nc = 5\n{key} = whatever"
    if protects(key):  # and would leave the server open
        with pytest.raises(OptionError, match=f":3: {key} protects the whole server"):
            presets(text, tmp_path)
        with pytest.raises(OptionError, match=f":2: {key} protects the whole server"):
            presets(f"[*]\n{key} = whatever", tmp_path)
        return
    assert section(text, tmp_path) == model_options(ctx_size=5)
    [warning] = presets(text, tmp_path).warnings
    assert warning.endswith(f"models.ini:3: {key} has no effect here: it concerns the whole server")


def test_documented_options_of_the_whole_server_are_among_them() -> None:
    documented = "host port api-key api-key-file ssl-key-file ssl-cert-file models-dir models-max"
    documented += " models-preset models-autoload log-file log-disable threads-http webui"
    assert set(documented.split()) <= {*SERVER_KEYS}
    assert {key for key in documented.split() if protects(key)} == {
        *("host", "api-key", "api-key-file", "ssl-key-file", "ssl-cert-file"),
    }
    for key in ("no-webui", "no-models-autoload", "LLAMA_ARG_NO_MODELS_AUTOLOAD", "api_key"):
        assert layer_remarks(NAMES, Layer("f", [Setting(key, "1", 1)]))
