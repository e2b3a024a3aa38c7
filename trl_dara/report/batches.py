"""Groups in a table of completions, and the batches that they make."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch


TRL_COLUMNS = {"step", "prompt", "completion", "advantage"}  # that TRL writes beside one per reward
GROUP_COLUMNS = ("group", "group_id", "prompt_id")


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


def make_batches(
    table: pd.DataFrame,
    channels: list[str],
    group_column: str | None,
    num_generations: int | None,
    notes: list[str],
    left_out: list[str],
) -> list[Batch]:
    """
    Find the groups of a table and make one batch of each step.

    Args:
        table (`pd.DataFrame`):
            Rows in the order of their `step`.
        channels (`list[str]`):
            Columns of the rewards.
        group_column (`str`, *optional*), num_generations (`int`, *optional*):
            As for [`read_recording`].
        notes, left_out (`list[str]`):
            Sentences on what was chosen and what is left out are added here.

    Returns:
        `list[Batch]`

    Raises:
        `ValueError`: when there are no groups to compare rewards in.
    """
    groups, how = _group_of_each_row(table, group_column, num_generations)  # (rows,)
    order = np.argsort(groups, kind="stable")
    _, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    size = num_generations or _most_frequent(sizes)
    if size < 2:
        raise ValueError(
            f"Most groups ({how}) have one row, so there is nothing to compare within a group. Name the column that "
            "says which rows belong to one prompt with `--group-column`, or pass `--num-generations`."
        )
    whole = sizes % size == 0  # a multiple: the same prompt several times in a row
    if not whole.any():
        raise ValueError(f"There is no group of {size} completions: the groups ({how}) have {_listed(sizes)}.")
    notes.append(f"Groups of {size} completions: {how}.")
    if not whole.all():
        left_out.append(
            f"{(~whole).sum():,} of {len(sizes):,} groups, which have {_listed(sizes[~whole])} completions, "
            f"not {size}."
        )
    rows = np.concatenate([order[start : start + n] for start, n in zip(starts[whole], sizes[whole], strict=True)])
    steps = table["step"].to_numpy()[rows]  # (rows,)
    rewards = torch.tensor(table[channels].to_numpy()[rows], dtype=torch.float32)  # (rows, K)
    advantages = None
    if "advantage" in table and pd.api.types.is_numeric_dtype(table["advantage"]):
        advantages = torch.tensor(table["advantage"].to_numpy()[rows], dtype=torch.float32)  # (rows,)
    ends = np.flatnonzero(np.diff(steps, append=steps[-1] + 1)) + 1
    return [
        Batch(
            step=int(steps[start]),
            rewards=rewards[start:end].unflatten(0, (-1, size)),  # (B, G, K)
            rows=rows[start:end],
            advantages=None if advantages is None else advantages[start:end],
        )
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ]


def drop_repeated(batches: list[Batch], table: pd.DataFrame, notes: list[str]) -> list[Batch]:
    """
    Leave out batches that are those of the step before: with `logging_steps` below `steps_per_generation`, TRL writes
    one generation batch at several steps.
    """
    if "completion" not in table.columns:
        return batches
    texts = table["completion"].map(_key).to_numpy()
    kept = batches[:1]
    for batch in batches[1:]:
        before = kept[-1]
        same = batch.rewards.shape == before.rewards.shape and (texts[batch.rows] == texts[before.rows]).all()
        if not (same and batch.rewards.nan_to_num(torch.inf).equal(before.rewards.nan_to_num(torch.inf))):
            kept.append(batch)
    if len(kept) < len(batches):
        notes.append(
            f"{len(batches) - len(kept)} of {len(batches)} logged steps repeat the batch of the step before (several "
            "optimiser steps per generation) and are not counted again."
        )
    return kept


def shown_columns(columns: Iterable[str]) -> str:
    """The names of columns for a message, the first ten of many."""
    columns = list(columns)
    more = f", … ({len(columns)} in all)" if len(columns) > 10 else ""
    return ", ".join(map(repr, columns[:10])) + more


def _group_of_each_row(
    table: pd.DataFrame, group_column: str | None, num_generations: int | None
) -> tuple[np.ndarray, str]:
    """Number the groups in the order of the steps, shape `(rows,)`, and say how they were found."""
    if group_column is not None and group_column not in table.columns:
        raise ValueError(f"`--group-column` is {group_column!r}. The columns are {shown_columns(table.columns)}.")
    if not TRL_COLUMNS <= set(table.columns):
        group_column = group_column or next((name for name in GROUP_COLUMNS if name in table.columns), None)
    steps = table["step"].to_numpy()
    if group_column is not None:
        groups = [steps, pd.factorize(table[group_column].map(_key))[0]]
        return pd.factorize(pd.MultiIndex.from_arrays(groups))[0], f"rows of a step with the same `{group_column}`"
    if "prompt" in table.columns:
        prompts = pd.factorize(table["prompt"].map(_key))[0]
        starts = (np.diff(prompts, prepend=-1) != 0) | (np.diff(steps, prepend=steps[0]) != 0)
        return starts.cumsum(), "consecutive rows with the same prompt"
    if num_generations is None:
        raise ValueError(
            f"There is no column `prompt` or `group`, only {shown_columns(table.columns)}. Name the column that says which "
            "rows belong to one prompt with `--group-column`, or pass `--num-generations` where they are consecutive."
        )
    within = table.groupby("step").cumcount().to_numpy() // num_generations
    return pd.factorize(pd.MultiIndex.from_arrays([steps, within]))[0], "consecutive rows"


def _key(value) -> str:
    """A text that is equal for equal prompts; a conversation comes out of parquet as an array of messages."""
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)


def _most_frequent(sizes: np.ndarray) -> int:
    values, counts = np.unique(sizes, return_counts=True)
    return int(values[counts.argmax()])


def _listed(sizes: np.ndarray) -> str:
    different = np.unique(sizes).tolist()
    return ", ".join(map(str, different[:8])) + (", …" if len(different) > 8 else "")
