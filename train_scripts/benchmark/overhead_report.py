"""What the benchmark of overhead shows: Markdown tables, growth, and a figure."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from train_scripts.benchmark.aggregation_cost import OWN, PEER, TRL


MOST_OF_A_STEP = 0.005  # that our own code may take
MOST_SECONDS, MOST_MB = 1.0, 500.0  # for the largest case, 1,000,000 completions with 4 channels

# Sizes over which growth is fitted: below, fixed costs and the processor's caches decide
LARGE = {"completions": 131_072, "channels": 4}

TITLES = {
    "completions": ("Number of completions", "completions", "16 per group, 4 channels"),
    "group_size": ("Group size", "completions per group", "65,536 completions, 4 channels"),
    "channels": ("Number of channels", "channels", "262,144 completions, 16 per group"),
}


def medians(costs: pd.DataFrame, varied: str) -> pd.DataFrame:
    """
    The median over the rounds.

    Args:
        costs (`pd.DataFrame`):
            Rows of [`~aggregation_cost.measure_all`].
        varied (`str`):
            Which table.

    Returns:
        `pd.DataFrame`: One row for each case, with `milliseconds` and `peak_mb`, in the order of the cases.
    """
    keys = ["method", "completions", "group_size", "channels", "missing"]
    rows = costs[costs["varied"] == varied]
    return rows.groupby(keys, sort=False)[["milliseconds", "peak_mb"]].median().reset_index()


def growth(costs: pd.DataFrame, varied: str, method: str) -> float:
    """
    Slope of log time over log size for the large sizes; 1 is linear growth.

    Args:
        costs (`pd.DataFrame`):
            Rows of [`~aggregation_cost.measure_all`].
        varied (`str`):
            `"completions"` or `"channels"`.
        method (`str`):
            Which method.

    Returns:
        `float`
    """
    rows = medians(costs, varied)
    rows = rows[(rows["method"] == method) & (rows[varied] >= LARGE[varied])]
    return float(np.polyfit(np.log(rows[varied]), np.log(rows["milliseconds"]), deg=1)[0])


def markdown(steps: pd.DataFrame, costs: pd.DataFrame) -> str:
    """
    All tables.

    Args:
        steps (`pd.DataFrame`):
            As returned by [`~overhead.compare_training`].
        costs (`pd.DataFrame`):
            Rows of [`~aggregation_cost.measure_all`].

    Returns:
        `str`: Markdown.
    """
    source = (
        f"`make benchmark-overhead`, one thread of a {os.cpu_count()}-core CPU machine ({platform.machine()}), PyTorch "
        f"{torch.__version__}, {datetime.now(UTC):%Y-%m-%d}."
    )
    parts = [source, "### A training step", _step_table(steps), _verdict_of_steps(steps)]
    for varied, (title, _, fixed) in TITLES.items():
        parts += [f"### {title}", f"{fixed}; milliseconds (MB).", _cost_table(costs, varied)]
    if PEER not in set(costs["method"]):
        parts.append(f"`{PEER}` was not installed.")
    parts += ["### 1,000,000 completions, 4 channels, 5 % of the rewards not scored", _list_table(costs, "missing")]
    parts += ["### Every rule, 8,192 completions, 8 channels", _list_table(costs, "rule")]
    parts += ["### Growth", _growth_table(costs), _verdict_of_costs(costs)]
    return "\n\n".join(parts) + "\n"


def _step_table(steps: pd.DataFrame) -> str:
    columns = {
        "`MultiRewardGRPOTrainer`, `dara_asym`": steps["ours_ms"],
        "TRL's `GRPOTrainer`": steps["trl_ms"],
        "difference, step by step": steps["ours_ms"] - steps["trl_ms"],
        "our own code (statistics, rule, metrics)": steps["own_code_ms"],
    }
    lines = ["| B = 64, G = 4 | median | interquartile range |", "|---|---|---|"]
    for name, values in columns.items():
        digits = 2 if "own code" in name else 0
        low, median, high = np.percentile(values, [25, 50, 75])
        lines.append(f"| {name} | {median:.{digits}f} ms | {low:.{digits}f} to {high:.{digits}f} ms |")
    return "\n".join(lines)


def share_of_step(steps: pd.DataFrame) -> float:
    """Median time in our own code, as a share of the median step."""
    return steps["own_code_ms"].median() / steps["ours_ms"].median()


def _verdict_of_steps(steps: pd.DataFrame) -> str:
    share, pairs = share_of_step(steps), steps["pair"].nunique()
    return (
        f"Our own code takes {share:.2%} of a step (limit {MOST_OF_A_STEP:.1%}: {_holds(share < MOST_OF_A_STEP)}). "
        f"{pairs} pairs of runs in turns, {len(steps)} steps of each trainer."
    )


def _cost_table(costs: pd.DataFrame, varied: str) -> str:
    rows = medians(costs, varied)
    methods = list(dict.fromkeys(rows["method"]))
    lines = [f"| {TITLES[varied][1]} | {' | '.join(map(_name, methods))} |", "|---" * (len(methods) + 1) + "|"]
    for size, of_size in rows.groupby(varied):
        of_size = of_size.set_index("method")
        lines.append(f"| {size:,} | {' | '.join(_cell(of_size.loc[method]) for method in methods)} |")
    return "\n".join(lines)


def _list_table(costs: pd.DataFrame, varied: str) -> str:
    lines = ["| | milliseconds (MB) |", "|---|---|"]
    lines += [f"| {_name(row['method'])} | {_cell(row)} |" for _, row in medians(costs, varied).iterrows()]
    return "\n".join(lines)


def _growth_table(costs: pd.DataFrame) -> str:
    methods = list(dict.fromkeys(costs.loc[costs["varied"] == "completions", "method"]))
    lines = [
        f"| time grows with the power of | {' | '.join(map(_name, methods))} |",
        "|---" * (len(methods) + 1) + "|",
    ]
    for varied, smallest in LARGE.items():
        slopes = " | ".join(f"{growth(costs, varied, method):.2f}" for method in methods)
        lines.append(f"| {varied}, from {smallest:,} | {slopes} |")
    return "\n".join(lines)


def _verdict_of_costs(costs: pd.DataFrame) -> str:
    rows = medians(costs, "completions")
    largest = rows[rows["completions"] == rows["completions"].max()].set_index("method")
    own, others = largest.loc[list(OWN)], largest.drop(index=list(OWN))["milliseconds"]
    fastest = others.idxmin()
    slowest, memory = own["milliseconds"].max(), own["peak_mb"].max()
    completions = rows["completions"].max()
    return "\n".join(
        [
            f"- {completions:,} completions, 4 channels, the slowest of {len(OWN)} rules: {slowest:.0f} ms (limit "
            f"{MOST_SECONDS:.0f} s: {_holds(slowest < MOST_SECONDS * 1e3)}), {memory:.0f} MB (limit {MOST_MB:.0f} MB: "
            f"{_holds(memory < MOST_MB)}).",
            f"- The fastest of the others there is {_name(fastest)} with {others[fastest]:.0f} ms. At least as fast: `gdpo`, which "
            f"computes the same, {_yes(own.loc['gdpo', 'milliseconds'] <= others[fastest])}; our slowest rule, "
            f"{_yes(slowest <= others[fastest])}.",
        ]
    )


def _holds(condition: bool) -> str:
    return "holds" if condition else "does not hold"


def _yes(condition: bool) -> str:
    return "yes" if condition else "no"


def _name(method: str) -> str:
    return method if method == TRL else f"`{method}`"


def _cell(row: pd.Series) -> str:
    time = row["milliseconds"]
    return f"{time:.{0 if time >= 10 else 2}f} ({row['peak_mb']:.0f})"


def save_figure(costs: pd.DataFrame, path: Path) -> None:
    """
    Draw time and memory over the number of completions, the group size and the number of channels.

    Args:
        costs (`pd.DataFrame`):
            Rows of [`~aggregation_cost.measure_all`].
        path (`Path`):
            PNG file to write.
    """
    figure, axes = plt.subplots(2, len(TITLES), figsize=(12, 6.4), layout="constrained")
    for column, (varied, (_, label, fixed)) in enumerate(TITLES.items()):
        for method, rows in medians(costs, varied).groupby("method", sort=False):
            for axis, value in zip(axes[:, column], ("milliseconds", "peak_mb"), strict=True):
                axis.plot(rows[varied], rows[value], marker="o", markersize=3, linewidth=1.4, label=method)
        for axis, title in zip(axes[:, column], ("time (ms)", "memory (MB)"), strict=True):
            axis.set_xscale("log", base=2)
            axis.set_title(f"{title}: {fixed}", fontsize=9)
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
        axes[0, column].set_yscale("log")
        axes[1, column].set_ylim(bottom=0)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
