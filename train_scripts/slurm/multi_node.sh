#!/bin/bash
#SBATCH --job-name=trl-dara
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --exclusive
#SBATCH --output=%x-%j.log

# The last node generates, the others train; in the folder of the repository:
#   sbatch [--nodes=N] train_scripts/slurm/multi_node.sh [RECIPE]
# Recipe, data, model and output_dir are on a file system that all nodes share. The server ends with the training.
set -euo pipefail

export RECIPE=${1:-train_scripts/recipes/scale_up/multi_node.yaml}
GPUS_PER_NODE=8
MODEL=$(sed -n 's/^model_name_or_path: *//p' "$RECIPE")

mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "${#NODES[@]}" -lt 2 ]; then
    echo "One node to generate and one to train are needed, not ${#NODES[@]}: sbatch --nodes=2 or more." >&2
    exit 2
fi
TRAIN_NODES=("${NODES[@]:0:${#NODES[@]}-1}")
export NUM_MACHINES=${#TRAIN_NODES[@]} NUM_PROCESSES=$((${#TRAIN_NODES[@]} * GPUS_PER_NODE))
export MAIN_NODE=${NODES[0]} VLLM_NODE=${NODES[-1]}

srun --nodes=1 --ntasks=1 --nodelist="$VLLM_NODE" \
    trl-dara vllm-serve --model "$MODEL" --tensor-parallel-size "$GPUS_PER_NODE" --max-model-len 4096 &
SERVER=$!
trap 'kill "$SERVER" 2> /dev/null || true; wait "$SERVER" || true' EXIT

# Quoted, since SLURM_PROCID differs between the tasks; the trainer waits for the server by itself
srun --nodes="$NUM_MACHINES" --ntasks="$NUM_MACHINES" --nodelist="$(IFS=,; echo "${TRAIN_NODES[*]}")" bash -c '
    trl-dara grpo --config "$RECIPE" --vllm_server_host "$VLLM_NODE" --num_processes "$NUM_PROCESSES" \
        --num_machines "$NUM_MACHINES" --machine_rank "$SLURM_PROCID" --main_process_ip "$MAIN_NODE"
'
