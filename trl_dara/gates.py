"""Gates: a channel that counts only where another one is satisfied."""

import math
from dataclasses import dataclass

import torch


@dataclass
class RewardGate:
    """
    One channel's gate.

    Args:
        channel (`int`):
            Index of the gated channel.
        on (`int`):
            Index of the channel it depends on.
        above (`float`):
            The gate is open where the reward of `on` is above this value.
        mode (`str`):
            What a closed gate does: `"zero"` makes the reward 0, `"skip"` makes it not scored.
    """

    channel: int
    on: int
    above: float
    mode: str


def parse_gates(reward_gates: dict | None, channel_names: list[str]) -> list[RewardGate]:
    """
    Read the `reward_gates` setting.

    Args:
        reward_gates (`dict[str, dict]` or `None`):
            By channel name, e.g. `{"short": {"on": "correct", "above": 0.5, "mode": "zero"}}`; `mode` defaults to
            `"zero"`.
        channel_names (`list[str]`):
            Names of the channels.

    Returns:
        `list[RewardGate]`
    """
    gates = []
    for name, options in (reward_gates or {}).items():
        named = [name, options["on"]] if isinstance(options, dict) and "on" in options else [name]
        unknown = [channel for channel in named if channel not in channel_names]
        if unknown:
            raise ValueError(f"`reward_gates` names the channel {unknown[0]!r}, but the channels are {channel_names}.")
        complete = isinstance(options, dict) and {"on", "above"} <= set(options) <= {"on", "above", "mode"}
        above = options.get("above") if isinstance(options, dict) else None
        complete = complete and isinstance(above, (int, float)) and math.isfinite(above)
        if not complete or options.get("mode", "zero") not in ("zero", "skip") or options["on"] == name:
            raise ValueError(
                f"`reward_gates` gives channel '{name}' the gate {options!r}. Pass {{'on': another channel, 'above': a "
                "number, 'mode': 'zero' or 'skip'}. In YAML, write 'on' in quotes: without them it means true."
            )
        on = channel_names.index(options["on"])
        gates.append(RewardGate(channel_names.index(name), on, float(options["above"]), options.get("mode", "zero")))
    return gates


def apply_gates(rewards: torch.Tensor, gates: list[RewardGate]) -> torch.Tensor:
    """
    Close the gates. All gates look at the rewards as the functions returned them, so a gate on a gated channel does not
    see the other gate.

    Args:
        rewards (`torch.Tensor` of shape `(N, K)`):
            Rewards, NaN where not scored.
        gates (`list[RewardGate]`):
            From [`parse_gates`].

    Returns:
        `torch.Tensor` of shape `(N, K)`: where the reward of `on` is not above the threshold, or was not scored, the
        gated reward is 0 or NaN. A reward that was not scored stays so.
    """
    gated = rewards.clone()
    for gate in gates:
        closed = ~(rewards[:, gate.on] > gate.above)  # (N,), true for NaN
        scored = ~rewards[:, gate.channel].isnan()  # (N,)
        gated[closed & scored, gate.channel] = 0.0 if gate.mode == "zero" else torch.nan
    return gated
