import torch

from .ops import AdvantageResult, build_result, group_statistics, normalize_batch


def gdpo(rewards: torch.Tensor, reward_weights: torch.Tensor, *, eps: float = 1e-4) -> AdvantageResult:
    r"""
    Group reward-decoupled normalisation: each channel is normalised within its group, the sum is normalised over the
    batch.

    `S = sum_k u_k A_k`, `advantage = (S - mean S) / (std S + eps)`. Equal to TRL's
    `multi_objective_aggregation="normalize_then_sum"` wherever no group is constant; in a constant group TRL normalises
    the rounding error, here it contributes exactly 0.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the group and to the batch standard deviation.

    Source: [GDPO](https://huggingface.co/papers/2601.05242).
    """
    groups = group_statistics(rewards, reward_weights, eps)
    scores = groups.contributions.sum(dim=-1)  # (B, G)
    return build_result(
        groups,
        advantages=normalize_batch(scores, groups.scored, eps),
        scores=scores,
        contributions=groups.contributions,
    )
