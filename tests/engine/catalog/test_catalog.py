"""Where models are found, by what names, and with what options their engines are started."""

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.catalog.cache import cached_models, named
from engine.catalog.catalog import Catalog, open_catalog
from engine.catalog.directory import models_in
from engine.catalog.entry import Entry
from engine.formats.gguf_names import Part, best_projector, is_model, part, quantization, stem
from engine.options import Given, OptionError
from engine.shipped import MODEL_NAME, model_path
from handlers.options import NAMES as OPTIONS
from handlers.options import parse
from handlers.options.arguments import arguments
from tests.support.logits import logits
from tests.support.options_support import model_options
from tools.models.zoo import CHAT, EMBEDDER, OTHER_CHAT, RERANKER, split_model, write_zoo
from tools.models.zoo import NAMES as ZOO

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GGUF = b"GGUF"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    directory.mkdir()
    return directory


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    directory = tmp_path / "hub"
    directory.mkdir()
    return directory


def write(directory: Path, *names: str) -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(GGUF)


def cache(hub: Path, repository: str, *names: str, ref: str = "main") -> Path:
    """Put files into the cache, as the hub's library does it; their folder."""
    folder = hub / ("models--" + repository.replace("/", "--"))
    snapshot = folder / "snapshots" / COMMIT
    for number, name in enumerate(names):
        blob = folder / "blobs" / str(number)
        write(blob.parent, blob.name)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(blob)
    (folder / "refs").mkdir()
    (folder / "refs" / ref).write_text(COMMIT)
    return snapshot


def opened(hub: Path, *argv: str, **environ: str) -> Catalog:
    variables = {"HF_HUB_CACHE": str(hub), **environ}
    options = parse(argv, variables)
    return open_catalog(options.model, options.router, Given(OPTIONS, variables, argv))


def with_presets(hub: Path, text: str, *argv: str, **environ: str) -> Catalog:
    file = hub.parent / "models.ini"
    file.write_text(text, "utf-8")
    return opened(hub, "--models-preset", str(file), *argv, **environ)


def in_directory(directory: Path) -> dict[str, tuple[str, str]]:
    """File and projector of each model, relative to the directory."""
    return {
        model.name: (
            os.path.relpath(model.path, directory),
            os.path.relpath(model.projector, directory) if model.projector else "",
        )
        for model in models_in(str(directory))
    }


# ---- names of files --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("x-Q4_K_M.gguf", "Q4_K_M"),
        ("x-q8_0.gguf", "Q8_0"),
        ("x.f16.gguf", "F16"),
        ("Q4/x-BF16-00001-of-00002.gguf", "BF16"),
        ("x.gguf", ""),
        ("a-b/x.GGUF", ""),
    ],
)
def test_quantization(name: str, tag: str) -> None:
    assert quantization(name) == tag


@given(st.from_regex(r"[A-Za-z./-]*[A-Za-z.-]\Z"), st.integers(1, 99), st.integers(1, 99))
def test_names_of_parts_are_read_back(prefix: str, index: int, count: int) -> None:
    index = min(index, count)
    name = Part(prefix, index, count).file_name(index)
    assert part(name) == Part(prefix, index, count)
    assert stem(name) == prefix


@pytest.mark.parametrize(
    "name", ["x.gguf", "x-00004-of-00003.gguf", "x-00000-of-00003.gguf", "a/-00001-of-00003.gguf"]
)
def test_what_is_no_part(name: str) -> None:
    assert part(name) is None


@given(st.text())
def test_any_name_can_be_asked_about(name: str) -> None:
    assert quantization(name) == quantization(name).upper()
    assert stem(name) in name
    is_model(name)
    best_projector(name, [name])


@pytest.mark.parametrize(
    ("model", "best"), [("x-Q8_0.gguf", "mmproj-b-Q8_0.gguf"), ("x-BF16.gguf", "mmproj-F16.gguf")]
)
def test_the_projector_is_as_precise_as_the_model(model: str, best: str) -> None:
    names = ["mmproj-F16.gguf", "mmproj-b-Q8_0.gguf", "x-Q8_0.gguf", "mmproj.txt"]
    assert best_projector(model, names) == best


# ---- a directory -----------------------------------------------------------------------------


def test_models_in_files_and_folders(models: Path) -> None:
    write(models, "a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf")
    write(models, "one/whatever.gguf", "seeing/m.gguf", "seeing/mmproj-m.gguf")
    write(models, "parts/p-00001-of-00002.gguf", "parts/p-00002-of-00002.gguf")
    write(models, "two/a-Q4_0.gguf", "two/b.gguf")
    assert in_directory(models) == {
        "a": ("a.gguf", ""),
        "b": ("b-00001-of-00002.gguf", ""),
        "one": ("one/whatever.gguf", ""),
        "parts": ("parts/p-00001-of-00002.gguf", ""),
        "seeing": ("seeing/m.gguf", "seeing/mmproj-m.gguf"),
        "two/a-Q4_0": ("two/a-Q4_0.gguf", ""),
        "two/b": ("two/b.gguf", ""),
    }


def test_what_is_no_model_is_passed_over(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(models, "mmproj.gguf", "mtp-x.gguf", "imatrix.gguf", ".x.gguf", "read.me", "a/b/c.gguf")
    (models / "empty").mkdir()
    assert in_directory(models) == {}
    assert caplog.messages == []


def test_each_file_that_cannot_be_used_is_told_of(
    models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(models, "good.gguf", "part-00001-of-00003.gguf", "part-00003-of-00003.gguf")
    write(models, "good/other.gguf", "last-00002-of-00002.gguf", "two\nlines.gguf")
    (models / "nowhere.gguf").symlink_to(models / "gone")
    (models / "circle.gguf").symlink_to(models / "circle.gguf")
    os.mkfifo(models / "fifo.gguf")
    with open(os.fsencode(models) + b"/\xff.gguf", "wb"):
        pass
    assert list(in_directory(models)) == ["good"]
    told = "\n".join(caplog.messages)
    assert len(caplog.messages) == 8
    for text in ("part-00002", "last-00001", "good/other", "two\\nlines", "nowhere", "circle"):
        assert text in told
    for text in ("fifo", "\\udcff"):
        assert text in told


def test_links_are_followed(models: Path, tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/x.gguf")
    (models / "file.gguf").symlink_to(tmp_path / "elsewhere/x.gguf")
    (models / "folder").symlink_to(tmp_path / "elsewhere")
    (models / "itself").symlink_to(models)
    assert in_directory(models).keys() == {"file", "folder", "itself"}


def test_huge_directories_are_cut(
    models: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.catalog.directory.MAX_FILES", 10)
    write(models, *(f"{number}.gguf" for number in range(20)))
    assert len(in_directory(models)) == 10
    assert "more than 10 files" in caplog.text


def test_many_parts_cost_nothing(models: Path) -> None:
    write(models, *(f"{number}-00001-of-99999.gguf" for number in range(500)))
    assert in_directory(models) == {}


def test_a_directory_that_is_not_there(models: Path) -> None:
    with pytest.raises(OptionError, match="--models-dir"):
        models_in(str(models / "missing"))


_file_names = st.text("abQ480_-./\n\udcff", max_size=8).map(lambda s: s.replace("/", "-"))
_suffixes = st.sampled_from(
    [".gguf", ".GGUF", "-00001-of-00002.gguf", "-00002-of-00002.gguf", "", "-mmproj.gguf"]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", "f/", "g/"]), _file_names, _suffixes), max_size=12))
def test_any_directory_gives_files_that_are_there(names: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for folder, file, suffix in names:
            (directory / folder).mkdir(exist_ok=True)
            if file + suffix not in ("", ".", ".."):
                path = directory / folder / (file + suffix)
                if not path.is_dir():
                    path.write_bytes(b"")
        logging.disable(logging.WARNING)
        try:
            found = models_in(name)
        finally:
            logging.disable(logging.NOTSET)
        assert len({model.name for model in found}) == len(found)
        for model in found:
            assert os.path.isfile(model.path)
            assert model.name.isprintable()
            split = part(model.path)
            assert split is None or all(map(os.path.isfile, split.file_names()))


# ---- the hub's cache -------------------------------------------------------------------------


def test_cached_models_and_their_names(hub: Path) -> None:
    cache(hub, "u/r", "x-Q4_0.gguf", "x-q8_0.gguf", "mmproj-x-F16.gguf", "README.md")
    cache(hub, "u/split", "Q2_K/x-Q2_K-00001-of-00002.gguf", "Q2_K/x-Q2_K-00002-of-00002.gguf")
    cache(hub, "u/plain", "x.gguf")
    (hub / "datasets--u--d").mkdir()
    found = {model.name: model for model in cached_models(hub)}
    assert list(found) == ["u/plain", "u/r:Q4_0", "u/r:Q8_0", "u/split:Q2_K"]
    assert found["u/split:Q2_K"].size == 2 * len(GGUF)
    assert Path(found["u/r:Q8_0"].path).name == "x-q8_0.gguf"
    assert Path(found["u/r:Q8_0"].projector).name == "mmproj-x-F16.gguf"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("u/r:q8_0", "u/r:Q8_0"),
        ("u/r", "u/r:Q4_K_M"),
        ("u/other", "u/other:F16"),
        ("u/r:Q2_K", None),
        ("u/none", None),
        ("u/r:", None),
    ],
)
def test_which_cached_model_is_meant(hub: Path, name: str, meant: str | None) -> None:
    cache(hub, "u/r", "x-F16.gguf", "x-Q4_K_M.gguf", "x-Q8_0.gguf")
    cache(hub, "u/other", "x-F16.gguf", "x-F32.gguf")
    found = named(cached_models(hub), name)
    assert (found.name if found else None) == meant


def test_what_is_not_whole_in_the_cache(hub: Path, caplog: pytest.LogCaptureFixture) -> None:
    split = cache(hub, "u/split", "x-Q2_K-00001-of-00002.gguf", "x-Q2_K-00002-of-00002.gguf")
    (split / "x-Q2_K-00002-of-00002.gguf").resolve().unlink()
    broken = cache(hub, "u/broken", "x-Q2_K.gguf", "y-Q8_0.gguf")
    (broken / "x-Q2_K.gguf").resolve().unlink()
    no_ref = cache(hub, "u/unknown", "x-Q2_K.gguf").parent.parent / "refs/main"
    no_ref.write_text("../../..")
    cache(hub, "u/branch", "x-Q2_K.gguf", ref="other")
    write(hub, "models--file--here", "models--u--norefs/snapshots/x.gguf")
    os.mkfifo(hub / "models--u--unknown/refs/other")
    cache(hub, "u/odd..name", "x-Q2_K.gguf")
    assert [model.name for model in cached_models(hub)] == ["u/branch:Q2_K", "u/broken:Q8_0"]
    assert len(caplog.messages) == 1
    assert "00002-of-00002" in caplog.text


def test_no_cache(hub: Path) -> None:
    assert cached_models(hub / "missing") == []


# ---- one model -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["-m", "{file}"], "{file}"),
        (["-m", "{file}", "--alias", "b,a"], "a"),
        (["-hf", "u/r:Q8_0"], "u/r:Q8_0"),
        (["-hf", "u/r", "-a", "x"], "x"),
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
    assert catalog.find("unknown") is None


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
    assert catalog.entries["u/r:Q8_0"].options.media.mmproj == str(snapshot / "mmproj-F16.gguf")
    assert "--hf-repo" in arguments(catalog.entries["u/r:Q8_0"].options)


def test_a_projector_can_be_left_out(hub: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf", "mmproj-F16.gguf")
    assert opened(hub, "--no-mmproj").entries["u/r:Q8_0"].options.media.mmproj == ""


def test_what_wins(hub: Path, models: Path) -> None:
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

    def said(entry: Entry) -> tuple[Any, ...]:
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


def test_a_section_can_configure_what_is_there(hub: Path, models: Path) -> None:
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
        "a": ("models_dir", 1),
        "u/r:F16": ("cache", 2),
        "u/r:Q8_0": ("cache", 0),
        "u/r": ("cache", 4),
        MODEL_NAME: ("shipped", 3),
    }
    by_repository = catalog.find("r")
    assert by_repository is not None
    assert by_repository.options.source.hf_repo == "u/r:Q8_0"
    assert by_repository.options.engine.model.model.endswith("x-Q8_0.gguf")


def test_a_section_can_replace_what_is_there(hub: Path, models: Path) -> None:
    write(models, "a/x.gguf", "a/mmproj.gguf")
    text = f"[a]\nmodel = {model_path()}\n[{MODEL_NAME}]\nhf-repo = u/r\n"
    catalog = with_presets(hub, text, "--models-dir", str(models))
    a, shipped = catalog.entries["a"], catalog.entries[MODEL_NAME]
    assert (a.source, a.options.engine.model.model, a.options.media.mmproj) == (
        "preset",
        str(model_path()),
        "",
    )
    assert (shipped.source, shipped.options.source.hf_repo) == ("preset", "u/r")


def test_a_section_can_name_a_model_by_a_shortcut(hub: Path) -> None:
    entry = with_presets(hub, "[x]\nfim-qwen-1.5b-default = true\n").entries["x"]
    assert entry.source == "preset"
    assert entry.options.source.hf_repo


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[x]\nc = 1\n", "models.ini:1: [x]: "),
        ("[u/r:Q8_0]\n", "models.ini:1: [u/r:Q8_0]: "),
        ("[x]\nmodel = /missing.gguf\n", "/missing.gguf"),
        ("[x]\nmodel = {0}\nalias = a\n[y]\nmodel = {0}\nalias = a\n", '[y]: the alias "a" is'),
        ("[x]\nmodel = {0}\nalias = y\n[y]\nmodel = {0}\n", '[x]: the alias "y" is the name'),
        (f"[x]\nmodel = {{0}}\nalias = {MODEL_NAME}\n", "the name of the model"),
        ("[*]\nlora = /missing.gguf\n", "models.ini:1: [*]"),
        ("[*]\nhf-repo = u/r\n", "models.ini:1: [*]"),
    ],
)
def test_sections_that_cannot_be_used(hub: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        with_presets(hub, text.replace("{0}", str(model_path())))
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_two_sections_of_one_model(hub: Path) -> None:
    cache(hub, "u/r", "x-Q8_0.gguf")
    with pytest.raises(OptionError, match=r"ini:2: \[u/r:q8_0\] is the same model as .*ini:1:"):
        with_presets(hub, "[u/r:Q8_0]\n[u/r:q8_0]\n")


def test_the_command_line_names_the_default_model_alone(hub: Path, models: Path) -> None:
    write(models, "a.gguf", "b.gguf")
    catalog = opened(hub, "--models-dir", str(models), "--alias", "x", "--tags", "t")
    assert {name: (e.aliases, e.tags) for name, e in catalog.entries.items()} == {
        "a": ((), ()),
        "b": ((), ()),
        MODEL_NAME: (("x",), ("t",)),
    }
    with pytest.raises(OptionError, match='"a"'):
        opened(hub, "--models-dir", str(models), "--alias", "a")


def test_a_file_with_the_shipped_models_name(
    hub: Path, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(models, f"{MODEL_NAME}.gguf")
    catalog = opened(hub, "--models-dir", str(models))
    assert catalog.entries[MODEL_NAME].source == "shipped"
    assert "left out" in caplog.text


@pytest.mark.parametrize(
    ("files", "sections", "default", "loaded"),
    [
        ([], {}, MODEL_NAME, {MODEL_NAME}),
        (["a.gguf"], {}, "a", set()),
        (["a.gguf", "b.gguf"], {}, MODEL_NAME, {MODEL_NAME}),
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


# ---- names that nobody has -------------------------------------------------------------------

NAMES = ("ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", "qwen2.5-coder", "Llama-3.2-1B", "x")


def catalog_of(*names: str, aliases: tuple[str, ...] = ()) -> Catalog:
    entries = [Entry(name=name, source="preset", options=model_options()) for name in names]
    entries[0] = Entry(name=names[0], source="preset", options=model_options(), aliases=aliases)
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
    assert np.array_equal(logits(str(parts[0])), logits())


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
