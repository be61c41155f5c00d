"""The command line, the environment, and what is derived from the declarations."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from engine.options import (
    OptionError,
    Options,
    from_environ,
    help_text,
    parse,
    reference,
    unavailable,
    unknown_variables,
)
from engine.options.declaration import INT32_MAX, Field, fields
from engine.options.shortcuts import SHORTCUTS
from engine.params import RANDOM_SEED, GenerationParams
from tests.option_values import GIVEN, chosen, impossible, texts

FIELDS = fields(Options)
ROOT = Path(__file__).parent.parent


def error(*argv: str, **environ: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse(argv, environ)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


# ---- the declarations --------------------------------------------------------------------


def test_nothing_given_gives_the_declared_defaults() -> None:
    assert parse([], {}) == Options()


def test_names_and_variables_are_unique() -> None:
    names = [n for f in FIELDS.values() for n in (*f.names, *f.negative_names)]
    names += [*unavailable.NAMES, *SHORTCUTS]
    assert len(names) == len(set(names))
    variables = [v for f in FIELDS.values() for v in (f.opt.env, f.negative_env) if v]
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
    assert Options().generation_defaults() == GenerationParams()


def test_options_travel_to_the_engine_process() -> None:
    options = parse(
        ["-ngl", "3", "-ts", "3,1", "-l", "5-inf", "--chat-template-kwargs", '{"a": [1, null]}'], {}
    )
    data = msgspec.msgpack.encode(options)
    assert msgspec.msgpack.decode(data, type=Options) == options


# ---- any options, written as a command line or as variables ------------------------------


@given(chosen(), st.data())
@settings(max_examples=300, deadline=None)
def test_round_trip_through_the_command_line(wanted: dict[str, Any], data: st.DataObject) -> None:
    assume(not impossible(wanted))
    argv = []
    for name, value in wanted.items():
        field = FIELDS[name]
        if field.is_flag:
            forms = field.names if value else field.negative_names
            argv.append(data.draw(st.sampled_from(forms)))
            continue
        for text in texts(field, value):
            form = data.draw(st.sampled_from(field.names))
            is_name = text.split("=")[0].replace("_", "-") in {*unavailable.NAMES} | {
                n for f in FIELDS.values() for n in (*f.names, *f.negative_names)
            }
            apart = data.draw(st.booleans()) and not is_name
            if apart:
                parts = text.split(" ") if field.opt.n_values > 1 else [text]
                argv += [form, *parts]
            else:
                argv.append(f"{form}={text}")
    assert parse(argv, {}) == Options(**wanted)


WITH_VARIABLE = {n: f for n, f in GIVEN.items() if f.opt.env}


@given(chosen(tuple(WITH_VARIABLE)))
@settings(max_examples=200, deadline=None)
def test_round_trip_through_variables(wanted: dict[str, Any]) -> None:
    assume(not impossible(wanted))
    environ = {FIELDS[n].opt.env: FIELDS[n].show(value) for n, value in wanted.items()}
    assume(all(environ.values()))  # an empty variable counts as not set
    assert from_environ(environ) == Options(**wanted)


@given(
    st.lists(
        st.sampled_from(sorted({n for f in FIELDS.values() for n in (*f.names, *f.negative_names)}))
        | st.text()
        | st.sampled_from(["0", "-1", "1e400", "nan", "none", "=", "--=", "-", "--", "\ud800"])
    ),
    st.dictionaries(st.sampled_from([f.opt.env for f in WITH_VARIABLE.values()]), st.text()),
)
@example(["-l", "99999999999+1"], {})
@example(["--chat-template-kwargs", "[" * 100_000], {})
@settings(max_examples=500, deadline=None)
def test_any_input_gives_options_or_an_option_error(
    argv: list[str], environ: dict[str, str]
) -> None:
    # No file is created: with one of the information options nothing is checked on disk.
    try:
        options = parse([*argv, "--version"], environ)
    except OptionError as refusal:
        message = str(refusal)
    else:
        msgspec.msgpack.encode(options)
        options.generation_defaults()
        assert options.hosts()
        message = "fine"
    assert message.isprintable()


# ---- what a value may be -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("--ctx-size", 0, INT32_MAX),
        ("--batch-size", 1, INT32_MAX),
        ("--ubatch-size", 1, INT32_MAX),
        ("--parallel", -1, 256),
        ("--threads", -1, 512),
        ("--threads-batch", -1, 512),
        ("--n-gpu-layers", -2, INT32_MAX),
        ("--main-gpu", 0, INT32_MAX),
        ("--yarn-orig-ctx", 0, INT32_MAX),
        ("--port", 0, 65535),
        ("--timeout", 1, INT32_MAX),
        ("--max-body-size", 1, 1000),
        ("--drain-timeout", 0, INT32_MAX),
        ("--n-predict", -1, INT32_MAX),
        ("--keep", -1, INT32_MAX),
        ("--seed", -1, RANDOM_SEED),
        ("--top-k", -1, INT32_MAX),
        ("--repeat-last-n", -1, INT32_MAX),
        ("--dry-allowed-length", 0, INT32_MAX),
        ("--dry-penalty-last-n", -1, INT32_MAX),
        ("--mirostat", 0, 2),
        ("--verbosity", 0, INT32_MAX),
        ("--cache-reuse", 0, INT32_MAX),
        ("--n-cpu-moe", 0, 1024),
        ("--prio", -1, 3),
        ("--poll", 0, 100),
        ("--cpu-strict", 0, 1),
        ("--prio-batch", -1, 3),
        ("--poll-batch", -1, 100),
        ("--cpu-strict-batch", -1, 1),
    ],
)
def test_whole_numbers_have_bounds(name: str, low: int, high: int) -> None:
    for value in (low, high):
        parse([name, str(value)], {})
    for bad in (
        str(low - 1),
        str(high + 1),
        "9" * 40,
        "",
        "x",
        "1.5",
        "1_0",
        " 1",
        "0x10",
        "\u0661",
    ):
        assert error(f"{name}={bad}").startswith(name)


def test_every_number_is_bounded() -> None:
    for field in FIELDS.values():
        if field.type is int and field.opt.read is None:
            assert field.opt.min is not None, field.name
            assert field.opt.max is not None, field.name


FLOATS = [f for f in FIELDS.values() if f.type is float]


@pytest.mark.parametrize("field", FLOATS, ids=[f.name for f in FLOATS])
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "1e39", "-1e39", "1e-60", "", "x", "1_0"])
def test_real_numbers_are_finite_c_floats(field: Field, bad: str) -> None:
    error(f"{field.canonical}={bad}")


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("--top-p", ["0", "1", ".5", "5e-1"], ["-0.1", "1.01"]),
        ("--min-p", ["0", "1"], ["-0.1", "1.01"]),
        ("--typical", ["0", "1"], ["-0.1", "1.01"]),
        ("--xtc-probability", ["0", "1"], ["-0.1", "1.01"]),
        ("--xtc-threshold", ["0", "1"], ["-0.1", "1.01"]),
        ("--slot-prompt-similarity", ["0", "1"], ["-0.1", "1.01"]),
        ("--temp", ["0", "-1", "1e30"], []),
        ("--repeat-penalty", ["0.01", "2"], ["0", "-1"]),
        ("--dry-base", ["1"], ["0.99"]),
        ("--dry-multiplier", ["0"], ["-1"]),
        ("--dynatemp-range", ["0"], ["-1"]),
        ("--rope-scale", ["0", "4"], ["-1"]),
        ("--rope-freq-base", ["0", "10000"], ["-1"]),
        ("--yarn-ext-factor", ["-1", "0", "1"], []),
        ("--parallel", ["-1", "1"], ["0"]),
        ("--cache-type-k", ["f32", "q4_0", "iq4_nl"], ["q2_k", "F16", ""]),
        ("--split-mode", ["none", "layer", "row"], ["column"]),
        ("--rope-scaling", ["none", "linear", "yarn"], ["dynamic"]),
        ("--numa", ["distribute", "isolate", "numactl"], ["mirror"]),
        ("--flash-attn", ["on", "off", "auto", "1", "false", "-1"], ["maybe"]),
        ("--log-colors", ["on", "off", "auto"], ["maybe"]),
        ("--n-gpu-layers", ["auto", "all", "0", "99"], ["some", "-3", ""]),
        ("--tensor-split", ["3,1", "3/1", "0"], ["", "3,", "a", "-1", ",".join("1" * 16)]),
        ("--device", ["none", "CUDA0,CUDA1"], ["", ",", "none,CUDA0"]),
        (
            "--override-kv",
            ["a=int:-3", "a=float:1e3", "a=bool:true", "a=str:", "a=int:1,b=str:x"],
            ["", "a", "a=1", "=int:1", "a=int:x", "a=int:1.5", "a=float:nan", "a=bool:1",
             "a=list:1", f"{'k' * 128}=int:1", f"a=str:{'v' * 128}"],
        ),
        ("--logit-bias", ["1+1", "1-0.5", "0-inf"], ["", "1", "+1", "-1+1", "1+nan", "1+-1",
                                                   f"{2**31}+1"]),
        ("--samplers", ["top_k;top-p;MinP;temp"], ["", "top_k;", "top_q"]),
        ("--sampler-seq", ["kpt"], ["kq"]),
        ("--dry-sequence-breaker", ["none", "\\n"], ["", "\\x00"]),
        ("--chat-template-kwargs", ["{}", '{"a":null}'],
         ["", "[]", "1", "{", '{"a":NaN}', '{"a":1e999}', f'{{"a":{10**30}}}', '{"a":"\\ud800"}']),
        ("--api-prefix", ["/a", "/a/b/", "/", ""], ["a", "/a b", "/{x}", "//", "/a?b"]),
        ("--host", ["0.0.0.0", "::1,/run/x.sock"], ["", ",", " "]),
        ("--fit", ["off", "0"], ["on", "auto", "x"]),
        (
            "--override-tensor",
            ["a=CPU", "blk\\.[0-3]=CPU,b=CUDA0", '"x{1,2}=CPU"'],
            ["", ",", "a", "a=", "=CPU", f"{'a' * 1025}=CPU"],
        ),
        ("--control-vector-layer-range", ["1 3", "2 2"], ["", "1", "3 1", "0 2", "1 2 3", "a b"]),
        ("--cpu-mask", ["1", "0xff", "F0", "8" + "0" * 127], ["", "0", "g", "0x", "-1", "f" * 129]),
        ("--cpu-range", ["0-0", "-3", "500-", "2-5"], ["", "-", "3", "5-2", "0-512", "a-b"]),
        ("--cpu-range-batch", ["0-511"], ["512-"]),
        ("--api-key", ["k", "a,b"], ["", ","]),
        ("--alias", ["a", "a,b"], ["a\0", "\udcff"]),
    ],
)  # fmt: skip
def test_values(name: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        parse([f"{name}={text}"], {})
    for text in bad:
        assert error(f"{name}={text}").startswith(name)


def test_long_values_are_shortened_in_messages() -> None:
    assert len(error("--port", "9" * 100_000)) < 200


# ---- how options are written -------------------------------------------------------------


def test_forms_of_an_option() -> None:
    for argv in (["-c", "8"], ["--ctx-size", "8"], ["--ctx-size=8"], ["-c=8"], ["--ctx_size", "8"]):
        assert parse(argv, {}).ctx_size == 8
    assert parse(["--chat-template", "a=b"], {}).chat_template == "a=b"
    assert parse(["--chat-template=a=b"], {}).chat_template == "a=b"


def test_a_switch_may_stand_alone() -> None:
    assert parse(["-fa"], {}).flash_attn == "on"
    assert parse(["-fa", "-c", "8"], {}).flash_attn == "on"
    assert parse(["-fa", "off", "-c", "8"], {}).flash_attn == "off"
    assert parse(["-fa", "-1"], {}).flash_attn == "auto"
    assert parse(["--log-colors"], {}).log_colors == "on"
    assert '"maybe"' in error("-fa", "maybe")


def test_reranking_is_a_kind_of_pooling() -> None:
    assert parse(["--rerank"], {}).embeds()
    assert parse(["--embeddings", "--pooling", "rank"], {}).embeds()
    assert not parse(["--pooling", "mean"], {}).embeds()
    parse(["--reranking", "--pooling", "rank"], {})
    assert "--pooling rank" in error("--reranking", "--pooling", "mean")


def test_a_value_is_missing() -> None:
    assert "needs a value (PORT)" in error("--port")
    assert '"--host" follows' in error("--port", "--host", "x")
    assert error("--mmap=1") == "--mmap takes no value"
    assert error("--no-mmap=1") == "--no-mmap takes no value"


def test_the_last_occurrence_wins_unless_values_add_up() -> None:
    assert parse(["-c", "1", "--ctx-size", "2"], {}).ctx_size == 2
    assert parse(["--mmap", "--no-mmap"], {}).mmap is False
    assert parse(["-l", "1+1", "-l", "2-1"], {}).logit_bias == ((1, 1.0), (2, -1.0))
    assert parse(["--api-key", "a,b", "--api-key", "c"], {}).api_key == ("a", "b", "c")
    breakers = ["--dry-sequence-breaker", "a", "--dry-sequence-breaker", "none"]
    assert parse(breakers, {}).dry_sequence_breaker == ()
    assert parse([*breakers, "--dry-sequence-breaker", "b"], {}).dry_sequence_breaker == ("b",)


def test_two_ways_to_say_one_thing_replace_each_other() -> None:
    options = parse(["--samplers", "top_k", "--sampler-seq", "pt"], {})
    assert options.generation_defaults().samplers == ["top_p", "temperature"]
    options = parse(["--sampler-seq", "pt", "--samplers", "top_k"], {})
    assert options.generation_defaults().samplers == ["top_k"]
    options = parse(["-v", "-lv", "1"], {})
    assert (options.verbose, options.verbosity) == (False, 1)
    options = parse(["--rope-freq-scale", "0.5"], {"LLAMA_ARG_ROPE_SCALE": "4"})
    assert (options.rope_freq_scale, options.rope_scale) == (0.5, 0.0)


def test_unknown_options_get_a_suggestion() -> None:
    assert error("--porrt", "1").endswith("(did you mean --port?)")
    assert error("--ctx-sze=1").endswith("(did you mean --ctx-size?)")
    assert error("--metrisc").endswith("(did you mean --metrics?)")
    assert "did you mean" not in error("--qqqqqqqqq")
    assert "unexpected argument" in error("stray")
    assert "-m FILE" in error("model.gguf")


@pytest.mark.parametrize("name", sorted(unavailable.NAMES))
def test_options_that_come_later_say_so(name: str) -> None:
    assert error(name) == f"the option {name} is not available yet"
    assert "not available yet" in error(f"{name}=1")


@pytest.mark.parametrize("variable", sorted(unavailable.VARIABLES))
def test_variables_of_options_that_come_later_say_so(variable: str) -> None:
    assert error(**{variable: "1"}).endswith(f"{variable} is not available yet")
    assert from_environ({variable: ""}) == Options()


def test_an_option_with_two_values() -> None:
    assert parse(["--control-vector-layer-range", "2", "5"], {}).control_vector_layer_range == (
        2,
        5,
    )
    assert "needs a value (FIRST LAST)" in error("--control-vector-layer-range", "2")
    assert '"--mmap" follows' in error("--control-vector-layer-range", "2", "--mmap")


def test_cpus_of_masks_and_ranges_add_up() -> None:
    options = parse(["-C", "0x11", "-Cr", "2-3"], {})
    assert options.cpus() == options.cpus_batch() == [0, 2, 3, 4]
    assert parse(["-C", "1", "-Cb", "2"], {}).cpus_batch() == [1]
    assert not Options().places_threads()
    assert all(
        parse(given, {}).places_threads()
        for given in (["-C", "1"], ["--prio", "-1"], ["--poll", "0"], ["--cpu-strict-batch", "1"])
    )


def test_files_of_control_vectors(tmp_path: Path) -> None:
    good, text = tmp_path / "a:b.gguf", tmp_path / "text"
    good.write_bytes(b"GGUF and so on")
    text.write_text("no vector")
    options = parse(
        ["--control-vector", str(good), "--control-vector-scaled", f"{good}:-0.5,{good}:2"], {}
    )
    assert options.control_vector == (str(good),)
    assert options.control_vector_scaled == ((str(good), -0.5), (str(good), 2.0))
    for name, value in (
        ("--control-vector", str(text)),
        ("--control-vector", str(tmp_path)),
        ("--control-vector", str(tmp_path / "nothing")),
        ("--control-vector-scaled", f"{text}:1"),
        ("--control-vector-scaled", str(good)),
        ("--control-vector-scaled", f"{good}:x"),
        ("--control-vector-scaled", ":1"),
    ):
        assert error(name, value).startswith(name)
    assert "--direct-io" in error("--mlock", "--direct-io")


# ---- LoRA adapters and slot files --------------------------------------------------------


def test_adapters_count_in_the_order_of_the_command_line(tmp_path: Path) -> None:
    a, b, c = (str(tmp_path / name) for name in ("a.gguf", "b:1.gguf", "c.gguf"))
    for path in (a, b, c):
        Path(path).write_bytes(b"GGUF rest")
    argv = ["--lora-scaled", f"{b}:-0.5", "--lora", a, "--lora-scaled", f"{c}:2,{a}:0"]
    options = parse(argv, {})
    assert options.lora == ((b, -0.5), (a, 1.0), (c, 2.0), (a, 0.0))
    assert parse(["--lora", f"{a},{c}"], {}).lora == ((a, 1.0), (c, 1.0))


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:x", "a:nan", "a:1e7", "a:1,b"])
def test_scaled_adapters_have_a_scale(text: str) -> None:
    assert error(f"--lora-scaled={text}").startswith("--lora-scaled: ")


def test_files_of_adapters_and_slots_are_looked_at_first(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("text")
    assert "cannot open" in error("--lora", str(tmp_path / "missing"))
    assert "not a GGUF file" in error("--lora", str(text))
    assert "not a GGUF file" in error("--lora-scaled", f"{text}:1")
    assert "is not a directory" in error("--slot-save-path", str(text))
    assert "cannot use" in error("--slot-save-path", str(tmp_path / "missing"))
    assert parse(["--slot-save-path", str(tmp_path)], {}).slot_save_path == str(tmp_path)


# ---- variables ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1", "true", "on", "enabled"])
def test_variables_switch_on(text: str) -> None:
    options = from_environ({"LLAMA_ARG_MLOCK": text, "LLAMA_ARG_MMAP": text})
    assert (options.mlock, options.mmap) == (True, True)


@pytest.mark.parametrize("text", ["0", "false", "off", "disabled"])
def test_variables_switch_off(text: str) -> None:
    options = from_environ({"LLAMA_ARG_MLOCK": text, "LLAMA_ARG_MMAP": text})
    assert (options.mlock, options.mmap) == (False, False)


@pytest.mark.parametrize("text", ["", "0", "1", "false", "nonsense"])
def test_the_presence_of_a_negative_variable_switches_off(text: str) -> None:
    environ = {"LLAMA_ARG_NO_MMAP": text, "LLAMA_ARG_MMAP": "1"}
    assert from_environ(environ).mmap is False
    assert parse(["--mmap"], environ).mmap is True


def test_a_bad_variable_is_named() -> None:
    assert error(LLAMA_ARG_MMAP="2").startswith("LLAMA_ARG_MMAP: ")
    assert error(LLAMA_ARG_PORT="x").startswith("LLAMA_ARG_PORT: ")
    assert from_environ({"LLAMA_ARG_PORT": ""}) == Options()


def test_the_command_line_wins() -> None:
    environ = {"LLAMA_ARG_PORT": "1", "LLAMA_API_KEY": "from-env", "LLAMA_ARG_ALIAS": "kept"}
    options = parse(["--port", "2", "--api-key", "given"], environ)
    assert (options.port, options.api_key, options.alias) == (2, ("given",), "kept")
    environ = {"LLAMA_ARG_CHAT_TEMPLATE_FILE": "/does/not/exist"}
    assert parse(["--chat-template", "x"], environ).chat_template_file == ""


def test_unknown_variables_are_reported() -> None:
    (warning,) = unknown_variables({"LLAMA_ARG_CTXSIZE": "1", "LLAMA_ARG_PORT": "1", "HOME": "/"})
    assert "LLAMA_ARG_CTXSIZE" in warning
    assert "LLAMA_ARG_CTX_SIZE" in warning
    assert unknown_variables({"LLAMA_ARG_NO_MMAP": "1", "LLAMA_ARG_HF_REPO": ""}) == []


# ---- files -------------------------------------------------------------------------------


def test_the_model_file(tmp_path: Path) -> None:
    empty, other, good = tmp_path / "empty", tmp_path / "other", tmp_path / "good"
    empty.touch()
    other.write_bytes(b"PK\x03\x04")
    good.write_bytes(b"GGUF\x03\0\0\0")
    assert "No such file" in error("-m", str(tmp_path / "missing"))
    assert error("-m", str(tmp_path)).endswith("is a directory")
    assert error("-m", str(empty)).endswith("is empty")
    assert error("-m", str(other)).endswith("is not a GGUF file")
    assert "not a regular file" in error("-m", "/dev/null")
    assert error(LLAMA_ARG_MODEL=str(empty)).startswith("--model: ")
    assert parse(["-m", str(good)], {}).model == str(good)


def test_api_keys_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# comment\n\nfrom-file\r\n  spaced \nboth\n", encoding="utf-8")
    options = parse(["--api-key", 'both,"with,comma"', "--api-key-file", str(file)], {})
    assert options.api_keys() == ["both", "with,comma", "from-file", "spaced"]
    assert Options().api_keys() == []
    file.write_text("# nobody\n", encoding="utf-8")
    assert "holds no key" in error("--api-key-file", str(file))
    file.write_bytes(b"\xff\xfe")
    assert "UTF-8" in error("--api-key-file", str(file))
    file.unlink()
    with pytest.raises(OptionError):
        options.api_keys()


def test_tls_needs_a_certificate_and_its_key(tmp_path: Path) -> None:
    file = tmp_path / "file.pem"
    file.write_text("not PEM", encoding="utf-8")
    assert "--ssl-cert-file as well" in error("--ssl-key-file", str(file))
    assert "--ssl-key-file as well" in error("--ssl-cert-file", str(file))
    both = ["--ssl-key-file", str(file), "--ssl-cert-file", str(file)]
    assert "PEM" in error(*both)
    file.unlink()
    assert "No such file" in error(*both)


def test_other_files(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing" / "file")
    assert "No such file" in error("--chat-template-file", missing)
    assert "No such file" in error("--log-file", missing)
    parse(["--log-file", missing, "--log-disable"], {})
    template = tmp_path / "template"
    template.write_text("{{ messages }}", encoding="utf-8")
    assert parse(["--chat-template-file", str(template)], {}).chat_template_file == str(template)


def test_a_quantized_value_cache_needs_flash_attention() -> None:
    assert "Flash Attention" in error("-ctv", "q8_0", "-fa", "off")
    for argv in (["-ctv", "q8_0"], ["-ctk", "q8_0", "-fa", "off"], ["-ctv", "bf16", "-fa", "off"]):
        parse(argv, {})


def test_information_is_given_whatever_else_is_wrong() -> None:
    for name in ("--help", "-h", "--usage", "--version", "--list-devices"):
        parse([name, "-m", "/does/not/exist"], {})


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
    assert options.generation_defaults() == GenerationParams(
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
    defaults = parse(texts, {}).generation_defaults()
    assert (defaults.stop, defaults.dry_sequence_breakers) == (["\n\\q\\"], ["\t"])
    for argv in (["--no-escape", *texts], [*texts, "--no-escape"]):
        defaults = parse(argv, {}).generation_defaults()
        assert (defaults.stop, defaults.dry_sequence_breakers) == ([r"\n\q\\"], [r"\t"])
    for name in ("-r", "--dry-sequence-breaker"):
        assert "null character" in error(name, r"a\x00")
        assert parse(["--no-escape", name, r"a\x00"], {})
        assert "empty" in error(name, "")


def test_slots_and_the_kv_cache() -> None:
    for argv, slots, unified in [
        ([], 4, True),
        (["-np", "3"], 3, False),
        (["-np", "3", "-kvu"], 3, True),
        (["--no-kv-unified"], 4, False),
    ]:
        options = parse(argv, {})
        assert (options.n_slots(), options.unified_kv_cache()) == (slots, unified)


def test_names_and_addresses() -> None:
    assert parse(["-a", "b, a,,b"], {}).aliases() == ["a", "b"]
    assert Options().aliases() == []
    assert parse(["--host", "::1, x.sock,::1"], {}).hosts() == ["::1", "x.sock"]


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
    assert page == reference(), "run: python -m engine.options > docs/options.md"


def test_the_reference_page_is_printed() -> None:
    command = [sys.executable, "-m", "engine.options"]
    printed = subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout
    assert printed.decode("utf-8") == reference()


def test_a_constraint_from_a_file_or_the_command_line(tmp_path: Path) -> None:
    grammar, schema = tmp_path / "g.gbnf", tmp_path / "s.json"
    grammar.write_text('root ::= "ä"', "utf-8")
    schema.write_text('{"type": "null"}', "utf-8")
    expected = {
        ("--grammar", "root ::= x"): ("root ::= x", None),
        ("--grammar-file", str(grammar)): ('root ::= "ä"', None),
        ("-j", "{}"): ("", "{}"),
        ("-jf", str(schema)): ("", '{"type": "null"}'),
        ("--grammar", "root ::= x", "-jf", str(schema)): ("", '{"type": "null"}'),
    }
    for argv, constraint in expected.items():
        defaults = parse(list(argv), {}).generation_defaults()
        assert (defaults.grammar, defaults.json_schema) == constraint
