import math

import torch

from .ops import NEGLIGIBLE, AdvantageResult, build_result, group_statistics, normalize_batch
from .options import check_flag, token_counts


def gd2po_hard(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    eps: float = 1e-4,
    kappa_before_norm: bool = False,
    batch_norm: str = "completion",
    completion_lengths: torch.Tensor | None = None,
) -> AdvantageResult:
    r"""
    `gdpo` without the completions on which the channels disagree, and less of the groups that have many of these.

    A completion is in conflict when one contribution `u_k A_k` is above 1e-8 and another below -1e-8. The advantage is
    `kappa_i (S - mean S) / (std S + eps)`, with mean and std over the kept completions of the batch and `kappa_i` the
    share of group `i` that is kept; 0 for a dropped completion.

    Args:
        rewards, reward_weights, eps:
            As for [`gdpo`]. A negative weight flips the sign before conflicts are looked for.
        kappa_before_norm (`bool`, *optional*, defaults to `False`):
            Multiply `S` by `kappa` before the batch normalisation, as the authors' code, not after it.
        batch_norm, completion_lengths (*optional*):
            As for [`gdpo`], over the kept completions. The authors' code normalises over their tokens.

    When to use it: rewards that contradict each other on many completions. What it costs: the signal of what is
    dropped, which with many or opposed channels is most. Kept scores need not sum to 0 in a group, so a group without
    signal gets a small advantage. Fewer than two kept completions give zeros. The loss still averages over all
    completions. `result.kept` and `result.kappa` tell what happened.

    Source: [GD2PO](https://huggingface.co/papers/2606.16771); `kappa` last, as in Table 5 of the DARA paper.
    """
    shared = {"eps": eps, "batch_norm": batch_norm, "completion_lengths": completion_lengths}
    return gd2po_snr(rewards, reward_weights, threshold=math.inf, kappa_before_norm=kappa_before_norm, **shared)


def gd2po_snr(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    eps: float = 1e-4,
    threshold: float = 0.8,
    kappa_before_norm: bool = False,
    batch_norm: str = "completion",
    completion_lengths: torch.Tensor | None = None,
) -> AdvantageResult:
    r"""
    [`gd2po_hard`] that drops a completion in conflict only if its channels nearly cancel: `|sum c| / sum |c| <
    threshold`.

    `threshold` (`float`, *optional*, defaults to `0.8`) is 0.8 in the authors' scripts, 0.2 in their configuration; 0
    drops nothing, infinity whatever is in conflict. Everything else is as in [`gd2po_hard`].
    """
    if not threshold >= 0:
        raise ValueError(f"`threshold` of the rule `gd2po_snr` is {threshold!r}. Pass a number >= 0, usually below 1.")
    counts = token_counts(batch_norm, completion_lengths, rewards)  # (N,) or None
    check_flag("kappa_before_norm", kappa_before_norm)
    groups = group_statistics(rewards, reward_weights, eps)
    contributions = groups.contributions  # (B, G, K)
    conflict = (contributions.amax(dim=-1) > NEGLIGIBLE) & (contributions.amin(dim=-1) < -NEGLIGIBLE)  # (B, G)
    clarity = contributions.sum(dim=-1).abs() / contributions.abs().sum(dim=-1)  # (B, G)
    kept = groups.scored & ~(conflict & (clarity < threshold))  # (B, G)
    kappa = kept.sum(dim=1) / groups.scored.sum(dim=1).clamp(min=1).to(contributions)  # (B,)
    contributions = contributions * kept.unsqueeze(-1)  # (B, G, K)
    if kappa_before_norm:
        contributions = kappa.view(-1, 1, 1) * contributions  # (B, G, K)
    scores = contributions.sum(dim=-1)  # (B, G)
    normalized = normalize_batch(scores, kept, eps, counts=counts)  # (B, G)
    advantages = normalized if kappa_before_norm else kappa.unsqueeze(-1) * normalized  # (B, G)
    result = build_result(groups, advantages=advantages, scores=scores, contributions=contributions)
    result.kept, result.kappa = kept.flatten(), kappa  # (N,), (B,)
    return result
