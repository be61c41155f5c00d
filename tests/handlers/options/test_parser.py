"""The declarations of options, how they are written, and what follows from them."""

import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from specllama.engine.options import EngineOptions, unavailable
from specllama.engine.options.declaration import Field
from specllama.engine.options.parser import unknown_variables
from specllama.engine.options.shortcuts import SHORTCUTS
from specllama.engine.params import GenerationParams
from specllama.handlers.options import NAMES, from_environ, parse, remarks
from specllama.handlers.options.help import help_text, reference
from tests.support.options_support import FIELDS, error, server_options

ROOT = Path(__file__).parents[3]


# ---- the declarations --------------------------------------------------------------------


def test_nothing_given_gives_the_declared_defaults() -> None:
    assert parse([], {}) == server_options()


def test_names_and_variables_are_unique() -> None:
    names = [n for f in FIELDS.values() for n in (*f.names, *f.negative_names)]
    names += [*unavailable.NAMES, *SHORTCUTS]
    assert len(names) == len(set(names))
    variables = [v for f in FIELDS.values() for v in (*f.variables, f.negative_env) if v]
    variables += unavailable.VARIABLES
    assert len(variables) == len(set(variables))


@pytest.mark.parametrize("field", FIELDS.values(), ids=list(FIELDS))
def test_declaration_is_consistent(field: Field) -> None:
    assert field.canonical in field.names
    assert all(n.startswith("-") for n in (*field.names, *field.negative_names))
    assert field.opt.help.endswith((".", ")."))
    assert bool(field.opt.metavar) != field.is_flag
    assert set(field.opt.replaces) <= FIELDS.keys()
    for other in field.opt.replaces:
        assert field.name in FIELDS[other].opt.replaces
    for other in field.opt.excludes:
        assert field.name in FIELDS[other].opt.excludes


def test_generation_defaults_are_those_of_the_api() -> None:
    engine = server_options().model.engine
    assert engine.generation_defaults({}) == GenerationParams()
    assert msgspec.structs.replace(engine.generation_defaults(), unset=[]) == GenerationParams()


def test_options_travel_to_the_engine_process() -> None:
    options = parse(
        ["-ngl", "3", "-ts", "3,1", "-l", "5-inf", "--chat-template-kwargs", '{"a": [1, null]}'], {}
    )
    data = msgspec.msgpack.encode(options.model.engine)
    assert msgspec.msgpack.decode(data, type=EngineOptions) == options.model.engine


# ---- how options are written -------------------------------------------------------------


def test_forms_of_an_option() -> None:
    for argv in (["-c", "8"], ["--ctx-size", "8"], ["--ctx-size=8"], ["-c=8"], ["--ctx_size", "8"]):
        assert parse(argv, {}).model.engine.context.ctx_size == 8
    assert parse(["--chat-template", "a=b"], {}).model.chat.chat_template == "a=b"
    assert parse(["--chat-template=a=b"], {}).model.chat.chat_template == "a=b"


def test_a_switch_may_stand_alone() -> None:
    assert parse(["-fa"], {}).model.engine.compute.flash_attn == "on"
    assert parse(["-fa", "-c", "8"], {}).model.engine.compute.flash_attn == "on"
    assert parse(["-fa", "off", "-c", "8"], {}).model.engine.compute.flash_attn == "off"
    assert parse(["-fa", "-1"], {}).model.engine.compute.flash_attn == "auto"
    assert parse(["--log-colors"], {}).log.log_colors == "on"
    assert '"maybe"' in error("-fa", "maybe")


def test_reranking_is_a_kind_of_pooling() -> None:
    assert parse(["--rerank"], {}).model.engine.embedding.embeds()
    assert parse(["--embeddings", "--pooling", "rank"], {}).model.engine.embedding.embeds()
    assert not parse(["--pooling", "mean"], {}).model.engine.embedding.embeds()
    parse(["--reranking", "--pooling", "rank"], {})
    assert "--pooling rank" in error("--reranking", "--pooling", "mean")


def test_a_value_is_missing() -> None:
    assert "needs a value (PORT)" in error("--port")
    assert '"--host" follows' in error("--port", "--host", "x")
    assert error("--mmap=1") == "--mmap takes no value"
    assert error("--no-mmap=1") == "--no-mmap takes no value"


def test_the_last_occurrence_wins_unless_values_add_up() -> None:
    assert parse(["-c", "1", "--ctx-size", "2"], {}).model.engine.context.ctx_size == 2
    assert parse(["--mmap", "--no-mmap"], {}).model.engine.model.mmap is False
    assert parse(["-l", "1+1", "-l", "2-1"], {}).model.engine.sampling.logit_bias == (
        (1, 1.0),
        (2, -1.0),
    )
    assert parse(["--api-key", "a,b", "--api-key", "c"], {}).http.api_key == ("a", "b", "c")
    breakers = ["--dry-sequence-breaker", "a", "--dry-sequence-breaker", "none"]
    assert parse(breakers, {}).model.engine.sampling.dry_sequence_breaker == ()
    assert parse(
        [*breakers, "--dry-sequence-breaker", "b"], {}
    ).model.engine.sampling.dry_sequence_breaker == ("b",)


def test_two_options_for_one_setting_replace_each_other() -> None:
    options = parse(["--samplers", "top_k", "--sampler-seq", "pt"], {})
    assert options.model.engine.generation_defaults().samplers == [
        "top_p",
        "temperature",
    ]
    options = parse(["--sampler-seq", "pt", "--samplers", "top_k"], {})
    assert options.model.engine.generation_defaults().samplers == ["top_k"]
    options = parse(["-v", "-lv", "1"], {})
    assert (options.log.verbose, options.log.verbosity) == (False, 1)
    options = parse(["--rope-freq-scale", "0.5"], {"LLAMA_ARG_ROPE_SCALE": "4"})
    assert (options.model.engine.rope.rope_freq_scale, options.model.engine.rope.rope_scale) == (
        0.5,
        0.0,
    )


def test_unknown_options_get_a_suggestion() -> None:
    assert error("--porrt", "1").endswith("(did you mean --port?)")
    assert error("--prot", "1").endswith("(did you mean --port?)")
    assert error("--ctx-sze=1").endswith("(did you mean --ctx-size?)")
    assert error("--metrisc").endswith("(did you mean --metrics?)")
    assert "did you mean" not in error("--qqqqqqqqq")
    assert "unexpected argument" in error("stray")
    assert "-m FILE" in error("model.gguf")


VAIN = [option for option in unavailable.OPTIONS if not option.refused]
REFUSED = [option for option in unavailable.OPTIONS if option.refused]


def words(option: unavailable.Unavailable, name: str) -> list[str]:
    return [name, *("1" for _ in option.metavar.split())]


def warnings(argv: list[str], environ: dict[str, str]) -> list[str]:
    return remarks(parse(argv, environ), argv, environ)


@pytest.mark.parametrize("option", VAIN, ids=str)
def test_options_without_effect_are_taken_with_a_remark(option: unavailable.Unavailable) -> None:
    for name in option.forms:
        argv = [*words(option, name), "--port", "1"]
        assert parse(argv, {}) == server_options(port=1)
        assert warnings(argv, {}) == [f"{name} has no effect: {option.why}"]
        joined = f"{name}=1"
        if option.metavar:
            assert warnings([joined], {}) == [f"{name} has no effect: {option.why}"]
            assert error(name).startswith(f"{name} needs a value (")
        else:
            assert error(joined) == f"{name} takes no value"
    for variable in (*option.variables, *option.negative_variables):
        assert warnings([], {variable: "1"}) == [f"{variable} has no effect: {option.why}"]
        assert warnings([], {variable: ""}) == []


@pytest.mark.parametrize("option", REFUSED, ids=str)
def test_rejected_options_have_a_reason(option: unavailable.Unavailable) -> None:
    for name in option.names:
        assert error(*words(option, name)) == f"the option {name} is not available: {option.why}"
        assert error(f"{name}=1").endswith(option.why)
    for variable in option.variables:
        message = error(**{variable: "1"})
        assert message == f"the option of the variable {variable} is not available: {option.why}"
        assert from_environ({variable: ""}) == server_options()


@pytest.mark.parametrize("option", REFUSED, ids=str)
def test_rejected_options_may_be_switched_off(option: unavailable.Unavailable) -> None:
    for name in option.negative_names:
        assert warnings([name], {}) == []
        for variable in option.variables:
            assert warnings([], {variable: "0"}) == []
            assert error(**{variable: "maybe"}).startswith(f"{variable}: ")


def test_a_draft_model_that_has_nothing_to_draft() -> None:
    argv = ["-hfd", "a/b", "--embeddings", "--spec-replace", "a b", "c"]
    assert parse(argv, {}).model.engine.draft.spec_replace == (("a b", "c"),)
    assert warnings(argv, {}) == [
        "--model-draft has no effect: embeddings have no next tokens to propose"
    ]
    assert warnings(argv[-3:], {}) == ["--spec-replace has no effect without --model-draft"]
    assert warnings(["-hfd", "a/b", "--spec-replace", "x", ""], {}) == []
    assert "is not a pair of a text and its replacement" in error("--spec-replace", "", "x")
    assert "is not a pair of a text and its replacement" in error("--spec-replace=one")
    assert "can't be read" in error("--spec-replace='a b")


def test_a_draft_model_is_a_file_here_or_one_of_a_repository(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.gguf")
    assert "--model-draft: cannot open" in error("-md", missing)
    assert error("-md", missing, LLAMA_ARG_HFD_REPO="a/b") == error("-md", missing)
    options = parse(["-md", "x.gguf", "-hfd", "a/b:Q8_0"], {}).model
    assert options.fetches_draft()
    assert options.engine.draft.model_draft == "x.gguf"
    options = parse(["-hfd", "a/b"], {"LLAMA_ARG_MODEL_DRAFT": missing}).model
    assert options.engine.draft.model_draft == ""
    here = tmp_path / "here.gguf"
    here.write_bytes(b"GGUF")
    options = parse(["-md", str(here)], {"LLAMA_ARG_SPEC_DRAFT_HF_REPO": "a/b"}).model
    assert not options.fetches_draft()
    assert not options.source.hf_repo_draft
    assert "--flash-attn off forbids" in error("-fa", "off", "-ctvd", "q8_0")


def test_fitting_is_on_without_a_warning() -> None:
    assert warnings(["--fit", "on"], {}) == warnings(["--fit", "off"], {}) == warnings([], {}) == []
    compute = parse([], {}).model.engine.compute
    assert (compute.fit, compute.fit_target, compute.fit_ctx) == ("on", (1024,), 4096)


def test_one_margin_is_for_all_devices_and_several_for_their_own() -> None:
    def margins(*argv: str) -> list[int]:
        compute = parse([*argv], {}).model.engine.compute
        return [compute.fit_margin(i) >> 20 for i in range(3)]

    assert margins() == [1024, 1024, 1024]
    assert margins("-fitt", "5") == [5, 5, 5]
    assert margins("-fitt", "5,6") == margins("--fit-target", "5/6") == [5, 6, 1024]


def test_a_context_of_0_is_not_the_same_as_none() -> None:
    given, none = (parse(argv, {}).model.engine for argv in (["-c", "0"], []))
    assert given.context.ctx_size == 0
    assert none.context.ctx_size == -1
    assert given.context_size() == none.context_size()


@pytest.mark.parametrize(
    ("argv", "n_cells"),
    [
        (["-np", "3"], 3000),
        ([], 4000),
        (["-np", "3", "--no-kv-unified"], 3000),
        (["-np", "256", "--kv-unified-per-slot", "2147483647"], 2147483647),
        (["-c", "0"], 4 * 8192),
        (["-c", "5000"], 5000),
        (["-np", "3", "--kv-unified-per-slot", "-1", "-kvu"], 0),
    ],
)
def test_a_limit_of_each_slot_sizes_the_cache(argv: list[str], n_cells: int) -> None:
    environ = {"LLAMA_ARG_KV_UNIFIED_PER_SLOT": "1000"}
    assert parse(argv, environ).model.engine.context_size() == n_cells


@pytest.mark.parametrize(
    ("argv", "mode"),
    [
        ([], "mmap"),
        (["--no-mmap"], "none"),
        (["--mlock"], "mmap+mlock"),
        (["--mlock", "--no-mmap"], "mlock"),
        (["-dio"], "dio"),
        (["--no-mmap", "-lm", "auto"], "mmap"),
        (["-lm", "mlock"], "mlock"),
        (["--load-mode", "dio", "--mlock"], "mmap+mlock"),
    ],
)
def test_one_word_for_how_to_load(argv: list[str], mode: str) -> None:
    assert parse(argv, {}).model.engine.model.how_to_load() == mode
    environ = {"LLAMA_ARG_LOAD_MODE": "mmap+mlock", "LLAMA_ARG_NO_MMAP": "1"}
    assert from_environ(environ).model.engine.model.how_to_load() == "mmap+mlock"


@pytest.mark.parametrize(
    ("argv", "variables"),
    [
        ([], {}),
        (["--reasoning", "auto", "--reasoning-effort", "default"], {}),
        (["-rea", "on"], {"enable_thinking": True}),
        (["--reasoning", "0"], {"enable_thinking": False}),
        (["--reasoning-effort", "high"], {"reasoning_effort": "high"}),
        (["--reasoning-preserve"], {}),
        (["--no-reasoning-preserve"], {"preserve_reasoning": False}),
        (
            ["--chat-template-kwargs", '{"a": 1, "enable_thinking": true}', "-rea", "off"],
            {"a": 1, "enable_thinking": False},
        ),
    ],
)
def test_variables_of_the_template(argv: list[str], variables: dict[str, object]) -> None:
    assert parse(argv, {}).model.chat.variables() == variables


def test_lines_of_json_have_two_names() -> None:
    assert [parse([*argv], {}).log.is_json() for argv in ([], ["--log-jsonl"])] == [False, True]
    assert parse(["--log-format", "json"], {}).log.is_json()
    assert not parse(["--log-format", "json", "--no-log-jsonl"], {}).log.is_json()
    assert not parse(["--log-jsonl", "--log-format", "text"], {}).log.is_json()


def test_values_of_options_without_effect_are_not_options() -> None:
    assert 'but "--port" follows' in error("-mmdev", "--port", "1")
    assert parse(["-mmdev", "CUDA0", "--port", "1"], {}).http.port == 1


# ---- variables ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1", "true", "on", "enabled"])
def test_variables_switch_on(text: str) -> None:
    options = from_environ({"LLAMA_ARG_MLOCK": text, "LLAMA_ARG_MMAP": text})
    assert (options.model.engine.model.mlock, options.model.engine.model.mmap) == (True, True)


@pytest.mark.parametrize("text", ["0", "false", "off", "disabled"])
def test_variables_switch_off(text: str) -> None:
    options = from_environ({"LLAMA_ARG_MLOCK": text, "LLAMA_ARG_MMAP": text})
    assert (options.model.engine.model.mlock, options.model.engine.model.mmap) == (False, False)


@pytest.mark.parametrize("text", ["", "0", "1", "false", "nonsense"])
def test_the_presence_of_a_negative_variable_switches_off(text: str) -> None:
    environ = {"LLAMA_ARG_NO_MMAP": text, "LLAMA_ARG_MMAP": "1"}
    assert from_environ(environ).model.engine.model.mmap is False
    assert parse(["--mmap"], environ).model.engine.model.mmap is True


def test_a_bad_variable_is_named() -> None:
    assert error(LLAMA_ARG_MMAP="2").startswith("LLAMA_ARG_MMAP: ")
    assert error(LLAMA_ARG_PORT="x").startswith("LLAMA_ARG_PORT: ")
    assert from_environ({"LLAMA_ARG_PORT": ""}) == server_options()


def test_the_command_line_wins() -> None:
    environ = {"LLAMA_ARG_PORT": "1", "LLAMA_API_KEY": "from-env", "LLAMA_ARG_ALIAS": "kept"}
    options = parse(["--port", "2", "--api-key", "given"], environ)
    assert (options.http.port, options.http.api_key, options.model.engine.model.alias) == (
        2,
        ("given",),
        "kept",
    )
    environ = {"LLAMA_ARG_CHAT_TEMPLATE_FILE": "/does/not/exist"}
    assert parse(["--chat-template", "{{ x }}"], environ).model.chat.chat_template_file == ""


def test_unknown_variables_are_reported() -> None:
    (warning,) = unknown_variables(
        NAMES, {"LLAMA_ARG_CTXSIZE": "1", "LLAMA_ARG_PORT": "1", "HOME": "/"}
    )
    assert "LLAMA_ARG_CTXSIZE" in warning
    assert "LLAMA_ARG_CTX_SIZE" in warning
    assert unknown_variables(NAMES, {"LLAMA_ARG_NO_MMAP": "1", "LLAMA_ARG_HF_REPO": ""}) == []
    assert unknown_variables(NAMES, {"LLAMA_CACHE": "/x"}) == []
    (warning,) = unknown_variables(NAMES, {"LLAMA_PROT": "1"})
    assert "LLAMA_PROT" in warning


@pytest.mark.parametrize(
    "variable",
    ["LLAMA_ARG_API_KEYS", "LLAMA_ARG_SSL_CERT", "LLAMA_TLS", "LLAMA_HOST", "LLAMA_CORS_X",
     "LLAMA_ARG_ALLOWED_ORIGINS"],
)  # fmt: skip
def test_an_unknown_variable_that_may_protect_the_server_ends_the_start(variable: str) -> None:
    message = error(**{variable: "x"})
    assert message.startswith(f"the variable {variable} is unknown, but may have been meant")
    assert from_environ({variable: ""}) == server_options()


def test_the_file_of_keys_has_a_variable(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    options = from_environ({"LLAMA_ARG_API_KEY_FILE": str(keys)})
    assert options.http.api_keys() == ["k"]
    assert "LLAMA_ARG_API_KEY_FILE" not in str(unknown_variables(NAMES, {}))


def test_the_first_of_several_variables_counts() -> None:
    both = {"LLAMA_LOG_FILE": "a", "LLAMA_ARG_LOG_FILE": "b"}
    assert FIELDS["log_file"].variables == tuple(both)
    for environ, wanted in (
        (both, "a"),
        (both | {"LLAMA_LOG_FILE": ""}, "b"),
        ({"LLAMA_ARG_LOG_FILE": "b"}, "b"),
    ):
        asked = parse(["--help"], environ)
        assert asked.log.log_file == wanted
    assert from_environ({"LLAMA_ARG_NO_LOG_PREFIX": ""}).log.log_prefix is False


# ---- what goes together, and what goes first -----------------------------------------------


def test_a_quantized_value_cache_needs_flash_attention() -> None:
    assert "Flash Attention" in error("-ctv", "q8_0", "-fa", "off")
    for argv in (["-ctv", "q8_0"], ["-ctk", "q8_0", "-fa", "off"], ["-ctv", "bf16", "-fa", "off"]):
        parse(argv, {})


def test_information_is_printed_in_spite_of_mistakes() -> None:
    for name in ("--help", "-h", "--usage", "--version", "--list-devices"):
        parse([name, "-m", "/does/not/exist"], {})


def test_one_model_leaves_no_room_for_many() -> None:
    def warnings(**given_options: str) -> list[str]:
        return remarks(server_options(**given_options), [], {})

    assert warnings(models_dir="d", hf_repo="a/b") == [
        "--models-dir has no effect: --hf-repo names the only model"
    ]
    assert warnings(models_preset="f", model="m") == [
        "--models-preset has no effect: --model names the only model"
    ]
    assert warnings(models_dir="d", models_preset="f") == warnings(model="m") == []


# ---- what follows from the options -------------------------------------------------------


def test_sampling_options_become_generation_defaults() -> None:
    options = parse(
        ["--temp", "-2", "-s", "7", "-n", "9", "--keep", "3", "--ignore-eos", "--no-cache-prompt",
         "-l", "3-inf", "--top-k", "-1", "--dynatemp-exp", "2", "--typical", "0.5",
         "--mirostat", "2", "--mirostat-lr", "0.2", "--mirostat-ent", "4", "--top-nsigma", "1.5",
         "--dry-sequence-breaker", r"\n\\\x41", "-r", r"\t.", "-r", "User:",
         "--adaptive-target", "0.5", "--adaptive-decay", "0.25"],
        {},
    )  # fmt: skip
    assert options.model.engine.generation_defaults({}) == GenerationParams(
        temperature=0.0,
        seed=7,
        n_predict=9,
        n_keep=3,
        ignore_eos=True,
        cache_prompt=False,
        logit_bias=[(3, -math.inf)],
        top_k=0,
        dynatemp_exponent=2.0,
        typical_p=0.5,
        mirostat=2,
        mirostat_eta=0.2,
        mirostat_tau=4.0,
        top_n_sigma=1.5,
        dry_sequence_breakers=["\n\\A"],
        stop=["\t.", "User:"],
        adaptive_target=0.5,
        adaptive_decay=0.25,
    )


def test_escapes_can_be_left_alone() -> None:
    texts = ["-r", r"\n\q\\", "--dry-sequence-breaker", r"\t"]
    defaults = parse(texts, {}).model.engine.generation_defaults()
    assert (defaults.stop, defaults.dry_sequence_breakers) == (["\n\\q\\"], ["\t"])
    for argv in (["--no-escape", *texts], [*texts, "--no-escape"]):
        defaults = parse(argv, {}).model.engine.generation_defaults()
        assert (defaults.stop, defaults.dry_sequence_breakers) == ([r"\n\q\\"], [r"\t"])
    for name in ("-r", "--dry-sequence-breaker"):
        assert "null character" in error(name, r"a\x00")
        assert parse(["--no-escape", name, r"a\x00"], {})
        assert "empty" in error(name, "")


def test_slots_and_the_kv_cache(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF rest")
    for argv, slots, unified in [
        ([], 4, False),  # the shipped model is to be reproducible
        (["--reproducible", "off"], 4, True),
        (["-m", str(other)], 4, True),
        (["-np", "3"], 3, False),
        (["-np", "3", "-kvu"], 3, True),
        (["--no-kv-unified"], 4, False),
    ]:
        options = parse(argv, {})
        assert (
            options.model.engine.context.n_slots(),
            options.model.engine.unified_kv_cache(),
        ) == (slots, unified)


def test_names_and_addresses() -> None:
    assert parse(["-a", "b, a,,b"], {}).model.engine.model.aliases() == ["a", "b"]
    assert server_options().model.engine.model.aliases() == []
    assert parse(["--host", "::1, x.sock,::1"], {}).http.hosts() == ["::1", "x.sock"]


# ---- what people read --------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 120])
def test_help_is_complete_and_fits(width: int) -> None:
    text = help_text(width)
    assert max(map(len, text.splitlines())) <= width
    for field in FIELDS.values():
        for word in (*field.names, *field.negative_names, field.opt.env):
            assert word in text
    assert "\x1b" not in text
    assert "\x1b[1m" in help_text(width, bold=True)


def test_the_reference_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == reference(), "run: python -m specllama.handlers.options > docs/options.md"


@pytest.mark.slow
def test_the_reference_page_is_printed() -> None:
    command = [sys.executable, "-m", "specllama.handlers.options"]
    printed = subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout
    assert printed.decode("utf-8") == reference()


@pytest.mark.parametrize(
    "name", ["LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE", "LLAMA_ARG_SSL_KEY_FILE"]
)
def test_a_key_that_a_variable_was_to_have_is_missed(name: str) -> None:
    assert (
        error(**{name: ""}) == f"the variable {name} is set, but empty; unset it if it isn't needed"
    )
    parse([], {"LLAMA_ARG_CTX_SIZE": ""})


@pytest.mark.parametrize("option", ["-m", "--mmproj", "-hf", "--models-dir", "--api-key-file"])
def test_an_empty_name_is_refused(option: str) -> None:
    assert error(option, "") == f"{option}: the value is empty"
    if option.startswith("--"):
        assert error(f"{option}=") == f"{option}: the value is empty"


@pytest.mark.parametrize(
    ("argv", "warns"),
    [
        (["--host", "0.0.0.0"], True),
        (["--host", "127.0.0.1,192.168.1.5"], True),
        (["--host", "::"], True),
        (["--host", "0.0.0.0", "--api-key", "secret"], False),
        (["--host", "127.0.0.1,::1,localhost"], False),
        (["--host", "/run/specllama.sock"], False),
        ([], False),
    ],
)
def test_an_open_server_is_warned_of(argv: list[str], warns: bool) -> None:
    found = [each for each in remarks(parse(argv, {}), argv, {}) if "may use the server" in each]
    assert bool(found) is warns


def test_a_mistyped_name_of_a_chat_template_is_refused() -> None:
    assert error("--chat-template", "chatlm").endswith("(did you mean chatml?)")
    assert "neither a Jinja template" in error("--chat-template", "mine")
    for text in ("chatml", "llama3", "{{ messages[0].content }}", "User: {{ x }}"):
        assert parse(["--chat-template", text], {}).model.chat.chat_template == text
