"""`trl-dara demo`: watch a tiny transformer learn from a dense and a sparse reward, under several rules side by side."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from trl import TrlParser


HELP = "train a tiny model on the CPU under several rules and compare them (2 minutes)"

PARALLEL_RUNS = 2


@dataclass
class DemoArguments:
    """
    Options of `trl-dara demo`.

    Args:
        rules (`list[str]`, *optional*, defaults to `["dara_asym", "dara_sym", "gdpo"]`):
            Aggregation rules to compare.
        seeds (`list[int]`, *optional*, defaults to `[0]`):
            Seeds; each rule is run with each, on the same prompts.
        steps (`int`, *optional*, defaults to `60`):
            Optimiser steps per run.
        num_generations (`int`, *optional*, defaults to `4`):
            Completions per prompt.
        prompts (`int`, *optional*, defaults to `64`):
            Prompts per step.
        learning_rate (`float`, *optional*, defaults to `1.5e-4`):
            Learning rate, constant.
        output_dir (`str`, *optional*, defaults to `"outputs/demo"`):
            Folder for the logs and the figure. Finished runs found there are not run again, and runs of other settings
            are not replaced.
    """

    rules: list[str] = field(
        default_factory=lambda: ["dara_asym", "dara_sym", "gdpo"],
        metadata={"help": "Aggregation rules to compare."},
    )
    seeds: list[int] = field(
        default_factory=lambda: [0],
        metadata={"help": "Seeds; each rule is run with each, on the same prompts."},
    )
    steps: int = field(default=60, metadata={"help": "Optimiser steps per run."})
    num_generations: int = field(default=4, metadata={"help": "Completions per prompt."})
    prompts: int = field(default=64, metadata={"help": "Prompts per step."})
    learning_rate: float = field(default=1.5e-4, metadata={"help": "Learning rate, constant."})
    output_dir: str = field(
        default="outputs/demo",
        metadata={"help": "Folder for the logs and the figure. Finished runs found there are not run again."},
    )

    def __post_init__(self):
        if not (self.rules and self.seeds):
            raise ValueError("`rules` and `seeds` must not be empty. Pass at least one of each.")
        for name, least in (("steps", 1), ("prompts", 1), ("num_generations", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"`{name}` is {getattr(self, name)}. Pass an integer of at least {least}.")


def run(argv: list[str]) -> int:
    """
    Run the demo.

    Args:
        argv (`list[str]`):
            Options of [`DemoArguments`].

    Returns:
        `int`: Exit code: 0, 1 if a run failed, or 130 if interrupted. Impossible options end the program with code 2.
    """
    parser = TrlParser(DemoArguments, prog="trl-dara demo", description=__doc__)
    try:
        (arguments,) = parser.parse_args_and_config(argv)
        runs = make_runs(arguments)
        check_logs(runs, Path(arguments.output_dir))
    except ValueError as error:
        parser.error(str(error))
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the children too, like Ctrl-C
    try:
        train_and_report(runs, Path(arguments.output_dir), console)
    except RuntimeError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped. Finished runs are kept: the same command goes on from there.")
        return 130
    return 0


def make_runs(arguments: DemoArguments) -> list:
    """
    The runs of a demo: seed by seed, each rule once.

    Args:
        arguments ([`DemoArguments`]):
            Options.

    Returns:
        `list[Run]`

    Raises:
        `ValueError`: For a rule that does not exist or needs arguments.
    """
    from trl_dara.aggregation import get_aggregation
    from trl_dara.demo.runs import REWARD_BOUNDS, Run

    for rule in arguments.rules:
        get_aggregation(rule)
    return [
        Run(
            name=f"{rule}-seed{seed}",
            rule=rule,
            seed=seed,
            steps=arguments.steps,
            prompts=arguments.prompts,
            num_generations=arguments.num_generations,
            learning_rate=arguments.learning_rate,
            reward_bounds=REWARD_BOUNDS,
        )
        for seed in dict.fromkeys(arguments.seeds)
        for rule in dict.fromkeys(arguments.rules)
    ]


def check_logs(runs: list, output_dir: Path) -> None:
    """
    Check that no log of other settings would be replaced.

    Args:
        runs (`list[Run]`):
            The runs.
        output_dir (`Path`):
            Folder of the logs.

    Raises:
        `ValueError`: If there is such a log.
    """
    differing = {run.name: names for run in runs if (names := run.other_settings(output_dir))}
    if differing:
        settings = dict.fromkeys(name for names in differing.values() for name in names)
        raise ValueError(
            f"`output_dir` {str(output_dir)!r} has logs that were made with other settings ({', '.join(settings)}): "
            f"{', '.join(differing)}. They are not replaced: pass another `--output_dir`, or the settings of the logs."
        )


def train_and_report(runs: list, output_dir: Path, console: Console) -> None:
    """
    Train what is not finished, then print the table and save the figure.

    Args:
        runs (`list[Run]`):
            The runs.
        output_dir (`Path`):
            Folder of the logs and the figure.
        console (`Console`):
            Where to show progress and the table.
    """
    from trl_dara.demo.progress import Progress
    from trl_dara.demo.report import save_figure, summary_table
    from trl_dara.demo.runs import run_all

    finished = [run.name for run in runs if run.is_finished(output_dir)]
    if finished:
        console.print(f"Finished before and not run again: {', '.join(finished)}. A new `--output_dir` starts afresh.")
    console.print(
        f"Training a 91k-parameter transformer to call tools, {len(runs) - len(finished)} runs of {runs[0].steps} steps "
        f"with {runs[0].prompts} prompts x {runs[0].num_generations} completions. Correctness is in [-3, 3], format 0 or 1."
    )
    with Progress(runs, output_dir, console) as progress:
        run_all(runs, output_dir, min(PARALLEL_RUNS, os.cpu_count() or 1), lambda left: progress.refresh())
    histories = {run.name: run.history(output_dir) for run in runs}
    console.print(summary_table(runs, histories))
    save_figure(runs, histories, output_dir / "demo.png")
    files = f"Figure: {output_dir / 'demo.png'}   Logs: {output_dir}/*.jsonl"
    console.print(files, markup=False, soft_wrap=True)
