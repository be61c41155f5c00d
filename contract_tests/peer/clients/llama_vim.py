"""llama.vim: completions at the cursor, the warm-up of its ring of chunks, instruct mode."""

from contract_tests.peer.request import Request, both_ways, post

CHUNKS = [
    {"text": "let g:a = 1\n", "time": 12, "filename": "a.vim"},
    {"text": "let g:b = 2\n", "time": 15, "filename": "b.vim"},
]
FILL = {
    "id_slot": 0, "input_prefix": "function! s:Add(a, b)\n", "input_suffix": "endfunction\n",
    "input_extra": CHUNKS, "prompt": "  return a:", "n_predict": 16, "stop": [], "n_indent": 2,
    "top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"], "stream": False,
    "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000000,
    "response_fields": [
        "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
        "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
        "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated",
        "tokens_cached",
    ],
}  # fmt: skip
WARM = {
    "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": CHUNKS, "prompt": "",
    "n_predict": 0, "temperature": 0.0, "samplers": [], "stream": False, "cache_prompt": True,
    "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""],
}  # fmt: skip
ASK = [
    {"role": "system", "content": "You are a text-editing assistant."},
    {"role": "user", "content": "Rewrite: let a = 1"},
]
INSTRUCT = {
    "id_slot": 7, "messages": ASK, "min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"],
    "stream": True, "cache_prompt": True, "seed": 1, "max_tokens": 12,
}  # fmt: skip
REQUESTS: list[Request] = [
    post("fill in", "/infill", FILL),
    post("fill in, greedy", "/infill", {**FILL, "temperature": 0}),
    post("warm up", "/infill", WARM),
    *both_ways("instruct", "/v1/chat/completions", INSTRUCT),
    post(
        "instruct warm-up",
        "/v1/chat/completions",
        {**INSTRUCT, "stream": False, "max_tokens": 1, "id_slot": 3, "samplers": []},
    ),
    post(
        "instruct, further slot",
        "/v1/chat/completions",
        {**INSTRUCT, "stream": False, "id_slot": 11},
    ),
]
