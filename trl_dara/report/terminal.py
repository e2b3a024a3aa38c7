"""A summary in the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .html import show_number, show_percent


STYLES = {"active": "green", "starved": "yellow", "drowned": "yellow", "silent": "red"}
SHARE_WIDTH = 7  # "< 0.1 %"
OTHER_WIDTH = 33  # of the columns beside the shares


def print_summary(run: dict, console: Console) -> None:
    """
    Print a verdict for each channel, and a table of the rules.

    Args:
        run (`dict`):
            A run, as [`summarize`] describes it.
        console (`Console`):
            Where to print.
    """
    steps, groups = (
        f"{n:,} {name}" + "s" * (n != 1) for n, name in ((run["num_steps"], "step"), (run["groups"], "group"))
    )
    console.print(
        f"\n[bold]{escape(run['name'])}[/bold]  {run['completions']:,} completions, {groups} of "
        f"{run['num_generations']}, {steps}"
    )
    verdicts = Table.grid(padding=(0, 2))
    for channel in run["channels"]:
        verdicts.add_row(Text(channel["name"], style=STYLES.get(channel["verdict"], "")), Text(channel["sentence"]))
    console.print(verdicts)
    for finding in run["findings"]:
        console.print(f"• {finding}", markup=False, highlight=False)
    console.print(_channels_table(run))
    for channels in split_columns(run["channels"], SHARE_WIDTH, console.width - OTHER_WIDTH):
        console.print(_rules_table(run, channels))
    for reason in run["rules_left_out"]:
        console.print(f"Not replayed: {reason}", style="dim", markup=False, highlight=False)
    for note in run["notes"]:
        console.print(note, style="dim", markup=False, highlight=False)
    for reason in run["left_out"]:
        console.print(f"Left out: {reason}", style="yellow", markup=False, highlight=False)


def split_columns(columns: Sequence, width: int, room: int) -> list[Sequence]:
    """
    Split columns over as many tables as they need.

    Args:
        columns (`Sequence`):
            What each column shows.
        width (`int`):
            Characters of its widest cell.
        room (`int`):
            Characters that a table has for these columns.

    Returns:
        `list[Sequence]`: the columns of each table, at least one.
    """
    count = max(1, room // (width + 3))  # with the line and the space on both sides
    return [columns[start : start + count] for start in range(0, len(columns), count)]


def _channels_table(run: dict) -> Table:
    table = Table(
        caption="Mean reward in the first → last quarter of the steps; shares of groups; energy per completion"
    )
    table.add_column("channel", overflow="fold")
    for column in ("mean", "density", "too\nhard", "too\neasy", "energy", "dara_asym\nweight"):
        table.add_column(column, justify="right", no_wrap=True)
    (dara,) = [rule for rule in run["rules"] if rule["rule"] == "dara_asym"]
    for channel in run["channels"]:
        name = channel["name"]
        table.add_row(
            Text(name),
            f"{show_number(channel['mean_first_quarter'])} → {show_number(channel['mean_last_quarter'])}",
            *(show_percent(channel[metric]) for metric in ("density", "dead_low", "dead_high")),
            show_number(channel["energy"]),
            show_number(dara["weight"][name]),
        )
    return table


def _rules_table(run: dict, channels: Sequence[dict]) -> Table:
    table = Table(
        caption="Share of each channel in the advantages; completions that collide; spread of the advantages"
    )
    table.add_column("rule", no_wrap=True)
    for channel in channels:
        table.add_column(Text(channel["name"]), justify="right", overflow="fold", min_width=SHARE_WIDTH)
    for column in ("collide", "std"):
        table.add_column(column, justify="right", no_wrap=True)
    for rule in run["rules"]:
        shares = (show_percent(rule["share"][channel["name"]]) for channel in channels)
        table.add_row(rule["rule"], *shares, show_percent(rule["collisions"]), show_number(rule["advantage_std"]))
    return table
