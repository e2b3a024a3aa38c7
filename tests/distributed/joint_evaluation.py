"""
Child script: evaluates the tiny model on five prompts with two completions each, which do not fill the last batch of two
processes. Writes the metrics of each rank as JSON.

    accelerate launch --multi_gpu --num_processes 2 -m tests.distributed.joint_evaluation MODEL OUT
"""

import json
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset

from trl_dara import MultiRewardGRPOConfig, MultiRewardGRPOTrainer
from trl_dara.evaluation.callback import JointEvaluationCallback

from ..leaving import leave_together


torch.set_num_threads(1)


def low_number(prompts, **kwargs):
    return [float(int(prompt.split()[-1]) < 3) for prompt in prompts]


def first_of_two(prompts, **kwargs):
    return [1.0 - row % 2 for row, _ in enumerate(prompts)]


def main() -> None:
    model, out = sys.argv[1:]
    config = MultiRewardGRPOConfig(
        output_dir=f"{out}.run",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8 // int(os.environ.get("WORLD_SIZE", 1)),
        num_generations=2,
        max_completion_length=4,
        reward_bounds={"low_number": [0, 1], "first_of_two": [0, 1]},
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
    )
    prompts = Dataset.from_dict({"prompt": [f"the cat {number}" for number in range(5)]})
    trainer = MultiRewardGRPOTrainer(model, [low_number, first_of_two], config, prompts, eval_dataset=prompts)
    trainer.add_callback(JointEvaluationCallback(trainer))
    metrics = trainer.evaluate()
    counted = sum(len(rewards) for rewards in trainer.evaluation_rewards)
    Path(f"{out}.{trainer.accelerator.process_index}").write_text(json.dumps({"rows": counted, "metrics": metrics}))
    leave_together()


if __name__ == "__main__":
    main()
