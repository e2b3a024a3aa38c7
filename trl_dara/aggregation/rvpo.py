import math

import torch

from .ops import AdvantageResult, build_result, group_statistics, normalize_batch
from .options import token_counts


def rvpo(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    eps: float = 1e-4,
    k: float = 1.0,
    batch_norm: str = "completion",
    completion_lengths: torch.Tensor | None = None,
) -> AdvantageResult:
    r"""
    A soft minimum in place of the sum: a completion is worth about as much as the channel on which it does worst.

    `S = -(1 / k) log mean_l exp(-k u_l A_l)` over the steering channels `l` (user weight not 0) that are active in the
    group, 0 in a group without any; `advantage = (S - mean S) / (std S + eps)`. Small `k` gives the mean of the
    channels, large `k` their minimum; near 0, `S` is the mean less `k / 2` times the variance between channels.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored; a channel that did not score a completion counts as 0, the group's mean.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights. They scale what enters the exponent, so their size matters: a large one makes the
            channel decide alone where it is low, and count little where it is high.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the group and to the batch standard deviation.
        k (`float`, *optional*, defaults to `1.0`):
            Sharpness of the minimum, > 0.
        batch_norm, completion_lengths (*optional*):
            As for [`gdpo`].

    When to use it: every reward must be met, and a surplus on one must not pay for a lack on another. What it costs: a
    completion that earns a sparse reward first is held back by its other channels; and since the soft minimum is
    concave, its batch mean is below 0 and the batch normalisation gives a group in which no channel varies a small
    *positive* advantage, as long as others vary.

    Only active channels enter the mean, so a constant channel changes nothing, and one active channel alone gives `S =
    c`. `result.contributions` are `sign(u_k) A_k`: a soft minimum is no sum of parts. Computed with logsumexp; a plain
    `exp` overflows for `k |A|` above 88 in float32. No public implementation is known.

    Source: [RVPO](https://huggingface.co/papers/2605.05750).
    """
    if not 0 < k < math.inf:
        raise ValueError(f"`k` of the rule `rvpo` is {k!r}. Pass a finite number > 0.")
    counts = token_counts(batch_norm, completion_lengths, rewards)  # (N,) or None
    groups = group_statistics(rewards, reward_weights, eps)
    live = groups.active & groups.steering  # (B, K)
    exponents = (-k * groups.contributions).masked_fill(~live.unsqueeze(1), -torch.inf)  # (B, G, K)
    num_live = live.sum(dim=-1, keepdim=True).to(exponents)  # (B, 1)
    log_mean = exponents.logsumexp(dim=-1) - num_live.log()  # (B, G)
    scores = torch.where(groups.live.unsqueeze(-1), -log_mean / k, 0)  # (B, G)
    return build_result(
        groups,
        advantages=normalize_batch(scores, groups.scored, eps, counts=counts),
        scores=scores,
        contributions=reward_weights.sign() * groups.advantages,
    )
