"""The allowed values of options."""

import pytest

from specllama.engine.options.declaration import INT32_MAX, Field
from specllama.engine.params import RANDOM_SEED
from specllama.handlers.options import parse
from tests.support.options_support import FIELDS, error, server_options


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("--ctx-size", -1, INT32_MAX),
        ("--fit-ctx", 0, INT32_MAX),
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
        ("--spec-type", ["none", "radix,ngram-mod"], ["", "ngram", "radix,draft-mtp"]),
        ("--draft-max", ["0", "99999"], ["-1", "x", str(2**31)]),
        ("--spec-ngram-simple-size-n", ["1", "1024"], ["0", "1025"]),
        ("--spec-ngram-mod-n-min", ["0", "1024"], ["-1", "1025"]),
        ("--dry-sequence-breaker", ["none", "\\n"], ["", "\\x00"]),
        ("--chat-template-kwargs", ["{}", '{"a":null}'],
         ["", "[]", "1", "{", '{"a":NaN}', '{"a":1e999}', f'{{"a":{10**30}}}', '{"a":"\\ud800"}']),
        ("--api-prefix", ["/a", "/a/b/", "/", ""], ["a", "/a b", "/{x}", "//", "/a?b"]),
        ("--host", ["0.0.0.0", "::1,/run/x.sock"], ["", ",", " "]),
        ("--cors-origins", ["*", "localhost", "https://a.example:1,null"], ["a b", "a", "x://a b"]),
        ("--cors-methods", ["GET,POST", "*"], ["GET POST", "\u00e4"]),
        ("--fit", ["on", "off", "0"], ["auto", "x"]),
        ("--fit-target", ["0", "512,0", "1/2", "1073741824"], ["", "-1", "1,", "x", "1073741825"]),
        ("--fit-target", ["1" + ",1" * 14], ["1" + ",1" * 15]),
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


def test_an_option_with_two_values() -> None:
    assert parse(
        ["--control-vector-layer-range", "2", "5"], {}
    ).model.engine.model.control_vector_layer_range == (
        2,
        5,
    )
    assert "needs a value (FIRST LAST)" in error("--control-vector-layer-range", "2")
    assert '"--mmap" follows' in error("--control-vector-layer-range", "2", "--mmap")


def test_cpus_of_masks_and_ranges_add_up() -> None:
    options = parse(["-C", "0x11", "-Cr", "2-3"], {})
    assert (
        options.model.engine.compute.cpus()
        == options.model.engine.compute.cpus_batch()
        == [0, 2, 3, 4]
    )
    assert parse(["-C", "1", "-Cb", "2"], {}).model.engine.compute.cpus_batch() == [1]
    assert not server_options().model.engine.compute.places_threads()
    assert all(
        parse(given, {}).model.engine.compute.places_threads()
        for given in (["-C", "1"], ["--prio", "-1"], ["--poll", "0"], ["--cpu-strict-batch", "1"])
    )
