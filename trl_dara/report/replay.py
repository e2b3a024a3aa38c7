"""What every aggregation rule would have made of recorded rewards."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ..aggregation import AGGREGATIONS, AdvantageResult, compute_advantages
from ..by_name import check_bounds
from ..metrics import channel_metrics
from .recording import Batch, Recording


# Metrics that say something about the rewards alone, whatever the rule
CHANNEL_METRICS = ("density", "energy", "coverage", "saturation", "dead_low", "dead_high")
BATCH_METRICS = ("frac_groups_inactive", "frac_conflict", "prompts")

SAME_ADVANTAGE = 1e-6  # closer than this, relative to the largest of the batch, two advantages are the same


@dataclass
class RuleReplay:
    r"""
    What one rule would have done at each of `T` steps.

    Args:
        share, weight (`np.ndarray` of shape `(T, K)`):
            Share of each channel in the absolute contributions, and the rule's weight, as the trainer logs them; NaN
            where nothing was scored.
        advantage_std (`np.ndarray` of shape `(T,)`):
            Standard deviation of the advantages, which acts like a learning rate.
        collisions (`np.ndarray` of shape `(T,)`):
            Share of completions that get the advantage of a completion of their group with other rewards.
        logged_difference (`float`):
            Largest distance from the advantages in the table, NaN where it has none.
    """

    share: np.ndarray
    weight: np.ndarray
    advantage_std: np.ndarray
    collisions: np.ndarray
    logged_difference: float


@dataclass
class Replay:
    r"""
    A replayed recording: `T` steps, `K` channels.

    Args:
        recording ([`Recording`]):
            The recorded rewards.
        weights (`list[float]`), bounds (`list[tuple[float, float] | None]`):
            Reward weights and declared bounds of the channels.
        steps (`np.ndarray` of shape `(T,)`):
            Logged steps.
        channel_metrics (`dict[str, np.ndarray]` of shape `(T, K)`):
            `mean`, `minimum` and `maximum` of the rewards, and the metrics of the trainer that no rule influences.
        batch_metrics (`dict[str, np.ndarray]` of shape `(T,)`):
            `frac_groups_inactive`, `frac_conflict` and `prompts` of the trainer.
        rules (`dict[str, RuleReplay]`):
            By the rule's name.
        left_out (`dict[str, str]`):
            Rules that could not be replayed, and why.
    """

    recording: Recording
    weights: list[float]
    bounds: list[tuple[float, float] | None]
    steps: np.ndarray
    channel_metrics: dict[str, np.ndarray]
    batch_metrics: dict[str, np.ndarray]
    rules: dict[str, RuleReplay]
    left_out: dict[str, str]

    @property
    def channels(self) -> list[str]:
        return self.recording.channels


def replay(
    recording: Recording,
    weights: list[float],
    reward_bounds: dict[str, list[float]] | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Replay:
    """
    Replay a recording under every rule.

    Args:
        recording ([`Recording`]):
            Recorded rewards.
        weights (`list[float]`):
            Reward weights in channel order.
        reward_bounds (`dict[str, list[float]]`, *optional*):
            Lowest and highest possible reward by channel name; the rules that need them are left out where a channel
            with a weight has none.
        on_step (`Callable`, *optional*):
            Called after each step.

    Returns:
        [`Replay`]

    Raises:
        `ValueError`: for bounds that do not fit.
    """
    bounds = check_bounds(reward_bounds, recording.channels)
    arguments, left_out = _rule_arguments(recording.channels, weights, bounds)
    names = recording.channels
    reward_weights = torch.tensor(weights, dtype=torch.float32)  # (K,)
    logs, of_rule = [], {rule: [] for rule in arguments}
    for batch in recording.batches:
        vectors = number_vectors(batch.rewards, reward_weights != 0)  # (N,)
        for rule, kwargs in arguments.items():
            result = compute_advantages(batch.rewards, recording.num_generations, rule, reward_weights, **kwargs)
            metrics = channel_metrics(batch.rewards, result, reward_weights, names, bounds)
            of_rule[rule].append(_rule_step(batch, result, metrics, names, vectors))
        logs.append(metrics | _reward_range(batch.rewards, names))
        on_step()
    return Replay(
        recording=recording,
        weights=weights,
        bounds=bounds,
        steps=np.array([batch.step for batch in recording.batches]),  # (T,)
        channel_metrics={
            metric: np.array([[log.get(f"channels/{name}/{metric}", np.nan) for name in names] for log in logs])
            for metric in ("mean", "minimum", "maximum", *CHANNEL_METRICS)
        },  # (T, K)
        batch_metrics={
            metric: np.array([log[f"aggregation/{metric}"] for log in logs]) for metric in BATCH_METRICS
        },  # (T,)
        rules={rule: _collect(steps) for rule, steps in of_rule.items()},
        left_out=left_out,
    )


def _rule_arguments(
    channels: list[str], weights: list[float], bounds: list[tuple[float, float] | None]
) -> tuple[dict[str, dict], dict[str, str]]:
    """Keyword arguments of each rule that can be replayed, and for each other one the reason."""
    arguments, left_out = {}, {}
    unbounded = [name for name, weight, pair in zip(channels, weights, bounds, strict=True) if weight and pair is None]
    for rule, function in AGGREGATIONS.items():
        options = inspect.signature(function).parameters
        required = [
            name
            for name, option in options.items()
            if option.kind is option.KEYWORD_ONLY and option.default is option.empty
        ]
        if required:
            left_out[rule] = f"needs {' and '.join(f'`{name}`' for name in required)}, which no table tells"
        elif "reward_bounds" in options and unbounded:
            left_out[rule] = f"needs the bounds of {', '.join(unbounded)}, in `--reward-bounds`"
        else:
            arguments[rule] = {"reward_bounds": bounds} if "reward_bounds" in options else {}
    return arguments, left_out


def _rule_step(batch: Batch, result: AdvantageResult, metrics: dict, names: list[str], vectors: np.ndarray) -> tuple:
    shares = np.array([metrics[f"channels/{name}/share"] for name in names])  # (K,)
    if not np.isnan(shares).all():  # a channel without a score has no say, beside others that have
        shares = np.nan_to_num(shares)
    scored = result.scored.numpy()  # (N,)
    advantages = result.advantages.numpy()  # (N,)
    groups = np.arange(len(advantages)) // batch.rewards.shape[1]  # (N,)
    several = scored.sum() > 1
    difference = np.nan
    if batch.advantages is not None:
        difference = (result.advantages - batch.advantages).abs().nan_to_num(torch.inf).max().item()
    return (
        shares,
        np.array([metrics[f"channels/{name}/weight"] for name in names]),  # (K,)
        advantages[scored].std(ddof=1) if several else np.nan,
        collides(advantages[scored], groups[scored], vectors[scored]).mean() if several else np.nan,
        difference,
    )


def collides(advantages: np.ndarray, groups: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """
    Find the completions that have the advantage of another one of their group whose rewards differ.

    Args:
        advantages (`np.ndarray` of shape `(N,)`):
            Advantages.
        groups, vectors (`np.ndarray` of shape `(N,)`):
            Numbers that are equal for completions of one group, and for equal rewards ([`number_vectors`]).

    Returns:
        `np.ndarray` of shape `(N,)`, of `bool`
    """
    order = np.lexsort((advantages, groups))
    advantages, groups, vectors = advantages[order], groups[order], vectors[order]
    near = SAME_ADVANTAGE * np.abs(advantages).max()
    new = (np.diff(groups, prepend=-1) != 0) | (np.diff(advantages, prepend=np.inf) > near)  # (N,)
    starts = np.flatnonzero(new)
    mixed = np.minimum.reduceat(vectors, starts) != np.maximum.reduceat(vectors, starts)
    hits = np.empty(len(order), dtype=bool)  # (N,)
    hits[order] = mixed[new.cumsum() - 1]
    return hits


def number_vectors(rewards: torch.Tensor, steering: torch.Tensor) -> np.ndarray:
    """
    Equal numbers for equal rewards on the steering channels; `(B, G, K)` and `(K,)` to `(N,)`.
    """
    steered = (
        rewards[..., steering].flatten(0, 1).nan_to_num(torch.inf)
    )  # (N, K'), not scored differs from every score
    return steered.unique(dim=0, return_inverse=True)[1].numpy()  # (N,)


def _reward_range(rewards: torch.Tensor, names: list[str]) -> dict[str, float]:
    unscored = rewards.isnan()  # (B, G, K)
    silent = unscored.all(dim=1).all(dim=0)  # (K,)
    lowest = rewards.masked_fill(unscored, torch.inf).amin(dim=(0, 1)).masked_fill(silent, torch.nan)  # (K,)
    highest = rewards.masked_fill(unscored, -torch.inf).amax(dim=(0, 1)).masked_fill(silent, torch.nan)  # (K,)
    ranges = {"mean": rewards.nanmean(dim=(0, 1)), "minimum": lowest, "maximum": highest}  # (K,) each
    return {
        f"channels/{name}/{metric}": value
        for metric, values in ranges.items()
        for name, value in zip(names, values.tolist(), strict=True)
    }


def _collect(steps: list[tuple]) -> RuleReplay:
    share, weight, std, collisions, difference = map(np.array, zip(*steps, strict=True))
    return RuleReplay(share, weight, std, collisions, float(difference.max()))
