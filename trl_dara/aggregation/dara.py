"""Density-Aware Reward Aggregation (DARA), and the static weights that the paper compares it with."""

import math

import torch

from ..calibration import CalibrationWindow
from .ops import AdvantageResult, GroupStatistics, build_result, density_of, group_statistics, normalize_batch
from .options import check_flag, token_counts


def density_weights(density: torch.Tensor, steering: torch.Tensor, w_max: float) -> torch.Tensor:
    r"""
    DARA's channel weights (Eq. 6): `w_k = min(w_max, sqrt(pi_ref / pi_k))`, with `pi_ref` the largest density among the
    steering channels; 1 for a channel that is never active.

    The advantage energy of a channel is `E_k = B * pi_k * (G - 1)`, so these weights give every channel the energy of
    the densest one, as far as the cap allows.

    Args:
        density (`torch.Tensor` of shape `(K,)`):
            Active-group density of each channel.
        steering (`torch.Tensor` of shape `(K,)`):
            Whether the channel has a non-zero user weight.
        w_max (`float`):
            Largest weight.

    Returns:
        `torch.Tensor` of shape `(K,)`
    """
    live = density > 0  # (K,)
    if not (live & steering).any():
        return torch.ones_like(density)
    reference = density[live & steering].max()  # pi_ref
    return torch.where(live, (reference / density).sqrt().clamp(max=w_max), 1)


def dara_sym(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    eps: float = 1e-4,
    window: CalibrationWindow | None = None,
    w_max: float = 5.0,
    density_over: str = "all",
    batch_norm: str = "completion",
    completion_lengths: torch.Tensor | None = None,
) -> AdvantageResult:
    r"""
    DARA-Sym: each channel's contribution is multiplied by its density weight, `S = sum_k w_k c_k`.

    Matches the energies of all channels exactly (up to the cap) and never changes a sign by the batch normalisation.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights, in the contributions `c_k = u_k A_k`.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the group and to the batch standard deviation.
        window ([`CalibrationWindow`], *optional*):
            Recent groups over which density and the batch mean and standard deviation are taken; extended by this
            batch. By default this batch only, as in the paper.
        w_max (`float`, *optional*, defaults to `5.0`):
            Largest weight, at least 1.
        density_over (`str`, *optional*, defaults to `"all"`):
            Groups that density is a share of: `"all"`, or only those in which the channel was `"scored"` on at least
            two completions, for data sets where a reward applies to part of the prompts.
        batch_norm, completion_lengths (*optional*):
            As for [`gdpo`]. `"token"` normalises over this batch; a window then calibrates the density only.

    With no active channel in the batch, all advantages are exactly 0. One channel, or equal densities, give `gdpo`.

    Source: *Make Sparse Rewards Count: Density-Aware Reward Aggregation for Multi-Reward RL* (Zheng et al., arXiv:2610.00574,
    2026), Eq. 6 and 7.
    """
    _check_density_options(w_max, density_over)
    counts = token_counts(batch_norm, completion_lengths, rewards)  # (N,) or None
    groups = group_statistics(rewards, reward_weights, eps)
    density, calibrated_density = _densities(groups, window, density_over)
    weights = density_weights(calibrated_density, groups.steering, w_max)  # (K,)
    weighted = weights * groups.contributions  # (B, G, K)
    return _normalized(groups, weighted, weights, eps, window, density, calibrated_density, counts)


def dara_asym(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    eps: float = 1e-4,
    window: CalibrationWindow | None = None,
    w_max: float = 5.0,
    density_over: str = "all",
    zero_inactive_groups: bool = False,
    batch_norm: str = "completion",
    completion_lengths: torch.Tensor | None = None,
) -> AdvantageResult:
    r"""
    DARA-Asym, the main method: only positive contributions are multiplied by the density weight, `S = sum_k (c_k + (w_k
    - 1) max(c_k, 0))`.

    A completion that earns a sparse reward is pushed up harder; one that misses it is not pushed down harder. The
    effective weight is `1 + (w - 1)(1 - p)` for a reward with success probability `p` on its active prompts.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights, in the contributions `c_k = u_k A_k`; a negative one flips the sign before the rule looks
            at it.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the group and to the batch standard deviation.
        window ([`CalibrationWindow`], *optional*):
            Recent groups over which density and the batch mean and standard deviation are taken; extended by this
            batch. By default this batch only, as in the paper.
        w_max (`float`, *optional*, defaults to `5.0`):
            Largest weight, at least 1.
        density_over (`str`, *optional*, defaults to `"all"`):
            Groups that density is a share of: `"all"`, or only those in which the channel was `"scored"` on at least
            two completions.
        zero_inactive_groups (`bool`, *optional*, defaults to `False`):
            Positive-only amplification has a positive mean, so the batch normalisation gives a group without any active
            channel a small negative advantage (Eq. 8). `True` sets those completions to exactly 0.
        batch_norm, completion_lengths (*optional*):
            As for [`dara_sym`].

    With no active channel in the batch, all advantages are exactly 0.

    Source: *Make Sparse Rewards Count: Density-Aware Reward Aggregation for Multi-Reward RL* (Zheng et al., arXiv:2610.00574,
    2026), Eq. 6 and 8.
    """
    _check_density_options(w_max, density_over)
    counts = token_counts(batch_norm, completion_lengths, rewards)  # (N,) or None
    check_flag("zero_inactive_groups", zero_inactive_groups)
    groups = group_statistics(rewards, reward_weights, eps)
    density, calibrated_density = _densities(groups, window, density_over)
    weights = density_weights(calibrated_density, groups.steering, w_max)  # (K,)
    weighted = groups.contributions.clamp(min=0).mul_(weights - 1).add_(groups.contributions)  # (B, G, K)
    result = _normalized(groups, weighted, weights, eps, window, density, calibrated_density, counts)
    if zero_inactive_groups:
        live = groups.live.repeat_interleave(rewards.shape[1])  # (N,)
        result.advantages = torch.where(live, result.advantages, 0)
    return result


def static_sym(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    static_weights: list[float],
    eps: float = 1e-4,
    window: CalibrationWindow | None = None,
    batch_norm: str = "completion",
    completion_lengths: torch.Tensor | None = None,
) -> AdvantageResult:
    r"""
    `dara_sym` with given weights in place of the density weights; the paper's control is `(1, 5)`.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights.
        static_weights (`list[float]`):
            One weight per channel, each at least 0. The trainer also takes a mapping by channel name.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the group and to the batch standard deviation.
        window ([`CalibrationWindow`], *optional*):
            As for [`dara_sym`]; only the batch mean and standard deviation use it.
        batch_norm, completion_lengths (*optional*):
            As for [`dara_sym`].
    """
    weights = _checked_static_weights(static_weights, rewards)  # (K,)
    counts = token_counts(batch_norm, completion_lengths, rewards)  # (N,) or None
    groups = group_statistics(rewards, reward_weights, eps)
    density, calibrated_density = _densities(groups, window, "all")
    weighted = weights * groups.contributions  # (B, G, K)
    return _normalized(groups, weighted, weights, eps, window, density, calibrated_density, counts)


def static_asym(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    static_weights: list[float],
    eps: float = 1e-4,
    window: CalibrationWindow | None = None,
    batch_norm: str = "completion",
    completion_lengths: torch.Tensor | None = None,
) -> AdvantageResult:
    r"""
    `dara_asym` with given weights in place of the density weights. Arguments as for [`static_sym`].
    """
    weights = _checked_static_weights(static_weights, rewards)  # (K,)
    counts = token_counts(batch_norm, completion_lengths, rewards)  # (N,) or None
    groups = group_statistics(rewards, reward_weights, eps)
    density, calibrated_density = _densities(groups, window, "all")
    weighted = groups.contributions.clamp(min=0).mul_(weights - 1).add_(groups.contributions)  # (B, G, K)
    return _normalized(groups, weighted, weights, eps, window, density, calibrated_density, counts)


def _densities(
    groups: GroupStatistics, window: CalibrationWindow | None, density_over: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the batch's activity to the window; return this batch's density and the window's, both `(K,)`."""
    counted = torch.ones_like(groups.active) if density_over == "all" else groups.comparable
    dtype = groups.advantages.dtype
    density = density_of(groups.active, counted, dtype)  # (K,)
    if window is None:
        return density, density
    return density, density_of(*window.add_activity(groups.active, counted), dtype)


def _normalized(
    groups: GroupStatistics,
    weighted: torch.Tensor,
    weights: torch.Tensor,
    eps: float,
    window: CalibrationWindow | None,
    density: torch.Tensor,
    calibrated_density: torch.Tensor,
    counts: torch.Tensor | None,
) -> AdvantageResult:
    """Sum the weighted contributions `(B, G, K)` and normalise over the window, or over the tokens of this batch."""
    scores = weighted.sum(dim=-1)  # (B, G)
    reference = None
    if window is not None:
        reference = window.add_scores(scores.masked_fill(~groups.scored, torch.nan))  # (W, G)
    if counts is not None:
        reference = None  # the window does not know the lengths of past completions
    advantages = normalize_batch(scores, groups.scored, eps, reference, counts)  # (B, G)
    if not groups.live.any():
        advantages = torch.zeros_like(advantages)
    return build_result(
        groups,
        advantages=advantages,
        scores=scores,
        contributions=weighted,
        weights=weights,
        density=density,
        calibrated_density=calibrated_density,
    )


def _check_density_options(w_max: float, density_over: str) -> None:
    if density_over not in ("all", "scored"):
        raise ValueError(f"`density_over` is {density_over!r}. Pass 'all' or 'scored'.")
    if not w_max >= 1:
        raise ValueError(
            f"`w_max` is {w_max!r}, but it caps weights that are at least 1. Pass a number >= 1 (the paper uses 5)."
        )


def _checked_static_weights(static_weights: list[float], rewards: torch.Tensor) -> torch.Tensor:
    num_channels = rewards.shape[-1]
    if not isinstance(static_weights, (list, tuple)) or len(static_weights) != num_channels:
        raise ValueError(
            f"`static_weights` is {static_weights!r}, but there are {num_channels} channels. Pass a list with one weight "
            "per channel, in channel order."
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in static_weights):
        raise ValueError(f"`static_weights` is {static_weights!r}. Pass finite weights >= 0.")
    return rewards.new_tensor(static_weights)  # (K,)
