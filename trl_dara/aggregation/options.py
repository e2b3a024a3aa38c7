"""Checks of the keyword arguments that several aggregation rules share."""

import math

import torch


def check_flag(name: str, value: bool) -> None:
    """
    Refuse a flag that is not a bool: the string "false" would count as true.
    """
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` is {value!r}. Pass True or False.")


def token_counts(
    batch_norm: str, completion_lengths: torch.Tensor | None, rewards: torch.Tensor
) -> torch.Tensor | None:
    """
    What each completion counts in the batch normalisation.

    Args:
        batch_norm (`str`):
            `"completion"`: every completion counts once. `"token"`: as often as it has tokens, as in verl and the GDPO
            repository.
        completion_lengths (`torch.Tensor` of shape `(N,)`, *optional*):
            Tokens of each completion.
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards of the batch.

    Returns:
        `torch.Tensor` of shape `(N,)`, or `None` where every completion counts once.

    Raises:
        `ValueError`: for another `batch_norm`, or lengths that are missing or do not fit.
    """
    if batch_norm not in ("completion", "token"):
        raise ValueError(f"`batch_norm` is {batch_norm!r}. Pass 'completion' or 'token'.")
    if batch_norm == "completion":
        return None
    num_completions = rewards.shape[0] * rewards.shape[1]
    if completion_lengths is None:
        raise ValueError(
            "`batch_norm='token'` needs `completion_lengths`, the number of tokens of each completion, and got none. "
            f"Pass a tensor of shape ({num_completions},)."
        )
    counts = torch.as_tensor(completion_lengths).to(rewards)
    if counts.shape != (num_completions,) or not (counts >= 0).all():
        raise ValueError(
            f"`completion_lengths` is {counts.tolist()}. Pass the number of tokens of each of the {num_completions} "
            "completions, each >= 0."
        )
    return counts  # (N,)


def steering_bounds(
    reward_bounds: list[tuple[float, float] | None] | None, steering: torch.Tensor, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Declared bounds as two tensors `(K,)`, NaN for a channel with weight 0 that has none.

    Args:
        reward_bounds (`list[tuple[float, float] | None]`, *optional*):
            Lowest and highest possible reward per channel.
        steering (`torch.Tensor` of shape `(K,)`):
            Whether the channel has a non-zero user weight, and so needs bounds.
        like (`torch.Tensor`):
            Tensor whose dtype and device the bounds take.

    Raises:
        `ValueError`: naming the channel whose bounds are missing or not two numbers, lowest first.
    """
    num_channels = len(steering)
    bounds = [None] * num_channels if reward_bounds is None else reward_bounds
    if not isinstance(bounds, (list, tuple)) or len(bounds) != num_channels:
        raise ValueError(
            f"`reward_bounds` is {reward_bounds!r}, but there are {num_channels} channels. Pass a list with (low, high) "
            "for each channel, in channel order."
        )
    for index, (pair, steers) in enumerate(zip(bounds, steering.tolist(), strict=True)):
        if pair is None and steers:
            raise ValueError(
                f"This aggregation rule needs the bounds of every channel, and `reward_bounds` has none for channel "
                f"{index}. Pass (low, high), the lowest and the highest possible reward."
            )
        if pair is not None and not (len(pair) == 2 and -math.inf < pair[0] < pair[1] < math.inf):
            raise ValueError(
                f"`reward_bounds` gives channel {index} the bounds {pair!r}. Pass (low, high), two finite numbers, "
                "lowest first."
            )
    low, high = like.new_tensor([pair or (math.nan, math.nan) for pair in bounds]).unbind(dim=-1)  # (K,), (K,)
    return low, high
