"""Runs that differ in their seed only, side by side: their label, their curves, and when they reach a threshold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..evaluation.stats import StableCrossing, first_crossing, stable_crossing
from .plots import SMOOTH_FROM, trailing_mean
from .runs import TrainingRun


WINDOW, HOLD = 10, 20  # generation batches of a stable crossing, as in the DARA paper
NOT_COMPARED = ("rule", "seed", "name", "steps", "task", "resumed_at", "updates_per_batch")
GROUP_SIZE = ("num_generations", "prompts")  # settings of the paper's study of group sizes
SAID_FIRST = ("calibration_window", *GROUP_SIZE)  # after the rule's own arguments, before all others


@dataclass
class RunGroup:
    r"""
    Runs of one rule with the same settings.

    Args:
        label (`str`):
            What tells the group from the others.
        family (`str`):
            The label without the group size.
        runs (`list[TrainingRun]`):
            Its runs, one for each seed.
    """

    label: str
    family: str
    runs: list[TrainingRun]

    @property
    def channels(self) -> list[str]:
        """Names of the channels of any of its runs."""
        return list(dict.fromkeys(channel for run in self.runs for channel in run.channels))

    def setting(self, name: str):
        """What all runs have for a setting; `None` if they differ, or it is not known."""
        values = {repr(run.record.get(name)): run.record.get(name) for run in self.runs}
        return next(iter(values.values())) if len(values) == 1 else None


def group_runs(runs: Sequence[TrainingRun], labels: Mapping[str, str]) -> list[RunGroup]:
    """
    Put runs together that differ in their seed only.

    Args:
        runs (`list[TrainingRun]`):
            All runs.
        labels (`dict[str, str]`):
            Labels that the user gave to runs, by name.

    Returns:
        `list[RunGroup]`: in the order of the runs. A group is labelled with its rule and with settings that tell it from the
        other groups of that rule; a run whose rule was not written down with its own name.
    """
    settings_by_rule: dict[str, list[dict]] = {}
    for run in runs:
        if run.name not in labels:
            settings_by_rule.setdefault(run.record.get("rule"), []).append(_settings(run))
    groups: dict[str, RunGroup] = {}
    for run in runs:
        rule = run.record.get("rule")
        if run.name in labels or rule is None:
            label = family = labels.get(run.name, run.name)
        else:
            said = _telling(settings_by_rule[rule])
            own = {key: value for key, value in _settings(run).items() if key in said}
            label = ", ".join([rule, *(_shown(key, own[key]) for key in own)])
            family = ", ".join([rule, *(_shown(key, own[key]) for key in own if key not in GROUP_SIZE)])
        groups.setdefault(label, RunGroup(label, family, [])).runs.append(run)
    return list(groups.values())


def _settings(run: TrainingRun) -> dict:
    """Settings that tell runs of one rule apart, the rule's own arguments before all others."""
    settings = {key: run.record.get(key) for key in SAID_FIRST} | run.record
    rule_arguments = settings.pop("aggregation_kwargs", None) or {}
    if "model" in settings:
        settings["model"] = Path(settings["model"]).name
    return rule_arguments | {key: value for key, value in settings.items() if key not in NOT_COMPARED}


def _shown(key: str, value) -> str:
    """A setting in a label, without what arithmetic leaves in the last digits of a number."""
    return f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}"


def _telling(settings: Sequence[dict]) -> list[str]:
    """The first settings that tell all different ones apart: not all in which they differ, of which there may be many."""

    def kinds(keys: Sequence[str]) -> int:
        return len({repr([of_run.get(key) for key in keys]) for of_run in settings})

    said: list[str] = []
    for key in dict.fromkeys(key for of_run in settings for key in of_run):
        if kinds([*said, key]) > kinds(said):
            said.append(key)
    return said


@dataclass
class Curve:
    r"""
    One metric of one channel, over the runs of a group.

    Args:
        steps, low, median, high (`np.ndarray` of shape `(T,)`):
            Steps that all runs have logged, with the quartiles over the runs.
        rest (`list[tuple[np.ndarray, np.ndarray]]`):
            Steps and values of each run beyond those; the whole of every run where they have no step in common.
    """

    steps: np.ndarray
    low: np.ndarray
    median: np.ndarray
    high: np.ndarray
    rest: list[tuple[np.ndarray, np.ndarray]]


def curve(series: Sequence[tuple[np.ndarray, np.ndarray]]) -> Curve | None:
    """
    Median and interquartile range over runs; long ones as trailing means.

    Args:
        series (`list[tuple[np.ndarray, np.ndarray]]`):
            Steps and values of each run; runs without any are left out.

    Returns:
        [`Curve`], *optional*: `None` if no run has values.
    """
    series = [(steps, smooth(values)) for steps, values in series if len(steps)]
    if not series:
        return None
    common = series[0][0]
    for steps, _ in series[1:]:
        common = np.intersect1d(common, steps)
    at_common = np.array([values[np.isin(steps, common)] for steps, values in series])  # (runs, T)
    nothing = np.empty(0)
    low, median, high = np.quantile(at_common, [0.25, 0.5, 0.75], axis=0) if len(common) else (nothing,) * 3
    end = common[-1] if len(common) else -1
    rest = [(steps[steps >= end], values[steps >= end]) for steps, values in series if steps[-1] > end]
    return Curve(common, low, median, high, rest)


def smooth(values: np.ndarray) -> np.ndarray:
    """The trailing mean of a long series, the series itself if it is short."""
    return trailing_mean(values, smoothing(len(values))) if len(values) else values


def smoothing(length: int) -> int:
    """Number of logged values in the trailing mean of a plotted series."""
    return max(3, length // 30) if length >= SMOOTH_FROM else 1


def shares_of_range(
    run: TrainingRun, channel: str, bounds: Mapping[str, Sequence[float]]
) -> tuple[np.ndarray, np.ndarray]:
    """
    The mean reward of a run as a share of its range.

    Args:
        run ([`TrainingRun`]):
            A run.
        channel (`str`):
            One of its channels.
        bounds (`dict[str, list[float]]`):
            Lowest and highest reward by name; they go before those that the run was made with.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: steps and shares; empty for rewards outside [0, 1] whose bounds nobody gave.
    """
    steps, values = run.series("mean", channel)
    low, high = bounds.get(channel) or (run.record.get("reward_bounds") or {}).get(channel) or (0.0, 1.0)
    shares = (values - low) / (high - low)
    if ((shares < -1e-6) | (shares > 1 + 1e-6)).any():
        return steps[:0], values[:0]
    return steps, shares.clip(0, 1)  # a float32 mean may be a little beyond


def first_at(steps: np.ndarray, shares: np.ndarray, threshold: float) -> int | None:
    """The first logged step at which the mean reward of that step is at a threshold."""
    index = first_crossing(shares.tolist(), threshold)
    return None if index is None else int(steps[index - 1])


def stable_at(run: TrainingRun, steps: np.ndarray, shares: np.ndarray, threshold: float) -> StableCrossing | None:
    """
    The first stable crossing of a threshold: the mean of 10 generation batches reaches it and stays there for 20 more.

    Args:
        run ([`TrainingRun`]):
            The run.
        steps, shares (`np.ndarray` of shape `(T,)`):
            From [`shares_of_range`].
        threshold (`float`):
            Share of the range.

    Returns:
        [`StableCrossing`], *optional*: in logged steps. `None` if the log does not tell: steps are missing, or one logged
        value is the mean of more than 10 batches.
    """
    gaps = np.diff(steps)
    if len(gaps) > 1 and gaps[0] < gaps[1]:  # `logging_first_step`: a value of its own kind
        steps, shares, gaps = steps[1:], shares[1:], gaps[1:]
    if len(set(gaps)) > 1 or run.batches_per_value > WINDOW:
        return None
    window, hold = (max(1, round(batches / run.batches_per_value)) for batches in (WINDOW, HOLD))
    crossing = stable_crossing(shares.tolist(), threshold, window, hold)
    in_steps = [None if index is None else int(steps[index - 1]) for index in (crossing.step, crossing.pending)]
    return StableCrossing(*in_steps)


def peak_window(run: TrainingRun, groups: int) -> int:
    """Number of logged values of a run that are over at least so many groups."""
    return -(-groups // max(1, round(run.batches_per_value * run.record.get("prompts", groups))))


def density_peak(run: TrainingRun, channel: str, groups: int) -> tuple[int, float] | None:
    """
    Where the density of a channel is highest.

    Args:
        run ([`TrainingRun`]):
            A run.
        channel (`str`):
            One of its channels.
        groups (`int`):
            Number of groups that an estimate needs at least: small batches are averaged over some steps.

    Returns:
        `tuple[int, float]`, *optional*: the step and the density, `None` if none was logged.
    """
    steps, density = run.series("density", channel)
    window = min(len(density), peak_window(run, groups))
    if not len(density):
        return None
    means = trailing_mean(density, window)[window - 1 :]
    best = int(means.argmax())
    return int(steps[best + window - 1]), float(means[best])
