"""Filling in the middle."""

from contract_tests.peer.request import both_ways, post

BASE = {
    "input_prefix": "def add(a, b):\n    ", "input_suffix": "\n    return total\n",
    "n_predict": 8, "temperature": 0,
}  # fmt: skip
EXTRA = [{"filename": "a.py", "text": "x = 1\n"}, {"filename": "b.py", "text": "y = 2\n"}]
REQUESTS = [
    *both_ways("plain", "/infill", BASE),
    *both_ways("with prompt", "/infill", {**BASE, "prompt": "total ="}),
    *both_ways("with chunks", "/infill", {**BASE, "input_extra": EXTRA}),
    *both_ways("the infill sampler", "/infill", {**BASE, "samplers": ["top_k", "top_p", "infill"]}),
    *both_ways("indented", "/infill", {**BASE, "n_indent": 4}),
    post("no prefix", "/infill", {"input_suffix": "b", "n_predict": 4}),
    post("no suffix", "/infill", {"input_prefix": "a", "n_predict": 4}),
    post("prefix of a wrong type", "/infill", {**BASE, "input_prefix": 5}),
    post("chunks of a wrong type", "/infill", {**BASE, "input_extra": 5}),
    post("chunk without text", "/infill", {**BASE, "input_extra": [{"filename": "a"}]}),
    post("chunk without name", "/infill", {**BASE, "input_extra": [{"text": "a = 1\n"}]}),
    post("prompt of a wrong type", "/infill", {**BASE, "prompt": 5}),
    post("nothing to predict", "/infill", {**BASE, "n_predict": 0}),
    post("long", "/infill", {**BASE, "input_prefix": "x = 1\n" * 1500}),
]
