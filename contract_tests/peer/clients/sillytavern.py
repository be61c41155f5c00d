"""SillyTavern: text completions with all of its sliders, token counts, chat completions."""

from contract_tests.peer.request import both_ways, get, post

TEXT = {
    "prompt": "Seraphina: Hello, traveller.\nYou:", "max_tokens": 12, "max_new_tokens": 12,
    "temperature": 0, "top_p": 0.95, "typical_p": 1, "typical": 1, "sampler_seed": -1, "min_p": 0.05,
    "repetition_penalty": 1.1, "frequency_penalty": 0, "presence_penalty": 0, "top_k": 40,
    "skew": 0, "min_tokens": 0, "add_bos_token": True, "smoothing_factor": 0, "smoothing_curve": 1,
    "dry_allowed_length": 2, "dry_multiplier": 0, "dry_base": 1.75, "dry_penalty_last_n": 0,
    "dry_sequence_breakers": ["\n", ":", "\"", "*"], "max_tokens_second": 0,
    "stopping_strings": ["\nYou:"], "stop": ["\nYou:"], "truncation_length": 2048, "ban_eos_token": False,
    "skip_special_tokens": True, "include_reasoning": True, "top_a": 0, "tfs": 1, "mirostat_mode": 0,
    "mirostat_tau": 5, "mirostat_eta": 0.1, "custom_token_bans": "", "banned_strings": [],
    "api_type": "llamacpp", "api_server": "http://127.0.0.1:8080", "xtc_threshold": 0.1, "xtc_probability": 0,
    "nsigma": 0, "top_n_sigma": 0, "grammar_string": "", "grammar": "", "n_predict": 12,
    "repeat_penalty": 1.1, "penalty_repeat": 1.1, "repeat_last_n": -1, "n_probs": 0, "num_predict": 12,
    "num_ctx": 2048, "mirostat": 0, "ignore_eos": False, "cache_prompt": True, "logit_bias": [],
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "typical_p", "top_p", "min_p", "xtc", "temperature"],
}  # fmt: skip
REQUESTS = [
    get("props", "/props"),
    post("count tokens", "/tokenize", {"content": "Seraphina: Hello"}),
    *both_ways("text", "/completion", TEXT),
    *both_ways("text with probabilities", "/completion", {**TEXT, "n_probs": 10}),
    *both_ways("text, no penalty window", "/completion", {**TEXT, "repeat_last_n": 0, "dry_penalty_last_n": -1, "dry_multiplier": 0.8}),
    *both_ways("chat", "/v1/chat/completions", {
        "messages": [{"role": "system", "content": "Write Seraphina's next reply."}, {"role": "system", "content": "[Start a new Chat]"}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi"}],
        "model": "llama", "temperature": 0, "max_tokens": 12, "presence_penalty": 0, "frequency_penalty": 0, "top_p": 1, "seed": 5,
        "stop": [], "logit_bias": {}, "n": 1}),
    *both_ways("chat, character begins", "/v1/chat/completions", {
        "messages": [{"role": "system", "content": "A tale."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Seraphina: "}],
        "model": "llama", "temperature": 0, "max_tokens": 12}),
]  # fmt: skip
