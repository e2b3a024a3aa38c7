"""What the benchmarks that train have in common: their options, the progress bar, table cells that show every seed."""

import argparse
import os
import signal
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress

from trl_dara.demo.runs import Run, run_all
from trl_dara.evaluation.stats import bootstrap_interval


RESULTS = Path(__file__).parent / "results"

NEVER = "never"


def make_parser(description: str, name: str) -> argparse.ArgumentParser:
    """
    The options that all of them take.

    Args:
        description (`str`):
            Shown by `--help` as it is.
        name (`str`):
            Name of the benchmark and of the folder of its logs in `outputs`.

    Returns:
        `argparse.ArgumentParser`
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="of prompts, their order, and sampling"
    )
    parser.add_argument(
        "--parallel",
        type=positive,
        default=os.cpu_count(),
        help="runs at a time, one thread each; by default one per core",
    )
    parser.add_argument("--output_dir", type=Path, default=Path("outputs") / name, help="folder of the logs")
    parser.add_argument(
        "--results_dir",
        type=Path,
        default=RESULTS,
        help="folder of the tables and figures; by default those of the repository",
    )
    return parser


def positive(text: str) -> int:
    """A number on the command line that has to be at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def train(runs: list[Run], arguments: argparse.Namespace, console: Console, module: str) -> None:
    """
    Trains what is not finished, with a progress bar, and makes the folder of the results.

    Args:
        runs (`list[Run]`):
            The runs, in the order in which they are started.
        arguments (`argparse.Namespace`):
            The options of [`make_parser`].
        console (`Console`):
            Where the bar is shown.
        module (`str`):
            What trains one run, as for [`run_all`].
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the children too, like Ctrl-C
    try:
        with Progress(console=console) as progress:
            task = progress.add_task("runs", total=len(runs))
            run_all(
                runs,
                arguments.output_dir,
                arguments.parallel,
                lambda left: progress.update(task, completed=len(runs) - left),
                module,
            )
    except KeyboardInterrupt:
        console.print(
            f"Stopped. Finished runs are kept in {arguments.output_dir}: the same command goes on from there."
        )
        raise SystemExit(130) from None
    arguments.results_dir.mkdir(parents=True, exist_ok=True)


def mean_and_seeds(values: pd.Series, form: str, mean_form: str | None = None, interval: bool = False) -> str:
    """
    A cell of a table: the mean and every value. Where a seed has none, neither has the mean: one over the others would
    flatter.

    Args:
        values (`pd.Series`):
            A value per seed, in the order of the seeds.
        form (`str`):
            Format string of a value.
        mean_form (`str`, *optional*):
            Format string of the mean; by default that of a value.
        interval (`bool`, *optional*, defaults to `False`):
            Whether to give the 95 % bootstrap interval of the mean of several values, too.

    Returns:
        `str`: e.g. `"**0.50** (0.25 0.75)"`.
    """
    each = " ".join(NEVER if pd.isna(value) else form.format(value) for value in values)
    if values.isna().any():
        return f"– ({each})"
    mean = f"**{(mean_form or form).format(values.mean())}**"
    if interval and len(values) > 1:
        low, high = bootstrap_interval(values.tolist())
        mean = f"{mean} [{form.format(low)}, {form.format(high)}]"
    return f"{mean} ({each})"


def report_results(results: pd.DataFrame, report: str, stem: Path, console: Console) -> None:
    """
    Write the results and the report on them, and show the report.

    Args:
        results (`pd.DataFrame`):
            Written as CSV, numbers to six digits.
        report (`str`):
            Markdown.
        stem (`Path`):
            The files, without `.csv` and `.md`.
        console (`Console`):
            Where the report is shown.
    """
    results.to_csv(f"{stem}.csv", index=False, float_format="%.6g")
    Path(f"{stem}.md").write_text(report)
    console.print(Markdown(report))
