"""Names of model files: quantizations, parts, projectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.formats.gguf_names import (
    FilePart,
    best_projector,
    is_model,
    part,
    quantization,
    stem,
)


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
    name = FilePart(prefix, index, count).file_name(index)
    assert part(name) == FilePart(prefix, index, count)
    assert stem(name) == prefix


@pytest.mark.parametrize(
    "name", ["x.gguf", "x-00004-of-00003.gguf", "x-00000-of-00003.gguf", "a/-00001-of-00003.gguf"]
)
def test_names_that_are_no_part(name: str) -> None:
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
