import math

import torch

from .ops import AdvantageResult, build_result, group_statistics


def corr_grpo(
    rewards: torch.Tensor, reward_weights: torch.Tensor, *, eps: float = 1e-4, floor: float = 1e-2
) -> AdvantageResult:
    r"""
    The centred weighted sum of the rewards, divided by what their correlations in the group let the sum vary.

    `advantage = sum_k u_k (r_k - mean r_k) / sqrt(max(floor, sum_kl corr_kl))`, with `corr_kl` the Pearson
    correlations of `sign(u_k) r_k` and `sign(u_l) r_l` over the completions of the group and both sums over the
    channels with a non-zero user weight that vary in it. `K` independent channels divide by `sqrt(K)`, identical ones
    by `K`.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored; a channel that did not score a completion counts as the group's mean.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights. Their size scales the advantage.
        eps (`float`, *optional*, defaults to `1e-4`):
            Only enters `result.channel_advantages` and the metrics made of them.
        floor (`float`, *optional*, defaults to `1e-2`):
            Smallest sum of correlations that is divided by, > 0: an advantage is at most 10 times the centred sum.

    When to use it: rewards on one scale that say much the same, so that adding one more should not raise the size of
    the update. What it costs: as for `grpo`, the scale of the values decides; the rewards are not divided by their
    spread, so the advantages are as large as the rewards and one learning rate does not compare this rule with others.
    Correlations of few completions are noisy.

    A group in which no channel varies gets exactly 0; one channel that varies gives `u_k (r_k - mean r_k)`. Exactly
    opposed rewards have a sum of correlations of 0: the public description's floor of 1e-6 then multiplies what is
    left of the sum by 1000, hence the larger default here.

    Source: the public description of CorrGRPO, pass `floor=1e-6` for its value.
    """
    if not 0 < floor < math.inf:
        raise ValueError(f"`floor` of the rule `corr_grpo` is {floor!r}. Pass a finite number > 0.")
    groups = group_statistics(rewards, reward_weights, eps)
    lengths = groups.advantages.square().sum(dim=1, keepdim=True).sqrt()  # (B, 1, K)
    directions = torch.where(lengths > 0, groups.advantages / lengths, 0)  # (B, G, K)
    # The sum over all pairs of correlations is the squared length of the sum of the unit vectors
    agreement = (reward_weights.sign() * directions).sum(dim=-1).square().sum(dim=1)  # (B,)
    centred = groups.contributions * (groups.std + eps).unsqueeze(1)  # (B, G, K), u (r - mean)
    limit = torch.finfo(rewards.dtype).max / rewards.shape[-1]  # keeps the sum finite
    contributions = (centred / agreement.clamp(min=floor).sqrt().view(-1, 1, 1)).clamp(-limit, limit)  # (B, G, K)
    scores = contributions.sum(dim=-1)  # (B, G)
    return build_result(groups, advantages=scores, scores=scores, contributions=contributions)
