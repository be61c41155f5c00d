"""Which layers of a manifest are a model's files."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.helpers.download.http_errors import DownloadError
from specllama.engine.helpers.download.hub_layout import is_inside
from specllama.engine.helpers.download.oci_registry import model_files, read_manifest
from tests.support.registry import DOCKER, MODELPACK

DIGEST = "ab" * 32
FILE_PATH = "org.cncf.model.filepath"
TITLE = "org.opencontainers.image.title"


def layer(kind: str = DOCKER, /, name: str = "", **fields: Any) -> dict[str, Any]:
    annotations = {FILE_PATH: name} if name else None
    described = {"mediaType": kind, "digest": f"sha256:{DIGEST}", "size": 9}
    return {**described, "annotations": annotations, **fields}


def names(*layers: dict[str, Any]) -> list[str]:
    data = json.dumps({"layers": layers}).encode()
    return [file.name for file in model_files(read_manifest(data, "it"), "it")]


def failure(data: bytes) -> str:
    with pytest.raises(DownloadError) as caught:
        model_files(read_manifest(data, "it"), "it")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


def test_the_layer_of_a_model_is_found_by_its_media_type() -> None:
    others = [layer("application/vnd.docker.ai.license"), layer("application/vnd.docker.ai.mmproj")]
    assert names(*others, layer()) == ["model.gguf"]
    assert names(layer("application/vnd.cncf.model.weight.v1.gguf")) == ["model.gguf"]
    assert names(layer(f"{DOCKER}.lora"), *others) == []


def test_files_have_the_names_of_their_annotations() -> None:
    assert names(layer(name="x-Q4_0.gguf")) == ["x-Q4_0.gguf"]
    assert names(layer(annotations={TITLE: "dir/x.gguf"})) == ["dir/x.gguf"]
    assert names(layer(annotations={FILE_PATH: None, TITLE: 3})) == ["model.gguf"]


def test_raw_layers_are_known_by_their_names() -> None:
    model, projector = layer(MODELPACK, "x.gguf"), layer(MODELPACK, "mmproj-F16.gguf")
    assert names(layer(MODELPACK, "README.md"), projector, model) == ["x.gguf"]
    assert names(projector, layer(MODELPACK)) == []
    assert names(layer(name="mmproj-F16.gguf"), layer()) == ["model.gguf"]


def test_parts_are_put_in_order() -> None:
    parts = [f"x-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert names(*(layer(name=name) for name in reversed(parts))) == parts
    assert names(layer(name="y.gguf"), layer(name="z.gguf")) == ["y.gguf"]
    assert "x-00003-of-00003.gguf" in failure(
        json.dumps({"layers": [layer(name=name) for name in parts[:2]]}).encode()
    )


def test_parts_without_names_are_in_order() -> None:
    data = json.dumps({"layers": [layer(size=i) for i in (7, 8)]}).encode()
    files = model_files(read_manifest(data, "it"), "it")
    assert [(file.name, file.size) for file in files] == [
        ("model-00001-of-00002.gguf", 7),
        ("model-00002-of-00002.gguf", 8),
    ]


@pytest.mark.parametrize(
    "name",
    ["../x.gguf", "/x.gguf", "a/../../x.gguf", "C:\\x.gguf", "x\0.gguf", "y" * 300, "./x.gguf"],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    assert "unsafe" in failure(json.dumps({"layers": [layer(name=name)]}).encode())


@pytest.mark.parametrize(
    "digest",
    ["", DIGEST, f"sha256:{DIGEST}0", "sha256:../../x", f"sha512:{DIGEST}", f"sha256:{DIGEST}\n"],
)
def test_digests_of_another_form_are_refused(digest: str) -> None:
    assert "digest" in failure(json.dumps({"layers": [layer(digest=digest)]}).encode())


@pytest.mark.parametrize("size", [0, -1, 1 << 60, 10**40])
def test_sizes_are_bounded(size: int) -> None:
    assert "is invalid" in failure(json.dumps({"layers": [layer(size=size)]}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>",
        b"[]",
        b"\xff",
        b'{"layers": 3}',
        b'{"layers": [3]}',
        b'{"layers": [{"size": "x"}]}',
        b"[" * 100_000,
        b'{"x": ' * 100_000,
        b'{"layers": [{"digest": 3}]}',
    ],
)
def test_garbage_is_refused(data: bytes) -> None:
    assert failure(data) == "the registry sent an invalid manifest of it"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)
ANNOTATIONS = st.dictionaries(st.sampled_from([FILE_PATH, TITLE]), st.text("ab./\\-\n", max_size=8))
LAYERS = st.fixed_dictionaries(
    {},
    optional={
        "mediaType": st.sampled_from([DOCKER, MODELPACK]) | JSON,
        "digest": st.just(f"sha256:{DIGEST}") | JSON,
        "size": st.integers(0, 9) | JSON,
        "annotations": ANNOTATIONS | JSON,
    },
)


@given(st.fixed_dictionaries({"layers": st.lists(LAYERS, max_size=3) | JSON}))
def test_names_never_lead_out_of_the_folder(manifest: Any) -> None:
    try:
        files = model_files(read_manifest(json.dumps(manifest).encode(), "it"), "it")
    except DownloadError:
        return
    for file in files:
        assert is_inside(file.name)
        assert len(file.digest) == 64
        assert file.size > 0
