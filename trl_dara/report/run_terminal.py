"""Runs side by side in the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .terminal import STYLES


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
            console.print(_table(table))
        for note in table["notes"]:
            console.print(note, style="dim", markup=False, highlight=False)
    for finding in summary["findings"]:
        console.print(f"• {finding}", markup=False, highlight=False)


def _titles(runs: list[dict]) -> str:
    if len({run["progress"] for run in runs}) == 1:
        return f"{', '.join(run['title'] for run in runs)}: {runs[0]['progress']}"
    return ", ".join(f"{run['title']}: {run['progress']}" for run in runs)


def _table(table: dict) -> Table:
    shown = Table()
    shown.add_column(Text(table["channel"], overflow="fold"))
    for group in table["groups"]:
        shown.add_column(Text(group["label"], overflow="fold"), justify="right")
    for row in table["rows"]:
        shown.add_row(Text(row["measure"]), *(Text(cell["text"].replace(" [", "\n[")) for cell in row["cells"]))
    return shown
