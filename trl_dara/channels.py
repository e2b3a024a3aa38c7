"""The channels of a trainer: what is declared about each reward, and what becomes of the gathered rewards."""

import logging
from collections.abc import Callable

import torch
from torch import nn

from .by_name import by_channel, check_bounds, check_weights
from .config import MultiRewardGRPOConfig
from .gates import apply_gates, parse_gates
from .rewards.channel import ChannelLog, as_channel, unique_names
from .rewards.contract import farthest_outside
from .schedules import can_be_nonzero, check_schedules, scheduled_factor
from .validation import check_channel_names


logger = logging.getLogger(__name__)


class Channels:
    r"""
    Names, weights, bounds, gates and weight schedules of the reward channels, in channel order.

    Args:
        names (`list[str]`):
            Names of the reward functions; repeated ones are numbered.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            Weights by position.
        named_weights (`dict[str, float]`, *optional*):
            Weights by name, instead.
        settings ([`MultiRewardGRPOConfig`]):
            Bounds, gates, schedules and what to do on an error.
    """

    def __init__(
        self,
        names: list[str],
        reward_weights: torch.Tensor,
        named_weights: dict[str, float] | None,
        settings: MultiRewardGRPOConfig,
    ):
        self.names = unique_names(names)
        check_channel_names(self.names)
        weights = (
            reward_weights.tolist()
            if named_weights is None
            else by_channel(named_weights, self.names, 1.0, "reward_weights")
        )
        check_weights(weights, self.names)
        self.base_weights = torch.tensor(weights, dtype=torch.float32)  # (K,)
        self.bounds = check_bounds(settings.reward_bounds, self.names)
        self.gates = parse_gates(settings.reward_gates, self.names)
        check_schedules(settings.reward_weight_schedules, self.names)
        self.schedules = settings.reward_weight_schedules or {}
        # Whether the channel has a non-zero weight at any step
        self.steers = [
            weight != 0 and (name not in self.schedules or can_be_nonzero(self.schedules[name]))
            for name, weight in zip(self.names, weights, strict=True)
        ]
        idle = [
            name for name, weight in zip(self.names, weights, strict=True) if weight == 0 and name in self.schedules
        ]
        if idle:
            raise ValueError(
                f"`reward_weight_schedules` has schedules for {idle}, whose reward weight is 0. A schedule is a factor of the "
                "weight: give them another weight."
            )
        if not any(self.steers):
            raise ValueError(
                "`reward_weight_schedules` keeps the weight of every channel at 0: nothing would be learned."
            )
        self.on_error = settings.on_reward_error
        self.timeout = settings.reward_timeout
        self._logs = [ChannelLog() for _ in self.names]

    def wrap(self, reward_funcs: list, current_step: Callable[[], int]) -> list:
        """Give each reward function its channel's name, checked output, and a record of its time and errors."""
        return [
            func
            if isinstance(func, nn.Module)
            else as_channel(func, name, log, self.on_error, current_step, self.timeout)
            for func, name, log in zip(reward_funcs, self.names, self._logs, strict=True)
        ]

    def weights(self, step: int) -> torch.Tensor:
        """User weights at an optimiser step, schedules applied, shape `(K,)`."""
        factors = [
            scheduled_factor(self.schedules[name], step) if name in self.schedules else 1.0 for name in self.names
        ]
        return self.base_weights * torch.tensor(factors)  # (K,)

    def take_calls(self) -> torch.Tensor:
        """Seconds and errors of each channel's calls on this process since the last time, shape `(K, 2)`."""
        calls = torch.tensor([[log.seconds, log.errors] for log in self._logs])  # (K, 2)
        for log in self._logs:
            log.reset()
        return calls

    def call_metrics(self, calls: torch.Tensor) -> dict[str, float]:
        """Metrics of the calls on all processes, `(processes, K, 2)`: the slowest process's time, all errors."""
        seconds, errors = calls.unbind(dim=-1)  # (processes, K), (processes, K)
        metrics = {}
        for index, name in enumerate(self.names):
            metrics[f"channels/{name}/time"] = seconds[:, index].max().item()
            metrics[f"channels/{name}/errors"] = errors[:, index].sum().item()
        return metrics

    def settle(self, rewards: torch.Tensor, calls: torch.Tensor) -> torch.Tensor:
        """
        Decide what counts as scored, and close the gates.

        Args:
            rewards (`torch.Tensor` of shape `(N, K)`):
                Gathered rewards as the functions returned them.
            calls (`torch.Tensor` of shape `(processes, K, 2)`):
                From [`~Channels.take_calls`], gathered.

        Returns:
            `torch.Tensor` of shape `(N, K)`: NaN where the reward was infinite, and in the whole of a channel that
            failed on any process; gated rewards as their gates say.
        """
        infinite = rewards.isinf()
        for name, log, bounds, column in zip(self.names, self._logs, self.bounds, rewards.unbind(dim=1), strict=True):
            count = int(column.isinf().sum())
            if count and not log.warned_infinite:
                log.warned_infinite = True
                logger.warning(f"Channel '{name}' returned {count} infinite rewards; they are treated as not scored.")
            outside = farthest_outside(column, bounds)
            if outside is not None and not log.warned_bounds:
                log.warned_bounds = True
                logger.warning(f"Channel '{name}' returned {outside:g}, outside its `reward_bounds` {bounds}.")
        failed = calls[:, :, 1].sum(dim=0) > 0  # (K,)
        return apply_gates(rewards.masked_fill(infinite | failed, torch.nan), self.gates)
