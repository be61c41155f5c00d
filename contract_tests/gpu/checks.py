"""What is held of a server that computes on a device, beside one that computes on the CPU."""

import math
from collections.abc import Callable
from typing import Any

from contract_tests.gpu.cases import Case
from contract_tests.kit.server import wait_until
from contract_tests.own.servers import Specllama

PROMPTS = ("def function(self, value):", "import os\nimport sys\n", "The first of the three")
LONG = "for name in sorted(found):\n    print(name, len(found[name]))\n" * 8
ROUNDING, ROUGH = 0.15, 0.6
"""Differences of logarithms of probabilities, of kernels that round otherwise, and of caches with 8
bits."""
SLEEP_SECONDS = 60.0

Check = Callable[[Specllama, Specllama], None]


def told(case: Case, devices: list[dict[str, Any]]) -> None:
    """The devices hold what the case says."""
    for keys, wanted in ((case.on_device, False), (case.on_cpu, True)):
        held = [each for each in devices if (each["name"] == "CPU") is wanted]
        for key in keys:
            name = "n_layers" if key == "layers" else key
            assert any(each[name] for each in held), f"no {key} where it should be: {devices}"


def text(device: Specllama, cpu: Specllama, most: float = ROUNDING) -> None:
    """The next token has the same probabilities; a text goes on and is counted."""
    for prompt in PROMPTS:
        close(likeliest(device, prompt), likeliest(cpu, prompt), most)
    answer = ask(device, prompt=LONG, n_predict=8)
    assert answer["tokens_predicted"] == 8
    assert answer["timings"]["prompt_ms"] > 0


def rough(device: Specllama, cpu: Specllama) -> None:
    text(device, cpu, ROUGH)


def embeddings(device: Specllama, cpu: Specllama) -> None:
    for a, b in zip(vectors(device), vectors(cpu), strict=True):
        assert math.isclose(sum(x * y for x, y in zip(a, b, strict=True)), 1, abs_tol=1e-3)


def rerank(device: Specllama, cpu: Specllama) -> None:
    body = {"query": PROMPTS[0], "documents": [*PROMPTS[1:]]}
    for a, b in zip(*(scores(each, body) for each in (device, cpu)), strict=True):
        assert math.isclose(a, b, abs_tol=ROUNDING)


def slot_files(device: Specllama, cpu: Specllama) -> None:
    """What one has saved, the other one goes on with."""
    for one, other in ((device, cpu), (cpu, device)):
        n = ask(one, prompt=LONG, id_slot=0, n_predict=1)["timings"]["prompt_n"]
        one.ask("/slots/0?action=save", {"filename": "text"})
        restored = other.ask("/slots/1?action=restore", {"filename": "text"})
        assert restored["n_restored"] >= n
        close(likeliest(other, LONG), likeliest(one, LONG), ROUNDING)


def kept(device: Specllama, cpu: Specllama) -> None:
    """A text that has left the cache goes on as it would have."""
    first = likeliest(device, LONG)
    ask(device, prompt=PROMPTS[2] * 20, n_predict=2)
    answer = ask(device, prompt=LONG, n_predict=1)
    assert answer["timings"]["cache_n"] > 0
    close(likeliest(device, LONG), first, ROUNDING)
    close(likeliest(cpu, LONG), first, ROUNDING)


def gone_back(device: Specllama, cpu: Specllama) -> None:
    """Another end of the same text goes on as it does where nothing was before."""
    ask(device, prompt=LONG + PROMPTS[0], n_predict=4)
    end = LONG + PROMPTS[2]
    close(likeliest(device, end), likeliest(cpu, end), ROUNDING)


def shift(device: Specllama, _cpu: Specllama) -> None:
    answer = ask(device, prompt=LONG[:200], n_predict=300, ignore_eos=True)
    assert answer["truncated"]
    assert answer["tokens_predicted"] == 300


def sleep(device: Specllama, cpu: Specllama) -> None:
    """A process that ends gives back all that it has, the memory of devices included."""
    before = likeliest(device, PROMPTS[0])
    wait_until(lambda: not device.engines(), "the model sleeps", SLEEP_SECONDS)
    close(likeliest(device, PROMPTS[0]), before, ROUNDING)
    close(likeliest(cpu, PROMPTS[0]), before, ROUNDING)


CHECKS: dict[str, Check] = {
    each.__name__: each
    for each in (text, rough, embeddings, rerank, slot_files, kept, gone_back, shift, sleep)
}


def close(a: dict[int, float], b: dict[int, float], most: float) -> None:
    """The logarithms of probabilities differ by `most` at the most where both have them."""
    common = a.keys() & b.keys()
    assert len(common) * 2 >= len(a), f"other tokens are likely: {a} and {b}"
    worst = max(abs(a[token] - b[token]) for token in common)
    assert worst <= most, f"probabilities differ by {worst:.3f}: {a} and {b}"


def ask(server: Specllama, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = server.ask("/completion", {"temperature": 0, **body})
    return found


def likeliest(server: Specllama, prompt: str) -> dict[int, float]:
    """The logarithms of the probabilities of the likeliest next tokens, by token."""
    answer = ask(server, prompt=prompt, n_predict=1, n_probs=8, ignore_eos=True)
    return {
        each["id"]: each["logprob"]
        for each in answer["completion_probabilities"][0]["top_logprobs"]
    }


def vectors(server: Specllama) -> list[list[float]]:
    answer = server.ask("/v1/embeddings", {"input": [*PROMPTS]})
    return [each["embedding"] for each in answer["data"]]


def scores(server: Specllama, body: dict[str, Any]) -> list[float]:
    answer = server.ask("/v1/rerank", body)
    results = sorted(answer["results"], key=lambda each: int(each["index"]))
    return [each["relevance_score"] for each in results]
