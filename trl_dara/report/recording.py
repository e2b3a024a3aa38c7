"""From tables of completions to batches of rewards, group by group."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from .batches import GROUP_COLUMNS, TRL_COLUMNS, Batch, drop_repeated, make_batches, shown_columns
from .reading import is_evaluation, read_table


_METRIC = re.compile(r"(eval_)?rewards/.+/mean")  # in the logs of TRL
_CHANNEL_ADVANTAGE = "advantage/"  # before the channel's name: a column that this library writes


@dataclass
class Recording:
    r"""
    The recorded rewards of one run.

    Args:
        name (`str`):
            Name of the run.
        channels (`list[str]`):
            Columns taken as rewards.
        batches (`list[Batch]`):
            Batches by step, all with groups of one size.
        table (`pd.DataFrame`):
            All rows, with their texts.
        notes (`list[str]`):
            What was chosen or found while reading, in sentences.
        left_out (`list[str]`):
            Files and rows that are not in the batches, and why.
        misses_steps (`bool`, *optional*, defaults to `False`):
            Whether this is a training run of TRL with steps, up to the last one, that have no table.
    """

    name: str
    channels: list[str]
    batches: list[Batch]
    table: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    misses_steps: bool = False

    @property
    def num_generations(self) -> int:
        return self.batches[0].rewards.shape[1]

    @property
    def table_steps(self) -> np.ndarray:
        """All steps of the table, increasing, also those whose batch is that of the step before."""
        return np.unique(self.table["step"])


def read_recording(
    name: str,
    files: list[Path],
    reward_columns: list[str] | None = None,
    group_column: str | None = None,
    num_generations: int | None = None,
) -> Recording:
    """
    Read the tables of one run.

    Args:
        name (`str`):
            Name of the run.
        files (`list[Path]`):
            Its tables.
        reward_columns (`list[str]`, *optional*):
            Columns that are rewards. By default all numeric ones that have no other meaning.
        group_column (`str`, *optional*):
            Rows of a step with one value in this column are a group. By default `group`, `group_id` or `prompt_id`
            where a table that is not TRL's has it; else consecutive rows with the same `prompt`.
        num_generations (`int`, *optional*):
            Completions per group. By default the most frequent size.

    Returns:
        [`Recording`]

    Raises:
        `ValueError`: when no batch can be made; the message says why, and what to pass.
    """
    tables, left_out = {}, []
    for file in files:
        try:
            tables[file] = read_table(file)
        except ValueError as error:
            left_out.append(f"{file.name} {error}.")
    if not tables:
        raise ValueError(f"No table can be read. {' '.join(left_out)}")
    if all(any(map(_METRIC.fullmatch, table.columns)) and "prompt" not in table for table in tables.values()):
        raise ValueError("This is a log of metrics, not a table of completions. Pass it to `trl-dara report`.")
    notes = []
    channels = _choose_channels(tables, reward_columns, group_column, notes)
    table = _one_table(tables, channels, group_column, left_out)
    table = _drop_infinite(table, channels, notes)
    batches = make_batches(table, channels, group_column, num_generations, notes, left_out)
    recording = Recording(name, channels, drop_repeated(batches, table, notes), table, notes, left_out)
    of_training = TRL_COLUMNS <= set(table.columns) and not any(map(is_evaluation, files))
    recording.misses_steps = of_training and bool((np.diff(recording.table_steps, prepend=0) > 1).any())
    return recording


def _choose_channels(
    tables: dict[Path, pd.DataFrame], reward_columns: list[str] | None, group_column: str | None, notes: list[str]
) -> list[str]:
    columns = list(dict.fromkeys(column for table in tables.values() for column in table.columns))
    numeric = [column for column in columns if any(_is_numeric(table, column) for table in tables.values())]
    if reward_columns is not None:
        missing = [column for column in reward_columns if column not in numeric]
        if missing:
            raise ValueError(
                f"`--reward-columns` names {missing}. The columns with numbers are {shown_columns(numeric)}."
            )
        return list(dict.fromkeys(reward_columns))
    with_advantages = [column for column in numeric if _CHANNEL_ADVANTAGE + column in columns]
    if with_advantages:  # written by this library, which says itself what a channel is
        notes.append(f"Rewards, with a column of advantages each: {', '.join(with_advantages)}.")
        return with_advantages
    other = {*TRL_COLUMNS, *GROUP_COLUMNS, group_column}
    possible = [column for column in numeric if column not in other]
    channels = [column for column in possible if _in_most(tables, column)]
    if not channels:
        raise ValueError(
            f"No column holds rewards: the columns are {shown_columns(columns)}, of which {len(numeric)} hold numbers. "
            "Name the rewards with `--reward-columns`."
        )
    notes.append(f"Taken as rewards, being numeric: {', '.join(channels)}. `--reward-columns` chooses others.")
    if len(channels) < len(possible):
        some = ", ".join(column for column in possible if column not in channels)
        notes.append(f"Not taken as rewards, being in too few of the files: {some}.")
    return channels


def _in_most(tables: dict[Path, pd.DataFrame], column: str) -> bool:
    return 2 * sum(column in table.columns for table in tables.values()) > len(tables)


def _is_numeric(table: pd.DataFrame, column: str) -> bool:
    return column in table.columns and pd.api.types.is_numeric_dtype(table[column])


def _misfit(table: pd.DataFrame, needed: list[str], channels: list[str]) -> str | None:
    """Why a table does not go with the others of its run, `None` if it does."""
    missing = [column for column in needed if column not in table.columns]
    if missing:
        return f"has no column {', '.join(missing)}"
    # A reward that scored nothing in a file is a column without values, which has no type
    texts = [name for name in channels if not _is_numeric(table, name) and table[name].notna().any()]
    return f"has no numbers in {', '.join(texts)}" if texts else None


def _one_table(
    tables: dict[Path, pd.DataFrame], channels: list[str], group_column: str | None, left_out: list[str]
) -> pd.DataFrame:
    grouping = [name for name in ("prompt", *GROUP_COLUMNS, group_column) if name and _in_most(tables, name)]
    fitting = []
    for file, table in tables.items():
        reason = _misfit(table, [*channels, *grouping], channels)
        if reason:
            left_out.append(f"{file.name} {reason}.")
        else:
            fitting.append(table.astype(dict.fromkeys(channels, float)))
    if not fitting:
        raise ValueError(f"No table has all of the rewards {channels} as numbers. {' '.join(left_out)}")
    table = pd.concat(fitting, ignore_index=True)
    if "step" not in table.columns:
        return table.assign(step=0)
    steps = pd.to_numeric(table["step"], errors="coerce")
    unknown = steps.isna() | (steps % 1 != 0)
    if unknown.all():
        raise ValueError("The column `step` holds no whole numbers.")
    if unknown.any():
        left_out.append(f"{unknown.sum()} rows without a step.")
    table = table.assign(step=steps)[~unknown].astype({"step": int})
    return table.sort_values("step", kind="stable", ignore_index=True)


def _drop_infinite(table: pd.DataFrame, channels: list[str], notes: list[str]) -> pd.DataFrame:
    """
    Infinite rewards count as not scored, as everywhere in this library, and so do those that are infinite in float32; say
    how many rewards are not scored.
    """
    infinite = table[channels].abs() > np.finfo(np.float32).max
    table[channels] = table[channels].mask(infinite)
    for channel in channels:
        if count := int(infinite[channel].sum()):
            notes.append(f"{channel}: {count:,} infinite rewards count as not scored.")
        if count := int(table[channel].isna().sum()):
            notes.append(f"{channel}: {count:,} of {len(table):,} completions are not scored.")
    return table
