"""Statistics of training curves, of evaluations and of several seeds."""

import math
from collections.abc import Iterator, Mapping, Sequence
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


def first_crossing(series: Sequence[float] | Mapping[int, float], threshold: float, window: int = 1) -> int | None:
    r"""
    The first step at which a training curve reaches a threshold; by default without any smoothing, as in the DARA paper.

    Args:
        series (`list[float]` or `dict[int, float]`):
            Value of each step 1 to N, in this order or by step.
        threshold (`float`):
            Value to reach.
        window (`int`, *optional*, defaults to `1`):
            Number of steps of the trailing mean, which exists from step `window` on.

    Returns:
        `int`, *optional*: The first step at which the mean over the last `window` steps is at least `threshold`; `None` if
        there is none.

    Raises:
        `ValueError`: If a step is missing or a value is not finite.
    """
    means = _trailing_means(_steps(series), window)
    return next((step for step, mean in means if mean >= threshold), None)


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
        `ValueError`: If a step is missing, or a value or the threshold is not a number in [0, 1].
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"`threshold` is {threshold}, but shares lie in [0, 1]. Pass 0.8 for 80 %.")
    if hold < 0:
        raise ValueError(f"`hold` is {hold}. Pass a number of steps, at least 0.")
    values = _steps(series)
    outside = [(step, value) for step, value in enumerate(values, start=1) if not 0 <= value <= 1]
    if outside:
        step, value = outside[0]
        raise ValueError(
            f"`series` has {value} at step {step}, but shares lie in [0, 1]. Pass the mean of a 0/1 reward."
        )
    run = 0  # steps in a row, up to this one, with the mean at the threshold
    for step, mean in _trailing_means(values, window):
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
        or an infinite value gives NaN.
    """
    return macro_interval([values], num_resamples, seed, confidence)


def macro_interval(
    samples: Sequence[Sequence[float]], num_resamples: int = 2000, seed: int = 0, confidence: float = 0.95
) -> tuple[float, float]:
    r"""
    Percentile bootstrap interval of the unweighted mean over benchmarks.

    Args:
        samples (`list[list[float]]`):
            For each benchmark, one value per question; each is resampled by itself (stratified).
        num_resamples (`int`, *optional*, defaults to `2000`):
            Number of resamples.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the resampling.
        confidence (`float`, *optional*, defaults to `0.95`):
            As for [`bootstrap_interval`].

    Returns:
        `tuple[float, float]`: Lower and upper end.
    """
    samples = [np.asarray(sample, dtype=float) for sample in samples]
    if not samples or any(sample.ndim != 1 or len(sample) == 0 for sample in samples):
        shapes = [sample.shape for sample in samples]
        raise ValueError(f"Cannot resample values of shapes {shapes}. Pass lists with one number per question or run.")
    if not 0 < confidence < 1:
        raise ValueError(f"`confidence` is {confidence}. Pass a probability between 0 and 1, e.g. 0.95.")
    if num_resamples < 1:
        raise ValueError(f"`num_resamples` is {num_resamples}. Pass an integer of at least 1.")
    if not all(np.isfinite(sample).all() for sample in samples):
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


def sample_std(values: Sequence[float]) -> float:
    """Standard deviation with divisor n - 1; NaN for a single value, which has no spread."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


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


def _trailing_means(values: list[float], window: int) -> Iterator[tuple[int, float]]:
    """Each step from `window` on, with the mean of the last `window` values."""
    if window < 1:
        raise ValueError(f"`window` is {window}. Pass a number of steps, at least 1.")
    for step in range(window, len(values) + 1):
        total = math.fsum(values[step - window : step])  # rounded once only: ten times 0.8 have the mean 0.8
        yield step, total / window
