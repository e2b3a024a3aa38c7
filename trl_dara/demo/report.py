"""What the demo shows at the end: a table and a figure."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from rich.table import Table

from trl_dara.demo.runs import CHANNELS, Run, channel_series
from trl_dara.evaluation.stats import first_crossing


THRESHOLDS = (0.3, 0.5, 0.8)
WINDOW = 3  # steps of the trailing mean

PANELS = (
    ("reward", "mean reward"),
    ("density", "density: share of active groups"),
    ("weight", "weight"),
    ("energy", "energy per completion"),
)


def trailing_mean(values: list[float], window: int = WINDOW) -> np.ndarray:
    """Mean of each value and the up to `window - 1` values before it."""
    return np.array([np.mean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)])


def summary_table(runs: list[Run], histories: dict[str, list[dict]]) -> Table:
    """
    One row for each run: when it learned the format, and what it scored on average over all steps.

    Args:
        runs (`list[Run]`):
            Finished runs.
        histories (`dict[str, list[dict]]`):
            Metrics of each step, by the runs' names.

    Returns:
        `Table`
    """
    table = Table(
        "rule",
        "seed",
        caption=f"Steps until the format reward, averaged over {WINDOW} steps, is at least so high; means over all steps.",
    )
    for column in (*(f"steps\nto {threshold}" for threshold in THRESHOLDS), "mean\nformat", "mean\ncorrectness"):
        table.add_column(column, justify="right")
    for run in runs:
        rewards = {channel: channel_series(histories[run.name], "reward", channel) for channel in CHANNELS}
        steps = [first_crossing(rewards["format"], threshold, WINDOW) for threshold in THRESHOLDS]
        table.add_row(
            run.rule,
            str(run.seed),
            *(str(step) if step else f"> {run.steps}" for step in steps),
            *(f"{np.mean(rewards[channel]):.3f}" for channel in CHANNELS),
        )
    return table


def save_figure(runs: list[Run], histories: dict[str, list[dict]], path: Path) -> None:
    """
    Draws reward, density, weight and energy over the steps, a row for each channel and a line for each rule.

    Lines are trailing means of 3 steps, averaged over the seeds; bands reach from the lowest to the highest seed. The dashed
    line is the energy times the squared weight: what `dara_sym` lets act, and an upper bound for `dara_asym`, which
    amplifies positive contributions only.

    Args:
        runs (`list[Run]`):
            Finished runs of equal length.
        histories (`dict[str, list[dict]]`):
            Metrics of each step, by the runs' names.
        path (`Path`):
            PNG file to write.
    """
    rules = list(dict.fromkeys(run.rule for run in runs))
    figure, axes = plt.subplots(len(CHANNELS), len(PANELS), figsize=(15, 6.5), sharex=True, layout="constrained")
    for row, channel in zip(axes, CHANNELS, strict=True):
        for panel, (metric, title) in zip(row, PANELS, strict=True):
            for index, rule in enumerate(rules):
                of_rule = [histories[run.name] for run in runs if run.rule == rule]
                values = np.array([channel_series(history, metric, channel) for history in of_rule])  # (seeds, steps)
                _draw(panel, values, color=f"C{index}", label=rule)
                if metric == "energy":
                    weights = np.array([channel_series(history, "weight", channel) for history in of_rule])
                    _draw(panel, values * weights**2, color=f"C{index}", linestyle="--", zorder=1)
            panel.set_title(title, fontsize=11)
            panel.grid(alpha=0.3)
        row[0].set_ylabel(channel, fontsize=12, fontweight="bold")
    for upper, lower in axes.T[1:]:  # rewards have ranges of their own; everything else is compared between channels
        top = max(upper.get_ylim()[1], lower.get_ylim()[1])
        upper.set_ylim(0, top)
        lower.set_ylim(0, top)
    for panel in axes[-1]:
        panel.set_xlabel("step")
    handles, _ = axes[0, 0].get_legend_handles_labels()
    weighted = Line2D([], [], color="grey", linestyle="--", label="energy × weight²")
    figure.legend(handles=[*handles, weighted], loc="outside lower center", ncols=len(rules) + 1, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw(panel: plt.Axes, values: np.ndarray, **style) -> None:
    """Draw the mean over the seeds of `(seeds, steps)` values, and their range."""
    smooth = np.array([trailing_mean(series) for series in values])  # (seeds, steps)
    steps = np.arange(1, smooth.shape[1] + 1)
    panel.plot(steps, smooth.mean(axis=0), linewidth=1.8, **style)
    if len(smooth) > 1:
        panel.fill_between(
            steps, smooth.min(axis=0), smooth.max(axis=0), color=style["color"], alpha=0.15, linewidth=0
        )
