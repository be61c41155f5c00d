"""Keys that only our answers have. An unlisted key is a difference without a reason."""

from contract_tests.peer.row import Accepted

_SETTINGS = (
    "cache_prompt", "id_slot", "json_schema", "json_whitespace", "jump_forward", "model",
    "n_cache_reuse", "n_ctx", "n_indent",
    "return_progress", "return_tokens", "speculative.n_max", "speculative.n_min",
    "speculative.p_min", "t_max_predict_ms", "thinking_forced_open",
)  # fmt: skip
_OF_A_TEXT = (
    "dry_sequence_breakers", "grammar", "grammar_lazy", "grammar_triggers", "logit_bias",
    "preserved_tokens", "stop",
)  # fmt: skip
_OF_A_SLOT = (
    "cache_miss_at", "cache_miss_reason", "id_task", "key_name", "n_prompt_tokens",
    "n_prompt_tokens_cache", "n_prompt_tokens_from_files", "n_prompt_tokens_processed",
    "n_prompt_tokens_restored", "n_prompt_tokens_shared", "next_token", "priority",
)  # fmt: skip
_OF_TIMINGS = (
    "cache_disk_n", "cache_kv_n", "cache_miss_at", "cache_miss_reason", "cache_ram_n",
)  # fmt: skip
_OF_A_MODEL = ("architecture", "can_remove", "in_cache", "memory", "path", "source", "status")
_OF_ANY_SLOT = ("generated", "id", "is_processing", "prompt", "speculative")
_OF_A_MESSAGE = (
    "container", "content[].caller", "content[].citations", "content_block.caller",
    "content_block.citations", "content_block.input", "content_block.signature", "delta.container",
    "delta.stop_details", "request_id", "stop_details", "type",
    "usage.cache_creation", "usage.cache_creation_input_tokens",
    "usage.cache_read_input_tokens", "usage.inference_geo", "usage.input_tokens",
    "usage.output_tokens_details", "usage.server_tool_use", "usage.service_tier",
)  # fmt: skip
_OF_A_RESPONSE = (
    "background", "completed_at", "content_index", "conversation", "created_at", "error",
    "frequency_penalty", "incomplete_details", "instructions", "logprobs", "max_output_tokens",
    "max_tool_calls",
    "metadata", "model", "output", "output[].status", "output[].summary", "output_index",
    "parallel_tool_calls", "part.annotations", "part.logprobs", "presence_penalty",
    "previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier",
    "sequence_number", "service_tier", "store", "temperature", "text", "tool_choice", "tools",
    "top_logprobs", "top_p", "truncation", "usage",
    "usage.input_tokens_details.cache_write_tokens", "usage.output_tokens_details", "user",
)  # fmt: skip
_SERIES = (
    "llamacpp:kv_cache_tokens gauge",
    "llamacpp:kv_cache_usage_ratio gauge",
    "llamacpp:n_tokens_max gauge",
    "specllama_cache_ram_bytes gauge",
    "specllama_checkpoint_bytes gauge",
    "specllama_constraint_bytes gauge",
    "specllama_device_idle_seconds_total counter",
    "specllama_engine_resident_bytes gauge",
    "specllama_inter_token_latency_seconds histogram",
    "specllama_prompt_tokens_computed_total counter",
    "specllama_prompt_tokens_from_files_total counter",
    "specllama_prompt_tokens_restored_total counter",
    "specllama_prompt_tokens_shared_total counter",
    "specllama_request_duration_seconds histogram",
    "specllama_request_queue_seconds histogram",
    "specllama_requests_preempted_total counter",
    "specllama_requests_refused_total counter",
    "specllama_step_seconds histogram",
    "specllama_time_to_first_token_seconds histogram",
    "specllama_tokens_running gauge",
    "specllama_tokens_waiting gauge",
    "vllm:cache_config_info gauge",
    "vllm:kv_cache_usage_perc gauge",
    "vllm:num_requests_running gauge",
    "vllm:num_requests_waiting gauge",
)
_NATIVE = r"(/v1)?/(completions?|infill|chat/completions)$|/(v1/)?completion|/v1/stream\?"
_MESSAGES = r"/v1/messages"
_RESPONSES = r"(/v1)?/responses"

ROWS = (
    Accepted.more(
        "More keys in `generation_settings`",
        [f"generation_settings.{key}" for key in _SETTINGS],
        "All settings of a request are shown, as in llama-server's documentation.",
        rf"{_NATIVE}|/props|/slots",
    ),
    Accepted.more(
        "More keys in the `generation_settings` of `/props` and `/slots`",
        [f"generation_settings.{key}" for key in _OF_A_TEXT],
        "The settings of a slot have the same keys as those of an answer.",
        r"/props|/slots",
    ),
    Accepted.more(
        "More keys in `/props`",
        [
            "role",
            "devices",
            *(f"default_generation_settings.{key}" for key in (*_OF_ANY_SLOT, *_OF_A_SLOT)),
        ],
        "llama-server's documentation shows a whole slot, clients of a router read `role`, and "
        "`devices` shows where the model is loaded.",
        r"/props",
    ),
    Accepted.more(
        "More keys in `/slots`",
        [f"[].{key}" for key in (*_OF_A_SLOT, "params")],
        "llama-server's documentation shows them, also for a slot that was never used.",
        r"/slots",
    ),
    Accepted.more(
        "More keys in lists of models",
        [f"data[].{key}" for key in _OF_A_MODEL],
        "A router of llama-server has most of them; here every server is also a router. `memory` "
        "is what the model takes on each device.",
        r"(/v1)?/models",
    ),
    Accepted.more(
        "More keys in `meta` of models",
        ["data[].meta.description", "data[].meta.license"],
        "They describe the model that comes with the package.",
        r"(/v1)?/models",
    ),
    Accepted.more(
        "More keys in a router's list",
        ["data[].meta", "data[].status.failed", "data[].status.progress", "models"],
        "A server of one model has `meta` and `models` in llama-server; here every server is also "
        "a router. The status of a model can be read without the events.",
        r"(/v1)?/models",
    ),
    Accepted.more(
        "More keys in `/props` of a router",
        [
            "bos_token",
            "chat_template",
            "chat_template_caps",
            "endpoint_metrics",
            "endpoint_props",
            "endpoint_slots",
            "eos_token",
            "is_sleeping",
            "max_instances",
            "media_marker",
            "modalities",
            "model_ftype",
            "models_autoload",
            "total_slots",
            "ui",
        ],
        "They belong to the default model, and to the router.",
        r"/props",
    ),
    Accepted.more(
        "`code` in some errors",
        ["error.code"],
        "All other errors have `code`.",
        r"/tools|/cors-proxy|/v1/streams/lookup",
    ),
    Accepted.more(
        "`reason` in some errors",
        ["error.reason"],
        "Clients of Responses see that they have to send the whole conversation again.",
        r"(/v1)?/responses$",
    ),
    Accepted.more(
        "More series in `/metrics`",
        _SERIES,
        "Latencies can't be computed from counters, and older dashboards use the cache's gauges.",
        r"/metrics",
    ),
    Accepted.more(
        "More keys in chat completions",
        ["choices[].logprobs", "choices[].message.refusal"],
        "OpenAI's API always has them, and strict clients require them.",
        r"(/v1)?/chat/completions",
    ),
    Accepted.more(
        "More keys in Messages",
        _OF_A_MESSAGE,
        "Anthropic's API has them (`type` and `request_id` in errors); strict clients need them.",
        _MESSAGES,
    ),
    Accepted.more(
        "More keys in Responses",
        _OF_A_RESPONSE,
        "OpenAI's API requires them, and so do strict clients.",
        _RESPONSES,
    ),
    Accepted.more(
        "More keys in `timings`",
        [f"{place}timings.{key}" for place in ("", "[].") for key in _OF_TIMINGS],
        "They say where each prompt token came from, and why the others weren't cached.",
        r"",
    ),
    Accepted.more(
        "More keys in `usage`",
        [
            "usage.prompt_tokens_details.cached_disk_tokens",
            "usage.prompt_tokens_details.cached_ram_tokens",
        ],
        "As in `timings`.",
        _NATIVE,
    ),
    Accepted.more(
        "Proposals in `timings`",
        ["timings.draft_n", "timings.draft_n_accepted"],
        "Constraints propose tokens even without `--spec-type` or a draft model.",
        r"",
    ),
    Accepted.more(
        "`timings` in Responses",
        ["timings"],
        "The other operations have them, too.",
        _RESPONSES,
    ),
)
