"""What commands show while they work: a bar that moves on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


PLAIN_INTERVAL = 30  # seconds between two lines where the output is not a terminal


@contextmanager
def progress(console: Console, name: str, done: int, total: int) -> Iterator:
    """
    Show how far some work is.

    Args:
        console (`Console`):
            Where to show it.
        name (`str`):
            What is being worked on.
        done (`int`):
            Steps that were done before.
        total (`int`):
            Steps in all.

    Yields:
        `Callable[[int], None]`: to be called with the number of steps that are done now.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
    task = bar.add_task(name, completed=done, total=total)
    said = time.monotonic() - PLAIN_INTERVAL  # the first call says something

    def advance(steps: int) -> None:
        nonlocal done, said
        done += steps
        bar.advance(task, steps)
        if not console.is_terminal and (done == total or time.monotonic() >= said + PLAIN_INTERVAL):
            said = time.monotonic()
            console.print(f"{name}: {done:,} of {total:,}", highlight=False)

    with bar:
        yield advance
