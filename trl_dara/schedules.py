"""Reward weights that change over training."""

import math


_OPTIONS = {
    "constant": {"value"},
    "linear": {"start", "end", "steps"},
    "step": {"start", "end", "at"},
}


def check_schedules(reward_weight_schedules: dict | None, channel_names: list[str]) -> None:
    """
    Check the `reward_weight_schedules` setting.

    Args:
        reward_weight_schedules (`dict[str, dict]` or `None`):
            By channel name: `{"type": "constant", "value": 0.5}`, `{"type": "linear", "start": 0.0, "end": 1.0, "steps":
            200}` or `{"type": "step", "start": 0.0, "end": 1.0, "at": 200}`.
        channel_names (`list[str]`):
            Names of the channels.
    """
    for name, schedule in (reward_weight_schedules or {}).items():
        if name not in channel_names:
            raise ValueError(
                f"`reward_weight_schedules` names the channel {name!r}, but the channels are {channel_names}."
            )
        kind = schedule.get("type") if isinstance(schedule, dict) else None
        options = {key: value for key, value in schedule.items() if key != "type"} if kind in list(_OPTIONS) else {}
        numeric = all(isinstance(value, (int, float)) and math.isfinite(value) for value in options.values())
        if kind not in list(_OPTIONS) or set(options) != _OPTIONS[kind] or not numeric or options.get("steps", 1) <= 0:
            raise ValueError(
                f"`reward_weight_schedules` gives channel '{name}' the schedule {schedule!r}. Pass "
                "{'type': 'constant', 'value'}, {'type': 'linear', 'start', 'end', 'steps'} (steps > 0) or "
                "{'type': 'step', 'start', 'end', 'at'}, with finite numbers."
            )


def can_be_nonzero(schedule: dict) -> bool:
    """Whether the factor differs from 0 at some step."""
    return any(schedule.get(key, 0) != 0 for key in ("value", "start", "end"))


def scheduled_factor(schedule: dict, step: int) -> float:
    """
    Factor of a channel's reward weight at an optimiser step.

    Args:
        schedule (`dict`):
            One value of `reward_weight_schedules`. `linear` goes from `start` at step 0 to `end` at step `steps` and
            stays there; `step` is `start` before step `at` and `end` from it on.
        step (`int`):
            The global step.

    Returns:
        `float`
    """
    if schedule["type"] == "constant":
        return schedule["value"]
    if schedule["type"] == "step":
        return schedule["start"] if step < schedule["at"] else schedule["end"]
    progress = min(step / schedule["steps"], 1.0)
    return schedule["start"] + progress * (schedule["end"] - schedule["start"])
