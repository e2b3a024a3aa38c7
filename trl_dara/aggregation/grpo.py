import torch

from .ops import AdvantageResult, build_result, group_statistics
from .standardize import standardize


def grpo(
    rewards: torch.Tensor, reward_weights: torch.Tensor, *, eps: float = 1e-4, scale: str = "group"
) -> AdvantageResult:
    r"""
    The weighted sum of the rewards, normalised within each group: `R = sum_k u_k r_k`, `advantage = (R - mean R) /
    (std R + eps)`.

    A channel's say grows with the spread of its values, and completions with different rewards but equal sums get the
    same advantage. Equal to TRL's `multi_objective_aggregation="sum_then_normalize"`; a group in which no channel
    varies gets exactly 0.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored; a channel that did not score a completion adds nothing to its sum.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to the standard deviation.
        scale (`str`, *optional*, defaults to `"group"`):
            What the centred sums are divided by, with the meaning of TRL's `scale_rewards`: the standard deviation of
            the sums in the `"group"`, in the `"batch"`, or `"none"`.

    When to use it: rewards on one scale whose sum is the goal, and comparisons with TRL's default.

    Source: [DeepSeekMath](https://huggingface.co/papers/2402.03300).
    """
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"`scale` of the rule `grpo` is {scale!r}. Pass 'group', 'batch' or 'none'.")
    groups = group_statistics(rewards, reward_weights, eps)
    largest = torch.finfo(rewards.dtype).max
    unscorable = ~groups.scored.unsqueeze(-1)  # (B, G, 1)

    def sums(dim: int | tuple[int, ...]) -> torch.Tensor:
        # Summed as TRL sums, rounding included, but for channels that are constant along `dim`: they make no difference,
        # and a large one would swallow the others
        low = rewards.masked_fill(rewards.isnan(), torch.inf).amin(dim, keepdim=True)
        high = rewards.masked_fill(rewards.isnan(), -torch.inf).amax(dim, keepdim=True)
        constant = (low == high) & (~rewards.isnan() | unscorable).all(dim, keepdim=True)
        summed = (reward_weights * rewards).masked_fill(constant, 0).nansum(dim=-1)  # (B, G)
        return summed.clamp(-largest, largest).masked_fill(~groups.scored, torch.nan)

    total = sums(dim=1)  # (B, G)
    if scale == "group":
        advantages = standardize(total, dim=1, eps=eps).values  # (B, G)
    else:
        advantages = total - total.nanmean(dim=1, keepdim=True)  # (B, G)
    if scale == "batch":
        spread = standardize(sums(dim=(0, 1)).flatten(), dim=0, eps=eps).std  # (1,)
        advantages = advantages / (spread + eps)
    # Summing equal rewards may round differently from row to row, and a missing score changes the sum: a group in
    # which no channel varies has nothing to compare
    live = groups.live.unsqueeze(-1)  # (B, 1)
    centred = groups.contributions * (groups.std + eps).unsqueeze(1)  # (B, G, K), u (r - mean)
    return build_result(
        groups,
        advantages=torch.where(live, advantages, 0).nan_to_num(),
        scores=(reward_weights * rewards).nansum(dim=-1).clamp(-largest, largest),
        contributions=centred.clamp(-largest, largest),
    )
