"""What each channel does, printed while training: a table in a terminal, plain lines in a log file."""

import logging
import math

from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import TrainerCallback

from .report.verdicts import SMALL, fair_shares


logger = logging.getLogger(__name__)

# A reward may well be silent in the first steps; after these it deserves a look
PATIENCE = 10

# In fewer columns a table has no room for its numbers
NARROW = 70


class ChannelView(TrainerCallback):
    """
    Prints mean reward, density, weight and share of every channel, with a verdict, whenever the trainer logs, and warns
    once of each channel that has been constant from the start. [`MultiRewardGRPOTrainer`] adds it; without it:
    `trainer.remove_callback(ChannelView)`.

    Args:
        channel_names (`list[str]`):
            Names of the channels, in order.
        reward_weights (`list[float]`, *optional*):
            The user's weights in the same order, 1 by default. A channel with less than half of the share that they give
            it is called starved, one with weight 0 a monitor. For a channel with a schedule, the logged weight counts.
    """

    def __init__(self, channel_names: list[str], reward_weights: list[float] | None = None):
        self.channel_names = channel_names
        self.reward_weights = dict(zip(channel_names, reward_weights or [1.0] * len(channel_names), strict=True))
        self.console = Console()
        self.constants: dict[str, float | None] = {}  # reward of each channel as long as it never differed, else None
        self.first_step = 1
        self.warned: set[str] = set()

    def on_train_begin(self, args, state, control, **kwargs):
        self.first_step = state.global_step + 1
        self.constants.clear()

    def on_log(self, args, state, control, logs=None, **kwargs):
        logged = [name for name in self.channel_names if f"channels/{name}/coverage" in logs]
        if not state.is_world_process_zero or not logged:  # evaluations, and the summary after the last step
            return
        values = {name: channel_values(name, logs) for name in logged}
        weights = {name: logs.get(f"channels/{name}/reward_weight", self.reward_weights[name]) for name in logged}
        for name in logged:
            varies = (logs[f"rewards/{name}/std"] or 0) > 1e-6 * abs(values[name]["mean"])
            self._note_constant(name, values[name]["mean"], varies, state.global_step, steers=weights[name] != 0)
        fair = fair_shares(list(weights.values()), [True] * len(logged))
        verdicts = {
            name: self._verdict(name, values[name], weights[name], share, state.global_step)
            for name, share in zip(logged, fair, strict=True)
        }
        if self.console.is_terminal and self.console.width >= NARROW:
            self.console.print(view_table(state.global_step, values, verdicts))
            return
        for name in logged:
            numbers = ", ".join(f"{key} {_number(value)}" for key, value in values[name].items())
            self.console.print(
                f"step {state.global_step}  {name}: {numbers}; {verdicts[name]}", markup=False, soft_wrap=True
            )

    def _note_constant(self, name: str, reward: float, varies: bool, step: int, steers: bool) -> None:
        if math.isnan(reward):
            return
        first = self.constants.setdefault(name, reward)
        if first is None or varies or not math.isclose(first, reward, rel_tol=1e-6):
            self.constants[name] = None
        elif steers and step - self.first_step + 1 >= PATIENCE and name not in self.warned:
            self.warned.add(name)
            logger.warning(
                f"Channel '{name}' has been {reward:g} for every completion since step {self.first_step}: nothing is learned "
                "from it. Look at completions (`log_completions=True`) and try the reward on them by hand (`trl-dara check`); "
                "if it is right, the model needs examples first (supervised fine-tuning, a prompt that shows the format)."
            )

    def _verdict(self, name: str, values: dict[str, float], weight: float, fair_share: float, step: int) -> str:
        if math.isnan(values["mean"]):
            return "not scored"
        if (constant := self.constants.get(name)) is not None:
            if step - self.first_step + 1 < PATIENCE:
                return f"silent so far: always {constant:g}"
            return f"always {constant:g} since step {self.first_step}"
        if values["density"] == 0:
            return "silent: equal within every group"
        if weight == 0:
            return "monitor"
        return "starved" if values["share"] < SMALL * fair_share else "active"


def channel_values(name: str, logs: dict[str, float]) -> dict[str, float]:
    """
    What the view shows of a channel; NaN where the trainer logged nothing because nothing was scored.

    Args:
        name (`str`):
            Name of the channel.
        logs (`dict[str, float]`):
            What the trainer logged.

    Returns:
        `dict[str, float]`: `mean` (of the reward), `density`, `weight` and `share`.
    """
    keys = {"mean": f"rewards/{name}/mean"} | {
        metric: f"channels/{name}/{metric}" for metric in ("density", "weight", "share")
    }
    values = {column: logs.get(key) for column, key in keys.items()}
    return {column: math.nan if value is None else value for column, value in values.items()}  # TRL logs NaN as None


def view_table(step: int, values: dict[str, dict[str, float]], verdicts: dict[str, str]) -> Table:
    """
    The view of one step as a table.

    Args:
        step (`int`):
            The global step.
        values (`dict[str, dict[str, float]]`):
            By channel, as returned by [`channel_values`].
        verdicts (`dict[str, str]`):
            By channel.

    Returns:
        `Table`
    """
    table = Table(title=f"step {step}", title_justify="left")
    table.add_column("channel", overflow="fold")
    for column in next(iter(values.values())):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict")
    for name, numbers in values.items():
        table.add_row(Text(name), *map(_number, numbers.values()), verdicts[name])
    return table


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"
