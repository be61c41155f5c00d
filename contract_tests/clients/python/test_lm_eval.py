"""lm-eval with tasks that are judged by the probabilities of texts (`local-completions`), and a
tokenizer made from the shipped model's file. The expected values come from one request per token,
whose answer has the probabilities of the whole vocabulary."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

MODEL = "specllama-tiny"
FILE = Path(__file__).parents[3] / "engine" / "shipped" / f"{MODEL}.gguf"
N_VOCAB = 1024
END_OF_TURN = "<|im_end|>"
"""The end of texts, which lm-eval puts before a text whose first token it judges."""
ROUNDING = 0.05
"""The tolerance of one token's logarithm. Weights are quantized, and more rows change the order of
sums."""
QUESTIONS = [
    {"question": "How is the weather in Lima?", "choices": ["It is sunny.", "Blue", "No idea!\n"]},
    {"question": "one two three one two three one two", "choices": ["three", "seventeen", "one"]},
    {"question": "def add(a, b):\n    return", "choices": ["a + b", "None", "'ü' * 12"]},
    {"question": "A llama is", "choices": ["an animal", "a model, too"]},
]
TEXTS = [{"text": "The bus leaves at nine.\nIt is late."}, {"text": "12 llamas"}]
CHOICES = {
    "task": "choices",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": 0,
    "metric_list": [{"metric": "acc"}],
}
WHOLE_TEXTS = {
    "task": "whole_texts",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "word_perplexity"}],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for AutoTokenizer: the vocabulary of the shipped model, split as Qwen's."""
    fields = GGUFReader(FILE).fields
    tokens, types, merges = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")
    )
    assert len(tokens) == N_VOCAB
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": END_OF_TURN,
        "unk_token": None,
        "additional_special_tokens": [
            token for token, kind in zip(tokens, types, strict=True) if kind != 1
        ],
    }
    folder = tmp_path_factory.mktemp("tokenizer")
    ids = {token: id for id, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(ids), "utf-8")
    (folder / "merges.txt").write_text("".join(f"{each}\n" for each in merges), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


def _samples(
    url: str, tokenizer: Path, folder: Path, n_requests: int = 1, n_prompts: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """Returns what lm-eval logs for both tasks, with `n_requests` at a time and `n_prompts` in
    each."""
    for task, documents in ((CHOICES, QUESTIONS), (WHOLE_TEXTS, TEXTS)):
        data = folder / f"{task['task']}-data.json"
        data.write_text(json.dumps(documents), "utf-8")
        source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
        # JSON is YAML.
        definition = json.dumps({**task, **source, "test_split": "test"})
        (folder / f"{task['task']}.yaml").write_text(definition, "utf-8")
    results = folder / "results"
    settings = {
        "base_url": f"{url}/v1/completions",
        "model": MODEL,
        "tokenizer_backend": "huggingface",
        "tokenizer": tokenizer,
        "num_concurrent": n_requests,
    }
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in settings.items())]
    command += ["--batch_size", str(n_prompts), "--include_path", str(folder)]
    command += ["--tasks", "choices,whole_texts", "--log_samples", "--output_path", str(results)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    subprocess.run(command, env={**os.environ, **offline}, check=True)
    found = {}
    for name in ("choices", "whole_texts"):
        [file] = results.rglob(f"samples_{name}_*.jsonl")
        found[name] = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return found


def _ask(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}{path}",
        json.dumps({"model": MODEL, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _tokens(url: str, text: str) -> list[int]:
    asked = {"content": text, "parse_special": True}
    found: list[int] = _ask(url, "/tokenize", asked)["tokens"]
    return found


def _logarithms(url: str, before: list[int]) -> dict[int, float]:
    """Returns the log probabilities of all tokens after `before`."""
    asked = {"prompt": before, "n_predict": 1, "n_probs": N_VOCAB, "temperature": 0}
    [entry] = _ask(url, "/completion", asked)["completion_probabilities"]
    found = {each["id"]: each["logprob"] for each in entry["top_logprobs"]}
    assert len(found) == N_VOCAB
    return found


def _check(url: str, before: list[int], text: list[int], said: list[str]) -> None:
    """Checks that lm-eval has reported the sum of the logarithms of `text` and, for a choice,
    whether each of its tokens is the likeliest one."""
    total, leads = 0.0, []
    for token in text:
        values = _logarithms(url, before)
        total += values[token]
        leads.append(values[token] - max(values[each] for each in values if each != token))
        before = [*before, token]
    assert float(said[0]) == pytest.approx(total, abs=ROUNDING * len(text))
    if len(said) > 1 and abs(min(leads)) > ROUNDING:
        assert said[1] == str(min(leads) > 0)


def _check_all(url: str, samples: dict[str, list[dict[str, Any]]]) -> None:
    assert [len(each["resps"]) for each in samples["choices"]] == [3, 3, 3, 2]
    for sample in samples["choices"]:
        for given, [said] in zip(sample["arguments"].values(), sample["resps"], strict=True):
            context = _tokens(url, given["arg_0"])
            whole = _tokens(url, given["arg_0"] + given["arg_1"])
            assert whole[: len(context)] == context
            _check(url, context, whole[len(context) :], said)
    assert len(samples["whole_texts"]) == len(TEXTS)
    for sample in samples["whole_texts"]:
        [given], [said] = sample["arguments"].values(), sample["resps"]
        _check(url, _tokens(url, END_OF_TURN), _tokens(url, given["arg_0"]), said)


def test_probabilities(url: str, tokenizer: Path, tmp_path: Path) -> None:
    _check_all(url, _samples(url, tokenizer, tmp_path))


def test_probabilities_in_batches(url: str, tokenizer: Path, tmp_path: Path) -> None:
    """Several prompts per request, and several requests at a time."""
    _check_all(url, _samples(url, tokenizer, tmp_path, n_requests=2, n_prompts=3))
