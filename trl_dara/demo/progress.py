"""What the demo shows while its runs go on."""

from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from trl_dara.demo.runs import CHANNELS, Run, channel_series


PLAIN_INTERVAL = 10  # steps between two lines of one run where the output is not a terminal


class Progress:
    """
    Follows the logs of all runs: one table that changes in place on a terminal, plain lines elsewhere.

    Args:
        runs (`list[Run]`):
            The runs to show.
        output_dir (`Path`):
            Folder of their logs.
        console (`Console`):
            Where to show them.
    """

    def __init__(self, runs: list[Run], output_dir: Path, console: Console):
        self.runs = runs
        self.output_dir = output_dir
        self.console = console
        self.live = Live(console=console, auto_refresh=False)
        self.reported = {run.name: len(run.history(output_dir)) for run in runs}

    def __enter__(self):
        if self.console.is_terminal:
            self.live.start()
            self.refresh()
        return self

    def __exit__(self, *exception):
        self.live.stop()

    def refresh(self) -> None:
        """Read the logs and show what is new."""
        histories = {run.name: run.history(self.output_dir) for run in self.runs}
        if self.console.is_terminal:
            self.live.update(progress_table(self.runs, histories), refresh=True)
            return
        for run in self.runs:
            history = histories[run.name]
            due = len(history) >= self.reported[run.name] + PLAIN_INTERVAL or len(history) == run.steps
            if due and len(history) > self.reported[run.name]:
                self.reported[run.name] = len(history)
                self.console.print(progress_line(run, history), soft_wrap=True, highlight=False)


def progress_table(runs: list[Run], histories: dict[str, list[dict]]) -> Table:
    """
    A bar for each run and, for each channel, its latest mean reward, density and weight.

    Args:
        runs (`list[Run]`):
            The runs to show.
        histories (`dict[str, list[dict]]`):
            Metrics of each step so far, by the runs' names.

    Returns:
        `Table`
    """
    table = Table("run", "step", "", "channel", box=None, header_style="bold")
    for column in ("reward", "density", "weight"):
        table.add_column(column, justify="right")
    for run in runs:
        history = histories[run.name]
        first = [run.name, f"{len(history)}/{run.steps}", ProgressBar(run.steps, len(history), width=16)]
        for channel in CHANNELS:
            table.add_row(*first, channel, *_latest(history, channel))
            first = ["", "", ""]
    return table


def progress_line(run: Run, history: list[dict]) -> str:
    """The same on one line, for one run that has at least one step."""
    channels = []
    for channel in CHANNELS:
        reward, density, weight = _latest(history, channel)
        channels.append(f"{channel} {reward} (density {density}, weight {weight})")
    return f"{run.name} step {len(history)}/{run.steps}: {', '.join(channels)}"


def _latest(history: list[dict], channel: str) -> list[str]:
    if not history:
        return ["", "", ""]
    return [f"{channel_series(history, metric, channel)[-1]:.2f}" for metric in ("reward", "density", "weight")]
