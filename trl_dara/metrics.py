"""Per-channel metrics of one generation batch: pure functions of the rewards and the aggregation's result."""

import math

import torch

from .aggregation import AdvantageResult
from .aggregation.ops import NEGLIGIBLE


def channel_metrics(
    rewards: torch.Tensor,
    result: AdvantageResult,
    reward_weights: torch.Tensor,
    channel_names: list[str],
    reward_bounds: list[tuple[float, float] | None],
) -> dict[str, float]:
    r"""
    Metrics of one generation batch, by the names under which they are logged.

    The set of keys follows from the configuration alone, never from the data, so that all processes log the same keys.
    A value that does not exist in this batch (anything but the coverage of a channel that scored nothing) is NaN, which
    TRL leaves out of its averages.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards of the whole batch, NaN where not scored.
        result ([`AdvantageResult`]):
            What the rule made of them.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights.
        channel_names (`list[str]`):
            One name per channel.
        reward_bounds (`list[tuple[float, float] | None]`):
            Declared bounds of each channel, `None` where none are declared.

    Returns:
        `dict[str, float]`
    """
    num_groups, num_generations, _ = rewards.shape
    steering = reward_weights != 0  # (K,)
    known = ~rewards.isnan()  # (B, G, K)
    per_channel = {
        "density": result.density,
        "calibrated_density": result.calibrated_density,
        "energy": result.energy / len(result.advantages),
        "weight": result.weights if result.weights.ndim == 1 else result.weights.mean(dim=0),  # (K,)
        "share": _shares(result.contributions),  # (K,)
        **_dead_groups(rewards, result.active, reward_bounds),
    }
    if num_generations == 1:  # evaluation with one completion per prompt: there is nothing to compare within a group
        per_channel = {name: values.new_full(values.shape, torch.nan) for name, values in per_channel.items()}
    if any(bounds is not None for bounds in reward_bounds):
        per_channel["saturation"] = _saturation(rewards, reward_bounds)
    silent = ~known.any(dim=(0, 1))  # (K,)
    metrics = {}
    for name, values in per_channel.items():
        values = values.masked_fill(silent, torch.nan).tolist()
        for index, channel in enumerate(channel_names):
            if name != "saturation" or reward_bounds[index] is not None:
                metrics[f"channels/{channel}/{name}"] = values[index]
    coverage = known.float().mean(dim=(0, 1)).tolist()
    metrics |= {f"channels/{channel}/coverage": coverage[index] for index, channel in enumerate(channel_names)}

    live = (result.active & steering).any(dim=-1)  # (B,)
    opposed = reward_weights * result.channel_advantages  # (N, K)
    conflict = (opposed > NEGLIGIBLE).any(dim=-1) & (opposed < -NEGLIGIBLE).any(dim=-1)  # (N,)
    comparable = num_generations > 1
    metrics["aggregation/frac_groups_inactive"] = 1 - live.float().mean().item() if comparable else math.nan
    metrics["aggregation/frac_conflict"] = conflict[result.scored].float().mean().item() if comparable else math.nan
    metrics["aggregation/prompts"] = float(num_groups)
    return metrics


def _shares(contributions: torch.Tensor) -> torch.Tensor:
    """Share of each channel in the absolute contributions, `(N, K)` to `(K,)`; NaN in a batch without any signal."""
    absolute = contributions.abs().sum(dim=0)  # (K,)
    return absolute / absolute.sum()


def _dead_groups(
    rewards: torch.Tensor, active: torch.Tensor, reward_bounds: list[tuple[float, float] | None]
) -> dict[str, torch.Tensor]:
    """
    Share of the groups that are inactive because the reward is stuck low, or high: in the lower or upper half of the
    declared bounds, else of the batch's own range. `(B, G, K)` to two of `(K,)`.
    """
    known = ~rewards.isnan()  # (B, G, K)
    lowest = rewards.masked_fill(~known, torch.inf).amin(dim=1)  # (B, K)
    low, high = lowest.amin(dim=0), rewards.masked_fill(~known, -torch.inf).amax(dim=(0, 1))  # (K,), (K,)
    for index, bounds in enumerate(reward_bounds):
        if bounds is not None:
            low[index], high[index] = bounds
    # Without bounds and with one value all over, nothing says whether that value is low or high
    sided = torch.where(high > low, 1.0, torch.nan)  # (K,)
    dead = ~active & known.any(dim=1)  # (B, K)
    upper = lowest > low / 2 + high / 2  # (B, K)
    return {
        "dead_low": (dead & ~upper).float().mean(dim=0) * sided,  # (K,)
        "dead_high": (dead & upper).float().mean(dim=0) * sided,  # (K,)
    }


def _saturation(rewards: torch.Tensor, reward_bounds: list[tuple[float, float] | None]) -> torch.Tensor:
    """Where the mean reward lies between the declared bounds, 0 to 1; `(B, G, K)` to `(K,)`, NaN without bounds."""
    low, high = rewards.new_tensor([bounds or (torch.nan, torch.nan) for bounds in reward_bounds]).T  # (K,), (K,)
    return ((rewards.nanmean(dim=(0, 1)) - low) / (high - low)).clamp(0, 1)  # (K,)
