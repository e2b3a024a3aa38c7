"""Tables of completions with known rewards."""

from pathlib import Path

import numpy as np
import pandas as pd


def trl_table(step: int, rewards: dict, num_generations: int, prompts: list[str] | None = None) -> pd.DataFrame:
    """A table with the columns of TRL 1.16; the advantages are 0."""
    size = len(next(iter(rewards.values())))
    prompts = prompts or [f"prompt {index}" for index in range(size // num_generations)]
    return pd.DataFrame(
        {
            "step": step,
            "prompt": np.repeat(prompts, num_generations),
            "completion": [f"completion {step}-{index}" for index in range(size)],
            **rewards,
            "advantage": 0.0,
        }
    )


def write_run(folder: Path, tables: list[pd.DataFrame]) -> Path:
    """Write tables where, and as, TRL writes them."""
    (folder / "completions").mkdir(parents=True)
    for table in tables:
        table.to_parquet(folder / "completions" / f"completions_{table['step'].iloc[0]:05d}.parquet")
    return folder


def starved_run(folder: Path, steps: int = 12) -> Path:
    """
    A run with one reward of each kind: `accuracy` varies everywhere, `format` in one group of 16, `length` is a
    hundred times as large, `brevity` is 1 everywhere from step 3 on, `tool_call` is never earned.
    """
    generator = np.random.default_rng(0)
    tables = []
    for step in range(steps):
        accuracy = generator.permuted(np.tile([1.0, 0.0, 1.0, 0.0], (16, 1)), axis=1).ravel()
        fmt = np.zeros(64)
        fmt[4 * (step % 16)] = 1.0
        length = -100 * generator.random(64)
        brevity = np.ones(64) if step >= 3 else generator.permuted(accuracy)
        rewards = {
            "accuracy": accuracy,
            "format": fmt,
            "length": length,
            "brevity": brevity,
            "tool_call": np.zeros(64),
        }
        tables.append(trl_table(step, rewards, 4))
    return write_run(folder, tables)
