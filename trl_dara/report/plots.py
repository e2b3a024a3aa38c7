"""Small plots for pages: SVG that takes its text colour from the page, so that it fits light and dark."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter


# Readable on white and on black, and told apart by most colour-blind readers
COLORS = ("#3d8bfd", "#e8710a", "#1f9d63", "#d6336c", "#8a63d2", "#0c8599", "#a0761b", "#7a8794")
LOW, HIGH, LIVE, NOTHING, WEIGHTED = "#c2410c", "#e3b341", "#1f9d63", "#8a949e", "#3d8bfd"

_INK, _GRID = "#010203", "#040506"  # stand for colours of the page
_STYLE = {
    "font.size": 9,
    "text.parse_math": False,  # a channel may have a dollar in its name
    "svg.fonttype": "none",
    "svg.hashsalt": "trl_dara",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.edgecolor": _GRID,
    "grid.color": _GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}
SMOOTH_FROM = 40  # steps from which a trailing mean is drawn over faint values


def color_of(index: int) -> str:
    """Colour of a channel, or of a run."""
    return COLORS[index % len(COLORS)]


@contextmanager
def plot(height: float = 2.3) -> Iterator[tuple[Figure, Axes]]:
    """
    A figure in the style of the pages.

    Args:
        height (`float`, *optional*, defaults to `2.3`):
            Height in inches; the width is that of a column, or of a phone.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.9, height), layout="constrained")
        yield figure, figure.subplots()


def to_svg(figure: Figure, label: str) -> Markup:
    """
    Turn a figure into an inline SVG element.

    Args:
        figure (`Figure`):
            A figure made in [`plot`], inside its context.
        label (`str`):
            What the figure shows, for those who cannot see it.

    Returns:
        `Markup`: safe to put into a page; matplotlib escapes the texts in it.
    """
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the page has its own font
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
    opening, rest = svg.split(">", 1)
    return Markup(opening) + Markup(' role="img" aria-label="{}">').format(label) + Markup(rest)


def line_style(index: int) -> str:
    """Style of a line; the second time round the colours, dashed."""
    return "--" if index >= len(COLORS) else "-"


def draw_series(axes: Axes, steps: np.ndarray, values: np.ndarray, color: str, **style) -> None:
    """
    Draw one line over the steps; a long one as a trailing mean over the faint values.

    Args:
        axes (`Axes`):
            Where to draw.
        steps, values (`np.ndarray` of shape `(T,)`):
            Steps and values, NaN where there is none.
        color (`str`):
            Colour of the line.
    """
    known = ~np.isnan(values)
    steps, values = steps[known], values[known]
    if len(values) >= SMOOTH_FROM:
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
        values = trailing_mean(values, max(3, len(values) // 30))
    marker = {"marker": "o", "markersize": 3} if len(values) <= 12 else {}
    axes.plot(steps, values, color=color, linewidth=1.7, **(marker | style))


def draw_bars(axes: Axes, labels: Sequence[str], parts: list[tuple[np.ndarray, str]]) -> None:
    """
    Draw one horizontal stacked bar per label.

    Args:
        axes (`Axes`):
            Where to draw.
        labels (`Sequence[str]`):
            Names of the bars, from the top.
        parts (`list[tuple[np.ndarray, str]]`):
            Lengths, of shape `(bars,)`, and colour of each part.
    """
    left = np.zeros(len(labels))
    for lengths, color in parts:
        lengths = np.nan_to_num(lengths)
        axes.barh(range(len(labels)), lengths, left=left, color=color, height=0.72)
        left = left + lengths
    axes.set_yticks(range(len(labels)), [label if len(label) <= 18 else label[:17] + "…" for label in labels])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def as_share(axes: Axes, axis: str = "y") -> None:
    """Make an axis one of shares, from 0 to 100 %."""
    (axes.set_ylim if axis == "y" else axes.set_xlim)(*((-0.02, 1.02) if axis == "y" else (0, 1)))
    (axes.yaxis if axis == "y" else axes.xaxis).set_major_formatter(PercentFormatter(1, symbol=" %"))


def from_zero(axes: Axes) -> None:
    """Let the vertical axis begin at 0, with room above the highest value."""
    axes.update_datalim([(0, 0)], updatex=False)
    axes.autoscale_view(scalex=False)
    axes.set_ylim(bottom=0)


def over_steps(axes: Axes) -> None:
    """Label the horizontal axis as steps."""
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))


def trailing_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of each value and the up to `window - 1` values before it."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)
