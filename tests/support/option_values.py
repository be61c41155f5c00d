"""Values of all options for Hypothesis, and their text on the command line and in files."""

import json
import math
import string
from typing import Any, get_args

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from specllama.engine.options import OptionError, Options, Setting, values
from specllama.engine.options.checks import check
from specllama.engine.options.declaration import INT32_MAX, Field, compose
from specllama.engine.options.tables.speculation import SpeculationType
from specllama.engine.options.text_values import MemorySize
from specllama.engine.params import DEFAULT_SAMPLERS, SAMPLER_LETTERS
from specllama.handlers.options import NAMES
from tests.support.options_support import FIELDS

INFORMATION = {"help", "version", "license", "completion_bash", "list_devices", "cache_list"}
FILES = {
    "mmproj",
    "media_path",
    "models_dir",
    "models_preset",
    "control_vector",
    "control_vector_scaled",
    "model",
    "model_draft",
    "api_key_file",
    "keys_file",
    "ssl_key_file",
    "ssl_cert_file",
    "chat_template_file",
    "log_file",
    "grammar_file",
    "json_schema_file",
    "lora",
    "lora_scaled",
    "slot_save_path",
    "cache_disk",
    "lookup_cache_static",
    "lookup_cache_dynamic",
    "path",
    "ui_config_file",
    "tools_dir",
    "mcp_servers_config",
}

SINGLE = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False, width=32)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
WORD = st.text(string.ascii_letters + string.digits + "._-+/'\"", min_size=1).filter(
    lambda word: not word.startswith('"')
)
WORDS = st.lists(WORD | st.just("a,b"), min_size=1, max_size=4).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | SINGLE | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=5,
)
CPUS = st.sets(st.integers(0, values.MAX_CPUS - 1), min_size=1)
HUB = st.from_regex("[A-Za-z0-9][A-Za-z0-9._]{0,9}[A-Za-z0-9]", fullmatch=True).filter(
    lambda name: ".." not in name
)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "parallel": st.just(-1) | st.integers(1, 256),
    "repeat_penalty": SINGLE.filter(lambda x: x > 0),
    "override_kv": st.lists(
        st.builds("{}=int:{}".format, WORD.filter(lambda w: len(w) < 99), st.integers(-9, 9))
        | st.builds("k=float:{}".format, SINGLE)
        | st.sampled_from(["k=bool:true", "k=bool:false", "k=str:x,y", "k=str:"]),
        min_size=1,
    ).map(tuple),
    **dict.fromkeys(("device", "device_draft"), WORDS.filter(lambda names: "none" not in names)),
    "spec_replace": st.tuples(TEXT, st.just("") | TEXT).map(lambda pair: (pair,)),
    "api_key": WORDS,
    "host": st.lists(st.sampled_from(["::1", "localhost", "a.sock"]), min_size=1).map(",".join),
    "allowed_hosts": st.lists(
        st.sampled_from(["*", "llm.example.org", "box", "my-server.local"]), min_size=1
    ).map(tuple),
    "cors_origins": st.lists(
        st.sampled_from(["*", "localhost", "https://a.example:1"]), min_size=1
    ).map(tuple),
    **dict.fromkeys(
        ("cors_methods", "cors_headers"),
        st.lists(st.sampled_from(["*", "GET", "x-a"]), min_size=1).map(tuple),
    ),
    "otel_endpoint": st.from_regex(r"https?://[a-z0-9.]{1,9}(:[0-9]{1,5})?", fullmatch=True),
    "api_prefix": st.lists(st.text("az09._~-", min_size=1), max_size=3).map(
        lambda parts: "".join(f"/{part}" for part in parts)
    ),
    **dict.fromkeys(
        ("aip_health_route", "aip_predict_route"),
        st.lists(st.text("az09._~:-", min_size=1), min_size=1, max_size=3).map(
            lambda parts: "".join(f"/{part}" for part in parts)
        ),
    ),
    **dict.fromkeys(
        ("n_gpu_layers", "n_gpu_layers_draft"),
        st.sampled_from(["auto", "all"]) | st.integers(0, INT32_MAX),
    ),
    "fit_target": st.lists(st.integers(0, 1 << 30), min_size=1, max_size=15).map(tuple),
    "models_memory": st.dictionaries(
        st.sampled_from(["host", "gpu", "CUDA0", "RPC0:a.b:1"]),
        st.tuples(st.integers(1, 100), st.booleans()),
        min_size=1,
    ).map(lambda sizes: tuple(MemorySize(name, *size) for name, size in sizes.items())),
    "tensor_split": st.lists(SINGLE.filter(lambda x: x >= 0), min_size=1, max_size=15).map(tuple),
    "samplers": st.lists(st.sampled_from(DEFAULT_SAMPLERS), min_size=1).map(tuple),
    "sampler_seq": st.text("".join(SAMPLER_LETTERS), min_size=1),
    "spec_type": st.lists(st.sampled_from(get_args(SpeculationType)), min_size=1).map(tuple),
    "logit_bias": st.lists(
        st.tuples(st.integers(0, INT32_MAX), SINGLE | st.sampled_from([math.inf, -math.inf])),
        min_size=1,
    ).map(tuple),
    "dry_sequence_breaker": st.lists(TEXT.filter(lambda text: text != "none")).map(tuple),
    "reverse_prompt": st.lists(TEXT, min_size=1).map(tuple),
    "chat_template_kwargs": st.dictionaries(TEXT, JSON),
    "json_schema": st.dictionaries(TEXT, JSON),
    "docker_repo": HUB.map(lambda name: f"localhost:5000/a.b/c:{name}"),
    "media_domains": st.lists(
        st.sampled_from(["example.org", "localhost", "a-b.c", "10.0.0.1", "::1"]), min_size=1
    ).map(tuple),
    "ui_config": st.dictionaries(TEXT, JSON),
    # The shell needs another program.
    "tools": st.lists(st.sampled_from(["read_file", "get_info"]), min_size=1).map(tuple),
    "mcp_servers_json": WORD.map(lambda word: json.dumps({"mcpServers": {"a": {"command": word}}})),
    "spec_synth_rates": st.lists(st.floats(0, 1, width=32, allow_subnormal=False), min_size=1).map(
        lambda rates: tuple(sorted(rates, reverse=True))
    ),
    **dict.fromkeys(
        ("hf_repo", "hf_repo_draft"),
        st.builds("{}/{}{}".format, HUB, HUB, st.just("") | HUB.map(":{}".format)),
    ),
    "hf_file": st.lists(HUB, min_size=1).map("/".join),
    "hf_token": st.text(string.ascii_letters + string.digits + "_-", min_size=1),
    **dict.fromkeys(
        ("model_url", "mmproj_url"), HUB.map("https://localhost:1/{}.gguf?x=1#y".format)
    ),
    "sleep_idle_seconds": st.just(-1) | st.integers(1, INT32_MAX),
    "tags": WORDS,
    "rpc": st.lists(
        st.builds("{}:{}".format, st.sampled_from(["127.0.0.1", "a-b.c"]), st.integers(1, 65535)),
        min_size=1,
    ).map(tuple),
    **dict.fromkeys(
        ("override_tensor", "override_tensor_draft"),
        st.lists(
            st.builds("{}={}".format, WORD, st.sampled_from(["CPU", "a,b", "x=y"])), min_size=1
        ).map(tuple),
    ),
    "control_vector_layer_range": st.lists(st.integers(1, INT32_MAX), min_size=2, max_size=2).map(
        lambda layers: tuple(sorted(layers))
    ),
    **dict.fromkeys(
        ("cpu_mask", "cpu_mask_batch", "cpu_mask_draft", "cpu_mask_batch_draft"),
        CPUS.map(lambda cpus: tuple(sorted(cpus))),
    ),
    **dict.fromkeys(
        ("cpu_range", "cpu_range_batch", "cpu_range_draft"),
        CPUS.map(lambda cpus: tuple(range(min(cpus), max(cpus) + 1))),
    ),
}


def strategy(field: Field) -> st.SearchStrategy[Any]:
    if field.name in SPECIAL:
        return SPECIAL[field.name]
    if field.is_flag:
        return st.just(True) | st.just(False) if field.opt.negative else st.just(True)
    if field.choices:
        return st.sampled_from([each for each in field.choices if each])
    low, high = field.opt.min, field.opt.max
    if field.type is int:
        assert low is not None
        assert high is not None
        return st.integers(int(low), int(high))
    if field.type is float:
        return SINGLE.filter(lambda x: (low is None or x >= low) and (high is None or x <= high))
    return TEXT


GIVEN = {name: f for name, f in FIELDS.items() if name not in INFORMATION | FILES}


@st.composite
def chosen(draw: st.DrawFn, candidates: tuple[str, ...] = tuple(GIVEN)) -> dict[str, Any]:
    """Generates values of some options that don't replace each other."""
    wanted: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(candidates)), unique=True)):
        opt = FIELDS[name].opt
        if not {*opt.replaces, *opt.excludes} & wanted.keys():
            wanted[name] = draw(strategy(FIELDS[name]))
    return wanted


def impossible(given_values: dict[str, Any]) -> bool:
    """True if the options exclude each other. Other tests cover exclusions."""
    is_open = "*" in given_values.get("allowed_hosts", ()) and "api_key" not in given_values
    if is_open and given_values.keys() & {"tools", "agent", "mcp_servers_json"}:
        return True
    try:
        check(compose(Options, given_values))
    except OptionError:
        return True
    return False


def texts(field: Field, value: Any) -> list[str]:
    """Returns one text for every occurrence of the option."""
    if field.name == "dry_sequence_breaker":
        return list(value) or ["none"]
    if field.name == "reverse_prompt":
        return list(value)
    if field.name == "logit_bias":
        return [field.show([bias]) for bias in value]
    return [field.show(value)]


many = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


OF_MODEL = {
    name: field
    for name, field in FIELDS.items()
    if NAMES.concerns_model(field) and not field.opt.joins
}
NO_FILES = {name: field for name, field in OF_MODEL.items() if name not in FILES}


def settings_of(wanted: dict[str, Any], key: Any) -> list[Setting]:
    """Returns options as lines of a section; `key` chooses one of a field's keys."""
    return [
        Setting(key(FIELDS[name]), text)
        for name, value in wanted.items()
        for text in texts(FIELDS[name], value)
    ]


def keys(field: Field) -> list[str]:
    found = [name.lstrip("-") for name in field.names]
    return [*found, field.opt.env] if field.opt.env else found
