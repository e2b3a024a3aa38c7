import torch

from .ops import AdvantageResult, build_result, group_statistics, normalize_batch
from .options import steering_bounds, token_counts
from .standardize import standardize


def saw(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    reward_bounds: list[tuple[float, float] | None] | None = None,
    eps: float = 1e-4,
    delta: float = 1e-4,
    batch_norm: str = "completion",
    completion_lengths: torch.Tensor | None = None,
) -> AdvantageResult:
    r"""
    Weights by relative spread: a channel's weight is its coefficient of variation over the batch, relative to the
    others.

    `q_k = r_k - low_k + delta`, `CV_k = std q_k / (mean q_k + delta)` over all scored completions of the batch, `w_k =
    K' CV_k / sum_l CV_l` over the `K'` channels with a non-zero user weight, then `gdpo` of the contributions `w_k u_k
    A_k`.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights. Only their ratios matter.
        reward_bounds (`list[tuple[float, float] | None]`):
            Lowest and highest possible reward per channel; needed for every channel with a non-zero user weight. A
            reward outside counts as at the bound in `CV`.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the group and to the batch standard deviation.
        delta (`float`, *optional*, defaults to `1e-4`):
            Keeps the quotient finite for a reward that is always at its lower bound.
        batch_norm, completion_lengths (*optional*):
            As for [`gdpo`].

    When to use it: rewards that start near their lower bound and should lead while they are rare; a mean near the
    upper bound lowers the weight. What it costs: the weights follow the differences between prompts, not only those
    within a group that carry the signal, and depend on the declared lower bound; nothing caps them.

    All `CV` 0 gives equal weights. A channel with user weight 0 has weight 1 and takes no part. The bounds are the
    declared ones, never guessed from the batch; no public implementation is known.

    Source: [SAW](https://huggingface.co/papers/2606.07705).
    """
    if not delta > 0:
        raise ValueError(f"`delta` of the rule `saw` is {delta!r}. Pass a number > 0.")
    counts = token_counts(batch_norm, completion_lengths, rewards)  # (N,) or None
    groups = group_statistics(rewards, reward_weights, eps)
    low, high = steering_bounds(reward_bounds, groups.steering, rewards)  # (K,), (K,)
    known = rewards.masked_fill(~groups.scored.unsqueeze(-1), torch.nan).flatten(0, 1)  # (N, K)
    above = known.clamp(low, high) - low  # (N, K)
    variation = standardize(above, dim=0, eps=eps).std.squeeze(0) / (above.nanmean(dim=0) + 2 * delta)  # (K,)
    variation = torch.where(groups.steering & ~variation.isnan(), variation, 0)  # (K,)
    relative = groups.steering.sum() * variation / variation.sum()  # (K,)
    weights = torch.where(groups.steering & (variation.sum() > 0), relative, 1)  # (K,)
    weighted = weights * groups.contributions  # (B, G, K)
    scores = weighted.sum(dim=-1)  # (B, G)
    advantages = normalize_batch(scores, groups.scored, eps, counts=counts)  # (B, G)
    return build_result(groups, advantages=advantages, scores=scores, contributions=weighted, weights=weights)
