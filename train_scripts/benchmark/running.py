"""What the benchmarks that train have in common: their options, the progress bar, table cells that show every seed."""

import argparse
import os
import signal
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import Progress

from trl_dara.demo.runs import Run, run_all


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


def mean_and_seeds(values: pd.Series, form: str, mean_form: str | None = None) -> str:
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

    Returns:
        `str`: e.g. `"**0.50** (0.25 0.75)"`.
    """
    each = " ".join(NEVER if pd.isna(value) else form.format(value) for value in values)
    mean = "–" if values.isna().any() else f"**{(mean_form or form).format(values.mean())}**"
    return f"{mean} ({each})"
