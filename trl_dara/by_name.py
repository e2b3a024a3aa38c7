"""What a user says about channels by name, checked and put in channel order. Imports nothing beyond Python."""

import math
import numbers


def by_channel(mapping: dict, channel_names: list[str], default, argument: str) -> list:
    """
    Turn a mapping by channel name into a list in channel order.
    """
    unknown = sorted(set(mapping) - set(channel_names))
    if unknown:
        raise ValueError(f"`{argument}` names {unknown}, but the channels are {channel_names}.")
    return [mapping.get(name, default) for name in channel_names]


def check_weights(weights: list[float], channel_names: list[str]) -> None:
    """
    Refuse weights that are not finite, which would silently remove a channel, and weights that are all 0.
    """
    for name, weight in zip(channel_names, weights, strict=True):
        if not isinstance(weight, numbers.Real) or not math.isfinite(weight):
            raise ValueError(f"`reward_weights` gives channel '{name}' the weight {weight!r}. Pass a finite number.")
    if not any(weights):
        raise ValueError(
            f"`reward_weights` is 0 for every channel of {channel_names}, so nothing would be learned. Give at least one "
            "channel a non-zero weight."
        )


def check_bounds(reward_bounds: dict | None, channel_names: list[str]) -> list[tuple[float, float] | None]:
    """
    Bounds per channel in channel order, `None` where none are declared.
    """
    for name, bounds in (reward_bounds or {}).items():
        pair = isinstance(bounds, (list, tuple)) and len(bounds) == 2
        finite = pair and all(isinstance(bound, numbers.Real) and math.isfinite(bound) for bound in bounds)
        if not finite or not bounds[0] < bounds[1]:
            raise ValueError(
                f"`reward_bounds` gives channel '{name}' the bounds {bounds!r}. Pass two finite numbers, the lowest and "
                "the highest possible reward, lowest first."
            )
    return by_channel(reward_bounds or {}, channel_names, None, "reward_bounds")
