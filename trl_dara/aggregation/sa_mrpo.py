import math

import torch

from .ops import AdvantageResult, build_result, group_statistics, normalize_batch
from .options import steering_bounds, token_counts


def sa_mrpo(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    reward_bounds: list[tuple[float, float] | None] | None = None,
    eps: float = 1e-4,
    gamma: float = 0.25,
    batch_norm: str = "completion",
    completion_lengths: torch.Tensor | None = None,
) -> AdvantageResult:
    r"""
    Saturation-aware weights: the closer a reward is to its upper bound on average, the less it weighs.

    `s_k = (mean r_k - low_k) / (high_k - low_k)` over all scored completions of the batch, clamped to [0, 1], `w_k =
    (1 - s_k)^gamma`, then `gdpo` of the contributions `w_k u_k A_k`.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights. Only their ratios matter.
        reward_bounds (`list[tuple[float, float] | None]`):
            Lowest and highest possible reward per channel; needed for every channel with a non-zero user weight.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the group and to the batch standard deviation.
        gamma (`float`, *optional*, defaults to `0.25`):
            How sharply the weight falls; 0 gives `gdpo`.
        batch_norm, completion_lengths (*optional*):
            As for [`gdpo`].

    When to use it: one reward is learned early and its remaining noise should not drown a reward with room to grow.
    What it costs: the weight sees the mean, not whether the reward varies within groups, so a sparse reward of many
    silent groups gains little (at most `w = 1` beside a saturated one); a penalty, with a negative user weight,
    saturates at the bound it should leave.

    All weights 0 gives zeros, not 0 / 0. `s` above 1, from a reward outside its bounds, counts as 1. The bounds are
    the declared ones, never guessed from the batch; no public implementation is known.

    Source: [SA-MRPO](https://huggingface.co/papers/2608.16072).
    """
    if not 0 <= gamma < math.inf:
        raise ValueError(f"`gamma` of the rule `sa_mrpo` is {gamma!r}. Pass a finite number >= 0.")
    counts = token_counts(batch_norm, completion_lengths, rewards)  # (N,) or None
    groups = group_statistics(rewards, reward_weights, eps)
    low, high = steering_bounds(reward_bounds, groups.steering, rewards)  # (K,), (K,)
    above = rewards.masked_fill(~groups.scored.unsqueeze(-1), torch.nan) - low  # (B, G, K)
    saturation = (above.nanmean(dim=(0, 1)) / (high - low)).clamp(0, 1)  # (K,), NaN for a channel that scored nothing
    weights = torch.where(saturation.isnan(), 1, (1 - saturation) ** gamma)  # (K,)
    weighted = weights * groups.contributions  # (B, G, K)
    scores = weighted.sum(dim=-1)  # (B, G)
    advantages = normalize_batch(scores, groups.scored, eps, counts=counts)  # (B, G)
    return build_result(groups, advantages=advantages, scores=scores, contributions=weighted, weights=weights)
