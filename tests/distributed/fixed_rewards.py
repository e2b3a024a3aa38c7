"""
Child script: trains the tiny model for a few steps on rewards that depend on the prompt and the place in its group only,
so that any number of processes must reach the same advantages. Writes what each rank trained on as JSON.

    accelerate launch --multi_gpu --num_processes 2 -m tests.distributed.fixed_rewards MODEL OUT --completions 16 ...
"""

import argparse
import json
import os
from pathlib import Path

import torch
from datasets import Dataset

from trl_dara import MultiRewardGRPOConfig, MultiRewardGRPOTrainer

from ..leaving import leave_together


torch.set_num_threads(1)

NUM_GENERATIONS = 4
SPARSE = {0: [0, 0, 1, 0], 5: [1, 1, 0, 0], 9: [0, 1, 1, 1]}


def places(prompts: list) -> list[tuple[int, int]]:
    """Prompt number and place in the group of each of this process's completions."""
    first = int(os.environ.get("RANK", 0)) * len(prompts)
    numbers = [int(prompt[0]["content"].split()[-1]) for prompt in prompts]
    return [(number, (first + row) % NUM_GENERATIONS) for row, number in enumerate(numbers)]


def dense(prompts, **kwargs):
    return [((number * 7 + place * 3) % 5) / 2 for number, place in places(prompts)]


def sparse(prompts, log_metric, **kwargs):
    if os.environ.get("RANK", "0") == "0":
        log_metric("only_on_rank_0", 1.0)
    return [float(SPARSE.get(number, [1, 1, 1, 1])[place]) for number, place in places(prompts)]


def scored_by_the_first_half(prompts, **kwargs):
    # The first half of the generation batch, which with two processes is rank 0
    total = int(os.environ.get("WORLD_SIZE", 1)) * len(prompts)
    first = int(os.environ.get("RANK", 0)) * len(prompts)
    return [
        float((number + place) % 3) if first + row < total // 2 else None
        for row, (number, place) in enumerate(places(prompts))
    ]


class RecordingTrainer(MultiRewardGRPOTrainer):
    """Keeps the advantages that reach the loss, before they are shuffled."""

    recorded: list

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.recorded.append(output["advantages"].tolist())
        return output


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--completions", type=int, default=16, help="completions per generation batch")
    args = parser.parse_args()
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    config = MultiRewardGRPOConfig(
        output_dir=str(Path(args.out).with_suffix(".run")),
        per_device_train_batch_size=args.completions // world_size,
        num_generations=NUM_GENERATIONS,
        max_completion_length=6,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        shuffle_dataset=False,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        log_completions=True,
        num_completions_to_print=0,
    )
    prompts = [[{"role": "user", "content": f"the cat {number}"}] for number in range(24)]
    trainer = RecordingTrainer(
        args.model,
        [dense, sparse, scored_by_the_first_half],
        config,
        Dataset.from_dict({"prompt": prompts}),
        aggregation="dara_asym",
    )
    trainer.recorded = []
    trainer.train()
    rank = trainer.accelerator.process_index
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    Path(f"{args.out}.{rank}").write_text(json.dumps({"advantages": trainer.recorded, "logs": logs}))
    leave_together()


if __name__ == "__main__":
    main()
