"""Checks that compare a server on a device with one on the CPU."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from contract_tests.gpu.cases import Case
from contract_tests.gpu.memory import free
from contract_tests.kit.checks.media import COLD, QUESTION, WARM
from contract_tests.kit.server import wait_until
from contract_tests.own.servers import Specllama

PROMPTS = ("def function(self, value):", "import os\nimport sys\n", "The first of the three")
LONG = "for name in sorted(found):\n    print(name, len(found[name]))\n" * 8
ROUNDING, ROUGH = 0.25, 0.6
"""Allowed differences of log probabilities: for kernels that round differently, and for caches with
8 bits."""
FAR = 0.3
"""The smallest difference of log probabilities that counts as another result."""
ATTEMPTS = 10
Probabilities = Mapping[Any, float]
"""Log probabilities by token."""

Check = Callable[[Specllama, Specllama], None]


def located(case: Case, devices: list[dict[str, Any]]) -> None:
    """The devices hold the parts that the case lists."""
    for keys, wanted in ((case.on_device, False), (case.on_cpu, True)):
        held = [each for each in devices if (each["name"] == "CPU") is wanted]
        for key in keys:
            name = "n_layers" if key == "layers" else key
            assert any(each[name] for each in held), f"no {key} where it should be: {devices}"
    n_found = sum(each["name"] != "CPU" and each["n_layers"] > 0 for each in devices)
    assert case.n_devices in (0, n_found), f"layers on {n_found} devices: {devices}"


def text(device: Specllama, cpu: Specllama, most: float = ROUNDING) -> None:
    """The next token has the same probabilities, and the tokens of a text are counted."""
    for prompt in PROMPTS:
        close(likeliest(device, prompt), likeliest(cpu, prompt), most)
    answer = ask(device, prompt=LONG, n_predict=8, ignore_eos=True)
    assert answer["tokens_predicted"] == 8, f"not 8 tokens: {answer}"
    assert answer["timings"]["prompt_ms"] > 0, f"the prompt took no time: {answer['timings']}"


def rough(device: Specllama, cpu: Specllama) -> None:
    text(device, cpu, ROUGH)


def adapted(device: Specllama, cpu: Specllama) -> None:
    """An adapter has the same effect, in part and in full, and none at scale 0."""
    found = []
    for scale in (1.0, 0.5, 0.0):
        lora = [{"id": 0, "scale": scale}]
        found.append(likeliest(device, PROMPTS[0], lora=lora))
        close(found[-1], likeliest(cpu, PROMPTS[0], lora=lora), ROUNDING)
    assert far(found[0], found[-1]), "the adapter changes nothing"


def embeddings(device: Specllama, cpu: Specllama) -> None:
    for a, b in zip(vectors(device), vectors(cpu), strict=True):
        cosine = sum(x * y for x, y in zip(a, b, strict=True))
        assert math.isclose(cosine, 1, abs_tol=1e-3), f"another vector: cosine {cosine}"


def rerank(device: Specllama, cpu: Specllama) -> None:
    body = {"query": PROMPTS[0], "documents": [*PROMPTS[1:]]}
    for a, b in zip(*(scores(each, body) for each in (device, cpu)), strict=True):
        assert math.isclose(a, b, abs_tol=ROUNDING), f"other scores: {a} and {b}"


def slot_files(device: Specllama, cpu: Specllama) -> None:
    """Each server continues a text that the other one has saved."""
    for one, other in ((device, cpu), (cpu, device)):
        n = ask(one, prompt=LONG, id_slot=0, n_predict=1)["timings"]["prompt_n"]
        one.ask("/slots/0?action=save", {"filename": "text"})
        restored = other.ask("/slots/1?action=restore", {"filename": "text"})
        assert restored["n_restored"] >= n, f"{restored} of {n} tokens"
        close(likeliest(other, LONG), likeliest(one, LONG), ROUNDING)


def kept(device: Specllama, cpu: Specllama) -> None:
    """A text that has left the cache is restored and continued correctly."""
    first = likeliest(device, LONG)
    for prompt in PROMPTS:
        ask(device, prompt=prompt * 15, n_predict=2)
    close(likeliest(device, LONG), first, ROUNDING)
    close(likeliest(cpu, LONG), first, ROUNDING)
    metrics = device.get("/metrics").text
    restored = re.search(r"(?m)^specllama_prompt_tokens_restored_total (\S+)", metrics)
    assert restored is not None, "the metric is missing"
    assert float(restored[1]) > 0, "it was computed again"


def gone_back(device: Specllama, cpu: Specllama) -> None:
    """Another continuation of a cached text is the same as with an empty cache."""
    ask(device, prompt=LONG + PROMPTS[0], n_predict=4)
    end = LONG + PROMPTS[2]
    close(likeliest(device, end), likeliest(cpu, end), ROUNDING)


def shift(device: Specllama, _cpu: Specllama) -> None:
    answer = ask(device, prompt=LONG[:200], n_predict=300, ignore_eos=True)
    assert answer["truncated"], "the context was not shifted"
    assert answer["tokens_predicted"] == 300, f"{answer['tokens_predicted']} tokens, not 300"


def sleep(device: Specllama, cpu: Specllama) -> None:
    """A process that ends frees all its memory, device memory included."""
    uses = device.get("/props").json()["devices"]
    there = [each for each in uses if each["name"] != "CPU"] or uses
    held = sum(each["model"] + each["kv_cache"] for each in there)
    before = likeliest(device, PROMPTS[0])
    loaded = free()
    wait_until(lambda: not device.engines(), "the model is unloaded")
    wait_until(lambda: free() - loaded > held // 2, "its memory is free")
    close(likeliest(device, PROMPTS[0]), before, ROUNDING)
    close(likeliest(cpu, PROMPTS[0]), before, ROUNDING)


def drafted(device: Specllama, cpu: Specllama) -> None:
    """A model that drafts for itself is accepted, except for rounding. Drafting with it takes as
    long as generating, so it doesn't pay and is hardly used after it has been measured."""
    n = accepted = 0
    body = {"prompt": LONG, "n_predict": 24, "ignore_eos": True, "speculative.n_min": 3}
    for _ in range(ATTEMPTS):
        timings = ask(device, **body)["timings"]
        n += timings.get("draft_n", 0)
        accepted += timings.get("draft_n_accepted", 0)
        if n:
            break
    assert n, "nothing was drafted"
    assert accepted * 2 > n, f"{accepted} of {n} were accepted"
    text(device, cpu)


def seen(device: Specllama, cpu: Specllama) -> None:
    """Both servers describe images alike, and different images differently."""
    warm, cold = (expected(device, each) for each in (WARM, COLD))
    close(warm, expected(cpu, WARM), ROUNDING)
    close(cold, expected(cpu, COLD), ROUNDING)
    assert far(warm, cold), "different images have equal answers"


CHECKS: dict[str, Check] = {
    each.__name__: each
    for each in (
        *(text, rough, adapted, embeddings, rerank, slot_files, kept, gone_back, shift, sleep),
        *(drafted, seen),
    )
}


def close(a: Probabilities, b: Probabilities, most: float) -> None:
    """Checks that the log probabilities differ by at most `most` on average. The average is
    weighted by probability, because rounding changes unlikely tokens more."""
    common = a.keys() & b.keys()
    assert len(common) * 2 >= len(a), f"other tokens are likely: {a} and {b}"
    weights = {token: math.exp(a[token]) for token in common}
    total = sum(weights[token] * abs(a[token] - b[token]) for token in common)
    mean = total / sum(weights.values())
    assert mean <= most, f"probabilities, {a} and {b}, differ by {mean:.3f}"


def far(a: Probabilities, b: Probabilities) -> bool:
    common = a.keys() & b.keys()
    return not common or max(abs(a[token] - b[token]) for token in common) > FAR


def ask(server: Specllama, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = server.ask("/completion", {"temperature": 0, **body})
    return found


def likeliest(server: Specllama, prompt: str, **fields: Any) -> Probabilities:
    """Returns the log probabilities of the likeliest next tokens, by token."""
    answer = ask(server, prompt=prompt, n_predict=1, n_probs=8, ignore_eos=True, **fields)
    return {
        each["id"]: each["logprob"]
        for each in answer["completion_probabilities"][0]["top_logprobs"]
    }


def expected(server: Specllama, image: dict[str, Any]) -> Probabilities:
    """Returns the log probabilities of the first token of an answer to an image."""
    message = {"role": "user", "content": [image, QUESTION]}
    shape = {"max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 8}
    answer = server.ask("/v1/chat/completions", {"messages": [message], **shape})
    [token] = answer["choices"][0]["logprobs"]["content"]
    return {each["token"]: each["logprob"] for each in token["top_logprobs"]}


def vectors(server: Specllama) -> list[list[float]]:
    answer = server.ask("/v1/embeddings", {"input": [*PROMPTS]})
    return [each["embedding"] for each in answer["data"]]


def scores(server: Specllama, body: dict[str, Any]) -> list[float]:
    answer = server.ask("/v1/rerank", body)
    results = sorted(answer["results"], key=lambda each: int(each["index"]))
    return [each["relevance_score"] for each in results]
