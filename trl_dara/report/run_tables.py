"""Numbers of every run of every group, one table for each channel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..evaluation.stats import StableCrossing, bootstrap_interval
from ..evaluation.tables import markdown_table
from .run_groups import RunGroup, density_peak, first_at, peak_window, shares_of_range, stable_at
from .runs import TrainingRun
from .verdicts import percent


FIRST_THRESHOLDS = (0.3, 0.5, 0.8, 0.9)
STABLE_THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.97, 0.99)
LAST_VALUES = 10  # over which the final reward is averaged
PEAK_GROUPS = 32  # fewer groups do not give a density that has a peak


@dataclass
class Entry:
    r"""
    What one run has for one measure.

    Args:
        value (`float`, *optional*):
            The number, if there is one.
        text (`str`):
            What is shown.
    """

    value: float | None
    text: str


UNKNOWN = Entry(None, "–")


def common_end(groups: Sequence[RunGroup]) -> int:
    """The last step that all runs have reached."""
    return min(run.last_step for group in groups for run in group.runs)


def channel_table(groups: Sequence[RunGroup], channel: str, bounds: Mapping[str, Sequence[float]], end: int) -> dict:
    """
    The numbers of one channel.

    Args:
        groups (`list[RunGroup]`):
            The runs.
        channel (`str`):
            Name of the channel.
        bounds (`dict[str, list[float]]`):
            As for [`summarize_runs`].
        end (`int`):
            Step up to which means are taken.

    Returns:
        `dict`: `channel`, `groups` that have it with `label` and `num_runs`, `rows` with a `measure` and one of `cells` for
        each group, each with the `text` of the group and that of `each` run, and `notes`.
    """
    groups = [group for group in groups if channel in group.channels]
    runs = [run for group in groups for run in group.runs]
    measures = _mean_measures(channel, end) | _crossing_measures(channel, bounds)
    if all((run.series("weight", channel)[1] == 1).all() for run in runs):  # no rule weighs it
        measures = {measure: of_run for measure, of_run in measures.items() if "weight" not in measure}
    rows, never = [], []
    for measure, of_run in measures.items():
        entries = [[of_run(run) for run in group.runs] for group in groups]
        flat = [entry for of_group in entries for entry in of_group]
        if any(entry.value is not None or entry.text.endswith("?") for entry in flat):
            rows.append({"measure": measure, "cells": [_cell(of_group) for of_group in entries]})
        elif any(entry.text.startswith(">") for entry in flat):
            never.append(measure)
    return {
        "channel": channel,
        "groups": [{"label": group.label, "num_runs": len(group.runs)} for group in groups],
        "rows": rows,
        "notes": _notes(runs, channel, bounds, rows, never),
    }


def _mean_measures(channel: str, end: int) -> dict[str, Callable[[TrainingRun], Entry]]:
    def mean(metric: str, show: Callable[[float], str]) -> Callable[[TrainingRun], Entry]:
        def of_run(run: TrainingRun) -> Entry:
            steps, values = run.series(metric, channel)
            values = values[steps <= end]
            return Entry(float(values.mean()), show(values.mean())) if len(values) else UNKNOWN

        return of_run

    def last(run: TrainingRun) -> Entry:
        values = run.series("mean", channel)[1][-LAST_VALUES:]
        return Entry(float(values.mean()), f"{values.mean():.3f}") if len(values) else UNKNOWN

    def largest_weight(run: TrainingRun) -> Entry:
        weight = run.series("weight", channel)[1]
        return Entry(float(weight.max()), f"{weight.max():.2f}") if len(weight) else UNKNOWN

    def peak(run: TrainingRun) -> Entry:
        _, density = density_peak(run, channel, PEAK_GROUPS) or (None, 0.0)
        return Entry(density, percent(density)) if density else UNKNOWN

    def peak_step(run: TrainingRun) -> Entry:
        step, density = density_peak(run, channel, PEAK_GROUPS) or (None, 0.0)
        return Entry(step, str(step)) if density else UNKNOWN

    return {
        "mean reward": mean("mean", "{:.3f}".format),
        f"mean of the last {LAST_VALUES} values": last,
        "density": mean("density", percent),
        "density peak": peak,
        "density peak at step": peak_step,
        "weight": mean("weight", "{:.2f}".format),
        "largest weight": largest_weight,
        "share of the signal": mean("share", percent),
    }


def _crossing_measures(
    channel: str, bounds: Mapping[str, Sequence[float]]
) -> dict[str, Callable[[TrainingRun], Entry]]:
    def first(run: TrainingRun, threshold: float) -> Entry:
        steps, shares = shares_of_range(run, channel, bounds)
        if not len(steps):
            return UNKNOWN
        step = first_at(steps, shares, threshold)
        return Entry(None, f"> {run.last_step}") if step is None else Entry(step, str(step))

    def stable(run: TrainingRun, threshold: float) -> Entry:
        steps, shares = shares_of_range(run, channel, bounds)
        crossing = stable_at(run, steps, shares, threshold) if len(steps) else None
        return UNKNOWN if crossing is None else stable_entry(crossing, run)

    def bound(measure: Callable[[TrainingRun, float], Entry], threshold: float) -> Callable[[TrainingRun], Entry]:
        return lambda run: measure(run, threshold)

    return {f"first at {percent(threshold)}": bound(first, threshold) for threshold in FIRST_THRESHOLDS} | {
        f"stable at {percent(threshold)}": bound(stable, threshold) for threshold in STABLE_THRESHOLDS
    }


def stable_entry(crossing: StableCrossing, run: TrainingRun) -> Entry:
    """A crossing as an entry; one that the run is too short to confirm has a question mark and no number."""
    if crossing.step is not None:
        return Entry(crossing.step, str(crossing.step))
    return Entry(None, f"> {run.last_step}" if crossing.pending is None else f"{crossing.pending}?")


def _cell(entries: Sequence[Entry]) -> dict:
    """Mean over the runs with its bootstrap interval; none over some runs only, which would flatter."""
    each = " ".join(entry.text.replace(" ", "") for entry in entries)
    if len(entries) == 1:
        return {"text": entries[0].text, "each": ""}
    values = [entry.value for entry in entries if entry.value is not None]
    if len(values) < len(entries):
        known = [entry for entry in entries if entry is not UNKNOWN]
        return {"text": f"{len(values)} of {len(entries)} runs" if known else "–", "each": each if known else ""}
    show = _form(entries[0])
    low, high = (show(end).removesuffix(" %") for end in bootstrap_interval(values))
    interval = f" [{low}, {high}]" if low != high else ""
    return {"text": show(float(np.mean(values))) + interval, "each": each}


def _form(entry: Entry) -> Callable[[float], str]:
    """Means are shown as the values are, steps with one more digit."""
    if entry.text.endswith("%"):
        return percent
    return f"{{:.{len(entry.text.partition('.')[2]) or 1}f}}".format


def _notes(runs: list[TrainingRun], channel: str, bounds, rows: list[dict], never: list[str]) -> list[str]:
    texts = [text for row in rows for cell in row["cells"] for text in (cell["text"], *cell["each"].split())]
    notes = []
    windows = {peak_window(run, PEAK_GROUPS) for run in runs if len(run.series("density", channel)[0])}
    if max(windows, default=1) > 1:
        values = " to ".join(map(str, sorted({min(windows), max(windows)})))
        notes.append(
            f"The density peak is that of the mean of {values} logged values, which has at least {PEAK_GROUPS} groups; its "
            "step is the last of them."
        )
    if never:
        notes.append(f"No run gets there: {_and_above(never)}.")
    if any(text.endswith("?") for text in texts):
        notes.append("A step with a question mark: reached, and the run is too short to confirm it.")
    outside = [
        run
        for run in runs
        if len(run.series("mean", channel)[0]) and not len(shares_of_range(run, channel, bounds)[0])
    ]
    if outside:
        notes.append(
            f"No thresholds for {_names(outside)}: the reward leaves [0, 1], and its bounds are not "
            f"known or not right. Pass them: --reward-bounds '{{\"{channel}\": [LOW, HIGH]}}'."
        )
    unclear = [run for run in runs if run not in outside and _has_no_stable(run, channel, bounds)]
    if unclear:
        notes.append(
            f"No stable crossings for {_names(unclear)}: they need a value of every step (`logging_steps=1`)."
        )
    return notes


def _and_above(crossings: list[str]) -> str:
    """Crossings of increasing thresholds: where one is not reached, none above it is."""
    of_kind = [[measure for measure in crossings if measure.startswith(kind)] for kind in ("first", "stable")]
    return ", ".join(measures[0] + " and above" * (len(measures) > 1) for measures in of_kind if measures)


def _names(runs: Sequence[TrainingRun]) -> str:
    return ", ".join(run.name for run in runs) if len(runs) <= 3 else f"{len(runs)} runs"


def _has_no_stable(run: TrainingRun, channel: str, bounds) -> bool:
    steps, shares = shares_of_range(run, channel, bounds)
    return len(steps) > 0 and stable_at(run, steps, shares, STABLE_THRESHOLDS[0]) is None


def markdown(summary: dict) -> str:
    """
    The tables of all channels as Markdown.

    Args:
        summary (`dict`):
            From [`summarize_runs`].

    Returns:
        `str`
    """
    parts = []
    for table in summary["tables"]:
        parts.append(f"### {table['channel']}\n")
        columns = [_column(group) for group in table["groups"]]
        rows = [
            {"": row["measure"]} | dict(zip(columns, map(_with_each, row["cells"]), strict=True))
            for row in table["rows"]
        ]
        if rows:
            parts.append(markdown_table(rows) + "\n")
        parts += [f"{note}\n" for note in table["notes"]]
    parts += [f"{sentence}\n" for sentence in (summary["scope"], *summary["findings"])]
    if any(len(group["runs"]) > 1 for group in summary["groups"]):
        parts.append("Mean over the runs [95 % bootstrap interval] (each run).\n")
    return "\n".join(parts)


def _column(group: dict) -> str:
    runs = "1 run" if group["num_runs"] == 1 else f"{group['num_runs']} runs"
    return f"{group['label']} ({runs})".replace("|", r"\|")


def _with_each(cell: dict) -> str:
    return f"{cell['text']} ({cell['each']})" if cell["each"] else cell["text"]
