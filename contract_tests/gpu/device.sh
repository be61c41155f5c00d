#!/usr/bin/env bash
# All that is wanted of a GPU, for a machine that one has for minutes and that reaches no network:
#
#   contract_tests/gpu/device.sh OUT [SECONDS]
#
# PYTHON (python3) has to have this project's dependencies, or PYTHONPATH names them.
# LLAMA_CPP_LIB_PATH names the libraries of a llama.cpp that was built for the GPU; PEER is the
# command of a llama-server that was built with the very same, and nothing is compared without it.
# DEVICE is the GPU's name as --list-devices has it (CUDA0), MODEL one of `python -m
# tools.models.large` (8b), OPTIONS what both servers get of it (-ngl 99 -fa on).
#
# What is measured goes to OUT/rows.jsonl and OUT/cases.json, each row at once; the order is that of
# what the rows are worth. No phase begins that SECONDS (480) leave no time for.
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
    say "one round of all is measured"
fi
if [ -z "${ONLY:-}" ] || [ "$ONLY" = cases ]; then
    timeout "$((seconds > SECONDS ? seconds - SECONDS + 1 : 1))" \
        "$python" -m contract_tests.gpu --inside --all -k "${CASES:-.}" --device "$device" --jobs "${JOBS:-4}" \
        --results "$out/cases.json" 2>&1 | tee -a "$out/log.txt"
    say "the configurations are tried"
fi
if [ -z "${ONLY:-}" ] && [ "$SECONDS" -lt "$seconds" ]; then
    measure --rounds 1
fi
say "done"
