"""llama-server's options that are known here, but not available yet.

They are refused rather than taken for typing errors. An option leaves this table when it
gets its field in a table.
"""

# One option a line: all its forms, then its variable.
_TABLE = """
--license
--completion-bash
--verbose-prompt
-fitt --fit-target LLAMA_ARG_FIT_TARGET
-fitc --fit-ctx LLAMA_ARG_FIT_CTX
-dr --docker-repo LLAMA_ARG_DOCKER_REPO
-hfd -hfrd --hf-repo-draft LLAMA_ARG_HFD_REPO
-hfv -hfrv --hf-repo-v LLAMA_ARG_HF_REPO_V
-hffv --hf-file-v LLAMA_ARG_HF_FILE_V
-ctkd --cache-type-k-draft LLAMA_ARG_CACHE_TYPE_K_DRAFT
-ctvd --cache-type-v-draft LLAMA_ARG_CACHE_TYPE_V_DRAFT
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
# Options of the server as a whole, with their variables: refused on the command line, but
# without effect among those of a model, as llama-server's own are that exist here.
OF_SERVER: frozenset[str] = frozenset(
    word
    for line in _TABLE.split("\n")
    if line.startswith(("--threads-http", "--path", "--webui", "--license", "--completion-bash"))
    for word in (*line.split(), *_variables(line.split()))
)
