"""Paired comparisons: of two methods over seeds, of two evaluations over questions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .stats import bootstrap_interval, macro_interval, sample_std


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
    zeros = [key for key in second if second[key] == 0]
    if ratio and zeros:
        raise ValueError(f"`second` is 0 for the seeds {zeros}, so there is no ratio. Compare by `ratio=False`.")
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
    interval = macro_interval(list(differences.values()), num_resamples, seed, confidence)
    pairs = {name: float(values.mean()) for name, values in differences.items()}
    means = list(pairs.values())
    return PairedComparison(pairs, float(np.mean(means)), sample_std(means), interval)


def _check_same_keys(first: Mapping, second: Mapping, what: str) -> None:
    if set(first) != set(second):
        raise ValueError(
            f"`first` has the {what}s {list(first)} and `second` {list(second)}. Pairs need the same {what}s in both; to "
            "compare on fewer, pass both without the others."
        )
    unknown = [key for key in first if first[key] is None or second[key] is None]
    if unknown:
        raise ValueError(
            f"There is no value (`None`) for the {what}s {unknown}. Pass a number for each, e.g. the length of the run where a "
            "threshold was not reached, and say so."
        )
