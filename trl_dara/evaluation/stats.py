"""Statistics of training curves, of evaluations and of several seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap, trim_mean


@dataclass(frozen=True)
class StableCrossing:
    r"""
    When a training curve has reached a threshold for good.

    Args:
        step (`int`, *optional*):
            First step at which the crossing is confirmed; `None` if it is not confirmed within the run (censored).
        pending (`int`, *optional*):
            Where nothing is confirmed, the first step from which on the trailing mean stays at the threshold until the end
            of the run, which comes too early to confirm it.
    """

    step: int | None
    pending: int | None = None

    def __str__(self) -> str:
        if self.step is not None:
            return str(self.step)
        return "not confirmed" if self.pending is None else f"not confirmed (pending since {self.pending})"


def first_crossing(series: Sequence[float] | Mapping[int, float], threshold: float) -> int | None:
    r"""
    The first step at which a training curve reaches a threshold, without any smoothing.

    Args:
        series (`list[float]` or `dict[int, float]`):
            Value of each step 1 to N, in this order or by step.
        threshold (`float`):
            Value to reach.

    Returns:
        `int`, *optional*: The first step whose value is at least `threshold`; `None` if there is none.
    """
    values = _steps(series)
    return next((step for step, value in enumerate(values, start=1) if value >= threshold), None)


def stable_crossing(
    series: Sequence[float] | Mapping[int, float], threshold: float, window: int = 10, hold: int = 20
) -> StableCrossing:
    r"""
    The first step at which the mean of the last `window` steps reaches a threshold and stays there for `hold` more steps:
    the measure of convergence of the DARA paper (Figure 5).

    A step is only confirmed when all `hold` steps after it are part of the series, so none of the last `hold` can be.

    Args:
        series (`list[float]` or `dict[int, float]`):
            Share in [0, 1] of each step 1 to N, in this order or by step, over everything that was generated: before any
            group filter.
        threshold (`float`):
            Value to reach.
        window (`int`, *optional*, defaults to `10`):
            Number of steps of the trailing mean, which exists from step `window` on.
        hold (`int`, *optional*, defaults to `20`):
            Number of steps over which the mean must stay at the threshold.

    Returns:
        [`StableCrossing`]

    Raises:
        `ValueError`: If a step is missing or a value is not a number in [0, 1].
    """
    if window < 1 or hold < 0:
        raise ValueError(f"`window` is {window} and `hold` is {hold}. Pass at least 1 step and at least 0 steps.")
    values = _steps(series)
    outside = [(step, value) for step, value in enumerate(values, start=1) if not 0 <= value <= 1]
    if outside:
        step, value = outside[0]
        raise ValueError(
            f"`series` has {value} at step {step}, but shares lie in [0, 1]. Pass the mean of a 0/1 reward."
        )
    run = 0  # steps in a row, up to this one, with the mean at the threshold
    for step in range(window, len(values) + 1):
        mean = math.fsum(values[step - window : step]) / window  # exact: ten times 0.8 has the mean 0.8
        run = run + 1 if mean >= threshold else 0
        if run == hold + 1:
            return StableCrossing(step - hold)
    return StableCrossing(None, pending=len(values) - run + 1 if run else None)


def bootstrap_interval(
    values: Sequence[float], num_resamples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> tuple[float, float]:
    r"""
    Percentile bootstrap interval of a mean.

    For an evaluation with several samples per question, pass one value per question, its mean over the samples: questions
    are resampled, their samples stay together.

    Args:
        values (`list[float]`):
            One value per question (or per run).
        num_resamples (`int`, *optional*, defaults to `2000`):
            Number of resamples.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the resampling.
        confidence (`float`, *optional*, defaults to `0.95`):
            Probability that the interval covers; 0.95 takes the percentiles 2.5 and 97.5.

    Returns:
        `tuple[float, float]`: Lower and upper end. A single value gives an interval without width, which says nothing; NaN
        among the values gives NaN.
    """
    return _interval([values], num_resamples, seed, confidence)


def interquartile_mean(values: Sequence[float]) -> float:
    r"""
    Mean of the middle half of all values (IQM): more robust than the mean, more precise than the median.

    Args:
        values (`list[float]`):
            Scores of any shape, e.g. one row of benchmarks per seed.

    Returns:
        `float`
    """
    return float(trim_mean(values, 0.25, axis=None))


@dataclass(frozen=True)
class PairedComparison:
    r"""
    What differs between two methods, pair by pair.

    Args:
        pairs (`dict`):
            Difference (or ratio) of each pair, by seed; of two evaluations, the difference of the means of each benchmark.
        mean (`float`):
            Mean of the pairs.
        std (`float`):
            Their sample standard deviation (divisor n - 1); NaN for a single pair.
        interval (`tuple[float, float]`):
            Bootstrap interval of the mean: over the pairs, or over the questions of each benchmark.
    """

    pairs: dict
    mean: float
    std: float
    interval: tuple[float, float]


def compare_seeds(
    first: Mapping[int, float],
    second: Mapping[int, float],
    *,
    ratio: bool = False,
    num_resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
) -> PairedComparison:
    r"""
    Compare two methods over the seeds that both were run with, `first - second` for each seed.

    No seed is left out: a diverged run (NaN) makes the result NaN. With three to five seeds the interval is rough, and
    tends to be too narrow; read it together with the pairs.

    Args:
        first (`dict[int, float]`):
            Result of the first method by seed.
        second (`dict[int, float]`):
            Result of the second method, for the same seeds.
        ratio (`bool`, *optional*, defaults to `False`):
            Whether to compare by `first / second`, e.g. for numbers of steps.
        num_resamples (`int`, *optional*, defaults to `2000`):
            Number of resamples of the pairs.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the resampling.
        confidence (`float`, *optional*, defaults to `0.95`):
            As for [`bootstrap_interval`].

    Returns:
        [`PairedComparison`]
    """
    _check_same_keys(first, second, "seed")
    pairs = {key: float(first[key] / second[key] if ratio else first[key] - second[key]) for key in sorted(first)}
    values = list(pairs.values())
    interval = bootstrap_interval(values, num_resamples, seed, confidence)
    return PairedComparison(pairs, float(np.mean(values)), sample_std(values), interval)


def compare_questions(
    first: Mapping[str, Sequence[float]],
    second: Mapping[str, Sequence[float]],
    num_resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
) -> PairedComparison:
    r"""
    Compare two evaluations on the same questions, `first - second`, by the macro mean: the unweighted mean over benchmarks.

    Questions are resampled in pairs and within their benchmark, so the interval is that of the difference.

    Args:
        first (`dict[str, list[float]]`):
            By benchmark, one value per question: its mean over the samples.
        second (`dict[str, list[float]]`):
            The same questions, in the same order, of the other evaluation.
        num_resamples (`int`, *optional*, defaults to `2000`):
            Number of resamples.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the resampling.
        confidence (`float`, *optional*, defaults to `0.95`):
            As for [`bootstrap_interval`].

    Returns:
        [`PairedComparison`]: `pairs` by benchmark, `mean` the macro difference. The interval of one benchmark alone is
        `bootstrap_interval` of its differences.
    """
    _check_same_keys(first, second, "benchmark")
    differences = {}
    for name in first:
        if len(first[name]) != len(second[name]):
            raise ValueError(
                f"Benchmark '{name}' has {len(first[name])} questions in `first` and {len(second[name])} in `second`. Pass "
                "evaluations of the same questions, in the same order."
            )
        differences[name] = np.asarray(first[name], dtype=float) - np.asarray(second[name], dtype=float)
    interval = _interval(list(differences.values()), num_resamples, seed, confidence)
    pairs = {name: float(values.mean()) for name, values in differences.items()}
    means = list(pairs.values())
    return PairedComparison(pairs, float(np.mean(means)), sample_std(means), interval)


def _steps(series: Sequence[float] | Mapping[int, float]) -> list[float]:
    """Values of steps 1 to N; refuses a series with holes, in which steps would be counted wrong."""
    if isinstance(series, Mapping):
        missing = sorted(set(range(1, len(series) + 1)) - set(series))
        if missing:
            raise ValueError(
                f"`series` has {len(series)} steps, but not step {missing[0]}. Pass every step from 1 on (train with "
                "`logging_steps=1`)."
            )
        series = [series[step] for step in range(1, len(series) + 1)]
    values = [float(value) for value in series]
    for step, value in enumerate(values, start=1):
        if not math.isfinite(value):
            raise ValueError(f"`series` has {value} at step {step}. Pass a finite value for every step.")
    return values


def _interval(samples: list, num_resamples: int, seed: int, confidence: float) -> tuple[float, float]:
    """Interval of the unweighted mean of the samples' means, each resampled by itself."""
    samples = [np.asarray(sample, dtype=float) for sample in samples]
    if not samples or any(sample.ndim != 1 or len(sample) == 0 for sample in samples):
        shapes = [sample.shape for sample in samples]
        raise ValueError(f"Cannot resample values of shapes {shapes}. Pass lists with one number per question or run.")
    if any(np.isnan(sample).any() for sample in samples):
        return math.nan, math.nan
    # scipy wants two values or more: a single one resamples to itself, however often it is there
    samples = [sample if len(sample) > 1 else sample.repeat(2) for sample in samples]

    def macro_mean(*resampled, axis):
        return np.mean([sample.mean(axis=axis) for sample in resampled], axis=0)

    result = bootstrap(
        samples,
        macro_mean,
        n_resamples=num_resamples,
        confidence_level=confidence,
        method="percentile",
        batch=100,  # resamples at a time: memory for long lists
        rng=np.random.default_rng(seed),
    )
    low, high = result.confidence_interval
    return float(low), float(high)


def sample_std(values: Sequence[float]) -> float:
    """Standard deviation with divisor n - 1; NaN for a single value, which has no spread."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _check_same_keys(first: Mapping, second: Mapping, what: str) -> None:
    if set(first) != set(second):
        raise ValueError(
            f"`first` has the {what}s {list(first)} and `second` {list(second)}. Pairs need the same {what}s in both; to "
            "compare on fewer, pass both without the others."
        )
