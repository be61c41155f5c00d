#!/usr/bin/env bash
# Runs all measurements and checks for a GPU, on a machine that is available for minutes only and has
# no network:
#
#   contract_tests/gpu/device.sh OUT [SECONDS]
#
# Variables, with their defaults in brackets:
# - PYTHON (python3): an interpreter with this project's dependencies, unless PYTHONPATH names them.
# - LLAMA_CPP_LIB_PATH: the folder with the libraries of a llama.cpp that was built for the GPU.
# - PEER: the command of a llama-server that was built with the same llama.cpp. Without it, only this
#   server is measured.
# - DEVICE (CUDA0): the GPU's name in --list-devices.
# - MODEL (8b): a model of `python -m tools.models.large`, such as 30b-a3b or 9b-hybrid.
# - MODELS: a folder that keeps the model's file. Without it, the file is removed at the end.
# - OPTIONS (-ngl 99 -fa on): options of both servers.
#
# To try it without a GPU: MODEL=trial QUICK=1 DEVICE=CPU OPTIONS="-ngl 0 -t 1" ONLY=rows (or cases).
#
# Each result is written to OUT/rows.jsonl or OUT/cases.json at once, the most important ones first;
# whatever fails is written with its reason. No phase begins after SECONDS (480). At the end,
# OUT/table.md has the goals with the results. Several models may have the same OUT.
set -uo pipefail
mkdir -p "${1:?OUT, a folder for the results}"
out=$(realpath "$1") seconds=${2:-480}
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3} device=${DEVICE:-CUDA0} model=${MODEL:-8b}
models=${MODELS:-$(mktemp -d)}
[ -n "${MODELS:-}" ] || trap 'rm -r "$models"' EXIT
export GGML_NO_BACKTRACE=1 PYTHONUNBUFFERED=1
export SPECLLAMA_CONTRACT_TIMEOUT=${SPECLLAMA_CONTRACT_TIMEOUT:-120} # seconds for each wait of a case
# The engine process is started with -P, so it would import the engine of an installed package.
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [ -n "${LLAMA_CPP_LIB_PATH:-}" ]; then # also for PEER, and where the folder was moved after the build
    export LD_LIBRARY_PATH=$LLAMA_CPP_LIB_PATH${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
say() { echo "[$SECONDS s] $*" | tee -a "$out/log.txt"; }

say "$("$python" -m specllama --list-devices 2>&1 | tail -3)"
if [ "${ONLY:-}" != cases ]; then
    for each in "$model" "$model-steady"; do # the second one repeats the texts that a prompt contains
        "$python" -m tools.models.large "$each" "$models/$each.gguf" 2>&1 | tee -a "$out/log.txt" || exit 1
    done
fi
measure() {
    "$python" -m benchmarks.device --model "$models/$model.gguf" \
        --steady "$models/$model-steady.gguf" --out "$out" ${PEER:+--peer "$PEER"} \
        --options "${OPTIONS:--ngl 99 -fa on}" --seconds "$((seconds - SECONDS))" ${QUICK:+--quick} "$@"
}
if [ -z "${ONLY:-}" ] || [ "$ONLY" = rows ]; then
    measure --rounds 1
    say "one round of all measurements is done"
fi
if [ -z "${ONLY:-}" ] || [ "$ONLY" = cases ]; then
    timeout "$((seconds > SECONDS ? seconds - SECONDS + 1 : 1))" \
        "$python" -m contract_tests.gpu --inside --all -k "${CASES:-.}" --device "$device" --jobs "${JOBS:-4}" \
        --results "$out/cases.json" 2>&1 | tee -a "$out/log.txt"
    say "all configurations are tried"
fi
if [ -z "${ONLY:-}" ] && [ "$SECONDS" -lt "$seconds" ]; then
    measure --rounds 1
fi
"$python" -m benchmarks.device --table --out "$out" >"$out/table.md"
say "done"
