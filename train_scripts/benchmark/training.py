"""Trains one run of the learning benchmark: `python -m train_scripts.benchmark.training RUN OUTPUT_DIR`, RUN as JSON."""

import functools
import json
import sys
from pathlib import Path

import torch

from train_scripts.benchmark import arithmetic
from train_scripts.benchmark.experiments import LONGEST_THOUGHT, LearningRun
from trl_dara.demo.training import TOOL_CALLING, TrainingTask, train_one
from trl_dara.rewards import think_length_reward


def brief_reward(completions, **kwargs) -> list[float]:
    """1 if the completion has a think block of at most three words, else 0."""
    return think_length_reward(completions, max_words=LONGEST_THOUGHT)


TASKS = {
    "tool_calling": TOOL_CALLING,
    "brief_tool_calling": TrainingTask(
        TOOL_CALLING.model,
        [*TOOL_CALLING.reward_funcs, brief_reward],
        TOOL_CALLING.make_dataset,
        TOOL_CALLING.max_completion_length,
    ),
    "arithmetic": TrainingTask(
        arithmetic.TINY_ADDER,
        [arithmetic.correctness_reward, arithmetic.length_reward],
        functools.partial(arithmetic.make_dataset, 4096),
        max_completion_length=28,
    ),
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = LearningRun(**json.loads(sys.argv[1]))
    train_one(run, Path(sys.argv[2]), TASKS[run.task])
