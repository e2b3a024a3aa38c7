"""
Tensor steps shared by the aggregation rules.

Notation: `B` groups, `G` completions per group, `K` reward channels, `N = B * G` completions, group by group. A reward
that was not scored is NaN.
"""

from dataclasses import dataclass

import torch


@dataclass
class GroupStatistics:
    r"""
    What every rule starts from: the rewards of a batch, normalised within each group.

    Args:
        advantages (`torch.Tensor` of shape `(B, G, K)`):
            Group-normalised rewards `A = (r - mu) / (sd + eps)`; exactly 0 where the channel is inactive or the
            completion was not scored.
        contributions (`torch.Tensor` of shape `(B, G, K)`):
            `c = u * A`, with the user's weight applied before any rule looks at the sign.
        active (`torch.Tensor` of shape `(B, K)`):
            Whether the scored rewards of the group differ.
        comparable (`torch.Tensor` of shape `(B, K)`):
            Whether at least two completions of the group were scored.
        scored (`torch.Tensor` of shape `(B, G)`):
            Whether any steering channel (`u != 0`) scored the completion. The others are *unscorable*: their advantage
            is 0 and they take no part in any statistic.
        steering (`torch.Tensor` of shape `(K,)`):
            Whether the channel has a non-zero user weight.
    """

    advantages: torch.Tensor
    contributions: torch.Tensor
    active: torch.Tensor
    comparable: torch.Tensor
    scored: torch.Tensor
    steering: torch.Tensor

    @property
    def live(self) -> torch.Tensor:
        """Whether any steering channel is active in the group, shape `(B,)`."""
        return (self.active & self.steering).any(dim=-1)  # (B,)


@dataclass
class AdvantageResult:
    r"""
    Advantages of a batch and what led to them.

    Args:
        advantages (`torch.Tensor` of shape `(N,)`):
            Advantage of each completion, given to all its tokens; exactly 0 for an unscorable completion.
        channel_advantages (`torch.Tensor` of shape `(N, K)`):
            Group-normalised reward of each channel.
        contributions (`torch.Tensor` of shape `(N, K)`):
            What each channel adds to the score under the rule, user weight and rule's weight included.
        scores (`torch.Tensor` of shape `(N,)`):
            Combined score before batch normalisation.
        density (`torch.Tensor` of shape `(K,)`):
            Share of this batch's groups in which the channel is active.
        energy (`torch.Tensor` of shape `(K,)`):
            Sum of the squared channel advantages over the batch.
        weights (`torch.Tensor` of shape `(K,)`, or `(B, K)` for a rule that weighs each group):
            The rule's weight of each channel, user weights not included.
        active (`torch.Tensor` of shape `(B, K)`):
            Whether the channel is active in the group.
        scored (`torch.Tensor` of shape `(N,)`):
            Whether any steering channel scored the completion.
        calibrated_density (`torch.Tensor` of shape `(K,)`):
            The density that the weights were computed from: over the calibration window where the rule uses one, else
            this batch's.
    """

    advantages: torch.Tensor
    channel_advantages: torch.Tensor
    contributions: torch.Tensor
    scores: torch.Tensor
    density: torch.Tensor
    energy: torch.Tensor
    weights: torch.Tensor
    active: torch.Tensor
    scored: torch.Tensor
    calibrated_density: torch.Tensor


def standardize(
    values: torch.Tensor, dim: int, eps: float, reference: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    `(values - mean) / (std + eps)` along one dimension, with the sample standard deviation over the entries that are
    not NaN.

    Constant values give exactly 0. A plain float32 mean differs from the values by a rounding error, which the division
    by a tiny `std + eps` turns into an advantage of up to 0.2; here the smallest value is subtracted first. Values are
    also scaled to [0, 1], so that squares of huge or tiny rewards neither overflow nor vanish.

    Args:
        values (`torch.Tensor`):
            Values, NaN where there is none.
        dim (`int`):
            Dimension to normalise along.
        eps (`float`):
            Added to the standard deviation.
        reference (`torch.Tensor`, *optional*):
            Values from which mean and standard deviation are taken, a superset of `values`; by default `values`.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: standardised values (0 where `values` is NaN or the reference is constant)
        and whether the reference varies, with `dim` kept as 1.
    """
    reference = values if reference is None else reference
    known = ~reference.isnan()
    low = reference.masked_fill(~known, torch.inf).amin(dim, keepdim=True)  # (..., 1, ...)
    high = reference.masked_fill(~known, -torch.inf).amax(dim, keepdim=True)  # (..., 1, ...)
    varies = high > low
    spread = torch.where(varies, high - low, 1).clamp(max=torch.finfo(values.dtype).max)

    def to_unit(x: torch.Tensor) -> torch.Tensor:
        return ((x - low) / spread).clamp(max=1)

    unit = to_unit(reference).masked_fill(~known, 0)
    count = known.sum(dim, keepdim=True)  # (..., 1, ...)
    mean = unit.sum(dim, keepdim=True) / count  # (..., 1, ...)
    variance = (unit - mean).square_().masked_fill_(~known, 0).sum(dim, keepdim=True) / (count - 1)  # (..., 1, ...)
    standardized = (to_unit(values) - mean) / (variance.sqrt() + eps / spread)
    return standardized.masked_fill(~varies | values.isnan(), 0), varies


def group_statistics(rewards: torch.Tensor, reward_weights: torch.Tensor, eps: float) -> GroupStatistics:
    """
    Normalise each channel within each group.

    Activity is decided on the raw rewards, `max > min`: the test `sum |A| > tau` counts about half of all constant
    float32 groups as active at G = 8.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights.
        eps (`float`):
            Added to the group standard deviation.

    Returns:
        [`GroupStatistics`]
    """
    steering = reward_weights != 0  # (K,)
    scored = (~rewards.isnan() & steering).any(dim=-1)  # (B, G)
    rewards = rewards.masked_fill(~scored.unsqueeze(-1), torch.nan)
    advantages, varies = standardize(rewards, dim=1, eps=eps)  # (B, G, K), (B, 1, K)
    return GroupStatistics(
        advantages=advantages,
        contributions=reward_weights * advantages,
        active=varies.squeeze(1),  # (B, K)
        comparable=(~rewards.isnan()).sum(dim=1) >= 2,  # (B, K)
        scored=scored,
        steering=steering,
    )


def density_of(active: torch.Tensor, counted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Share of the counted groups in which the channel is active, `pi`; `(B, K)` and `(B, K)` to `(K,)`, 0 for none."""
    groups = counted.sum(dim=0).clamp(min=1)  # (K,)
    return (active & counted).sum(dim=0).to(dtype) / groups  # (K,)


def normalize_batch(
    scores: torch.Tensor, scored: torch.Tensor, eps: float, reference: torch.Tensor | None = None
) -> torch.Tensor:
    """
    Normalise the scores over the scorable completions of the batch: `NB(S) = (S - mean S) / (std S + eps)`.

    Args:
        scores (`torch.Tensor` of shape `(B, G)`):
            Combined scores.
        scored (`torch.Tensor` of shape `(B, G)`):
            Whether the completion is scorable.
        eps (`float`):
            Added to the batch standard deviation.
        reference (`torch.Tensor` of shape `(W, G)`, *optional*):
            Scores that mean and standard deviation are taken from, NaN where unscorable; by default this batch's.

    Returns:
        `torch.Tensor` of shape `(B, G)`: normalised scores, 0 for unscorable completions.
    """
    rows = scores.masked_fill(~scored, torch.nan).flatten()  # (N,)
    reference = None if reference is None else reference.flatten()  # (W * G,)
    return standardize(rows, dim=0, eps=eps, reference=reference)[0].view_as(scores)  # (B, G)


def build_result(
    groups: GroupStatistics,
    *,
    advantages: torch.Tensor,
    scores: torch.Tensor,
    contributions: torch.Tensor,
    weights: torch.Tensor | None = None,
    density: torch.Tensor | None = None,
    calibrated_density: torch.Tensor | None = None,
) -> AdvantageResult:
    """
    Flatten what a rule has computed into an [`AdvantageResult`].

    Args:
        groups ([`GroupStatistics`]):
            Group statistics of the batch.
        advantages (`torch.Tensor` of shape `(B, G)`):
            Final advantages; those of unscorable completions are set to exactly 0 here.
        scores (`torch.Tensor` of shape `(B, G)`):
            Combined scores.
        contributions (`torch.Tensor` of shape `(B, G, K)`):
            What each channel adds to the score.
        weights (`torch.Tensor` of shape `(K,)` or `(B, K)`, *optional*):
            The rule's weights, by default 1.
        density, calibrated_density (`torch.Tensor` of shape `(K,)`, *optional*):
            By default the share of all groups of this batch.
    """
    if density is None:
        density = density_of(groups.active, torch.ones_like(groups.active), scores.dtype)  # (K,)
    return AdvantageResult(
        advantages=advantages.masked_fill(~groups.scored, 0).flatten(),  # (N,)
        channel_advantages=groups.advantages.flatten(0, 1),  # (N, K)
        contributions=contributions.flatten(0, 1),  # (N, K)
        scores=scores.masked_fill(~groups.scored, 0).flatten(),  # (N,)
        density=density,
        energy=groups.advantages.square().sum(dim=(0, 1)),  # (K,)
        weights=torch.ones_like(density) if weights is None else weights,
        active=groups.active,
        scored=groups.scored.flatten(),  # (N,)
        calibrated_density=density if calibrated_density is None else calibrated_density,
    )
