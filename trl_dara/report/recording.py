"""From tables of completions to batches of rewards, group by group."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from .reading import read_table


# Columns that TRL writes beside one per reward; `advantage/{channel}` is written by this library.
_TRL_COLUMNS = {"step", "prompt", "completion", "advantage"}
_CHANNEL_ADVANTAGE = "advantage/"
_GROUP_COLUMNS = ("group", "group_id", "prompt_id", "prompt")


@dataclass
class Batch:
    r"""
    The completions of one logged step.

    Args:
        step (`int`):
            Optimiser step, 0 where the table has no steps.
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        rows (`np.ndarray` of shape `(N,)`):
            Rows of the recording's table, group by group.
        advantages (`torch.Tensor` of shape `(N,)`, *optional*):
            The advantages in the table.
    """

    step: int
    rewards: torch.Tensor
    rows: np.ndarray
    advantages: torch.Tensor | None


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
    """

    name: str
    channels: list[str]
    batches: list[Batch]
    table: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def num_generations(self) -> int:
        return self.batches[0].rewards.shape[1]


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
            Rows of a step with one value in this column are a group. By default `group`, `group_id` or `prompt_id` where
            the table has it; else consecutive rows with the same `prompt`.
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
        raise ValueError(f"No table of {name!r} can be read. {' '.join(left_out)}")
    notes = []
    channels = _choose_channels(tables, reward_columns, group_column, notes)
    table = _one_table(tables, channels, left_out)
    recording = Recording(name, channels, [], table, notes, left_out)
    _check_rewards(recording)
    _make_batches(recording, group_column, num_generations)
    return recording


def _choose_channels(
    tables: dict[Path, pd.DataFrame], reward_columns: list[str] | None, group_column: str | None, notes: list[str]
) -> list[str]:
    columns = list(dict.fromkeys(column for table in tables.values() for column in table.columns))
    numeric = [column for column in columns if any(_is_numeric(table, column) for table in tables.values())]
    if reward_columns is not None:
        missing = [column for column in reward_columns if column not in numeric]
        if missing:
            raise ValueError(f"`--reward-columns` names {missing}. The columns with numbers are {numeric}.")
        return list(dict.fromkeys(reward_columns))
    with_advantages = [column for column in numeric if _CHANNEL_ADVANTAGE + column in columns]
    if with_advantages:  # written by this library, which says itself what a channel is
        return with_advantages
    other = _TRL_COLUMNS | {group_column} | {column for column in _GROUP_COLUMNS if column in columns}
    common = [
        column for column in numeric if 2 * sum(column in table.columns for table in tables.values()) > len(tables)
    ]
    channels = [column for column in common if column not in other]
    if not channels:
        raise ValueError(
            f"No column holds rewards: the columns are {columns}, of which {numeric} hold numbers. Name the rewards with "
            "`--reward-columns`."
        )
    notes.append(f"Taken as rewards, being numeric: {', '.join(channels)}. `--reward-columns` chooses others.")
    return channels


def _is_numeric(table: pd.DataFrame, column: str) -> bool:
    return column in table.columns and pd.api.types.is_numeric_dtype(table[column])


def _one_table(tables: dict[Path, pd.DataFrame], channels: list[str], left_out: list[str]) -> pd.DataFrame:
    fitting = []
    for file, table in tables.items():
        missing = [channel for channel in channels if channel not in table.columns]
        # A reward that scored nothing in a file is a column without values, which has no type
        texts = [
            channel
            for channel in channels
            if channel not in missing and not _is_numeric(table, channel) and table[channel].notna().any()
        ]
        if missing or texts:
            left_out.append(
                f"{file.name} has no column {_listed(missing)}."
                if missing
                else f"{file.name} has no numbers in {_listed(texts)}."
            )
        else:
            fitting.append(table.astype(dict.fromkeys(channels, float)))
    if not fitting:
        raise ValueError(f"No table has all of the rewards {channels}. {' '.join(left_out)}")
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


def _check_rewards(recording: Recording) -> None:
    """Count what is not scored; infinite rewards count as not scored, as everywhere in this library."""
    rewards = recording.table[recording.channels]
    infinite = np.isinf(rewards).sum()
    for channel, count in infinite[infinite > 0].items():
        recording.notes.append(f"{channel}: {count:,} infinite rewards, treated as not scored.")
    recording.table[recording.channels] = rewards.replace([np.inf, -np.inf], np.nan)
    unscored = recording.table[recording.channels].isna().sum()
    for channel, count in unscored[unscored > infinite].items():
        recording.notes.append(f"{channel}: {count:,} of {len(rewards):,} completions are not scored.")


def _make_batches(recording: Recording, group_column: str | None, num_generations: int | None) -> None:
    table = recording.table
    groups, how = _group_of_each_row(table, group_column, num_generations)  # (rows,)
    order = np.argsort(groups, kind="stable")
    _, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    size = num_generations or _most_frequent(sizes)
    if size < 2:
        raise ValueError(
            f"{recording.name!r}: most groups ({how}) have one row, so there is nothing to compare within a group. Name "
            "the column that says which rows belong to one prompt with `--group-column`, or pass `--num-generations`."
        )
    whole = sizes % size == 0  # a multiple: the same prompt several times in a row
    if not whole.any():
        found = ", ".join(map(str, sorted(set(sizes.tolist()))[:8]))
        raise ValueError(f"{recording.name!r} has no group of {size} completions; the groups ({how}) have {found}.")
    recording.notes.append(f"Groups of {size} completions: {how}.")
    if not whole.all():
        recording.left_out.append(
            f"{(~whole).sum():,} of {len(sizes):,} groups, whose size ({_listed(sorted(set(sizes[~whole].tolist())))}) is "
            f"not {size}."
        )
    rows = np.concatenate([order[start : start + n] for start, n in zip(starts[whole], sizes[whole], strict=True)])
    steps = table["step"].to_numpy()[rows]  # (rows,)
    rewards = torch.tensor(table[recording.channels].to_numpy()[rows], dtype=torch.float32)  # (rows, K)
    advantages = None
    if _is_numeric(table, "advantage"):
        advantages = torch.tensor(table["advantage"].to_numpy()[rows], dtype=torch.float32)  # (rows,)
    bounds = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1, append=steps[-1] + 1))
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        recording.batches.append(
            Batch(
                step=int(steps[start]),
                rewards=rewards[start:end].unflatten(0, (-1, size)),  # (B, G, K)
                rows=rows[start:end],
                advantages=None if advantages is None else advantages[start:end],
            )
        )
    _drop_repeated(recording)


def _group_of_each_row(
    table: pd.DataFrame, group_column: str | None, num_generations: int | None
) -> tuple[np.ndarray, str]:
    """Number the groups in the order of the steps, shape `(rows,)`, and say how they were found."""
    if group_column is not None and group_column not in table.columns:
        raise ValueError(f"`--group-column` is {group_column!r}. The columns are {list(table.columns)}.")
    trl = _TRL_COLUMNS <= set(table.columns)
    column = group_column or next((name for name in _GROUP_COLUMNS if name in table.columns and not trl), None)
    steps = table["step"].to_numpy()
    if column is not None and (column != "prompt" or group_column):
        keys = pd.factorize(table[column].map(_key))[0]
        return pd.factorize(pd.MultiIndex.from_arrays([steps, keys]))[0], f"rows of a step with the same `{column}`"
    if "prompt" in table.columns:
        keys = pd.factorize(table["prompt"].map(_key))[0]
        starts = np.diff(keys, prepend=-1) != 0
        starts |= np.diff(steps, prepend=steps[0] - 1) != 0
        return starts.cumsum(), "consecutive rows with the same prompt"
    if num_generations is None:
        raise ValueError(
            f"There is no column `prompt` or `group`, only {list(table.columns)}. Name the column that says which rows "
            "belong to one prompt with `--group-column`, or pass `--num-generations` where they are consecutive."
        )
    within = table.groupby("step").cumcount().to_numpy() // num_generations
    return pd.factorize(pd.MultiIndex.from_arrays([steps, within]))[0], "consecutive rows"


def _key(value) -> str:
    """A text that is equal for equal prompts; a conversation comes out of parquet as an array of messages."""
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)


def _most_frequent(sizes: np.ndarray) -> int:
    values, counts = np.unique(sizes, return_counts=True)
    return int(values[counts.argmax()])


def _drop_repeated(recording: Recording) -> None:
    """
    With `logging_steps` below `steps_per_generation`, TRL writes the same generation batch at several steps.
    """
    if "completion" not in recording.table.columns:
        return
    texts = recording.table["completion"].map(_key).to_numpy()
    kept = recording.batches[:1]
    for batch in recording.batches[1:]:
        before = kept[-1]
        same = batch.rewards.shape == before.rewards.shape and (texts[batch.rows] == texts[before.rows]).all()
        if not (same and _equal(batch.rewards, before.rewards)):
            kept.append(batch)
    if len(kept) < len(recording.batches):
        recording.notes.append(
            f"{len(recording.batches) - len(kept)} of {len(recording.batches)} logged steps repeat the batch of the step "
            "before (several optimiser steps per generation) and are not counted again."
        )
        recording.batches = kept


def _equal(rewards: torch.Tensor, others: torch.Tensor) -> bool:
    return bool(rewards.nan_to_num(torch.inf).equal(others.nan_to_num(torch.inf)))


def _listed(values: list) -> str:
    return ", ".join(f"`{value}`" if isinstance(value, str) else str(value) for value in values[:8])
