"""Sampling values in a model's file, combined with those of options and requests."""

import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from specllama.engine.options.model_values import (
    MODEL_VALUES,
    PREFIX,
    log_left_out,
    metadata_params,
)
from specllama.engine.params import GenerationParams
from specllama.engine.worker.backend import Model
from specllama.handlers.apis.parameters import generation_params
from tests.support.model_files import with_metadata
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.playing import engine, play

METADATA = {
    PREFIX + "temp": "0.500000",
    PREFIX + "top_k": "20",
    PREFIX + "sequence": "top_k;x;temp",
}
OWN = {"temperature": 0.5, "top_k": 20, "samplers": ["top_k", "temperature"]}


def test_values_by_the_names_of_parameters() -> None:
    assert metadata_params(METADATA) == OWN
    assert metadata_params({}) == {}
    texts = {PREFIX + key: "1" for key, _ in MODEL_VALUES.values()} | {PREFIX + "sequence": "top_p"}
    found = metadata_params(texts)
    assert found.keys() == {param for _, param in MODEL_VALUES.values()}
    GenerationParams(**found)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("temp", "warm"),
        ("temp", "nan"),
        ("top_k", "2147483648"),
        ("top_p", "1.5"),
        ("penalty_repeat", "0"),
        ("mirostat", "3"),
        ("sequence", "a;b"),
    ],
)
def test_impossible_values_are_left_out(
    key: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = {PREFIX + key: text, PREFIX + "min_p": "0.25"}
    assert metadata_params(metadata) == {"min_p": 0.25}
    assert not caplog.text, "it is asked at each look at the properties"
    with caplog.at_level(logging.WARNING):
        log_left_out(metadata)
    assert f"{PREFIX}{key} of the model is ignored" in caplog.text


@pytest.mark.parametrize("text", ["-1", "-0.5"])
def test_less_than_nothing_is_nothing(text: str) -> None:
    assert metadata_params({PREFIX + "temp": text}) == {"temperature": 0}


def test_options_win() -> None:
    options = engine_options(temp=0.8, sampler_seq="k")
    found = options.generation_defaults(METADATA)
    assert (found.temperature, found.top_k, found.samplers) == (0.8, 20, ["top_k"])
    assert found.unset == []
    open_ = options.generation_defaults()
    assert set(open_.unset) == {param for _, param in MODEL_VALUES.values()} - {
        "temperature",
        "samplers",
    }
    assert structs.replace(open_, unset=[]) == options.generation_defaults({})


@pytest.mark.parametrize(
    ("body", "still_unset"),
    [
        ({}, {"temperature", "top_k"}),
        ({"temperature": None}, {"temperature", "top_k"}),
        ({"temperature": 0.8}, {"top_k"}),
        ({"temperature": 0, "top_k": 40.0}, set()),
    ],
)
def test_requests_win(body: dict[str, Any], still_unset: set[str]) -> None:
    asked = generation_params(body, GenerationParams(unset=["temperature", "top_k"]))
    assert set(asked.unset) == still_unset


@pytest.mark.slow
def test_they_are_in_force(tmp_path: Path) -> None:
    path = with_metadata(
        random_model(),
        tmp_path / "m.gguf",
        {f"{PREFIX}temp": 0.5, f"{PREFIX}top_k": 1, f"{PREFIX}sequence": "top_k;temperature"},
    )
    model = Model(str(path), engine_options())
    unset = engine_options().generation_defaults().unset
    try:
        [result] = play(engine(model), ["a"], n_predict=4, unset=unset).values()
        [own] = play(engine(model), ["a"], n_predict=4, top_k=3).values()
    finally:
        model.close()
    params = result.params
    assert (params.temperature, params.top_k, params.unset) == (0.5, 1, [])
    assert params.samplers == ["top_k", "temperature"]
    assert (own.params.temperature, own.params.top_k) == (0.8, 3)
