"""
Tensor steps shared by the aggregation rules.

Notation: `B` groups, `G` completions per group, `K` reward channels, `N = B * G` completions, group by group. A reward
that was not scored is NaN.
"""

from dataclasses import dataclass

import torch

from .standardize import nan_mask, standardize


# The paper's tau: advantages this small are no signal, contributions this small take no side.
NEGLIGIBLE = 1e-8

# Rewards that are normalised at a time: what is computed on the way stays in the processor's cache.
BLOCK = 2**16


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
        std (`torch.Tensor` of shape `(B, K)`):
            Sample standard deviation of the scored rewards of the group; 0 where they are all equal.
        active (`torch.Tensor` of shape `(B, K)`):
            Whether the scored rewards of the group differ.
        comparable (`torch.Tensor` of shape `(B, K)`):
            Whether at least two completions of the group were scored.
        scored (`torch.Tensor` of shape `(B, G)`):
            Whether any steering channel (`u != 0`) scored the completion. The others are *unscorable*: 0, in no statistic.
        steering (`torch.Tensor` of shape `(K,)`):
            Whether the channel has a non-zero user weight.
    """

    advantages: torch.Tensor
    contributions: torch.Tensor
    std: torch.Tensor
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
        kept (`torch.Tensor` of shape `(N,)`, *optional*):
            `gd2po_*`: whether the completion is trained on, its channels not being in conflict.
        kappa (`torch.Tensor` of shape `(B,)`, *optional*):
            `gd2po_*`: share of the group's scorable completions that are kept.
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
    kept: torch.Tensor | None = None
    kappa: torch.Tensor | None = None


def group_statistics(rewards: torch.Tensor, reward_weights: torch.Tensor, eps: float) -> GroupStatistics:
    """
    Normalise each channel within each group.

    Active is what varies, `max > min`, and passes the paper's test `sum |A| > 1e-8`, which leaves out a spread that
    vanishes beside `eps`; that test alone counts about half of all constant float32 groups as active at G = 8.

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
    advantages = torch.empty_like(rewards, memory_format=torch.contiguous_format)  # (B, G, K)
    std = rewards.new_empty(rewards.shape[0], rewards.shape[2])  # (B, K)
    active = torch.empty_like(std, dtype=torch.bool)  # (B, K)
    size = max(1, BLOCK // rewards[0].numel())
    for start in range(0, len(rewards), size):
        block = slice(start, start + size)
        # Groups side by side: reducing the first dimension is several times faster, and any layout gives the same bits
        columns = rewards[block].transpose(0, 1).contiguous()  # (G, b, K)
        values, std[block], varies = standardize(columns, dim=0, eps=eps)  # (G, b, K), (1, b, K), (1, b, K)
        active[block] = varies & (values.abs().sum(dim=0, keepdim=True) > NEGLIGIBLE)  # (1, b, K)
        advantages[block] = values.masked_fill_(~active[block], 0).transpose(0, 1)  # (b, G, K)
    missing = nan_mask(rewards)  # (B, G, K) or None
    if missing is None:
        scored = steering.any().repeat(advantages.shape[:2])  # (B, G)
        comparable = torch.full_like(active, rewards.shape[1] >= 2)  # (B, K)
    else:
        scored = (~missing & steering).any(dim=-1)  # (B, G)
        comparable = (~missing).sum(dim=1) >= 2  # (B, K)
    return GroupStatistics(
        advantages=advantages,
        contributions=reward_weights * advantages,
        std=std,
        active=active,
        comparable=comparable,
        scored=scored,
        steering=steering,
    )


def density_of(active: torch.Tensor, counted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Share of the counted groups in which the channel is active, `pi`; `(B, K)` and `(B, K)` to `(K,)`, 0 for none."""
    groups = counted.sum(dim=0).clamp(min=1)  # (K,)
    return (active & counted).sum(dim=0).to(dtype) / groups  # (K,)


def normalize_batch(
    scores: torch.Tensor,
    scored: torch.Tensor,
    eps: float,
    reference: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
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
        counts (`torch.Tensor` of shape `(N,)`, *optional*):
            How often each completion of this batch counts in mean and standard deviation; by default once.

    Returns:
        `torch.Tensor` of shape `(B, G)`: normalised scores, 0 for unscorable completions.
    """
    rows = scores.masked_fill(~scored, torch.nan).flatten()  # (N,)
    reference = None if reference is None else reference.flatten()  # (W * G,)
    return standardize(rows, dim=0, eps=eps, reference=reference, counts=counts).values.view(scores.shape)  # (B, G)


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
