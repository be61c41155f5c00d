"""Filling in the middle: the prompt for the model, and models that support it."""

from collections.abc import Callable
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import Launcher, Server, Start

FRAME = "<|repo_name|>myproject\n{}<|file_sep|>filename\n"
GAP = "<|fim_prefix|>{prefix}{middle}<|fim_suffix|>{suffix}<|fim_middle|>"

OwnModel = Callable[[str], Server]


@pytest.fixture(scope="module")
def shipped(module_server: Start) -> Server:
    """A server with the shipped model, whose special tokens are written in these tests."""
    return module_server("-np", "2", "-c", "2048")


def shown(server: Server, **changes: Any) -> str:
    """Returns the whole prompt that the server makes of a request."""
    answer = contract.check(server.post("/infill", body("create_infill", n_predict=0, **changes)))
    return str(answer["prompt"])


def test_the_gap_alone(shipped: Server) -> None:
    prompt = shown(shipped, input_prefix="a = ", input_suffix="\nb = 1", prompt=None)
    assert prompt == FRAME.format("") + GAP.format(prefix="a = ", suffix="\nb = 1", middle="")


def test_other_files_and_the_beginning_of_the_middle(shipped: Server) -> None:
    extra = [{"filename": "x.py", "text": "import y\n"}, {"text": "pass\n"}]
    prompt = shown(shipped, input_extra=extra, input_prefix="", input_suffix="", prompt="mid")
    files = "<|file_sep|>x.py\nimport y\n<|file_sep|>tmp\npass\n"
    assert prompt == FRAME.format(files) + GAP.format(prefix="", suffix="", middle="mid")


def test_tokens_in_place_of_texts(shipped: Server) -> None:
    tokens = shipped.ask("/tokenize", {"content": "def f():"})["tokens"]
    assert shown(shipped, input_prefix=tokens) == shown(shipped, input_prefix="def f():")
    mixed = shown(shipped, input_prefix=[*tokens, "\n  "], input_suffix=[])
    assert GAP.format(prefix="def f():\n  ", suffix="", middle="") in mixed


@pytest.mark.parametrize("where", ["input_prefix", "input_suffix", "prompt", "text", "filename"])
def test_a_text_cannot_bring_special_tokens_in(where: str, shipped: Server) -> None:
    mark = "<|fim_middle|>"
    if where in ("text", "filename"):
        changes: dict[str, Any] = {"input_extra": [{"text": "a", "filename": "b", where: mark}]}
        plain: dict[str, Any] = {"input_extra": [{"text": "a", "filename": "b", where: ""}]}
    else:
        changes, plain = {where: mark}, {where: ""}
    spelled = len(shipped.ask("/tokenize", {"content": mark, "parse_special": False})["tokens"])
    assert spelled > 1
    counts = [
        shipped.ask("/infill", body("create_infill", n_predict=0, **each))["tokens_evaluated"]
        for each in (changes, plain)
    ]
    assert counts[0] - counts[1] >= spelled // 2  # its ends may merge with their neighbours


def test_it_continues_its_prompt_as_a_completion_does(shipped: Server) -> None:
    options: dict[str, Any] = {
        "n_predict": 12,
        "temperature": 0,
        "cache_prompt": False,
        "ignore_eos": True,
    }
    answer = shipped.ask("/infill", body("create_infill", **options))
    completion = shipped.ask("/completion", {"prompt": answer["prompt"], **options})
    assert answer["content"] == completion["content"]
    assert answer["tokens_evaluated"] == completion["tokens_evaluated"]
    events = shipped.events("/infill", body("create_infill", **options))
    documents = contract.check_stream(contract.operations()["create_infill"], events)
    assert "".join(document["content"] for document in documents) == answer["content"]


def test_long_texts_keep_the_part_next_to_the_gap(shipped: Server) -> None:
    prefix = "".join(f"before_{i} = {i}\n" for i in range(2000))
    suffix = "".join(f"after_{i} = {i}\n" for i in range(2000))
    extra = [{"filename": "long.py", "text": prefix}]
    request = body(
        "create_infill",
        input_prefix=prefix,
        input_suffix=suffix,
        input_extra=extra,
        n_predict=20,
        ignore_eos=True,
    )
    answer = contract.check(shipped.post("/infill", request))
    assert answer["tokens_predicted"] == 20
    assert not answer["truncated"]
    n_ctx = answer["generation_settings"]["n_ctx"]
    assert answer["tokens_evaluated"] == n_ctx - 1 - 20, "the room is used"
    before, _, after = answer["prompt"].partition("<|fim_suffix|>")
    assert before.endswith("before_1998 = 1998\nbefore_1999 = 1999\n")
    assert after.startswith("after_0 = 0\nafter_1 = 1\n")


def test_the_begun_middle_is_never_cut(shipped: Server) -> None:
    response = shipped.post("/infill", body("create_infill", prompt="word " * 2000))
    assert contract.check(response, 400)["error"]["type"] == "exceed_context_size_error"


def test_an_option_puts_the_suffix_first(own_server: Start) -> None:
    server = own_server("--spm-infill")
    prompt = shown(server, input_prefix="A", input_suffix="B", prompt="C")
    assert prompt == FRAME.format("") + "<|fim_suffix|>B<|fim_prefix|>AC<|fim_middle|>"


def test_a_suffix_of_a_completion_makes_a_gap(shipped: Server) -> None:
    options: dict[str, Any] = {"n_predict": 12, "temperature": 0, "cache_prompt": False}
    gaps = [("def add(a, b):", "\n    return c"), ("x = ", "\ny = 1")]
    filled = [
        shipped.ask("/infill", {"input_prefix": prefix, "input_suffix": suffix, **options})
        for prefix, suffix in gaps
    ]
    for (prefix, suffix), expected in zip(gaps, filled, strict=True):
        request = body("create_openai_completion", prompt=prefix, suffix=suffix, **options)
        answer = contract.check(shipped.post("/v1/completions", request))
        assert answer["choices"][0]["text"] == expected["content"]
        assert answer["usage"]["prompt_tokens"] == expected["tokens_evaluated"]
        events = shipped.events("/v1/completions", {**request, "echo": True})
        documents = contract.check_stream(contract.operations()["create_openai_completion"], events)
        texts = [choice["text"] for each in documents for choice in each["choices"]]
        assert "".join(texts) == prefix + expected["content"]


def test_the_infill_sampler_chooses_among_ends_and_texts(shipped: Server) -> None:
    request = body("create_infill", samplers=["top_k", "top_p", "infill"], n_predict=8, seed=1)
    answer = contract.check(shipped.post("/infill", request))
    assert answer["generation_settings"]["samplers"] == ["top_k", "top_p", "infill"]
    assert answer["content"] == shipped.ask("/infill", request)["content"]
    bound = shipped.ask("/infill", {**request, "grammar": 'root ::= "abc"'})
    assert bound["content"] == "abc"
    assert bound["generation_settings"]["samplers"] == ["top_k", "top_p"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_was_not_trained_for_it(
    stream: bool, module_server: Start, launcher: Launcher
) -> None:
    server = module_server("-m", launcher.model_file("tiny-spm"))
    response = server.post("/infill", body("create_infill", stream=stream))
    error = contract.check(response, 501)["error"]
    assert error["type"] == "not_supported_error"
    contract.check(server.post("/infill", {"input_prefix": "a"}), 400)
    ends = body("create_openai_completion", suffix="the end", stream=stream)
    contract.check(server.post("/v1/completions", ends), 501)


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_prefix": None},
        {"input_prefix": 7},
        {"input_suffix": {"text": "a"}},
        {"input_prefix": [[1]]},
        {"input_prefix": [-1]},
        {"input_prefix": [1.5]},
        {"input_suffix": [2**31 - 1]},
        {"input_extra": {"text": "a"}},
        {"input_extra": ["a"]},
        {"input_extra": [{"filename": "a"}]},
        {"input_extra": [{"text": None}]},
        {"input_extra": [{"text": "a", "filename": 1}]},
        {"prompt": ["a"]},
        {"prompt": 5},
    ],
    ids=str,
)
def test_wrong_gaps(wrong: dict[str, Any], server: Server) -> None:
    contract.check(server.post("/infill", body("create_infill", **wrong)), 400)
