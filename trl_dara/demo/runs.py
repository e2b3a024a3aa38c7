"""
Runs of the demo: their settings, their logs, and running several at a time in child processes.

Nothing here imports PyTorch: the parent process stays small, and every child has one thread to itself.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..child_processes import python_path


CHANNELS = ("format", "correctness")
REWARD_BOUNDS = {"format_reward": [0, 1], "correctness_reward": [-3, 3]}  # of the tool-calling task


@dataclass(frozen=True)
class Run:
    """
    Settings of one run.

    Args:
        name (`str`):
            Name of the run and of its files.
        rule (`str`):
            Aggregation rule.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the prompts, of their order and of the sampling: runs with the same seed have the same first batch.
        steps (`int`, *optional*, defaults to `60`):
            Number of optimiser steps, each on a generation batch of its own.
        prompts (`int`, *optional*, defaults to `64`):
            Prompts per generation batch, B.
        num_generations (`int`, *optional*, defaults to `4`):
            Completions per prompt, G.
        learning_rate (`float`, *optional*, defaults to `1.5e-4`):
            Learning rate, constant.
        calibration_window (`int`, *optional*, defaults to `64`):
            As in [`MultiRewardGRPOConfig`].
        aggregation_kwargs (`dict`, *optional*, defaults to `{}`):
            Keyword arguments of the rule.
        reward_bounds (`dict`, *optional*):
            As in [`MultiRewardGRPOConfig`].
    """

    name: str
    rule: str
    seed: int = 0
    steps: int = 60
    prompts: int = 64
    num_generations: int = 4
    learning_rate: float = 1.5e-4
    calibration_window: int | None = 64
    aggregation_kwargs: dict = field(default_factory=dict)
    reward_bounds: dict | None = None

    def log_file(self, output_dir: Path) -> Path:
        """Where [`train_one`] logs: the settings in the first line, the metrics of one step in each further line."""
        return output_dir / f"{self.name}.jsonl"

    def history(self, output_dir: Path) -> list[dict[str, float]]:
        """The metrics of each step so far; none if the log is missing or was written with other settings."""
        lines = self._whole_lines(output_dir)
        if not lines or json.loads(lines[0]) != asdict(self):
            return []
        return [json.loads(line) for line in lines[1:]]

    def other_settings(self, output_dir: Path) -> list[str]:
        """Names of the settings in which the log that is there differs from this run; none if there is no log."""
        lines = self._whole_lines(output_dir)
        logged = json.loads(lines[0]) if lines else asdict(self)
        return [name for name, value in asdict(self).items() if logged.get(name) != value]

    def _whole_lines(self, output_dir: Path) -> list[str]:
        """The lines of the log; a run that is going on may have written half of the last one."""
        log_file = self.log_file(output_dir)
        lines = log_file.read_text().splitlines(keepends=True) if log_file.exists() else []
        return [line for line in lines if line.endswith("\n")]

    def is_finished(self, output_dir: Path) -> bool:
        """Whether all steps of this run are logged."""
        return len(self.history(output_dir)) == self.steps


def channel_series(history: list[dict[str, float]], metric: str, channel: str) -> list[float]:
    """
    One metric of one channel over the steps.

    Args:
        history (`list[dict[str, float]]`):
            Metrics of each step.
        metric (`str`):
            `"reward"` or the last part of the name of a channel's metric, e.g. `"density"`.
        channel (`str`):
            One of [`CHANNELS`].

    Returns:
        `list[float]`: A value per step.
    """
    key = f"rewards/{channel}_reward/mean" if metric == "reward" else f"channels/{channel}_reward/{metric}"
    return [entry[key] for entry in history]


def run_all(
    runs: list[Run],
    output_dir: Path,
    parallel: int,
    refresh: Callable[[int], None],
    module: str = "trl_dara.demo.training",
) -> None:
    """
    Trains what is not finished, several runs at a time, each in a child process.

    No child outlives this function, whether it returns, fails or is interrupted.

    Args:
        runs (`list[Run]`):
            The runs, in the order in which they are started.
        output_dir (`Path`):
            Folder of the logs.
        parallel (`int`):
            How many runs at a time.
        refresh (`Callable`):
            Called with the number of runs that are left, at once and then twice a second.
        module (`str`, *optional*, defaults to `"trl_dara.demo.training"`):
            What trains one run: `python -m MODULE RUN OUTPUT_DIR`.

    Raises:
        `RuntimeError`: When a run fails.
        `ValueError`: When no run may be started.
    """
    if parallel < 1:
        raise ValueError(f"`parallel` is {parallel!r}. Pass how many runs to train at a time, at least 1.")
    output_dir.mkdir(parents=True, exist_ok=True)
    waiting = [run for run in runs if not run.is_finished(output_dir)]
    children: dict[str, subprocess.Popen] = {}
    refresh(len(waiting))
    try:
        while waiting or children:
            while waiting and len(children) < parallel:
                run = waiting.pop(0)
                children[run.name] = _start(run, output_dir, module)
            time.sleep(0.5)
            for name, child in list(children.items()):
                if child.poll() is not None:
                    _check(children.pop(name), output_dir / f"{name}.out")
            refresh(len(waiting) + len(children))
    finally:
        for child in children.values():
            child.terminate()
        for child in children.values():
            child.wait()


def _start(run: Run, output_dir: Path, module: str) -> subprocess.Popen:
    command = [sys.executable, "-m", module, json.dumps(asdict(run)), str(output_dir)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": python_path()}
    with open(output_dir / f"{run.name}.out", "w") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def _check(child: subprocess.Popen, output: Path) -> None:
    if child.returncode != 0:
        last_lines = "\n".join(output.read_text().splitlines()[-5:])
        raise RuntimeError(
            f"The run {output.stem} ended with exit code {child.returncode}. From {output}:\n{last_lines}"
        )
