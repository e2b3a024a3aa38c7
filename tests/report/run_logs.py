"""Logs of runs with known numbers, as the trainer writes them."""

import json
from pathlib import Path

import numpy as np

from trl_dara.report.runs import METRICS, TrainingRun


RECORD = {
    "rule": "dara_asym",
    "aggregation_kwargs": {},
    "calibration_window": None,
    "group_filter": False,
    "reward_weights": {"format": 1.0, "correct": 1.0},
    "reward_bounds": {},
    "seed": 0,
    "model": "/models/tiny",
    "learning_rate": 1e-6,
    "num_generations": 4,
    "prompts": 64,
    "updates_per_batch": 1.0,
    "resumed_at": [],
}


def entry(step: int, channels: dict[str, dict]) -> dict:
    """A log entry; `mean` and `std` are the reward's, everything else is a metric of the channel."""
    logged = {"step": step, "loss": 0.1}
    for name, metrics in channels.items():
        for metric, value in metrics.items():
            prefix = "rewards" if metric in ("mean", "std") else "channels"
            logged[f"{prefix}/{name}/{metric}"] = value
    return logged


def log_of(steps, **means) -> list[dict]:
    """Entries with the mean rewards of each channel at each step."""
    return [
        entry(step, {name: {"mean": values[index]} for name, values in means.items()})
        for index, step in enumerate(steps)
    ]


def write_checkpoint(run: Path, log: list[dict], record: dict | None = None, step: int | None = None, **state) -> Path:
    """A checkpoint folder; without `record` one of plain TRL."""
    step = log[-1]["step"] if step is None else step
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    if record is not None:
        (folder / "trl_dara_state.json").write_text(json.dumps({"channels": ["format", "correct"], "run": record}))
    state = {"global_step": step, "max_steps": step, "logging_steps": 1, "log_history": log} | state
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def run_of(name: str = "run", steps=None, record: dict | None = None, channels=("format",), **values) -> TrainingRun:
    """A run in memory; `values` are arrays of shape `(T,)` for one channel, or `(T, K)`."""
    length = len(next(iter(values.values())))
    shape = (length, len(channels))
    arrays = {metric: np.full(shape, np.nan) for metric in ("mean", "std", *METRICS)}
    arrays |= {metric: np.asarray(value, dtype=float).reshape(shape) for metric, value in values.items()}
    steps = np.arange(1, length + 1) if steps is None else np.asarray(steps)
    record = {} if record is None else record
    return TrainingRun(name, Path(name), list(channels), steps, arrays, record, last_step=int(steps[-1]))
