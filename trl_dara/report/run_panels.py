"""The panels of plots of runs side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from ..evaluation.stats import bootstrap_interval
from .plots import NOTHING, as_share, color_of, draw_bars, from_zero, line_style, over_steps
from .run_groups import Curve, RunGroup, curve, first_at, shares_of_range, stable_at
from .run_tables import STABLE_THRESHOLDS
from .runs import TrainingRun
from .verdicts import known_mean, percent


SIZE_THRESHOLD = 0.8  # of the study of group sizes

Bounds = Mapping[str, Sequence[float]]


@dataclass
class Panel:
    r"""
    One plot.

    Args:
        title (`str`):
            Its title.
        draw (`Callable`):
            Draws it on axes.
        height (`float`, *optional*, defaults to `2.3`):
            Height on a page, in inches.
    """

    title: str
    draw: Callable[[Axes], None]
    height: float = 2.3


def short(text: str) -> str:
    """A text that fits beside a plot."""
    return text if len(text) <= 40 else text[:39] + "…"


def _draw_curve(axes: Axes, drawn: Curve, color: str, label: str | None, several: bool, linestyle: str) -> None:
    style = {"linestyle": linestyle}
    marker = {"marker": "o", "markersize": 3} if len(drawn.steps) <= 12 else {}
    if len(drawn.steps):
        axes.plot(drawn.steps, drawn.median, color=color, linewidth=1.7, label=label, **(marker | style))
    if several:
        axes.fill_between(drawn.steps, drawn.low, drawn.high, color=color, alpha=0.18, linewidth=0)
    for number, (steps, values) in enumerate(drawn.rest):
        own_label = label if number == 0 and not len(drawn.steps) else None
        axes.plot(steps, values, color=color, linewidth=0.8, label=own_label, **style)


def line_panels(groups: Sequence[RunGroup], channels: Sequence[str], metric: str) -> list[Panel]:
    """A panel for each channel that has values, with a curve for each group."""

    def draw(axes: Axes, channel: str) -> None:
        for index, group in enumerate(groups):
            drawn = curve([run.series(metric, channel) for run in group.runs])
            if drawn is not None:
                _draw_curve(axes, drawn, color_of(index), short(group.label), len(group.runs) > 1, line_style(index))
        over_steps(axes)
        if metric == "density":
            as_share(axes)
        elif metric == "weight":
            from_zero(axes)

    return [Panel(channel, partial(draw, channel=channel)) for channel in channels if _logged(groups, metric, channel)]


def _logged(groups: Sequence[RunGroup], metric: str, channel: str) -> bool:
    return any(len(run.series(metric, channel)[0]) for group in groups for run in group.runs)


def weight_panels(groups: Sequence[RunGroup], channels: Sequence[str]) -> list[Panel]:
    """The weight of each channel to which any rule gave another weight than 1."""
    weighed = [c for c in channels if any((run.series("weight", c)[1] != 1).any() for g in groups for run in g.runs)]
    return line_panels(groups, weighed, "weight")


def stable_panels(groups: Sequence[RunGroup], channels: Sequence[str], bounds: Bounds) -> list[Panel]:
    """First stable crossings against the threshold, for each channel that any run brought across one."""

    def steps_of(run: TrainingRun, channel: str, threshold: float) -> int | None:
        steps, shares = shares_of_range(run, channel, bounds)
        crossing = stable_at(run, steps, shares, threshold) if len(steps) else None
        return None if crossing is None else crossing.step

    def draw(axes: Axes, crossings: list[list[list[int | None]]]) -> None:
        positions = np.arange(len(STABLE_THRESHOLDS))
        for index, (group, of_group) in enumerate(zip(groups, crossings, strict=True)):
            _draw_means(axes, positions + 0.06 * index, of_group, color_of(index), short(group.label))
        axes.set_xticks(positions, map(percent, STABLE_THRESHOLDS))
        axes.set_xlim(-0.4, len(STABLE_THRESHOLDS) - 0.6)
        axes.set_xlabel("share of the reward's range")
        axes.set_ylabel("step")
        from_zero(axes)

    panels = []
    for channel in channels:
        crossings = [  # by group, threshold and run
            [[steps_of(run, channel, threshold) for run in group.runs] for threshold in STABLE_THRESHOLDS]
            for group in groups
        ]
        if any(step is not None for of_group in crossings for of_threshold in of_group for step in of_threshold):
            panels.append(Panel(channel, partial(draw, crossings=crossings)))
    return panels


def _draw_means(
    axes: Axes, positions: Sequence[float], values: Sequence[Sequence[float | None]], color: str, label: str
) -> None:
    """At each position a dot for every value; mean and interval where every run has one."""
    complete = []
    axes.plot([], [], "o", color=color, markersize=3, label=label)
    for position, of_runs in zip(positions, values, strict=True):
        known = [value for value in of_runs if value is not None]
        axes.plot([position] * len(known), known, "o", color=color, markersize=3, alpha=0.5)
        if known and len(known) == len(of_runs):
            low, high = bootstrap_interval(known)
            complete.append((position, float(np.mean(known)), low, high))
    if complete:
        at, mean, low, high = np.array(complete).T
        axes.errorbar(at, mean, [mean - low, high - mean], color=color, linewidth=1.7, capsize=3)


def energy_panels(groups: Sequence[RunGroup]) -> list[Panel]:
    """Density before and after the squared weights, at one step of each group whose rule weighs."""
    panels = []
    for index, group in enumerate(groups):
        found = _where_weights_matter(group)
        if found is not None:
            step, channels, density, weight = found
            draw = partial(_draw_energy, channels=channels, density=density, weight=weight, color=color_of(index))
            panels.append(Panel(f"{group.label}, step {step}", draw, height=0.8 + 0.3 * len(channels)))
    return panels


def _draw_energy(axes: Axes, channels: list[str], density: np.ndarray, weight: np.ndarray, color: str) -> None:
    draw_bars(axes, channels, [(density, NOTHING)])
    after = density * weight**2  # (K,)
    axes.barh(range(len(channels)), after, height=0.72, facecolor="none", edgecolor=color, linewidth=1.6)
    axes.set_xlabel("π, and w²π")


def _where_weights_matter(group: RunGroup) -> tuple[int, list[str], np.ndarray, np.ndarray] | None:
    """The step, and of each channel the density and the weight there; `None` if the rule does not weigh."""
    channels = group.runs[0].channels
    common = set.intersection(*(set(run.steps.tolist()) for run in group.runs))
    if not common or any(run.channels != channels for run in group.runs):
        return None
    steps = np.array(sorted(common))

    def medians(metric: str) -> np.ndarray:
        return np.median([run.values[metric][np.isin(run.steps, steps)] for run in group.runs], axis=0)  # (T, K)

    density, calibrated, weight = medians("density"), medians("calibrated_density"), medians("weight")
    density = np.where(np.isnan(calibrated), density, calibrated)
    known = ~np.isnan(density + weight).any(axis=1)  # (T,)
    if not known.any() or (weight[known] == 1).all():
        return None
    added = (density * (weight**2 - 1)).max(axis=1)  # (T,)
    row = np.where(known, added, -np.inf).argmax()
    return int(steps[row]), channels, density[row], weight[row]


def ratio_panels(groups: Sequence[RunGroup], channels: Sequence[str]) -> list[Panel]:
    """Energy of each channel over that of the densest one that steers, with and without the weights."""
    runs = [run for group in groups for run in group.runs]
    densities = {c: known_mean(np.concatenate([run.series("density", c)[1] for run in runs])) for c in channels}
    steering = [
        c
        for c in channels
        if densities[c] > 0 and any((run.record.get("reward_weights") or {}).get(c, 1) for run in runs)
    ]
    reference = max(steering, key=densities.get, default=None)

    def draw(axes: Axes, channel: str) -> None:
        for index, group in enumerate(groups):
            several = len(group.runs) > 1
            weighted = curve([_ratio(run, channel, reference, True) for run in group.runs])
            if weighted is not None:
                _draw_curve(axes, weighted, color_of(index), short(group.label), several, line_style(index))
                plain = curve([_ratio(run, channel, reference, False) for run in group.runs])
                _draw_curve(axes, plain, color_of(index), None, False, ":")
        axes.axhline(1, color="grey", linestyle="--", linewidth=1)
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        over_steps(axes)

    return [
        Panel(f"{c} / {reference}", partial(draw, channel=c))
        for c in steering
        if c != reference and any(len(_ratio(run, c, reference, True)[0]) for run in runs)
    ]


def _ratio(run: TrainingRun, channel: str, reference: str, weighted: bool) -> tuple[np.ndarray, np.ndarray]:
    """Steps and energy ratios, where the reference has any energy."""
    if channel not in run.channels or reference not in run.channels:
        return run.steps[:0], np.empty(0)
    energy = run.values["energy"]  # (T, K)
    energy = np.where(np.isnan(energy), run.values["density"], energy)  # proportional
    if weighted:
        energy = energy * run.values["weight"] ** 2
    above, below = energy[:, run.channels.index(channel)], energy[:, run.channels.index(reference)]  # (T,) each
    known = ~np.isnan(above) & (below > 0)
    return run.steps[known], above[known] / below[known]


def size_panels(groups: Sequence[RunGroup], channels: Sequence[str], bounds: Bounds) -> list[Panel]:
    """Density and first crossing by group size; nothing for runs of one size."""
    families: dict[str, dict[int, RunGroup]] = {}
    for group in groups:
        if (size := group.setting("num_generations")) is not None:
            families.setdefault(group.family, {})[size] = group
    families = {family: by_size for family, by_size in families.items() if len(by_size) > 1}
    sizes = sorted({size for by_size in families.values() for size in by_size})
    studied = [group for by_size in families.values() for group in by_size.values()]

    def density(run: TrainingRun, channel: str) -> float | None:
        values = run.series("density", channel)[1]
        return float(values.mean()) if len(values) else None

    def first(run: TrainingRun, channel: str) -> int | None:
        return first_at(*shares_of_range(run, channel, bounds), SIZE_THRESHOLD)

    def draw(axes: Axes, channel: str, measure: Callable, share: bool) -> None:
        for index, (family, by_size) in enumerate(families.items()):
            at = sorted(by_size)
            values = [[measure(run, channel) for run in by_size[size].runs] for size in at]
            _draw_means(axes, np.array(at) * (1 + 0.03 * index), values, color_of(index), short(family))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, map(str, sizes))
        axes.set_xlabel("completions per group")
        if share:
            as_share(axes)
        axes.legend(fontsize=8, frameon=False)

    return [
        Panel(f"{channel}: {title}", partial(draw, channel=channel, measure=measure, share=measure is density))
        for title, measure in (("density", density), (f"first step at {percent(SIZE_THRESHOLD)}", first))
        for channel in channels
        if any(measure(run, channel) is not None for group in studied for run in group.runs)
    ]
