"""The models of a server: their names, and the options that their engines start with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.catalog.catalog import Catalog, open_catalog
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.options import Given, OptionError
from specllama.engine.shipped import MODEL_NAME, model_path
from specllama.handlers.options import NAMES as OPTIONS
from specllama.handlers.options import parse
from specllama.handlers.options.arguments import arguments
from tests.support.logits import logits
from tests.support.model_files import cache, write
from tests.support.options_support import model_options
from tools.models.zoo import CHAT, EMBEDDER, OTHER_CHAT, RERANKER, split_model, write_zoo
from tools.models.zoo import NAMES as ZOO


def opened(hub: Path, *argv: str, **environ: str) -> Catalog:
    variables = {"HF_HUB_CACHE": str(hub), **environ}
    options = parse(argv, variables)
    return open_catalog(options.model, options.router, Given(OPTIONS, variables, argv))


def with_presets(hub: Path, text: str, *argv: str, **environ: str) -> Catalog:
    file = hub.parent / "models.ini"
    file.write_text(text, "utf-8")
    return opened(hub, "--models-preset", str(file), *argv, **environ)


# ---- one model -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["-m", "{file}"], "{file}"),
        (["-m", "{file}", "--alias", "b,a"], "a"),
        (["-hf", "u/r:Q8_0"], "u/r:Q8_0"),
        (["-hf", "u/r", "-a", "x"], "x"),
        (["-dr", "gemma3:4B"], "gemma3:4B"),
        (["-mu", "http://localhost/a/x.gguf?download=true"], "x.gguf"),
    ],
)
def test_a_named_model_is_the_only_one(hub: Path, argv: list[str], name: str) -> None:
    file = str(model_path())
    catalog = opened(hub, *(argument.format(file=file) for argument in argv))
    [entry] = catalog.entries.values()
    assert not catalog.router
    assert entry.name == catalog.default == name.format(file=file)
    assert entry.source == "command_line"
    assert entry.load_on_startup
    assert catalog.find("anything") is catalog.find("") is entry


def test_whether_the_only_model_is_in_the_cache(hub: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf")
    found = [
        opened(hub, *argv).find("")
        for argv in (["-hf", "u/r:q8_0"], ["-hf", "u/r:Q4_0"], ["-m", str(model_path())])
    ]
    assert [entry.in_cache for entry in found if entry] == [True, False, False]


# ---- many models -----------------------------------------------------------------------------


def test_the_shipped_model_alone(hub: Path) -> None:
    catalog = opened(hub, "--temp", "0.5", "--alias", "tiny", "--tags", "small")
    [entry] = catalog.entries.values()
    assert catalog.router
    assert (entry.name, entry.source, entry.load_on_startup) == (MODEL_NAME, "shipped", True)
    assert (entry.aliases, entry.tags) == (("tiny",), ("small",))
    assert (entry.options.engine.model.model, entry.options.engine.sampling.temp) == ("", 0.5)
    assert catalog.find("tiny") is catalog.find(MODEL_NAME) is catalog.find("") is entry
    assert catalog.find("unknown") is entry, "where there is one, any name will do"
    assert catalog.named("unknown") is None


def test_models_of_all_sources(hub: Path, models: Path) -> None:
    snapshot = cache(hub, "u/r", "x-Q8_0.gguf", "mmproj-F16.gguf")
    write(models, "a.gguf")
    catalog = with_presets(
        hub,
        f"[p]\nmodel = {model_path()}\n[far]\nhf-repo = v/s:Q4_0\n",
        *("--models-dir", str(models)),
    )
    found = {
        name: (
            entry.source,
            entry.in_cache,
            entry.options.engine.model.model,
            entry.options.source.hf_repo,
        )
        for name, entry in catalog.entries.items()
    }
    assert list(found.items()) == [
        ("a", ("models_dir", False, str(models / "a.gguf"), "")),
        ("far", ("preset", False, "", "v/s:Q4_0")),
        ("p", ("preset", False, str(model_path()), "")),
        (MODEL_NAME, ("shipped", False, "", "")),
        ("u/r:Q8_0", ("cache", True, str(snapshot / "x-Q8_0.gguf"), "u/r:Q8_0")),
    ]
    assert catalog.entries["u/r:Q8_0"].options.engine.media.mmproj == str(
        snapshot / "mmproj-F16.gguf"
    )
    assert "--hf-repo" in arguments(catalog.entries["u/r:Q8_0"].options)


def test_a_projector_can_be_left_out(hub: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf", "mmproj-F16.gguf")
    assert opened(hub, "--no-mmproj").entries["u/r:Q8_0"].options.engine.media.mmproj == ""


def test_precedence(hub: Path, models: Path) -> None:
    write(models, "a.gguf", "b.gguf")
    catalog = with_presets(
        hub,
        "[*]\nc = 100\nb = 200\ntemp = 0.1\nstop-timeout = 3\n"
        f"[a]\nmodel = {model_path()}\nc = 101\ntemp = 0.2\nmin-p = 0.3\nstop-timeout = 4\n",
        *("--models-dir", str(models), "--temp", "0.9"),
        LLAMA_ARG_CTX_SIZE="1",
        LLAMA_ARG_BATCH="2",
        LLAMA_ARG_UBATCH="3",
    )
    a, b = catalog.entries["a"], catalog.entries["b"]

    def said(entry: CatalogEntry) -> tuple[Any, ...]:
        options = entry.options
        return (
            *(
                options.engine.context.ctx_size,
                options.engine.context.batch_size,
                options.engine.context.ubatch_size,
            ),
            *(options.engine.sampling.temp, options.engine.sampling.min_p, entry.stop_timeout),
        )

    assert said(a) == (101, 200, 3, 0.9, 0.3, 4)
    assert said(b) == (100, 200, 3, 0.9, model_options().engine.sampling.min_p, 3)


def test_a_section_can_configure_a_known_model(hub: Path, models: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf", "x-F16.gguf")
    write(models, "a.gguf")
    catalog = with_presets(
        hub,
        f"[a]\nc = 1\n[u/r:f16]\nc = 2\n[{MODEL_NAME}]\nc = 3\n[u/r]\nc = 4\nalias = r\n",
        *("--models-dir", str(models)),
    )
    found = {
        name: (e.source, e.options.engine.context.ctx_size) for name, e in catalog.entries.items()
    }
    assert found == {
        "a": ("preset", 1),
        "u/r:F16": ("preset", 2),
        "u/r:Q8_0": ("cache", -1),
        "u/r": ("preset", 4),
        MODEL_NAME: ("shipped", 3),
    }
    by_repository = catalog.find("r")
    assert by_repository is not None
    assert by_repository.options.source.hf_repo == "u/r:Q8_0"
    assert by_repository.options.engine.model.model.endswith("x-Q8_0.gguf")


def test_a_section_can_replace_a_known_model(hub: Path, models: Path) -> None:
    write(models, "a/x.gguf", "a/mmproj.gguf")
    text = f"[a]\nmodel = {model_path()}\n[{MODEL_NAME}]\nhf-repo = u/r\n"
    catalog = with_presets(hub, text, "--models-dir", str(models))
    a, shipped = catalog.entries["a"], catalog.entries[MODEL_NAME]
    assert (a.source, a.options.engine.model.model, a.options.engine.media.mmproj) == (
        "preset",
        str(model_path()),
        "",
    )
    assert (shipped.source, shipped.options.source.hf_repo) == ("preset", "u/r")


def test_a_section_can_name_a_model_of_a_registry(hub: Path) -> None:
    for key in ("docker-repo", "LLAMA_ARG_DOCKER_REPO"):
        entry = with_presets(hub, f"[x]\n{key} = box:5000/tiny\n").entries["x"]
        assert (entry.source, entry.in_cache) == ("preset", False)
        assert entry.options.source.docker_repo == "box:5000/tiny"
        assert arguments(entry.options)[1:3] == ["--docker-repo", "box:5000/tiny"]


def test_a_section_can_name_a_model_by_a_shortcut(hub: Path) -> None:
    entry = with_presets(hub, "[x]\nfim-qwen-1.5b-default = true\n").entries["x"]
    assert entry.source == "preset"
    assert entry.options.source.hf_repo


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[x]\nmodel = {0}\nalias = a\n[y]\nmodel = {0}\nalias = a\n", '[y]: the alias "a" is'),
        ("[x]\nmodel = {0}\nalias = y\n[y]\nmodel = {0}\n", '[x]: the alias "y" is the name'),
        (f"[x]\nmodel = {{0}}\nalias = {MODEL_NAME}\n", "the name of the model"),
        ("[*]\nlora = /missing.gguf\n", "models.ini:1: [*]"),
        ("[*]\nhf-repo = u/r\n", "models.ini:1: [*]"),
    ],
)
def test_files_that_cannot_be_used(hub: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        with_presets(hub, text.replace("{0}", str(model_path())))
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[x]\nc = 1\n", "models.ini:1: [x]: there is no such model on this machine"),
        ("[u/r:Q8_0]\n", "models.ini:1: [u/r:Q8_0]: there is no such model on this machine"),
        ("[x]\nmodel = /missing.gguf\n", "/missing.gguf"),
        ("[x]\nmodel = {0}\nmmproj = /missing.gguf\n", "--mmproj"),
        ("[x]\nmodel = {0}\nc = many\n", 'models.ini:3: c: "many"'),
        ("[x]\nmodel = {0}\nload-on-startup = true\nc = many\n", "models.ini:4: c: "),
        ("[x]\nmodel = {0}\nnonsense = 1\n", "models.ini:3: nonsense: unknown key"),
    ],
)
def test_a_section_that_cannot_be_used_is_a_model_with_a_fault(
    hub: Path, text: str, fault: str
) -> None:
    """All others are served, and so is it as soon as it can be."""
    text = text.replace("{0}", str(model_path())) + f"[good]\nmodel = {model_path()}\n"
    catalog = with_presets(hub, text)
    [bad] = catalog.entries.keys() - {"good", MODEL_NAME}
    entry = catalog.entries[bad]
    assert fault in entry.fault
    assert entry.fault.isprintable()
    assert entry.options.engine.model.model, "it would be the shipped model"
    assert not entry.load_on_startup
    assert not catalog.entries["good"].fault
    assert catalog.default != bad


@pytest.mark.parametrize(
    ("section", "args"),
    [
        ("[x]\nmodel = /missing\nc = 256\n", "--model /missing --ctx-size 256"),
        ("[x]\nmodel = /m\nc = many\nnonsense = 1\n", "--model /m --ctx-size 512"),
        ("[x]\nmodel = /m\nmlock = 1\ndio = 1\n", "--model /m --ctx-size 512 --mlock --direct-io"),
        ("[x]\nhf-repo = u/s\nlora = /l\n", "--hf-repo u/s --ctx-size 512 --lora /l"),
        ("[u/r:q8_0]\nc = many\n", "--hf-repo u/r:Q8_0 --ctx-size 512"),
        ("[u/r:q8_0]\nmodel = /missing\n", "--model /missing --ctx-size 512"),
        ("[x]\nc = 256\n", "--model x --ctx-size 256"),
        # If shortcuts exclude each other, the whole section has no effect.
        ("[x]\nfim-qwen-3b-default = 1\ngpt-oss-20b-default = 1\n", "--model x --ctx-size 512"),
    ],
)
def test_a_model_with_a_fault_has_the_options_of_its_section(
    hub: Path, section: str, args: str
) -> None:
    """As far as they can be read."""
    cache(hub, "u/r", "x-Q8_0.gguf")
    catalog = with_presets(hub, f"[*]\nc = 512\n{section}", "--alias", "name")
    [entry] = [entry for entry in catalog.entries.values() if entry.fault]
    assert entry.source == "preset"
    assert sorted(arguments(entry.options)) == sorted(["specllama", *args.split()])


def test_an_option_that_protects_ends_the_start(hub: Path) -> None:
    text = f"[x]\nmodel = {model_path()}\n"
    for line in ("api-key = secret", "api-keys = secret", "ssl-crt-file = a"):
        with pytest.raises(OptionError, match="protect"):
            with_presets(hub, f"{text}{line}\n")


def test_a_refused_section_leaves_the_others(hub: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf")
    text = f"[u/r:q8_0]\nnonsense = 1\n[x]\nmodel = {model_path()}\n[y]\nnonsense = 1\n"
    catalog = with_presets(hub, text)
    faults = {name: entry.fault for name, entry in catalog.entries.items() if entry.fault}
    assert faults.keys() == {"u/r:Q8_0", "y"}
    assert faults["y"].endswith("models.ini:6: nonsense: unknown key")
    assert "the model u/r:Q8_0 can't be served: " in caplog.text
    assert "models.ini:6: nonsense: unknown key" in caplog.text
    with pytest.raises(OptionError, match=r"models\.ini:2: nonsense: unknown key"):
        with_presets(hub, f"[{MODEL_NAME}]\nnonsense = 1\n")


def test_a_model_of_the_cache_that_a_preset_has_too(hub: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf", "x-F16.gguf")
    text = "[own]\nhf-repo = u/r:q8_0\n"
    assert not with_presets(hub, text).entries["u/r:Q8_0"].hidden
    catalog = with_presets(hub, text + "dedup-cache-models = true\n")
    hidden = [name for name, entry in catalog.entries.items() if entry.hidden]
    assert hidden == [MODEL_NAME, "u/r:Q8_0"]
    assert catalog.find("u/r:Q8_0"), "it can still be named"


def test_a_draft_model_of_the_cache_that_a_preset_has_too(hub: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf")
    cache(hub, "u/draft", "y-F16.gguf")
    text = "[own]\nhf-repo = u/r\nspec-draft-hf = u/draft\n"
    assert not with_presets(hub, text).entries["u/draft:F16"].hidden
    catalog = with_presets(hub, text + "dedup-cache-models = true\n")
    hidden = {name for name, entry in catalog.entries.items() if entry.hidden}
    assert hidden == {MODEL_NAME, "u/r:Q8_0", "u/draft:F16"}


def test_two_sections_of_one_model(hub: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf")
    with pytest.raises(OptionError, match=r"ini:2: \[u/r:q8_0\] is the same model as .*ini:1:"):
        with_presets(hub, "[u/r:Q8_0]\n[u/r:q8_0]\n")


def test_the_command_line_names_the_default_model_alone(hub: Path, models: Path) -> None:
    write(models, "a.gguf", "b.gguf")
    catalog = opened(hub, "--models-dir", str(models), "--alias", "x", "--tags", "t")
    assert {name: (e.aliases, e.tags) for name, e in catalog.entries.items()} == {
        "a": (("x",), ("t",)),
        "b": ((), ()),
        MODEL_NAME: ((), ()),
    }
    with pytest.raises(OptionError, match='"b"'):
        opened(hub, "--models-dir", str(models), "--alias", "b")


def test_a_file_with_the_shipped_models_name(
    hub: Path, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(models, f"{MODEL_NAME}.gguf")
    catalog = opened(hub, "--models-dir", str(models))
    assert catalog.entries[MODEL_NAME].source == "shipped"
    assert "is ignored" in caplog.text


@pytest.mark.parametrize(
    ("files", "sections", "default", "loaded"),
    [
        ([], {}, MODEL_NAME, {MODEL_NAME}),
        (["a.gguf"], {}, "a", set()),
        (["a.gguf", "b.gguf"], {}, "a", set()),
        (["a.gguf", "b.gguf"], {"b": ""}, "b", set()),
        (["a.gguf", "b.gguf"], {"b": "c = many"}, "a", set()),
        (["a.gguf"], {"a": "c = many"}, "a", set()),
        (["a.gguf", "b.gguf"], {"a": "embedding = on", "b": ""}, "b", set()),
        (["a.gguf", "b.gguf"], {MODEL_NAME: ""}, MODEL_NAME, {MODEL_NAME}),
        (["a.gguf"], {"a": ""}, "a", set()),
        ([], {MODEL_NAME: ""}, MODEL_NAME, {MODEL_NAME}),
        (["a.gguf", "b.gguf"], {"b": "load-on-startup = 1"}, "b", {"b"}),
        (["a.gguf", "b.gguf"], {"b": "load-on-startup = 1", "a": "load-on-startup = 1"}, "b", None),
        (["a.gguf"], {MODEL_NAME: "load-on-startup = 1"}, MODEL_NAME, {MODEL_NAME}),
    ],
)
def test_the_default_model(
    hub: Path,
    models: Path,
    files: list[str],
    sections: Mapping[str, str],
    default: str,
    loaded: set[str] | None,
) -> None:
    for file in files:
        (models / file).write_bytes(model_path().read_bytes())
    text = "".join(f"[{name}]\n{line}\n" for name, line in sections.items())
    catalog = with_presets(hub, text, "--models-dir", str(models))
    at_start = {name for name, entry in catalog.entries.items() if entry.load_on_startup}
    assert catalog.default == default
    assert at_start == ({"a", "b"} if loaded is None else loaded)


@pytest.mark.parametrize(
    ("argv", "text", "listed"),
    [
        ([], "", {MODEL_NAME}),
        (["--no-models-shipped"], "", {MODEL_NAME}),
        ([], "[p]\nmodel = {}\n", {"p"}),
        ([], "[p]\nmodel = /missing.gguf\n", {"p"}),
        (["--models-shipped"], "[p]\nmodel = {}\n", {"p", MODEL_NAME}),
        ([], f"[p]\nmodel = {{}}\n[{MODEL_NAME}]\n", {"p", MODEL_NAME}),
    ],
)
def test_the_shipped_model_is_listed_where_nothing_else_is(
    hub: Path, argv: list[str], text: str, listed: set[str]
) -> None:
    catalog = with_presets(hub, text.format(model_path()), *argv)
    assert {entry.name for entry in catalog.listed()} == listed
    assert catalog.default in listed
    assert catalog.entries.keys() == {*listed, MODEL_NAME}, "it can always be named"
    assert catalog.entries[MODEL_NAME].load_on_startup is (catalog.default == MODEL_NAME)


def test_a_cached_model_takes_the_place_of_the_shipped_one(hub: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf", "x-F16.gguf")
    catalog = opened(hub)
    assert [entry.name for entry in catalog.listed()] == ["u/r:F16", "u/r:Q8_0"]
    assert catalog.default == "u/r:F16"
    left = [each for name, each in catalog.entries.items() if name != "u/r:F16"]
    catalog.replace(left, catalog.default)
    assert catalog.default == "u/r:Q8_0"
    assert catalog.near("tiny") == []


def test_the_zoo(hub: Path, tmp_path: Path) -> None:
    zoo = write_zoo(tmp_path / "zoo")
    catalog = opened(hub, *zoo.arguments())
    assert catalog.entries.keys() == {*ZOO, MODEL_NAME}
    assert {name for name in ZOO if catalog.entries[name].options.engine.embedding.embeds()} == {
        EMBEDDER,
        RERANKER,
    }
    chat, other = (logits(str(zoo.path(name))) for name in (CHAT, OTHER_CHAT))
    assert chat.argmax() != other.argmax()


# ---- unknown names -------------------------------------------------------------------


NAMES = ("ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", "qwen2.5-coder", "Llama-3.2-1B", "x")


def catalog_of(*names: str, aliases: tuple[str, ...] = ()) -> Catalog:
    entries = [CatalogEntry(name=name, source="preset", options=model_options()) for name in names]
    entries[0] = CatalogEntry(
        name=names[0], source="preset", options=model_options(), aliases=aliases
    )
    return Catalog(entries, default=names[0], router=True)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gemma", [NAMES[0]]),
        ("GEMMA3 4b", [NAMES[0]]),
        ("gpt-4", [NAMES[0]]),
        ("lama-3.2-1b", [NAMES[2]]),
        ("qwen25coder", [NAMES[1]]),
        ("quen2.5-coder", [NAMES[1]]),
        ("zzzzzzzz", []),
        ("", []),
        ("---", []),
    ],
)
def test_near_names(name: str, near: list[str]) -> None:
    assert catalog_of(*NAMES, aliases=("gpt-4o",)).near(name) == near


@settings(deadline=None)
@given(st.text(), st.lists(st.text(min_size=1), min_size=1, max_size=20, unique=True))
def test_near_names_of_anything(name: str, names: list[str]) -> None:
    near = catalog_of(*names).near(name)
    assert len(near) == len(set(near)) <= 5
    assert set(near) <= set(names)


def test_near_names_of_a_long_text() -> None:
    assert catalog_of(*(f"{number}{'a' * 190}" for number in range(20))).near("a" * 10**6) != []


# ---- a model in parts ------------------------------------------------------------------------


def test_a_split_model_computes_as_a_whole_one(tmp_path: Path) -> None:
    parts = split_model(model_path(), tmp_path, "x", 3)
    assert parse(["-m", str(parts[0])], {}).model.engine.model.model == str(parts[0])
    assert np.array_equal(logits(str(parts[0])), logits(str(model_path())))


def test_split_models_that_are_named_wrong_or_not_whole(tmp_path: Path) -> None:
    parts = split_model(model_path(), tmp_path, "x", 3)
    with pytest.raises(OptionError, match=r"part 2 .* name the first part, .*x-00001-of-00003"):
        parse(["-m", str(parts[1])], {})
    parts[2].write_bytes(b"")
    with pytest.raises(OptionError, match=r"--model: .*x-00003-of-00003.gguf\" is empty"):
        parse(["-m", str(parts[0])], {})
    parts[2].unlink()
    with pytest.raises(OptionError, match=r"--model: .* cannot open .*x-00003-of-00003"):
        parse(["-m", str(parts[0])], {})
