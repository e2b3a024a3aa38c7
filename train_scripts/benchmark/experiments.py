"""The experiments of the learning benchmark. Nothing here imports PyTorch, as in [`trl_dara.demo.runs`]."""

from dataclasses import dataclass

from trl_dara.demo.runs import Run


LONGEST_THOUGHT = 3  # words, of the third reward of experiment A3: one of the four ways of thinking is that short


STATIC_WEIGHT = 2


@dataclass(frozen=True)
class LearningRun(Run):
    """
    Settings of one run: those of [`Run`], with the library's default of no calibration window, and the task.

    Args:
        task (`str`, *optional*, defaults to `"tool_calling"`):
            Key of `train_scripts.benchmark.training.TASKS`.
    """

    calibration_window: int | None = None
    task: str = "tool_calling"


@dataclass(frozen=True)
class FilteredRun(Run):
    """
    Settings of one run with a group filter: those of [`Run`], with the library's default of no calibration window, and

    Args:
        group_filter (`str`, *optional*, defaults to `"none"`):
            As in [`MultiRewardGRPOConfig`].
    """

    calibration_window: int | None = None
    group_filter: str = "none"


@dataclass(frozen=True)
class Experiment:
    """
    One experiment, run with every rule and seed.

    Args:
        title (`str`):
            What is trained, for the reader of the table.
        task (`str`):
            Key of `train_scripts.benchmark.training.TASKS`.
        channels (`tuple[str, ...]`):
            The rewards, without `_reward`; the first is the sparse one, of which the crossings are measured.
        steps (`int`):
            Optimiser steps, each on a generation batch of its own.
        prompts (`int`):
            Prompts per generation batch, B.
        num_generations (`int`):
            Completions per prompt, G.
        learning_rate (`float`):
            Learning rate, constant.
        bounds (`dict[str, list[float]]`):
            Lowest and highest reward of each channel, for the rules that need them.
    """

    title: str
    task: str
    channels: tuple[str, ...]
    steps: int
    prompts: int
    num_generations: int
    learning_rate: float
    bounds: dict[str, list[float]]

    def run(self, key: str, rule: str, seed: int, calibration_window: int | None = None) -> LearningRun:
        """The settings of one run, named after the experiment's key, the rule and the seed."""
        return LearningRun(
            name=f"{key}-{rule}-seed{seed}",
            rule=rule,
            seed=seed,
            steps=self.steps,
            prompts=self.prompts,
            num_generations=self.num_generations,
            learning_rate=self.learning_rate,
            calibration_window=calibration_window,
            aggregation_kwargs={"static_weights": self._static_weights} if rule.startswith("static") else {},
            reward_bounds={f"{channel}_reward": bounds for channel, bounds in self.bounds.items()},
            task=self.task,
        )

    @property
    def _static_weights(self) -> dict[str, float]:
        """For the rules that need weights: what somebody might have tuned, the sparse reward twice."""
        return {f"{channel}_reward": STATIC_WEIGHT if channel == self.channels[0] else 1 for channel in self.channels}


def _tool_calling(num_generations: int, prompts: int) -> Experiment:
    return Experiment(
        title=f"tool calling, sparse format, G = {num_generations}, B = {prompts}",
        task="tool_calling",
        channels=("format", "correctness"),
        steps=60,
        prompts=prompts,
        num_generations=num_generations,
        learning_rate=1.5e-4,
        bounds={"format": [0, 1], "correctness": [-3, 3]},
    )


EXPERIMENTS = {
    "A": _tool_calling(num_generations=4, prompts=64),
    "A3": Experiment(
        title="tool calling with a third reward for brief thinking, G = 4, B = 64",
        task="brief_tool_calling",
        channels=("format", "correctness", "brief"),
        steps=60,
        prompts=64,
        num_generations=4,
        learning_rate=1.5e-4,
        bounds={"format": [0, 1], "correctness": [-3, 3], "brief": [0, 1]},
    ),
    "B": Experiment(
        title="sums with a limit on the length, near saturation, G = 16, B = 16",
        task="arithmetic",
        channels=("length", "correctness"),
        steps=150,
        prompts=16,
        num_generations=16,
        learning_rate=1e-4,
        bounds={"length": [0, 1], "correctness": [0, 1]},
    ),
    # 256 completions a step each, as A
    "G8": _tool_calling(num_generations=8, prompts=32),
    "G16": _tool_calling(num_generations=16, prompts=16),
    "G32": _tool_calling(num_generations=32, prompts=8),
}
