"""The file of a deployment: its meaning, and one line about each error."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specllama.deployment import AUTOSCALING_KEYS, Deployment, DeploymentError, read
from specllama.deployment_yaml import MAX_SIZE
from tests.support.covering import examples

TINY = "models: {specllama-tiny: }"
WHOLE = """
server:
  port: 9000
  api-key: [first, second]
  cors_origins: "https://a.example"
  metrics: true
  LLAMA_ARG_MAX_QUEUE: 7
ingress:
  replicas: 3
  cpus: 0.5
models:
  small:
    replicas: 2
    gpus: 0.25
    resources: {head: 0.1}
    options:
      model: small.gguf
      ctx-size: 4096
      alias: tiny, little
      tags: [fast, cheap]
      reverse-prompt: ["###", "a,b"]
      no-mmap: true
      temp: 0.5
  large:
    autoscaling:
      min_replicas: 0
      max_replicas: 4
      downscale_delay_s: 60.5
    options:
      hf-repo: ggml-org/large-GGUF:Q4_0
      hf-token: hf_secret
"""


def meaning(text: str) -> Deployment:
    return read(text, "deploy.yaml")


def message(text: str, *, files: bool = False) -> str:
    """Returns the error about a file, which has one line."""
    with pytest.raises(DeploymentError) as caught:
        read(text, "deploy.yaml", server_files=files, model_files=files)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith("deploy.yaml:")
    return said.removeprefix("deploy.yaml:").strip()


# ---- valid files ------------------------------------------------------------------------


def test_a_short_file() -> None:
    found = meaning(TINY)
    assert [*found.models] == ["specllama-tiny"]
    assert found.models["specllama-tiny"].replicas == 1
    assert found.ingress.replicas == 1
    assert found.ingress.place == "deploy.yaml:1"


def test_a_whole_file() -> None:
    found = meaning(WHOLE)
    assert found.server.http.port == 9000
    assert found.server.http.api_key == ("first", "second")
    assert found.server.http.cors_origins
    assert found.server.model.operations.metrics
    assert found.server.model.engine.context.max_queue == 7
    assert (found.ingress.replicas, found.ingress.cpus) == (3, 0.5)
    small, large = found.models["small"], found.models["large"]
    assert (small.replicas, small.cpus, small.gpus, small.resources) == (2, 1, 0.25, {"head": 0.1})
    assert small.place == "deploy.yaml:13"
    assert large.may_be_none
    assert large.autoscaling == {"min_replicas": 0, "max_replicas": 4, "downscale_delay_s": 60.5}
    options = found.options["small"].engine
    assert options.context.ctx_size == 4096
    assert options.sampling.reverse_prompt == ("###", "a,b")
    assert options.sampling.temp == 0.5
    assert not options.model.mmap
    assert found.options["small"].entry.tags == ("fast", "cheap")
    assert found.options["large"].source.hf_token == "hf_secret"


def test_the_catalog_has_all_models() -> None:
    catalog = meaning(WHOLE).catalog()
    assert [*catalog.entries] == ["large", "small"]
    assert catalog.router
    assert catalog.default == "small"  # the first one of the file
    assert all(each.load_on_startup and each.pin for each in catalog.entries.values())
    for name in ("tiny", "little", "small"):
        entry = catalog.find(name)
        assert entry is not None
        assert entry.name == "small"
        assert entry.tags == ("fast", "cheap")
    assert catalog.find("other") is None
    alone = meaning(TINY).catalog()
    assert not alone.router
    assert alone.find("any") is not None


def test_an_alias_may_be_the_model_s_own_name() -> None:
    text = "models: {small: {options: {model: x.gguf, alias: 'small,tiny'}}}"
    assert meaning(text).catalog().entries["small"].aliases == ("tiny",)


def test_files_are_checked_where_they_are_used() -> None:
    text = "models:\n  small:\n    options:\n      ctx-size: 4\n      model: /nonexistent/x.gguf\n"
    assert meaning(text)
    said = message(text, files=True)
    assert said.startswith("5: ")
    assert "/nonexistent/x.gguf" in said


def test_a_file_of_the_server_has_its_line() -> None:
    said = message(f"server:\n  port: 1\n  keys-file: /nonexistent/keys\n{TINY}", files=True)
    assert said.startswith("3: --keys-file: ")


# ---- errors -----------------------------------------------------------------------------


def in_server(*lines: str) -> str:
    return "\n".join(["server:", *(f"  {line}" for line in lines), TINY])


def in_options(*lines: str) -> str:
    whole = ["models:", "  small:", "    options:", "      model: x.gguf"]
    return "\n".join([*whole, *(f"      {line}" for line in lines)])


def in_model(*lines: str) -> str:
    return "\n".join(["models:", "  specllama-tiny:", *(f"    {line}" for line in lines)])


ERRORS: dict[str, tuple[str, str]] = {
    # YAML
    "nothing": ("", "the file is empty; it needs models"),
    "a comment": ("# later\n", "the file is empty; it needs models"),
    "a tab": ("models:\n\tsmall:", "2: this is no valid YAML: found character '\\t'"),
    "an open quote": ('models:\n  "small:', "2: this is no valid YAML: found unexpected end"),
    "an open bracket": ("models: {a: [", "1: this is no valid YAML: "),
    "two colons": ("models: a: b", "1: this is no valid YAML: mapping values are not allowed"),
    "indentation": ("models:\n    a:\n  b:\n", "3: this is no valid YAML: "),
    "two documents": (f"{TINY}\n---\n{TINY}", "2: this is no valid YAML: but found another"),
    "an alias": ("models: *other", "1: this is no valid YAML: found undefined alias 'other'"),
    "a control character": ("models:\n  a\x01:", "2: this is no valid YAML: the character '\\x01'"),
    "very deep": ("[" * 10_000, "this is no valid YAML: it is nested too deeply"),
    "very long": ("#" * (MAX_SIZE + 1), f"longer than {MAX_SIZE} characters"),
    # sections
    "a text": ("models", "1: the file has to be a mapping: lines of `name: value`"),
    "a list": ("- models", "1: the file has to be a mapping: lines of `name: value`"),
    "no models": ("server: {port: 1}", "1: models is missing: the models to serve, by name"),
    "empty models": ("models:", "1: models is empty: it needs a model, by its name"),
    "models as a list": ("models:\n- small", "2: models has to be a mapping: lines of `name"),
    "misspelled section": (
        f"modles: 1\n{TINY}",
        "1: the file: modles is unknown (did you mean mod",
    ),
    "another section": (
        f"x: 1\n{TINY}",
        "1: the file: x is unknown; there are server, ingress, mo",
    ),
    "a section twice": (
        f"{TINY}\n{TINY}",
        "2: the file: models is there twice; it is in line 1, t",
    ),
    "server as a text": (f"server: on\n{TINY}", "1: server has to be a mapping: lines of `name: v"),
    "a name that is a list": ("models: {[a]: }", "1: models: a name has to be a plain text"),
    "merged lines": (
        "models: {specllama-tiny: &x {}, b: {<<: *x}}",
        "1: models.b: << can't be used here: repeat the lines",
    ),
    # models
    "a model as a text": ("models: {small: x.gguf}", "1: models.small has to be a mapping"),
    "a model without a file": (
        "models:\n  small:\n    options:\n      ctx-size: 1\n",
        "3: models.small: options has to name the model: model (a path), hf-repo, model-url or",
    ),
    "two sources of a model": (
        in_options("hf-repo: a/b"),
        "5: hf-repo: excludes --model",
    ),
    "an unknown key of a model": (
        in_model("replica: 2"),
        "3: models.specllama-tiny: replica is unknown (did you mean replicas?)",
    ),
    "an option beside the keys": (
        in_model("ctx-size: 2"),
        "3: models.specllama-tiny: ctx-size is unknown; there are replicas, autoscaling, cpus,",
    ),
    "a name without letters": ('models: {" ": }', '1: models: " " is no name of a model'),
    "a name with a line break": ('models: {"a\\nb": }', '1: models: "a\\nb" is no name of a'),
    "a model twice": (
        "models:\n  a: {}\n  a: {}",
        "3: models: a is there twice; it is in line 2, too",
    ),
    "an alias that is a name": (
        "models:\n  a: {options: {model: x}}\n  b: {options: {model: y, alias: a}}",
        "3: models.b: the alias a is a name of the model a",
    ),
    "the same alias twice": (
        "models:\n  a: {options: {model: x, alias: c}}\n  b: {options: {model: y, alias: c}}",
        "3: models.b: the alias c is a name of the model a",
    ),
    # numbers
    "no replicas": (
        in_model("replicas: 0"),
        "3: models.specllama-tiny.replicas has to be a number f",
    ),
    "half a replica": (
        in_model("replicas: 1.5"),
        "3: models.specllama-tiny.replicas has to be a whole number",
    ),
    "very many replicas": (
        in_model("replicas: 1e99"),
        "3: models.specllama-tiny.replicas has to be",
    ),
    "replicas as a word": (
        in_model("replicas: two"),
        "3: models.specllama-tiny.replicas has to be",
    ),
    "replicas as a flag": (
        in_model("replicas: yes"),
        "3: models.specllama-tiny.replicas has to be",
    ),
    "replicas as a list": (
        in_model("replicas: [1]"),
        "3: models.specllama-tiny.replicas has to be",
    ),
    "no value": (
        in_model("replicas:"),
        "3: models.specllama-tiny.replicas has to be a number from",
    ),
    "not a number": (
        in_model("cpus: .nan"),
        "3: models.specllama-tiny.cpus has to be a number from",
    ),
    "infinity": (in_model("gpus: .inf"), "3: models.specllama-tiny.gpus has to be a number from 0"),
    "negative": (f"ingress: {{cpus: -1}}\n{TINY}", "1: ingress.cpus has to be a number from 0 to"),
    "a resource": (
        in_model("resources: {head: many}"),
        "3: models.specllama-tiny.resources.head has to be a number from 0 to",
    ),
    "a date that does not exist": (
        in_model("cpus: 2024-99-99"),
        "3: models.specllama-tiny.cpus: this value can't be read",
    ),
    "a Python object": (
        in_model("cpus: !!python/object/apply:os.getcwd []"),
        "3: models.specllama-tiny.cpus: this value can't be read",
    ),
    "a value that contains itself": (
        in_model("autoscaling: {policy: &a [*a]}"),
        "3: models.specllama-tiny.autoscaling.policy: this value can't be read",
    ),
    # autoscaling
    "both numbers": (
        in_model("replicas: 1", "autoscaling: {}"),
        "4: models.specllama-tiny: replicas and autoscaling exclude each other",
    ),
    "misspelled autoscaling": (
        in_model("autoscaling: {min_replica: 2}"),
        "3: models.specllama-tiny.autoscaling: min_replica is unknown (did you mean min_replicas?)",
    ),
    "fewer than the least": (
        in_model("autoscaling: {min_replicas: 3, max_replicas: 2}"),
        "3: models.specllama-tiny.autoscaling: max_replicas is 2; it has to be at least 1, and at",
    ),
    "no ingress": (
        f"ingress: {{autoscaling: {{min_replicas: 0}}}}\n{TINY}",
        "1: ingress: min_replicas has to be at least 1: without a process, no request has an",
    ),
    # options of the server
    "a misspelled option": (in_server("prot: 1"), "2: prot: unknown key (did you mean port?)"),
    "an option with dashes": (
        in_server("--port: 1"),
        "2: --port: write keys without leading dashes",
    ),
    "a value out of range": (in_server("port: 70000"), '2: port: "70000" is out of range'),
    "a value of another type": (in_server("metrics: maybe"), '2: metrics: "maybe" is neither on n'),
    "a mapping as a value": (
        in_server("port: {http: 80}"),
        "2: server.port has to be a text, a number, or a list of these",
    ),
    "lists in a list": (
        in_server("api-key: [[a]]"),
        "2: server.api-key has to be a text, a number",
    ),
    "a list that contains itself": (
        in_server("api-key: &a [*a]"),
        "2: server.api-key has to be a text, a number, or a list of these",
    ),
    "an empty list": (
        in_server("api-key: []"),
        "2: server.api-key: the list is empty; leave the o",
    ),
    "an option without a value": (
        in_server("keys-file:"),
        "2: server.keys-file has no value; write one, or leave the option out",
    ),
    "an option with two names": (
        in_server("cors-origins: a", "port: 1", "cors_origins: b"),
        "4: server: cors_origins is the same option as cors-origins in line 2; remove one of them",
    ),
    "options that need each other": (
        in_server("port: 1", "ssl-cert-file: a.pem"),
        "3: --ssl-cert-file needs --ssl-key-file as well",
    ),
    "an option that is not available": (in_server("rpc-server: x"), "2: rpc-server"),
    "models-dir": (
        in_server("models-dir: /models"),
        "2: models-dir has no effect: the section models lists the models, which all stay loaded",
    ),
    "models-max": (in_server("models_max: 2"), "2: models_max has no effect: the section models"),
    "an option of a model": (
        in_server("ctx-size: 4096"),
        "2: ctx-size is an option of a model: write it into models.NAME.options",
    ),
    "the model itself": (in_server("m: x.gguf"), "2: m is an option of a model: write it into"),
    "a variable of a model": (
        in_server("LLAMA_ARG_CTX_SIZE: 1"),
        "2: LLAMA_ARG_CTX_SIZE is an option of a model: write it into models.NAME.options",
    ),
    "an option that prints": (
        in_server("version: on"),
        "2: version is for the command line: it pri",
    ),
    # options of a model
    "misspelled": (in_options("ctx-sise: 1"), "5: ctx-sise: unknown key (did you mean ctx-size?)"),
    "a wrong value": (in_options("ctx-size: much"), '5: ctx-size: "much" is not a whole number'),
    "a port": (
        in_options("port: 1"),
        "5: port concerns the whole server: write it into the section",
    ),
    "protection": (in_options("api-key: x"), "5: api-key concerns the whole server: write it into"),
    "unknown protection": (
        in_options("ssl-certificate: x"),
        "5: ssl-certificate: unknown key that may have been meant to protect the server",
    ),
    "sleep": (
        in_options("sleep-idle-seconds: 60"),
        "5: sleep-idle-seconds has no effect here: autoscaling with min_replicas: 0 unloads a",
    ),
    "a flag and its opposite": (
        in_options("mmap: on", "no-mmap: on"),
        "6: models.small.options: no-mmap is the same option as mmap in line 5; remove one of them",
    ),
    "contradictions": (
        in_options("ctx-size: 1", "mlock: on", "direct-io: on"),
        "6: --mlock excludes --direct-io, which bypasses the page cache",
    ),
    "a contradiction in no line": (in_options("hf-file: x"), "5: --hf-file names a file of a repo"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_names_its_line_and_its_remedy(name: str) -> None:
    text, said = ERRORS[name]
    assert message(text).startswith(said), message(text)


SECRETS = {
    "a token": in_options("hf-token: 'SECRET ü'"),
    "a token as a mapping": in_options("hf-token: {SECRET: 1}"),
    "a key as a mapping": in_server("api-key: {a: SECRET}"),
    "a key twice": in_server("api-key: SECRET", "api_key: SECRET"),
    "keys in a list of lists": in_server("api-key: [[SECRET]]"),
    "a key of a model": in_options("api-key: SECRET"),
    "a quote": in_server('api-key: "SECRET'),
    "a colon": in_server("api-key: SECRET: x"),
    "a tab": in_server("api-key: SECRET\n\tport: 1"),
    "a null character": in_server("api-key: SECRET\0"),
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_message_has_no_secret(name: str) -> None:
    assert "SECRET" not in message(SECRETS[name])


def test_ray_knows_the_settings_of_the_autoscaling() -> None:
    config = pytest.importorskip("ray.serve.config")
    assert {*config.AutoscalingConfig.model_fields} == {*AUTOSCALING_KEYS}


# ---- any file ---------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["server", "models", "ingress", "options", "replicas", "port", "ctx-size", "a", "", "<<", "1"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES | st.fixed_dictionaries({"models": VALUES}) | st.text(max_size=60))
@examples(100)
def test_any_file_is_read_or_has_one_line_about_its_error(content: Any) -> None:
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    said = "deploy.yaml:"
    try:
        read(text, "deploy.yaml")
    except DeploymentError as error:
        said = str(error)
    assert said.startswith("deploy.yaml:")
    assert "\n" not in said
