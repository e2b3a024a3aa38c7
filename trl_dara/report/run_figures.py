"""The plots of runs side by side: one figure for each of the DARA paper's, with a panel for each channel."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from .plots import plot, to_svg
from .run_groups import RunGroup, smoothing
from .run_panels import (
    SIZE_THRESHOLD,
    Bounds,
    Panel,
    energy_panels,
    line_panels,
    ratio_panels,
    short,
    size_panels,
    stable_panels,
    weight_panels,
)
from .verdicts import percent


_PNG_STYLE = {"font.size": 9, "text.parse_math": False, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}


@dataclass
class RunFigure:
    r"""
    Plots that belong together.

    Args:
        name (`str`):
            Name of the PNG file, without its ending.
        title (`str`):
            Title.
        text (`str`):
            How to read it.
        panels (`list[Panel]`):
            The plots.
    """

    name: str
    title: str
    text: str
    panels: list[Panel]


def run_figures(groups: Sequence[RunGroup], bounds: Bounds) -> list[RunFigure]:
    """
    Make the figures that the runs have numbers for.

    Args:
        groups (`list[RunGroup]`):
            The runs.
        bounds (`dict[str, list[float]]`):
            As for [`summarize_runs`].

    Returns:
        `list[RunFigure]`
    """
    channels = list(dict.fromkeys(channel for group in groups for channel in group.channels))
    longest = max(len(run.steps) for group in groups for run in group.runs)
    trailing = f", as means of the last {smoothing(longest)} values" if smoothing(longest) > 1 else ""
    over_runs = f"Median over the runs and interquartile range{trailing}; thin: runs that go on longer than others."
    figures = [
        RunFigure(
            "reward",
            "Mean reward",
            f"{over_runs} As Figures 1(b) and 4 of the DARA paper.",
            line_panels(groups, channels, "mean"),
        ),
        RunFigure(
            "density",
            "Density",
            f"Share of groups in which the reward differs. {over_runs} As Figure 1(b).",
            line_panels(groups, channels, "density"),
        ),
        RunFigure(
            "weight", "Weight", f"Weight that the rule gives the channel. {over_runs}", weight_panels(groups, channels)
        ),
        RunFigure(
            "stable_crossings",
            "Stable crossings",
            "Step from which on the mean of 10 generation batches stays at a share of the reward's range for 20 more: mean "
            "over the runs with its 95 % bootstrap interval where all cross, and every run. As Figure 5.",
            stable_panels(groups, channels, bounds),
        ),
        RunFigure(
            "energy",
            "Energy at one step",
            "Density π of each channel, to which its energy is proportional, and outlined w²π, after the weights, at the "
            "step at which the weights add most: the median over the runs. As Figure 7.",
            energy_panels(groups),
        ),
        RunFigure(
            "energy_ratio",
            "Energy ratio",
            "Energy of a channel divided by that of the densest channel: dotted without, solid with the squared weights (an "
            f"upper bound for rules that weigh positive contributions only). {over_runs} As Figure 8.",
            ratio_panels(groups, channels),
        ),
        RunFigure(
            "group_size",
            "Group size",
            f"Mean density, and first step at {percent(SIZE_THRESHOLD)} of the range, by completions per group: means over the "
            "runs with their 95 % bootstrap intervals. As Figure 3.",
            size_panels(groups, channels, bounds),
        ),
    ]
    return [figure for figure in figures if figure.panels]


def page_figures(figures: Sequence[RunFigure]) -> list[dict]:
    """
    The figures for a page.

    Args:
        figures (`list[RunFigure]`):
            Figures.

    Returns:
        `list[dict]`: `title`, `text` and `panels` with `title` and `svg`.
    """

    def svg(figure: RunFigure, panel: Panel) -> Markup:
        with plot(panel.height) as (canvas, axes):
            panel.draw(axes)
            return to_svg(canvas, f"{figure.title}: {panel.title}")

    return [
        {
            "title": figure.title,
            "text": figure.text,
            "panels": [{"title": panel.title, "svg": svg(figure, panel)} for panel in figure.panels],
        }
        for figure in figures
    ]


def save_png(figure: RunFigure, path: Path) -> None:
    """
    Save a figure with all its panels and a legend.

    Args:
        figure ([`RunFigure`]):
            The figure.
        path (`Path`):
            File to write.
    """
    columns = min(4, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    width = max(5.0, 3.9 * columns)
    with matplotlib.rc_context(_PNG_STYLE):
        canvas = Figure(figsize=(width, 3.0 * rows), layout="constrained")
        grid = canvas.subplots(rows, columns, squeeze=False).flatten()
        legend = {}
        for axes, panel in zip(grid, figure.panels, strict=False):
            panel.draw(axes)
            axes.set_title(short(panel.title), fontsize=10)
            if axes.get_legend() is None:
                handles, labels = axes.get_legend_handles_labels()
                legend |= dict(zip(labels, handles, strict=True))
        for axes in grid[len(figure.panels) :]:
            axes.set_axis_off()
        if legend:
            fitting = max(1, int(width / (0.6 + 0.08 * max(map(len, legend)))))  # entries in a row
            canvas.set_figheight(3.0 * rows + 0.25 * -(-len(legend) // fitting))
            canvas.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=fitting, frameon=False)
        canvas.savefig(path, dpi=150, format="png")
