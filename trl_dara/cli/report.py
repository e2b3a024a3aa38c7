"""`trl-dara report`: training runs side by side, by rule and over seeds."""

import argparse
import os
import sys
from pathlib import Path

from trl_dara.cli.replay import json_mapping


HELP = "compare runs: curves, steps to thresholds, and a verdict on each reward, over rules and seeds"

DESCRIPTION = """\
Read the logs of runs of MultiRewardGRPOTrainer and put them side by side: runs of one rule that differ in their seed only
are one curve, with median and interquartile range. A run is the folder it was trained in (`output_dir`; the last complete
checkpoint is read), a log of `trl-dara demo` (.jsonl), or a CSV file with the columns `step` and `train_NAME` for each reward,
perhaps `pi_NAME` (density) and `w_NAME` (weight). Runs that are going on, or were resumed, will do.
"""


def run(argv: list[str]) -> int:
    """
    Report on runs.

    Args:
        argv (`list[str]`):
            Options, see `trl-dara report --help`.

    Returns:
        `int`: exit code 0, or 1 when no run could be read or nothing be written. Impossible options end the program with code 2.
    """
    parser = make_parser()
    options = parser.parse_args(argv)

    from rich.console import Console

    from trl_dara.by_name import check_bounds
    from trl_dara.report.run_groups import group_runs
    from trl_dara.report.run_summary import summarize_runs
    from trl_dara.report.run_tables import markdown
    from trl_dara.report.run_terminal import print_runs
    from trl_dara.report.runs import name_runs, read_run

    console, errors = Console(), Console(file=sys.stderr, soft_wrap=True)
    path_of = name_runs(options.runs)
    try:
        labels = _labels(options, path_of)
    except ValueError as error:
        parser.error(str(error))
    runs, unread = [], []
    for name, path in path_of.items():
        try:
            runs.append(read_run(path, name))
        except (ValueError, OSError) as error:
            unread.append(str(error))
            errors.print(f"Left out: {error}", style="red", markup=False, highlight=False)
    if not runs:
        return 1
    channels = list(dict.fromkeys(channel for run in runs for channel in run.channels))
    try:
        check_bounds(options.reward_bounds, channels)
    except ValueError as error:
        parser.error(str(error))
    groups = group_runs(runs, labels)
    summary = summarize_runs(groups, options.reward_bounds)
    if options.format == "md":
        console.file.write(markdown(summary))
    else:
        print_runs(summary, console)
    if options.output_dir:
        try:
            _write(groups, summary, unread, options, errors)
        except OSError as error:
            errors.print(f"Cannot write the report: {error}.", style="red", markup=False, highlight=False)
            return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """
    Make the parser of the options.

    Returns:
        `argparse.ArgumentParser`
    """
    parser = argparse.ArgumentParser(
        prog="trl-dara report",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs (`output_dir`), or logs")
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="RUN=NAME",
        help="put a run under this name instead of its rule; runs with one name are one curve; may be repeated",
    )
    parser.add_argument(
        "--reward-bounds",
        "--reward_bounds",
        type=json_mapping,
        default={},
        metavar="JSON",
        help="lowest and highest reward by name, where the run was made without: '{\"correctness\": [-3, 3]}'",
    )
    parser.add_argument(
        "--output-dir",
        "--output_dir",
        type=Path,
        metavar="DIR",
        help="write the plots as PNG, and report.html, which needs no other file",
    )
    parser.add_argument(
        "--format", choices=["text", "md"], default="text", help="md prints the tables as Markdown, and nothing else"
    )
    return parser


def _labels(options: argparse.Namespace, path_of: dict[str, Path]) -> dict[str, str]:
    """Labels by the name of the run; `RUN` is that name, or the path as it was given."""
    name_of = {path: name for name, path in path_of.items()}
    known = {name: name for name in path_of} | {given: name_of[Path(os.path.abspath(given))] for given in options.runs}
    labels = {}
    for text in options.label:
        run = max((run for run in known if text.startswith(f"{run}=")), key=len, default=None)
        if run is None or text == f"{run}=":
            raise ValueError(f"`--label` got {text!r}. Pass RUN=NAME, where RUN is one of {list(path_of)}.")
        labels[known[run]] = text.removeprefix(f"{run}=")
    return labels


def _write(groups: list, summary: dict, unread: list[str], options: argparse.Namespace, console) -> None:
    from trl_dara.evaluation.records import replace_file
    from trl_dara.report.html import render
    from trl_dara.report.run_figures import page_figures, run_figures, save_png

    figures = run_figures(groups, options.reward_bounds)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        save_png(figure, options.output_dir / f"{figure.name}.png")
    page = render("runs.html.jinja", **summary, figures=page_figures(figures), unread=unread)
    replace_file(options.output_dir / "report.html", page)
    plots = "1 plot" if len(figures) == 1 else f"{len(figures)} plots"
    console.print(f"Page and {plots}: {options.output_dir}", markup=False, highlight=False)
