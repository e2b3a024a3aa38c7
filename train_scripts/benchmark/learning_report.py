"""What the learning benchmark measures, and how it shows it: a tidy table, Markdown with every seed, figures."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from train_scripts.benchmark.experiments import EXPERIMENTS, LearningRun
from train_scripts.benchmark.running import NEVER, mean_and_seeds
from trl_dara.demo.report import trailing_mean
from trl_dara.demo.runs import channel_series
from trl_dara.evaluation.comparison import compare_seeds
from trl_dara.evaluation.stats import first_crossing, stable_crossing


STEP_THRESHOLDS = (0.3, 0.5, 0.8, 0.9)
STEP_WINDOW = 3  # steps of the trailing mean
STABLE_THRESHOLDS = (0.80, 0.90, 0.95, 0.97, 0.99)
STABLE_STEPS = 20  # more steps over which the mean has to stay above
LAST_STEPS = 10  # over which the final value is averaged
REFERENCE = "gdpo"

# The ratios to the reference that are shown, with the experiments for which each says most
RATIOS = ("steps to 0.5", "steps to 0.8", "stable at 95 %", "stable at 99 %")
OVERVIEW = "steps to 0.8"  # the one by which experiments are compared

NOT_ALL = "–"  # not every seed gets there

Measures = dict[str, float | None]


def measure_run(history: list[dict[str, float]], channels: tuple[str, ...]) -> Measures:
    """
    The numbers of one finished run.

    Args:
        history (`list[dict[str, float]]`):
            Metrics of each step.
        channels (`tuple[str, ...]`):
            The rewards, the sparse one first.

    Returns:
        `dict[str, float]`: Crossings of the first channel, in steps (`None` if it never crosses), and of every channel the
        mean over all steps and over the last ten.
    """
    rewards = {channel: channel_series(history, "reward", channel) for channel in channels}
    sparse = rewards[channels[0]]
    measures = {f"steps to {level}": first_crossing(sparse, level, window=STEP_WINDOW) for level in STEP_THRESHOLDS}
    for level in STABLE_THRESHOLDS:
        measures[f"stable at {level * 100:.0f} %"] = stable_crossing(sparse, level, hold=STABLE_STEPS).step
    for channel, series in rewards.items():
        measures[f"mean {channel}"] = float(np.mean(series))
        measures[f"final {channel}"] = float(np.mean(series[-LAST_STEPS:]))
    return measures


def measure(runs: dict[tuple[str, str, int], LearningRun], output_dir: Path) -> pd.DataFrame:
    """
    The numbers of all runs in one tidy table.

    Args:
        runs (`dict[tuple[str, str, int], LearningRun]`):
            Finished runs by experiment, rule and seed.
        output_dir (`Path`):
            Folder of their logs.

    Returns:
        `pd.DataFrame`: Columns `experiment`, `rule`, `seed`, `measure`, `value`; a crossing that never came has no value.
    """
    rows = []
    for (key, rule, seed), run in runs.items():
        measures = measure_run(run.history(output_dir), EXPERIMENTS[key].channels)
        rows += [
            {"experiment": key, "rule": rule, "seed": seed, "measure": name, "value": value}
            for name, value in measures.items()
        ]
    return pd.DataFrame(rows).astype({"value": float})


def markdown(results: pd.DataFrame) -> str:
    """
    For each experiment a table of every measure, rule and seed, and one of the ratios to `gdpo`.

    Args:
        results (`pd.DataFrame`):
            As returned by [`measure`].

    Returns:
        `str`: Markdown.
    """
    several = results["experiment"].nunique() > 1 and (results["rule"] == REFERENCE).any()
    parts = [_overview(results) + "\n"] if several else []
    for key, of_experiment in results.groupby("experiment", sort=False):
        seeds = ", ".join(str(seed) for seed in sorted(of_experiment["seed"].unique()))
        parts.append(f"### {key}: {EXPERIMENTS[key].title}\n")
        parts.append(f"Mean over the seeds (seeds {seeds}).\n")
        parts.append(_table(of_experiment, _mean_and_seeds) + "\n")
        if (of_experiment["rule"] == REFERENCE).any():
            parts.append(
                f"Ratio to `{REFERENCE}`, seed by seed: mean, its 95 % bootstrap interval, lowest to highest. *At most*: where "
                f"`{REFERENCE}` does not get there within the run, the first step that could not be seen stands for its own.\n"
            )
            others = of_experiment[of_experiment["measure"].isin(RATIOS) & (of_experiment["rule"] != REFERENCE)]
            parts.append(_table(others, _ratio_in(of_experiment)) + "\n")
    return "\n".join(parts)


def _overview(results: pd.DataFrame) -> str:
    """Experiments down, rules across: the steps of the reference, and the ratio of the others to these."""
    crossings = results[results["measure"] == OVERVIEW]
    rules = list(dict.fromkeys(crossings["rule"]))
    titles = (f"`{rule}`: {OVERVIEW}" if rule == REFERENCE else f"`{rule}`: ratio" for rule in rules)
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(rules) + 1) + "|"]
    for key, of_experiment in crossings.groupby("experiment", sort=False):
        ratio = _ratio_in(of_experiment)
        cells = []
        for rule in rules:
            of_rule = of_experiment[of_experiment["rule"] == rule].sort_values("seed")
            cells.append(_mean_and_seeds(of_rule) if rule == REFERENCE else ratio(of_rule))
        lines.append(f"| {key}: {EXPERIMENTS[key].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio_in(of_experiment: pd.DataFrame) -> Callable[[pd.DataFrame], str]:
    """What writes the cell of a ratio to the reference in one experiment."""
    of_reference = of_experiment[of_experiment["rule"] == REFERENCE].set_index(["measure", "seed"])["value"]
    return partial(_ratio, reference=of_reference, steps=EXPERIMENTS[of_experiment["experiment"].iloc[0]].steps)


def _table(results: pd.DataFrame, cell: Callable[[pd.DataFrame], str]) -> str:
    """Measures down, rules across."""
    rules = list(dict.fromkeys(results["rule"]))
    lines = [f"| | {' | '.join(f'`{rule}`' for rule in rules)} |", "|---" * (len(rules) + 1) + "|"]
    for name, of_measure in results.groupby("measure", sort=False):
        cells = [cell(of_measure[of_measure["rule"] == rule].sort_values("seed")) for rule in rules]
        if set(cells) - {NEVER, NOT_ALL}:  # a row that says something
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean_and_seeds(rows: pd.DataFrame) -> str:
    name, values = rows["measure"].iloc[0], rows["value"]
    if values.isna().all():
        return NEVER
    return (
        mean_and_seeds(values, "{:.3f}")
        if name.startswith(("mean", "final"))
        else mean_and_seeds(values, "{:.0f}", "{:.1f}")
    )


def _ratio(rows: pd.DataFrame, reference: pd.Series, steps: int) -> str:
    """Not given where a seed of the rule never crosses; a bound where one of the reference never does in its `steps`."""
    name, ours = rows["measure"].iloc[0], rows.set_index("seed")["value"]
    theirs = reference[name].loc[ours.index]  # a seed that the reference was not run with is an error, not a bound
    if ours.isna().any() or theirs.isna().all():
        return NOT_ALL
    theirs_at_least = theirs.fillna(first_unseen_step(name, steps))
    comparison = compare_seeds(ours.to_dict(), theirs_at_least.to_dict(), ratio=True)
    low, high = comparison.interval
    pairs = comparison.pairs.values()
    bound = "at most " if theirs.isna().any() else ""
    return f"{bound}**{comparison.mean:.2f}** [{low:.2f}, {high:.2f}], {min(pairs):.2f} to {max(pairs):.2f}"


def first_unseen_step(measure: str, steps: int) -> int:
    """The first step at which a crossing, named as in [`measure_run`], cannot be seen in a run of so many steps."""
    return steps + 1 - (STABLE_STEPS if measure.startswith("stable") else 0)


def save_figure(key: str, runs: dict[tuple[str, str, int], LearningRun], output_dir: Path, path: Path) -> None:
    """
    Draw the reward of every channel and the density and the weight of the sparse one over the steps: the median over the
    seeds and the interquartile range, trailing means of three steps.

    Args:
        key (`str`):
            The experiment.
        runs (`dict[tuple[str, str, int], LearningRun]`):
            Finished runs by experiment, rule and seed.
        output_dir (`Path`):
            Folder of their logs.
        path (`Path`):
            PNG file to write.
    """
    channels = EXPERIMENTS[key].channels
    panels = [("reward", channel) for channel in channels] + [("density", channels[0]), ("weight", channels[0])]
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.6), layout="constrained")
    rules = list(dict.fromkeys(rule for experiment, rule, _ in runs if experiment == key))
    for axis, (metric, channel) in zip(axes, panels, strict=True):
        for rule in rules:
            histories = [run.history(output_dir) for (e, r, _), run in runs.items() if (e, r) == (key, rule)]
            curves = [trailing_mean(channel_series(history, metric, channel)) for history in histories]
            low, median, high = np.quantile(curves, [0.25, 0.5, 0.75], axis=0)  # (steps,) each
            steps = np.arange(1, len(median) + 1)
            axis.plot(steps, median, label=rule, linewidth=1.6)
            axis.fill_between(steps, low, high, alpha=0.15, linewidth=0)
        axis.set_title(f"{channel}: {metric}")
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(rules), frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
