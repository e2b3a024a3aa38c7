"""
Trains the warm-started tiny model: `python -m trl_dara.demo.training RUN OUTPUT_DIR`, where RUN is a [`Run`] as JSON.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback

from trl_dara import MultiRewardGRPOConfig, MultiRewardGRPOTrainer
from trl_dara.data.synthetic import TINY_TOOL_CALLER, correctness_reward, format_reward, make_dataset
from trl_dara.demo.runs import Run


class JsonLines(TrainerCallback):
    """Writes the metrics of each step to a file, so that another process can follow."""

    def __init__(self, file: Path):
        self.file = file

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "reward" in logs:  # and not the summary after the last step
            with open(self.file, "a") as file:
                file.write(json.dumps({"step": state.global_step} | logs) + "\n")


@dataclass(frozen=True)
class TrainingTask:
    """
    What is trained on what.

    Args:
        model (`Path`):
            Folder of the warm-started model.
        reward_funcs (`list[Callable]`):
            The channels.
        make_dataset (`Callable`):
            Returns the prompts of a seed.
        max_completion_length (`int`):
            Longest completion, in tokens.
    """

    model: Path
    reward_funcs: list[Callable]
    make_dataset: Callable[[int], Dataset]
    max_completion_length: int


TOOL_CALLING = TrainingTask(
    TINY_TOOL_CALLER,
    [correctness_reward, format_reward],
    lambda seed: make_dataset(seed=seed),
    max_completion_length=40,
)


def train_one(
    run: Run,
    output_dir: Path,
    task: TrainingTask = TOOL_CALLING,
    aggregation: Callable | None = None,
    **settings: str | int,
) -> list[dict[str, float]]:
    """
    Trains a tiny model on the CPU.

    Args:
        run ([`Run`]):
            Settings.
        output_dir (`Path`):
            Folder for the log; an older log of the same name is replaced.
        task ([`TrainingTask`], *optional*):
            By default the synthetic tool-calling task.
        aggregation (`Callable`, *optional*):
            Function to use as the rule; `run.rule` then only labels the run.
        **settings:
            Further settings of [`MultiRewardGRPOConfig`], e.g. `group_filter`.

    Returns:
        `list[dict[str, float]]`: The metrics of each step.
    """
    log_file = run.log_file(output_dir)
    log_file.write_text(json.dumps(asdict(run)) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        args = MultiRewardGRPOConfig(
            output_dir=scratch,
            aggregation=run.rule if aggregation is None else None,
            aggregation_kwargs=run.aggregation_kwargs,
            calibration_window=run.calibration_window,
            reward_bounds=run.reward_bounds,
            per_device_train_batch_size=run.prompts * run.num_generations,
            num_generations=run.num_generations,
            max_completion_length=task.max_completion_length,
            learning_rate=run.learning_rate,
            lr_scheduler_type="constant",
            max_steps=run.steps,
            seed=run.seed,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            **settings,
        )
        trainer = MultiRewardGRPOTrainer(
            model=str(task.model),
            reward_funcs=task.reward_funcs,
            args=args,
            train_dataset=task.make_dataset(run.seed),
            callbacks=[JsonLines(log_file)],
            aggregation=aggregation,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return run.history(output_dir)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_one(Run(**json.loads(sys.argv[1])), Path(sys.argv[2]))
