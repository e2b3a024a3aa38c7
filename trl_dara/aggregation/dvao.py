import torch

from .ops import AdvantageResult, build_result, group_statistics


def dvao(rewards: torch.Tensor, reward_weights: torch.Tensor, *, eps: float = 1e-4) -> AdvantageResult:
    r"""
    Dynamic variance-adaptive weights: in each group, a channel's say is its share of the standard deviations.

    `w_k = |u_k| sd_k / sum_l |u_l| sd_l` in each group, `advantage = sum_k sign(u_k) w_k A_k`. The weights of a group
    sum to 1, so the advantage stays on the scale of one normalised reward however many channels vary, and no batch
    normalisation follows. With `eps = 0` this is the centred weighted sum of the raw rewards over `sum_l |u_l| sd_l`,
    the divisor of perfectly correlated channels, where `grpo` divides by the standard deviation of the sum.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights. Only their ratios matter.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the group standard deviation, not in the shares.

    When to use it: rewards on one scale, of which the one that tells the completions of a prompt apart should lead
    there. What it costs: the scale of the values decides, as for `grpo`, so a reward in [0, 100] silences one in {0,
    1}; sparse channels get no more say over the batch; and the scale of the advantages differs from that of the rules
    with a batch normalisation, so one learning rate does not compare them.

    A group in which no channel varies gets exactly 0. One channel alone, or one channel that varies, gives its `A`.
    `result.weights` has shape `(B, K)`. Here the deviation is the sample one (divisor n - 1) over the scored
    completions and a channel with a negative weight keeps its share and flips its sign; no public implementation is
    known.

    Source: [DVAO](https://huggingface.co/papers/2605.25604).
    """
    groups = group_statistics(rewards, reward_weights, eps)
    spread = groups.std * groups.steering  # (B, K)
    largest = spread.amax(dim=-1, keepdim=True)  # (B, 1)
    shares = reward_weights.abs() * torch.where(largest > 0, spread / largest, 0)  # (B, K), no overflow in the sum
    weights = torch.where(largest > 0, shares / shares.sum(dim=-1, keepdim=True), 0)  # (B, K)
    weighted = reward_weights.sign() * weights.unsqueeze(1) * groups.advantages  # (B, G, K)
    scores = weighted.sum(dim=-1)  # (B, G)
    return build_result(groups, advantages=scores, scores=scores, contributions=weighted, weights=weights)
