import torch

from .ops import AdvantageResult, build_result, group_statistics


def mo_grpo(rewards: torch.Tensor, reward_weights: torch.Tensor, *, eps: float = 1e-4) -> AdvantageResult:
    r"""
    Each channel is normalised within its group and the sum is the advantage: `sum_k u_k A_k`.

    When to use it: to see what the batch normalisation of `gdpo` does, or where batches are too small for one. What it
    costs: without a batch normalisation the scale of the advantages depends on the number of active channels, so one
    learning rate does not compare this rule with `gdpo` or `dara_*`.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the group standard deviation.

    Source: [MO-GRPO](https://huggingface.co/papers/2509.22047).
    """
    groups = group_statistics(rewards, reward_weights, eps)
    scores = groups.contributions.sum(dim=-1)  # (B, G)
    return build_result(groups, advantages=scores, scores=scores, contributions=groups.contributions)
