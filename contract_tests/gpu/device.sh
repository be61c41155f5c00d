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
# - MODEL (8b): a model of `python -m tools.models.large`.
# - OPTIONS (-ngl 99 -fa on): options of both servers.
#
# Each result is written to OUT/rows.jsonl or OUT/cases.json at once, the most important ones first.
# No phase begins after SECONDS (480).
set -uo pipefail
out=${1:?OUT, a folder for the results} seconds=${2:-480}
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3} device=${DEVICE:-CUDA0} model=${MODEL:-8b}
mkdir -p "$out"
models=${MODELS:-$(mktemp -d)}
export GGML_NO_BACKTRACE=1 PYTHONUNBUFFERED=1
say() { echo "[$SECONDS s] $*" | tee -a "$out/log.txt"; }

say "$("$python" -m specllama --list-devices 2>&1 | tail -3)"
"$python" -m tools.models.large "$model" "$models/$model.gguf" | tee -a "$out/log.txt"
measure() {
    "$python" -m benchmarks.device --model "$models/$model.gguf" --out "$out" ${PEER:+--peer "$PEER"} \
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
say "done"
