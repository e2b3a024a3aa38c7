#!/usr/bin/env bash
# The first GPU generates, the others train. The server ends with the training.
#   bash train_scripts/recipes/scale_up/server.sh RECIPE [option of `trl-dara grpo` ...]
set -euo pipefail

recipe=${1:?the YAML file of a recipe with "vllm_mode: server"}
shift
model=$(sed -n 's/^model_name_or_path: *//p' "$recipe")
gpus=$(nvidia-smi --list-gpus | wc -l) || gpus=0
if [ "$gpus" -eq 0 ]; then
    echo "There is no GPU here, as far as nvidia-smi can tell. Training with a server needs two." >&2
    exit 2
fi
if [ "$gpus" -lt 2 ]; then
    echo "One GPU to generate and one to train are needed, not $gpus; with one, use one_gpu_colocate.yaml." >&2
    exit 2
fi

CUDA_VISIBLE_DEVICES=0 trl-dara vllm-serve --model "$model" --host 127.0.0.1 --max-model-len 4096 &
server=$!
trap 'kill "$server" 2> /dev/null || true; wait "$server" || true' EXIT

# The trainer waits for the server by itself
CUDA_VISIBLE_DEVICES=$(seq -s, 1 $((gpus - 1))) trl-dara grpo --config "$recipe" --num_processes $((gpus - 1)) "$@"
