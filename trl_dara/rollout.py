"""A round of generation as TRL returns it, and the merging of several into one batch."""

from collections import deque
from dataclasses import dataclass, field

import torch
from trl.trainer.utils import pad

from .completions_table import empty_rows


# What TRL itself has at masked positions
_SEQUENCE_PADDING = {
    "prompt_mask": 0,
    "completion_mask": 0,
    "tool_mask": 1,
    "old_per_token_logps": 0,
    "ref_per_token_logps": 0,
    "sampling_per_token_logps": 0,
    "importance_sampling_ratio": 1,  # VESPO sums its logarithm over all positions
}


@dataclass
class Rollout:
    """
    What is known after a round, or after merging several.

    Args:
        batch (`dict[str, torch.Tensor]`):
            This process's rows as TRL returns them, each of shape `(n, ...)`.
        rewards (`torch.Tensor` of shape `(N, K)`):
            Rewards of all processes.
        table (`dict`):
            Rows of all processes for the completions table, with the structure of TRL's `_logs`.
        metrics (`dict[str, float]`, *optional*):
            What the filter did.
    """

    batch: dict[str, torch.Tensor]
    rewards: torch.Tensor
    table: dict
    metrics: dict[str, float] = field(default_factory=dict)


def merge_rounds(
    outputs: list[dict[str, torch.Tensor]], rows: list[int], pad_token_id: int
) -> dict[str, torch.Tensor]:
    r"""
    Stack rows from several rounds' batches of this process.

    Args:
        outputs (`list[dict[str, torch.Tensor]]`):
            What TRL's `_generate_and_score_completions` returned in each round, `n` rows each.
        rows (`list[int]`):
            The rows to keep, as indices into the rows of all rounds.
        pad_token_id (`int`):
            Padding of `prompt_ids` and `completion_ids`.

    Returns:
        `dict[str, torch.Tensor]`: the batch, prompts padded on the left and the rest on the right. The number of loss
        tokens, `num_items_in_batch`, counts this process's rows only.
    """
    padding = {"prompt_ids": pad_token_id, "completion_ids": pad_token_id, **_SEQUENCE_PADDING}
    keys = set(outputs[0])
    unknown = sorted(set().union(*outputs) - set(padding) - {"advantages", "num_items_in_batch"})
    if unknown:
        raise ValueError(
            f"`group_filter` cannot merge rounds with {unknown} in the batch: it works for text without images. Set "
            "`group_filter='none'`."
        )
    if any(set(output) != keys for output in outputs):
        raise ValueError(
            f"`group_filter` cannot merge rounds whose batches hold different tensors, {sorted(map(sorted, outputs))}. "
            "A `rollout_func` that returns `env_mask` has to return it in every call."
        )
    merged = {"advantages": torch.cat([output["advantages"] for output in outputs])[rows]}  # (n,)
    for name in sorted(keys & set(padding)):
        sequences = [sequence for output in outputs for sequence in output[name]]  # R * n of (T,)
        side = "left" if name.startswith("prompt_") else "right"
        merged[name] = pad([sequences[row] for row in rows], padding[name], side)  # (n, T)
    loss_mask = merged["completion_mask"] * merged.get("tool_mask", 1)  # (n, T)
    return {**merged, "num_items_in_batch": loss_mask.sum()}


def merge_tables(tables: list[dict], rows: list[int]) -> dict:
    """
    Rows of several rounds for the completions table, in the order in which they are trained on. A column that a reward
    function logged in some of the rounds only is `None` in the others.
    """
    merged = empty_rows(len(rows))

    def merge(columns: list[deque | None]) -> list:
        values = [value for column in columns for value in (column if column is not None else [None] * len(rows))]
        return [values[row] for row in rows]

    for name in ("prompt", "completion", "advantages"):
        merged[name].extend(merge([table[name] for table in tables]))
    for kind in ("rewards", "extra"):
        for name in dict.fromkeys(name for table in tables for name in table[kind]):
            columns = [table[kind].get(name) for table in tables]
            wrong = next((column for column in columns if column is not None and len(column) != len(rows)), None)
            if wrong is not None:
                raise ValueError(
                    f"The extra column '{name}' of the completions table has {len(wrong)} values for {len(rows)} "
                    "completions. Call `log_extra` with one value per completion."
                )
            merged[kind][name].extend(merge(columns))
    return merged
