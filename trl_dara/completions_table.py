"""The completions table: the rows that TRL collects in `_logs` and writes to `output_dir/completions`."""

import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def empty_rows(size: int) -> dict:
    """
    Row store with the structure of TRL's own. TRL keeps one for both modes; with a second one, rows of evaluation do not
    appear in the table of training.
    """
    return {
        "images": deque(maxlen=size),
        "prompt": deque(maxlen=size),
        "completion": deque(maxlen=size),
        "rewards": defaultdict(lambda: deque(maxlen=size)),
        "advantages": deque(maxlen=size),
        "extra": defaultdict(lambda: deque(maxlen=size)),
    }


def replace_last(column: deque, values: list) -> None:
    """
    Replace the last entries of a column by as many values. TRL has already added the advantages that it computed itself,
    which are not those that are trained on (see huggingface/trl#7298).
    """
    for _ in range(min(len(values), len(column))):
        column.pop()
    column.extend(values)


@contextmanager
def evaluation_table(output_dir: str, step: int, rows: dict) -> Iterator[None]:
    """
    Let TRL write a table of evaluation without losing that of training: both have the name
    `completions_{step}.parquet`. The one written inside this context ends up as `eval_completions_{step}.parquet`, and
    its rows are forgotten, so that the table of the next data set does not repeat them.
    """
    table = Path(output_dir) / "completions" / f"completions_{step:05d}.parquet"
    aside = table.with_suffix(".parquet.train")
    if table.exists():
        os.replace(table, aside)
    try:
        yield
        os.replace(table, _unused(f"eval_{table.stem}", table.parent))
        for column in rows.values():
            column.clear()
    finally:
        if aside.exists():
            os.replace(aside, table)


def _unused(stem: str, folder: Path) -> Path:
    """Several evaluation data sets are evaluated at one step: number their tables."""
    numbered: Iterable[str] = (stem if number == 1 else f"{stem}_{number}" for number in range(1, 10_000))
    return next(path for name in numbered if not (path := folder / f"{name}.parquet").exists())
