"""One plain sentence per channel: does the reward reach the model, and if not, why."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


QUOTED_RULES = ("grpo", "gdpo", "dara_asym")  # whose shares a verdict states

SATURATED = 0.8  # share of the groups, over the last quarter of the steps, that are stuck at the best end
CONSTANT_TAIL = 0.25  # a reward that stopped varying has been constant for this share of the steps
SMALL = 0.5  # a channel with less than this part of its fair share has too little say


@dataclass
class ChannelHistory:
    r"""
    What a verdict is based on: one channel over `T` steps. Arrays have shape `(T,)`, NaN where the value is not known.

    Args:
        name (`str`):
            Name of the channel.
        steps (`np.ndarray`):
            Logged steps.
        mean (`np.ndarray`):
            Mean reward.
        constant (`np.ndarray` of `bool`):
            Whether the reward had one value in the whole batch.
        density (`np.ndarray`):
            Share of groups in which the reward differs.
        dead_low, dead_high (`np.ndarray`):
            Shares of groups that are inactive with a low, with a high reward. With a negative weight, low is good.
        shares (`dict[str, float]`, *optional*):
            Share of the channel in the advantages, by the name of the rule.
        fair_share (`float`, *optional*, defaults to `0.0`):
            Its share if all channels that are ever active were heard as their weights say.
        weight (`float`, *optional*, defaults to `1.0`):
            The user's weight.
        judged_by (`str`, *optional*, defaults to `"gdpo"`):
            Rule whose share says whether the channel is starved.
        sampled (`bool`, *optional*, defaults to `False`):
            Whether nothing is known of other steps, so that the verdict speaks of these steps alone.
    """

    name: str
    steps: np.ndarray
    mean: np.ndarray
    constant: np.ndarray
    density: np.ndarray
    dead_low: np.ndarray
    dead_high: np.ndarray
    shares: dict[str, float] = field(default_factory=dict)
    fair_share: float = 0.0
    weight: float = 1.0
    judged_by: str = "gdpo"
    sampled: bool = False


@dataclass
class Verdict:
    r"""
    Args:
        channel (`str`):
            Name of the channel.
        kind (`str`):
            `"silent"` (no signal at all), `"saturated"`, `"starved"` (too little of it), `"drowned"` (by the larger
            values of others), `"monitor"` (weight 0) or `"active"`.
        text (`str`):
            The sentence.
    """

    channel: str
    kind: str
    text: str


def judge(channel: ChannelHistory) -> Verdict:
    """
    Judge one channel.

    Args:
        channel ([`ChannelHistory`]):
            What is known about it.

    Returns:
        [`Verdict`]
    """
    kind, text = _judge(channel)
    if channel.weight == 0:
        return Verdict(channel.name, "monitor", f"weight 0, steers nothing; {text}")
    return Verdict(channel.name, kind, text)


def _judge(channel: ChannelHistory) -> tuple[str, str]:
    scored = ~np.isnan(channel.mean)  # (T,)
    if not scored.any():
        return "silent", "never scored: no completion has a number"
    steps, mean, constant = channel.steps[scored], channel.mean[scored], channel.constant[scored]
    since = _constant_since(mean, constant)
    if since == 0:
        return "silent", f"{_always(channel, mean, steps)}: no signal under any rule"
    if not channel.density[scored].any():
        return "silent", "differs between prompts, but never between the completions of one prompt: no signal"
    last = slice(-max(1, len(mean) // 4), None)
    facts = _facts(channel)
    over = "recorded steps" if channel.sampled else "run"
    penalty = channel.weight < 0  # at its best when it is low
    stuck = known_mean((channel.dead_low if penalty else channel.dead_high)[scored][last])
    if len(mean) - since >= max(2, CONSTANT_TAIL * len(mean)):
        kind = "saturated" if mean[-1] == (mean.min() if penalty else mean.max()) else "silent"
        label = "saturated: " if kind == "saturated" else ""
        return kind, f"{label}{_always(channel, mean[since:], steps[since:])}; over the {over} {facts}"
    if stuck >= SATURATED:
        end = "bottom" if penalty else "top"
        return "saturated", f"saturated: at the {end} in {percent(stuck)} of groups lately; over the {over} {facts}"
    if _below_fair(channel, channel.judged_by):
        return "starved", f"starved: {facts}{_too_hard(channel)}"
    if _below_fair(channel, "grpo"):
        return "drowned", f"drowned under grpo by the larger values of other rewards: {facts}"
    return "active", facts + _too_hard(channel)


def _always(channel: ChannelHistory, mean: np.ndarray, steps: np.ndarray) -> str:
    where = f"in the {len(steps)} recorded steps " if channel.sampled and len(steps) > 1 else ""
    return f"always {mean[-1]:.4g} {where}since step {steps[0]}"


def _constant_since(mean: np.ndarray, constant: np.ndarray) -> int:
    """Index from which on all rewards have one and the same value, the length if there is none."""
    differs = np.flatnonzero(~constant | (mean != mean[-1]))
    return int(differs[-1]) + 1 if len(differs) else 0


def _facts(channel: ChannelHistory) -> str:
    facts = f"active in {percent(known_mean(channel.density))} of groups"
    said = [f"{percent(channel.shares[rule])} under {rule}" for rule in QUOTED_RULES if rule in channel.shares]
    said = said or [f"{percent(share)} under {rule}" for rule, share in channel.shares.items()]
    if channel.weight == 0 or not said:
        return facts
    said[0] = said[0].replace(" under", " of the signal under", 1)
    return f"{facts}, carries {', '.join(said)}"


def _too_hard(channel: ChannelHistory) -> str:
    dead, side = (channel.dead_high, "high") if channel.weight < 0 else (channel.dead_low, "low")
    share = known_mean(dead)
    return f"; too hard in {percent(share)} of groups (all completions {side})" if share >= 0.5 else ""


def _below_fair(channel: ChannelHistory, rule: str) -> bool:
    return channel.shares.get(rule, np.inf) < SMALL * channel.fair_share


def quoted_first(rules: Iterable[str]) -> list[str]:
    """The rules that verdicts quote, where they are among the given ones, before the others."""
    rules = list(rules)
    return [rule for rule in QUOTED_RULES if rule in rules] + [rule for rule in rules if rule not in QUOTED_RULES]


def fair_shares(weights: list[float], alive: list[bool]) -> list[float]:
    """
    Shares of the channels if each that is ever active were heard as its weight says.

    Args:
        weights (`list[float]`):
            The user's weights.
        alive (`list[bool]`):
            Whether the channel is active in any group.

    Returns:
        `list[float]`
    """
    sizes = [abs(weight) * live for weight, live in zip(weights, alive, strict=True)]
    return [size / sum(sizes) if size else 0.0 for size in sizes]


def percent(share: float) -> str:
    """A share as a text, such as `4 %`; small ones keep a digit, and only exact 0 and 1 are called so."""
    if np.isnan(share):
        return "–"
    value = 100 * share
    if 0 < value < 0.1:
        return "< 0.1 %"
    if 99.9 < value < 100:
        return "> 99.9 %"
    rounded = round(value, 1)
    return f"{rounded} %" if 0 < rounded < 1 or 99 < rounded < 100 else f"{value:.0f} %"


def known_mean(values: np.ndarray) -> float:
    """Mean of the values that are not NaN; NaN where there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan
