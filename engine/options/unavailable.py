"""llama-server's options that are known here, but not available yet.

They are refused rather than taken for typing errors. An option leaves this table when it
gets its field in `engine.options.table`.
"""

# One option a line: all its forms, then its variable. HF_TOKEN and LLAMA_OFFLINE are left
# out: other programs use them too, and the server meets both of them (it downloads nothing).
_TABLE = """
--license
-cl --cache-list
--completion-bash
--verbose-prompt
-fitt --fit-target LLAMA_ARG_FIT_TARGET
-fitc --fit-ctx LLAMA_ARG_FIT_CTX
-mu --model-url LLAMA_ARG_MODEL_URL
-dr --docker-repo LLAMA_ARG_DOCKER_REPO
-hf -hfr --hf-repo LLAMA_ARG_HF_REPO
-hfd -hfrd --hf-repo-draft LLAMA_ARG_HFD_REPO
-hff --hf-file LLAMA_ARG_HF_FILE
-hfv -hfrv --hf-repo-v LLAMA_ARG_HF_REPO_V
-hffv --hf-file-v LLAMA_ARG_HF_FILE_V
-hft --hf-token
--offline
-ctkd --cache-type-k-draft LLAMA_ARG_CACHE_TYPE_K_DRAFT
-ctvd --cache-type-v-draft LLAMA_ARG_CACHE_TYPE_V_DRAFT
-mm --mmproj LLAMA_ARG_MMPROJ
-mmu --mmproj-url LLAMA_ARG_MMPROJ_URL
--mmproj-auto --no-mmproj --no-mmproj-auto LLAMA_ARG_MMPROJ_AUTO
--mmproj-offload --no-mmproj-offload LLAMA_ARG_MMPROJ_OFFLOAD
--image-min-tokens LLAMA_ARG_IMAGE_MIN_TOKENS
--image-max-tokens LLAMA_ARG_IMAGE_MAX_TOKENS
-otd --override-tensor-draft
-cmoed --cpu-moe-draft LLAMA_ARG_CPU_MOE_DRAFT
-ncmoed --n-cpu-moe-draft LLAMA_ARG_N_CPU_MOE_DRAFT
--path LLAMA_ARG_STATIC_PATH
--webui-config LLAMA_ARG_WEBUI_CONFIG
--webui-config-file LLAMA_ARG_WEBUI_CONFIG_FILE
--webui --no-webui LLAMA_ARG_WEBUI
--threads-http LLAMA_ARG_THREADS_HTTP
--media-path
--models-dir LLAMA_ARG_MODELS_DIR
--models-preset LLAMA_ARG_MODELS_PRESET
--models-max LLAMA_ARG_MODELS_MAX
--models-autoload --no-models-autoload LLAMA_ARG_MODELS_AUTOLOAD
--sleep-idle-seconds
-td --threads-draft
-tbd --threads-batch-draft
--draft --draft-n --draft-max LLAMA_ARG_DRAFT_MAX
--draft-min --draft-n-min LLAMA_ARG_DRAFT_MIN
--draft-p-min LLAMA_ARG_DRAFT_P_MIN
-cd --ctx-size-draft LLAMA_ARG_CTX_SIZE_DRAFT
-devd --device-draft
-ngld --gpu-layers-draft --n-gpu-layers-draft LLAMA_ARG_N_GPU_LAYERS_DRAFT
-md --model-draft LLAMA_ARG_MODEL_DRAFT
--spec-replace
-mv --model-vocoder
--tts-use-guide-tokens
--embd-gemma-default
--fim-qwen-1.5b-default
--fim-qwen-3b-default
--fim-qwen-7b-default
--fim-qwen-7b-spec
--fim-qwen-14b-spec
--fim-qwen-30b-default
--gpt-oss-20b-default
--gpt-oss-120b-default
--vision-gemma-4b-default
--vision-gemma-12b-default
"""


def _variables(words: list[str]) -> list[str]:
    found = [word for word in words if not word.startswith("-")]
    if any(word.startswith("--no-") for word in words[1:]):
        found += [variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1) for variable in found]
    return found


OPTIONS: list[list[str]] = [
    [word for word in line.split() if word.startswith("-")] for line in _TABLE.split("\n") if line
]
NAMES: frozenset[str] = frozenset(name for names in OPTIONS for name in names)
VARIABLES: frozenset[str] = frozenset(
    variable for line in _TABLE.split("\n") for variable in _variables(line.split())
)
