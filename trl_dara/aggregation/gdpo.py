import torch

from .ops import AdvantageResult, build_result, group_statistics, normalize_batch
from .options import token_counts


def gdpo(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    eps: float = 1e-4,
    batch_norm: str = "completion",
    completion_lengths: torch.Tensor | None = None,
) -> AdvantageResult:
    r"""
    Group reward-decoupled normalisation: each channel is normalised within its group, the sum is normalised over the
    batch.

    `S = sum_k u_k A_k`, `advantage = (S - mean S) / (std S + eps)`. Every channel has the same say in a group in which
    it varies, whatever the scale of its values; a channel that varies in few groups has little say over the batch. The
    baseline of the other decoupled rules.

    Equal to TRL's `multi_objective_aggregation="normalize_then_sum"` wherever no group is constant; in a constant
    group TRL normalises the rounding error, here it contributes exactly 0. verl and the tool-calling code of the GDPO
    repository take mean and standard deviation over tokens instead of completions: `batch_norm="token"`.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights. Only their ratios matter.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the group and to the batch standard deviation.
        batch_norm (`str`, *optional*, defaults to `"completion"`):
            `"completion"`, or `"token"`: each completion counts as often as it has tokens. Long completions then weigh
            more, and a group in which nothing varies gets a non-zero advantage. For comparisons with verl, which
            divides by `sqrt(var + 1e-8)` where this divides by `std + eps`.
        completion_lengths (`torch.Tensor` of shape `(N,)`, *optional*):
            Tokens per completion, for `batch_norm="token"`.

    Source: [GDPO](https://huggingface.co/papers/2601.05242).
    """
    counts = token_counts(batch_norm, completion_lengths, rewards)  # (N,) or None
    groups = group_statistics(rewards, reward_weights, eps)
    scores = groups.contributions.sum(dim=-1)  # (B, G)
    return build_result(
        groups,
        advantages=normalize_batch(scores, groups.scored, eps, counts=counts),
        scores=scores,
        contributions=groups.contributions,
    )
