"""The rules that were tried in the search for one that is faster than DARA, or costs the other reward less."""

import torch

from trl_dara import CalibrationWindow
from trl_dara.aggregation import AdvantageResult
from trl_dara.aggregation.ops import build_result, density_of, group_statistics, normalize_batch


def candidate(
    rewards: torch.Tensor,
    reward_weights: torch.Tensor,
    *,
    eps: float = 1e-4,
    window: CalibrationWindow | None = None,
    level: float = 1.0,
    exponent: float = 0.5,
    w_max: float = 5.0,
    agreement: bool = False,
    shrunken: bool = False,
) -> AdvantageResult:
    r"""
    DARA-Sym with weights `w_k = min(w_max, max(1, (level * pi_ref / pi_k) ** exponent))`.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, all scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights.
        eps (`float`, *optional*, defaults to `1e-4`):
            Added to standard deviations.
        window ([`CalibrationWindow`], *optional*):
            Recent groups over which the density is taken. Unlike in DARA, the normalisation is of this batch.
        level (`float`, *optional*, defaults to `1.0`):
            Share of the reference's density below which a channel is amplified. 1 is DARA's.
        exponent (`float`, *optional*, defaults to `0.5`):
            How fast the weight grows below the level. 0.5 is DARA's.
        w_max (`float`, *optional*, defaults to `5.0`):
            Largest weight.
        agreement (`bool`, *optional*, defaults to `False`):
            Amplify only where a contribution does not oppose that of the densest channel.
        shrunken (`bool`, *optional*, defaults to `False`):
            Instead of normalising each channel in its group, measure it from a baseline between the mean of the group and
            that of the batch ([`shrunken_advantages`]), times the root of its density, as `gdpo` implies.

    With no active channel in the batch, all advantages are exactly 0.
    """
    groups = group_statistics(rewards, reward_weights, eps)
    everywhere = torch.ones_like(groups.active)
    density = density_of(groups.active, everywhere, rewards.dtype)  # (K,)
    calibrated_density = density
    if window is not None:
        calibrated_density = density_of(*window.add_activity(groups.active, everywhere), rewards.dtype)  # (K,)
    ratio = level * calibrated_density.max() / calibrated_density  # (K,)
    weights = torch.where(calibrated_density > 0, ratio.pow(exponent).clamp(1, w_max), 1)  # (K,)

    contributions = groups.contributions  # (B, G, K)
    if shrunken:
        contributions = reward_weights * shrunken_advantages(rewards, eps) * density.sqrt()  # (B, G, K)
    gains = weights.expand_as(contributions)  # (B, G, K)
    if agreement:
        densest = contributions[..., calibrated_density.argmax(), None]  # (B, G, 1)
        gains = gains.where(contributions * densest >= 0, 1)
    contributions = gains * contributions
    scores = contributions.sum(dim=-1)  # (B, G)
    advantages = normalize_batch(scores, groups.scored, eps)  # (B, G)
    return build_result(
        groups,
        advantages=advantages if groups.live.any() else torch.zeros_like(advantages),
        scores=scores,
        contributions=contributions,
        weights=weights,
        density=density,
        calibrated_density=calibrated_density,
    )


def shrunken_advantages(rewards: torch.Tensor, eps: float) -> torch.Tensor:
    """
    Rewards minus an empirical Bayes estimate of their prompt's expected reward, over their standard deviation in the batch.

    The mean of few completions is a noisy baseline. It is pulled towards the mean of the batch, the more the less prompts
    differ beside that noise. A group that is all 0 or all 1 has a signal then, too.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, all scored.
        eps (`float`):
            Added to the standard deviation.

    Returns:
        `torch.Tensor` of shape `(B, G, K)`

    Raises:
        `ValueError`: with fewer than two prompts or two completions of each, which have no spread.
    """
    if min(rewards.shape[:2]) < 2:
        raise ValueError(
            f"`rewards` are of {rewards.shape[0]} prompts with {rewards.shape[1]} completions each. The baseline is estimated "
            "from at least two prompts with at least two completions: pass more, or `shrunken=False`."
        )
    means = rewards.mean(dim=1, keepdim=True)  # (B, 1, K)
    noise = rewards.var(dim=1).mean(dim=0) / rewards.shape[1]  # (K,), variance of a group's mean around its prompt's
    trust = (1 - noise / means.var(dim=0).clamp(min=1e-12)).clamp(min=0)  # (1, K)
    centred = rewards - trust * means - (1 - trust) * means.mean(dim=0, keepdim=True)  # (B, G, K)
    return centred / (centred.square().mean(dim=(0, 1)).sqrt() + eps)


# Settings of `candidate`; `window` counts groups. In words: a larger exponent; a density that lags behind; no amplification of
# what the densest channel opposes; none but of a channel that is starved, and then much; a baseline that is less noisy.
CANDIDATES = {
    "exponent_1": {"exponent": 1.0},
    "slow": {"window": 256},
    "agreement": {"agreement": True},
    "agreement_slow": {"agreement": True, "window": 256},
    "starved": {"level": 0.3, "exponent": 2.0},
    "starved_steep": {"level": 0.25, "exponent": 4.0},
    "shrunken": {"shrunken": True},
    "shrunken_starved": {"shrunken": True, "level": 0.3, "exponent": 2.0},
}
