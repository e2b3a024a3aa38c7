"""The logs of training runs, read from checkpoints and from files."""

import itertools
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..evaluation.records import iterate_records
from .reading import read_table


TRAINER_STATE = "trainer_state.json"  # transformers writes it last: a checkpoint with a whole one is complete
CHANNEL_STATE = "trl_dara_state.json"
METRICS = ("density", "calibrated_density", "energy", "weight", "share", "dead_low", "dead_high", "reward_weight")

_REWARD = re.compile(r"rewards/(.+)/mean")
_CSV_METRICS = {"mean": "train_{}", "density": "pi_{}", "weight": "w_{}"}


@dataclass
class TrainingRun:
    r"""
    What one run logged at `T` steps about `K` channels.

    Args:
        name (`str`):
            Name of the run.
        source (`Path`):
            File that the log was read from.
        channels (`list[str]`):
            Names of the channels.
        steps (`np.ndarray` of shape `(T,)`):
            Logged optimiser steps, increasing.
        values (`dict[str, np.ndarray]`):
            Arrays of shape `(T, K)`, NaN where nothing was logged: `"mean"` and `"std"` of the reward, and [`METRICS`].
        record (`dict`, *optional*):
            What the run was made with, as [`run_record`] describes it; empty if that was not written down.
        last_step (`int`, *optional*):
            Step that the run has reached. By default the last logged one.
        max_steps (`int`, *optional*):
            Step at which it ends, if that is known.
        logging_steps (`int`, *optional*):
            The setting, if it is known.
        notes (`list[str]`, *optional*):
            What a reader should know about the log.
    """

    name: str
    source: Path
    channels: list[str]
    steps: np.ndarray
    values: dict[str, np.ndarray]
    record: dict = field(default_factory=dict)
    last_step: int | None = None
    max_steps: int | None = None
    logging_steps: int | None = None
    notes: list[str] = field(default_factory=list)

    def series(self, metric: str, channel: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of one metric of one channel, where there are any; both of shape `(T',)`."""
        if channel not in self.channels:
            return np.empty(0, dtype=int), np.empty(0)
        values = self.values[metric][:, self.channels.index(channel)]  # (T,)
        known = ~np.isnan(values)
        return self.steps[known], values[known]

    @property
    def interval(self) -> int:
        """Usual number of steps from one logged value to the next."""
        return int(np.median(np.diff(self.steps))) if len(self.steps) > 1 else 1

    @property
    def batches_per_value(self) -> float:
        """Number of generation batches that a logged value is the mean of."""
        # Not written down, one optimiser step per batch is assumed, unless every step was logged and most had no batch
        updates = self.record.get("updates_per_batch") or (self.interval if self.logging_steps == 1 else 1)
        return max(1.0, self.interval / updates)


def name_runs(paths: Sequence[str]) -> dict[str, Path]:
    """
    Give each run a name: that of its folder or file, or its path where names clash.

    Args:
        paths (`list[str]`):
            Folders and files; one that is given twice counts once.

    Returns:
        `dict[str, Path]`
    """
    unique = list(dict.fromkeys(Path(os.path.abspath(path)) for path in paths))
    folders = [path.parent if path.name.startswith("checkpoint-") else path for path in unique]
    names = [folder.stem if folder.suffix in (".csv", ".jsonl") else folder.name for folder in folders]
    clash = len(set(names)) < len(names)
    return {os.path.relpath(path) if clash else name: path for name, path in zip(names, unique, strict=True)}


def read_run(path: Path, name: str) -> TrainingRun:
    """
    Read the log of one run.

    Args:
        path (`Path`):
            The folder of a run or of one of its checkpoints, a log of the demo (JSON lines), or a CSV file with a column
            `step` and columns `train_{channel}`, perhaps `pi_{channel}` (density) and `w_{channel}` (weight).
        name (`str`):
            Name of the run.

    Returns:
        [`TrainingRun`]

    Raises:
        `ValueError`: if there is no log, or none with rewards.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist. Pass the folder of a run (`output_dir`).")
    if path.is_dir():
        run = _read_folder(path, name)
    elif path.suffix == ".csv":
        run = _read_csv(path, name)
    elif path.suffix == ".jsonl":
        run = _read_json_lines(path, name)
    elif path.name == TRAINER_STATE:
        run = _read_state(path, name)
    else:
        raise ValueError(
            f"{path} is no log of a run. Pass the folder of a run, a .jsonl log of the demo, or a CSV file."
        )
    if run.steps[0] > max(1, 2 * run.interval):
        run.notes.append(f"The log starts at step {run.steps[0]}: what was reached before is not known.")
    return run


def _read_folder(folder: Path, name: str) -> TrainingRun:
    """The state with the highest step that is whole: the folder's own, or that of a checkpoint."""
    checkpoints = {
        int(step): path
        for path in folder.glob(f"checkpoint-*/{TRAINER_STATE}")
        if (step := path.parent.name.removeprefix("checkpoint-")).isdigit()
    }
    files = [checkpoints[step] for step in sorted(checkpoints, reverse=True)]
    damaged, runs = [], []
    if (folder / TRAINER_STATE).exists():
        files.insert(0, folder / TRAINER_STATE)
    for file in files:
        try:
            runs.append(_read_state(file, name))
        except ValueError as error:
            damaged.append(str(error))
            continue
        if file.parent != folder:  # a checkpoint: older ones know less
            break
    if not runs:
        raise ValueError(" ".join(damaged) or _nothing_in(folder))
    run = max(runs, key=lambda run: run.last_step)
    run.notes += [f"{error} An older state was read." for error in damaged]
    return run


def _nothing_in(folder: Path) -> str:
    below = sorted({path.parent.parent for path in folder.glob(f"*/checkpoint-*/{TRAINER_STATE}")})
    if below:
        return f"{folder} is no run, but has some: pass {', '.join(map(str, below))}."
    return (
        f"{folder} has no {TRAINER_STATE} and no checkpoint with one: nothing was saved yet. Train with `save_steps`, or call "
        "`trainer.save_state()`."
    )


def _read_state(file: Path, name: str) -> TrainingRun:
    state = _read_json(file)
    log = state.get("log_history")
    if not isinstance(log, list):
        raise ValueError(f"{file} has no list `log_history`. Pass a folder that transformers' Trainer wrote.")
    channel_state, notes = {}, []
    try:
        channel_state = _read_json(file.with_name(CHANNEL_STATE))
    except FileNotFoundError:
        pass  # the folder of a run itself, or plain TRL
    except ValueError as error:
        notes.append(f"{error} Rule and seed are not known.")
    record = channel_state.get("run") or _record_below(file.parent)
    run = _from_entries(name, file, log, record, channel_state.get("channels"))
    run.last_step = max(int(state.get("global_step") or 0), int(run.steps[-1]))
    run.max_steps = state.get("max_steps") or None
    run.logging_steps = state.get("logging_steps")
    run.notes += notes
    return run


def _record_below(folder: Path) -> dict:
    """What the checkpoints in a folder say about the run that wrote its own state."""
    for file in sorted(folder.glob(f"checkpoint-*/{CHANNEL_STATE}")):
        try:
            return _read_json(file).get("run", {})
        except ValueError:
            continue
    return {}


def _read_json_lines(path: Path, name: str) -> TrainingRun:
    """A log of the demo: the settings in the first line, the values of a step in each further one."""
    settings, *log = [*iterate_records(path)] or [{}]
    if "rule" not in settings:
        raise ValueError(f"The first line of {path} names no `rule`. Pass a log that `trl-dara demo` wrote.")
    run = _from_entries(name, path, log, settings | {"updates_per_batch": 1}, None)
    run.max_steps, run.logging_steps = settings.get("steps"), 1
    return run


def _read_csv(path: Path, name: str) -> TrainingRun:
    try:
        table = read_table(path)
        channels = [column.removeprefix("train_") for column in table if column.startswith("train_")]
        if "step" not in table or not channels:
            raise ValueError(f"has the columns {list(table)}: a log has `step` and one `train_NAME` per reward")
        columns = {metric: [pattern.format(c) for c in channels] for metric, pattern in _CSV_METRICS.items()}
        table = table.reindex(columns=["step", *itertools.chain(*columns.values())]).astype(float)
        table = (
            table.replace([np.inf, -np.inf], np.nan)
            .dropna(subset="step")
            .drop_duplicates("step", keep="last")
            .sort_values("step")
        )
        if table.empty:
            raise ValueError("has no step")
    except ValueError as error:
        raise ValueError(f"{path} {error}.") from None
    nothing = np.full((len(table), len(channels)), np.nan)
    values = dict.fromkeys(("mean", "std", *METRICS), nothing)
    values |= {metric: table[names].to_numpy() for metric, names in columns.items()}  # (T, K)
    steps = table["step"].to_numpy().astype(int)
    return TrainingRun(name, path, channels, steps, values, last_step=int(steps[-1]))


def _from_entries(name: str, source: Path, log: Sequence, record: dict, channels: Sequence[str] | None) -> TrainingRun:
    """Entries as TRL logs them; those of evaluations and the summary at the end have other keys or say nothing new."""
    by_step = {}
    for entry in log:
        if isinstance(entry, dict) and isinstance(entry.get("step"), int) and "train_runtime" not in entry:
            if any(map(_REWARD.fullmatch, entry)):  # not every step has a generation batch
                by_step[entry["step"]] = entry
    if not by_step:
        raise ValueError(
            f"{source} has no `rewards/NAME/mean` in its log: no step was logged yet, or it is no run of a GRPO trainer."
        )
    steps = np.array(sorted(by_step))
    if channels is None:
        found = [match[1] for entry in by_step.values() for match in map(_REWARD.fullmatch, entry) if match]
        channels = list(dict.fromkeys(found))
    keys = {"mean": "rewards/{}/mean", "std": "rewards/{}/std"} | {key: f"channels/{{}}/{key}" for key in METRICS}
    values = {
        metric: np.array([[_number(by_step[step].get(key.format(c))) for c in channels] for step in steps])  # (T, K)
        for metric, key in keys.items()
    }
    return TrainingRun(name, source, list(channels), steps, values, record, last_step=int(steps[-1]))


def _number(value) -> float:
    """NaN for what is no finite number; transformers writes NaN as null."""
    number = float(value) if isinstance(value, (int, float)) else np.nan
    return number if np.isfinite(number) else np.nan


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:  # no JSON, or no text
        raise ValueError(f"{path} is damaged: {error}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object.")
    return content
