"""
Does the calibration window help when a generation batch has few prompts?

    python -m train_scripts.benchmark.small_batches

Trains the demo's tiny model on 1,280 prompts, 1, 2, 4, 8, 16 or 64 at a time, with `gdpo`, with `dara_sym` calibrated on each
batch alone, and with `dara_sym` calibrated on the 64 most recent groups. About an hour of one core. Finished runs are kept,
so that the same command goes on after an interruption. Learning rates differ between batch sizes: compare within one only.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from rich.console import Console

from train_scripts.benchmark.running import make_parser, mean_and_seeds, positive, report_results, train
from trl_dara.demo.runs import Run, channel_series
from trl_dara.evaluation.stats import first_crossing


# By prompts per generation batch, B
LEARNING_RATES = {1: 3.5e-5, 2: 5e-5, 4: 7e-5, 8: 8.5e-5, 16: 1e-4, 64: 1.5e-4}
VARIANTS = {
    "gdpo": {"rule": "gdpo"},
    "dara_sym, per batch": {"rule": "dara_sym", "calibration_window": None},
    "dara_sym, window": {"rule": "dara_sym", "calibration_window": 64},
}
NUM_GENERATIONS = 4
AVERAGED_GROUPS = 64  # groups over which the format reward is averaged to see whether it has reached 0.8

# Keeping the window as the default takes, at each of these B, a higher mean format in four of five seeds and a mean
# correctness that is not lower by more than this.
DECISIVE = (1, 4)
CORRECTNESS_TOLERANCE = 0.05


def make_runs(groups: int, seeds: list[int]) -> dict[tuple[int, str, int], Run]:
    """
    The runs of the experiment.

    Args:
        groups (`int`):
            Prompt groups per run.
        seeds (`list[int]`):
            Seeds.

    Returns:
        `dict[tuple[int, str, int], Run]`: By B, variant and seed.
    """
    return {
        (prompts, variant, seed): Run(
            name=f"B{prompts}_{variant.replace(',', '').replace(' ', '_')}_seed{seed}",
            seed=seed,
            steps=groups // prompts,
            prompts=prompts,
            num_generations=NUM_GENERATIONS,
            learning_rate=learning_rate,
            **settings,
        )
        for prompts, learning_rate in LEARNING_RATES.items()
        for seed in seeds
        for variant, settings in VARIANTS.items()
    }


def measure(runs: dict[tuple[int, str, int], Run], output_dir: Path) -> pd.DataFrame:
    """
    One row for each run.

    Args:
        runs (`dict[tuple[int, str, int], Run]`):
            Finished runs.
        output_dir (`Path`):
            Folder of their logs.

    Returns:
        `pd.DataFrame`: With the means of both rewards over all steps and `groups_to_0.8`, the prompt groups seen when
        the mean format of the last 64 groups first is 0.8 (missing if it never is).
    """
    rows = []
    for (prompts, variant, seed), run in runs.items():
        history = run.history(output_dir)
        format_rewards = channel_series(history, "reward", "format")
        step = first_crossing(format_rewards, 0.8, window=AVERAGED_GROUPS // prompts)
        rows.append(
            {
                "B": prompts,
                "variant": variant,
                "seed": seed,
                "groups": run.steps * prompts,
                "learning_rate": run.learning_rate,
                "mean_format": np.mean(format_rewards),
                "groups_to_0.8": None if step is None else step * prompts,
                "mean_correctness": np.mean(channel_series(history, "reward", "correctness")),
            }
        )
    return pd.DataFrame(rows).astype({"groups_to_0.8": "Int64"})


def markdown_table(results: pd.DataFrame) -> str:
    """
    The results, every seed shown.

    Args:
        results (`pd.DataFrame`):
            As returned by [`measure`].

    Returns:
        `str`: A Markdown table.
    """
    seeds = ", ".join(str(seed) for seed in sorted(results["seed"].unique()))
    lines = [
        f"| B | rule | mean format: mean (seeds {seeds}) | groups to 0.8 format | mean correctness |",
        "|---|---|---|---|---|",
    ]
    for (prompts, variant), rows in results.groupby(["B", "variant"], sort=False):
        rows = rows.sort_values("seed")
        cells = [
            mean_and_seeds(rows["mean_format"], "{:.3f}"),
            mean_and_seeds(rows["groups_to_0.8"], "{:.0f}"),
            mean_and_seeds(rows["mean_correctness"], "{:.3f}"),
        ]
        lines.append(f"| {prompts} | {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def decide(results: pd.DataFrame) -> str:
    """
    Whether the calibration window stays the default.

    Args:
        results (`pd.DataFrame`):
            As returned by [`measure`].

    Returns:
        `str`: Markdown: the numbers of the criterion, and the verdict.
    """
    lines, keep = [], True
    for prompts in DECISIVE:
        of_batch = results[results["B"] == prompts].pivot(index="seed", columns="variant")
        format_reward, correctness = of_batch["mean_format"], of_batch["mean_correctness"]
        window, per_batch = "dara_sym, window", "dara_sym, per batch"
        wins, seeds = int((format_reward[window] > format_reward[per_batch]).sum()), len(format_reward)
        change = correctness[window].mean() - correctness[per_batch].mean()
        holds = wins >= 0.8 * seeds and change >= -CORRECTNESS_TOLERANCE
        keep &= holds
        lines.append(
            f"- B = {prompts}: with the window the mean format is higher in {wins} of {seeds} seeds, mean correctness "
            f"changes by {change:+.3f} (allowed: {-CORRECTNESS_TOLERANCE}): {'holds' if holds else 'does not hold'}."
        )
    return "\n".join([*lines, "", f"`calibration_window` is {64 if keep else None} by default."])


def save_figure(results: pd.DataFrame, path: Path) -> None:
    """
    Draw mean format and mean correctness against B: the mean over the seeds as a line, every seed as a dot.

    Args:
        results (`pd.DataFrame`):
            As returned by [`measure`].
        path (`Path`):
            PNG file to write.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    sizes = sorted(results["B"].unique())
    for axis, reward in zip(axes, ("format", "correctness"), strict=True):
        for index, (variant, rows) in enumerate(results.groupby("variant", sort=False)):
            shifted = rows["B"] * 1.06 ** (index - 1)  # side by side, so that equal values of two variants are seen
            axis.plot(shifted, rows[f"mean_{reward}"], "o", color=f"C{index}", markersize=3.5, alpha=0.6)
            means = rows.groupby("B")[f"mean_{reward}"].mean()
            axis.plot(means.index * 1.06 ** (index - 1), means, color=f"C{index}", label=variant, linewidth=1.4)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, sizes)
        axis.set_xlabel("prompts per generation batch, B")
        axis.set_title(f"mean {reward}")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = make_parser(__doc__, "small_batches")
    parser.add_argument(
        "--groups", type=positive, default=1280, help="prompt groups per run, at least 64; by default 1280"
    )
    arguments = parser.parse_args()

    if arguments.groups < max(LEARNING_RATES):
        parser.error(f"--groups: {arguments.groups} is not one batch of {max(LEARNING_RATES)}")
    runs = make_runs(arguments.groups, arguments.seeds)
    console = Console()
    train(list(runs.values()), arguments, console, module="trl_dara.demo.training")
    results = measure(runs, arguments.output_dir)
    report = f"{markdown_table(results)}\n\n{decide(results)}\n"
    report_results(results, report, arguments.results_dir / "small_batches", console)
    save_figure(results, arguments.results_dir / "small_batches.png")


if __name__ == "__main__":
    main()
