"""`trl-dara replay`: what every aggregation rule would have made of recorded rewards."""

import argparse
import json
import sys
from pathlib import Path


HELP = "show what each reward did in a recorded run, and what every rule would have made of it"

DESCRIPTION = """\
Read the tables of completions that TRL writes (`log_completions: true`), or any parquet, CSV or JSON lines file with
one column per reward, and recompute what every aggregation rule would have done: share of the signal, density,
weights, dead groups, collisions and conflicts of each reward. Needs no model, no GPU, and works for runs of plain TRL.

A folder, or tables of TRL in one folder, are one run; any other file is a run of its own.
"""


def run(argv: list[str]) -> int:
    """
    Replay recorded rewards.

    Args:
        argv (`list[str]`):
            Options, see `trl-dara replay --help`.

    Returns:
        `int`: exit code 0, or 1 when no run could be read or a file not be written. Impossible options end the program with code 2.
    """
    parser = make_parser()
    options = parser.parse_args(argv)

    from rich.console import Console

    from trl_dara.report.reading import find_runs

    console, errors = Console(), Console(file=sys.stderr, soft_wrap=True)
    try:
        files_of = find_runs(options.completions)
    except ValueError as error:
        parser.error(str(error))
    summaries, unread = [], []
    for name, files in files_of.items():
        try:
            summaries.append(_replay(name, files, options, errors))
        except ValueError as error:
            unread.append(f"{name}: {error}")
            errors.print(unread[-1], style="red", markup=False, highlight=False)
    if not summaries:
        return 1

    from trl_dara.report.terminal import print_summary

    for summary, _ in summaries:
        print_summary(summary, console)
    try:
        _write(summaries, unread, options, console)
    except OSError as error:
        errors.print(
            f"Cannot write {(error.filename2 or error.filename)!r}: {error.strerror}.",
            style="red",
            markup=False,
            highlight=False,
        )
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """
    Make the parser of the options.

    Returns:
        `argparse.ArgumentParser`
    """
    parser = argparse.ArgumentParser(
        prog="trl-dara replay",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def option(name: str, **settings) -> None:
        underscored = f"--{name.removeprefix('--').replace('-', '_')}"  # as in the other commands
        parser.add_argument(*dict.fromkeys((name, underscored)), **settings)

    parser.add_argument("completions", nargs="+", metavar="COMPLETIONS", help="files, or folders such as `output_dir`")
    option("--num-generations", type=group_size, help="completions per group; by default the most frequent size")
    option(
        "--reward-weights",
        nargs="+",
        type=weight,
        metavar="WEIGHT",
        help="one weight per reward in the order of the columns, or JSON by name: '{\"format\": 0.5}'; 1 by default",
    )
    option(
        "--reward-bounds",
        type=json_mapping,
        metavar="JSON",
        help="lowest and highest reward by name: '{\"format\": [0, 1]}'",
    )
    option(
        "--reward-columns", nargs="+", metavar="COLUMN", help="columns that are rewards; by default all numeric ones"
    )
    option("--group-column", help="rows of a step with one value in this column are a group")
    option("--json", type=Path, metavar="FILE", help="write everything, step by step, as JSON")
    option("--html", type=Path, metavar="FILE", help="write a page with plots that needs no other file")
    return parser


# argparse says "invalid weight value": these names are read by users


def group_size(text: str) -> int:
    size = int(text)
    if size < 2:
        raise argparse.ArgumentTypeError(f"{size} completions cannot be compared with each other. Pass at least 2.")
    return size


def weight(text: str) -> float | dict:
    return json_mapping(text) if text.lstrip().startswith("{") else float(text)


def json_mapping(text: str) -> dict:
    """Type of an option that is a mapping by name."""
    try:
        mapping = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from None
    if not isinstance(mapping, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no mapping by name, such as '{{\"format\": [0, 1]}}'")
    return mapping


def _replay(name: str, files: list[Path], options: argparse.Namespace, errors) -> tuple[dict, object]:
    from rich.progress import Progress

    from trl_dara.report.recording import read_recording
    from trl_dara.report.replay import replay
    from trl_dara.report.summary import summarize

    recording = read_recording(name, files, options.reward_columns, options.group_column, options.num_generations)
    weights = _weights(options.reward_weights, recording.channels)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task(name, total=len(recording.batches))
        replayed = replay(recording, weights, options.reward_bounds, on_step=lambda: progress.advance(task))
    return summarize(replayed), replayed


def _weights(given: list | None, channels: list[str]) -> list[float]:
    from trl_dara.by_name import by_channel, check_weights

    if given is None:
        return [1.0] * len(channels)
    if any(isinstance(weight, dict) for weight in given):
        if len(given) > 1:
            raise ValueError(
                "`--reward-weights` has more than one mapping by name. Pass one, or one number per reward."
            )
        weights = by_channel(given[0], channels, 1.0, "--reward-weights")
    else:
        weights = given
    if len(weights) != len(channels):
        raise ValueError(
            f"`--reward-weights` has {len(weights)} numbers, but the rewards are {channels}. Pass one for each."
        )
    check_weights(weights, channels)
    return weights


def _write(summaries: list[tuple], unread: list[str], options: argparse.Namespace, console) -> None:
    from trl_dara.evaluation.records import replace_file

    if options.json:
        runs = [summary for summary, _ in summaries]
        replace_file(options.json, json.dumps({"runs": runs, "unread": unread}, allow_nan=False) + "\n")
        console.print(f"JSON: {options.json}", soft_wrap=True, markup=False)
    if options.html:
        from trl_dara.report.examples import example_groups
        from trl_dara.report.html import render
        from trl_dara.report.replay_plots import replay_plots

        runs = [
            summary | {"plots": replay_plots(replayed), "examples": example_groups(replayed)}
            for summary, replayed in summaries
        ]
        replace_file(options.html, render("replay.html.jinja", runs=runs, unread=unread))
        console.print(f"Page: {options.html}", soft_wrap=True, markup=False)
