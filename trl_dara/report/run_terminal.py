"""Runs side by side in the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .terminal import STYLES, split_columns


MEASURE_WIDTH = 26  # of the first column


def print_runs(summary: dict, console: Console) -> None:
    """
    Print verdicts and tables.

    Args:
        summary (`dict`):
            From [`summarize_runs`].
        console (`Console`):
            Where to print.
    """
    for group in summary["groups"]:
        titles = _titles(group["runs"])
        console.print(f"\n[bold]{escape(group['label'])}[/bold]  {escape(titles)}", highlight=False)
        verdicts = Table.grid(padding=(0, 2))
        for channel in group["channels"]:
            name = Text(channel["name"], style=STYLES.get(channel["verdict"], ""), overflow="fold")
            verdicts.add_row(name, Text("\n".join([channel["sentence"], *channel["others"]])))
        console.print(verdicts)
        for finding in group["findings"]:
            console.print(f"• {finding}", markup=False, highlight=False)
        for run in group["runs"]:
            for note in run["notes"]:
                console.print(f"{run['name']}: {note}", style="dim", markup=False, highlight=False)
    for table in summary["tables"]:
        console.print()
        if table["rows"]:
            shown = [[_shown(cell) for cell in row["cells"]] for row in table["rows"]]
            widest = max(len(line) for cells in shown for cell in cells for line in cell.splitlines())
            for columns in split_columns(range(len(table["groups"])), widest, console.width - MEASURE_WIDTH - 4):
                console.print(_table(table, shown, columns))
        for note in table["notes"]:
            console.print(note, style="dim", markup=False, highlight=False)
    console.print(summary["scope"], style="dim", markup=False, highlight=False)
    for finding in summary["findings"]:
        console.print(f"• {finding}", markup=False, highlight=False)


def _titles(runs: list[dict]) -> str:
    if len({run["progress"] for run in runs}) == 1:
        return f"{', '.join(run['title'] for run in runs)}: {runs[0]['progress']}"
    return ", ".join(f"{run['title']}: {run['progress']}" for run in runs)


def _shown(cell: dict) -> str:
    """An interval has a line of its own; so has every run, where some are not confirmed."""
    text = cell["text"].replace(" [", "\n[")
    return f"{text}\n{cell['each']}" if "?" in cell["each"] else text


def _table(table: dict, shown: list[list[str]], columns: Sequence[int]) -> Table:
    printed = Table()
    printed.add_column(Text(table["channel"], overflow="fold"), width=MEASURE_WIDTH)
    for column in columns:
        printed.add_column(Text(table["groups"][column]["label"], overflow="fold"), justify="right")
    for row, cells in zip(table["rows"], shown, strict=True):
        printed.add_row(Text(row["measure"]), *(Text(cells[column]) for column in columns))
    return printed
