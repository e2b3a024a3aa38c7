"""Finding and reading tables of completions: parquet as TRL writes it, CSV and JSON lines."""

import os
import re
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pyarrow.parquet


SUFFIXES = (".parquet", ".csv", ".jsonl")
_TRL_TABLE = re.compile(r"completions_\d+\.parquet")
_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+")  # row numbers that pandas has written
_EVALUATION_PREFIX = "eval_completions_"  # this library's name for tables of evaluation


def find_runs(paths: list[str]) -> dict[str, list[Path]]:
    """
    Find the tables of each run.

    Tables of TRL, `completions_{step}.parquet`, that lie in one folder are one run. A folder that has other tables is
    one run too; one without tables is searched for runs. Any other file is a run of its own.

    Args:
        paths (`list[str]`):
            Files and folders.

    Returns:
        `dict[str, list[Path]]`: the files of each run, by a name that tells the runs apart.

    Raises:
        `ValueError`: for a path that does not exist or cannot be read, a folder without tables, or a file of another kind.
    """
    files_of = defaultdict(list)
    for given in paths:
        path = Path(os.path.abspath(given))  # one folder has one name
        try:
            found = _tables_below(path) if path.is_dir() else [path]
            exists = path.exists()
        except OSError as error:
            raise ValueError(f"{given!r} cannot be read: {error.strerror}.") from None
        if not exists:
            raise ValueError(f"{given!r} does not exist. Pass a table of completions, or a folder that holds some.")
        if not found:
            raise ValueError(
                f"The folder {given!r} holds no tables ({', '.join(SUFFIXES)}). TRL writes them to "
                "`output_dir/completions` when `log_completions` is on."
            )
        for file in found:
            if file.suffix not in SUFFIXES:
                raise ValueError(f"{given!r} is no table of completions. Pass one of {', '.join(SUFFIXES)}.")
            together = path.is_dir() or _TRL_TABLE.fullmatch(file.name)
            run = file.parent if together else file
            if file not in files_of[run]:
                files_of[run].append(file)
    return _named(files_of)


def is_evaluation(path: Path) -> bool:
    """Whether a file is a table of evaluation, by the name that this library gives to those."""
    return path.name.startswith(_EVALUATION_PREFIX)


def read_table(path: Path) -> pd.DataFrame:
    """
    Read one file.

    Args:
        path (`Path`):
            A parquet, CSV (with commas, semicolons or tabs) or JSON lines file.

    Returns:
        `pd.DataFrame` with at least one row.

    Raises:
        `ValueError`: with one line that says what is wrong with the file.
    """
    try:
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path).to_pandas(ignore_metadata=True)
        elif path.suffix == ".csv":
            table = pd.read_csv(path, sep=_separator(path))
        else:  # texts stay texts, whatever they look like
            table = pd.read_json(path, lines=True, dtype=False, convert_dates=False)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot be read ({reason[:160]})") from error
    if not len(table):
        raise ValueError("has no rows")
    table.columns = table.columns.map(str)
    table = table.drop(columns=[column for column in table.columns if _INDEX.fullmatch(column)])
    if not table.columns.is_unique:
        raise ValueError(f"has columns of one name: {sorted(table.columns[table.columns.duplicated()])}")
    return _with_numbers(table)


def _with_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Columns of decimal numbers, and of truth values of which some are missing, become numbers."""
    kinds = {column: pd.api.types.infer_dtype(table[column], skipna=True) for column in table.columns}
    return table.astype({column: float for column, kind in kinds.items() if kind in ("boolean", "decimal")})


def _separator(path: Path) -> str:
    """What separates the columns of a CSV file: the comma, or what its first line has more of."""
    with open(path, encoding="utf-8-sig") as file:
        header = file.readline()
    return max(",;\t", key=header.count)


def _tables_below(folder: Path) -> list[Path]:
    if (folder / "completions").is_dir():
        folder = folder / "completions"
    tables = [path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file()]
    if not tables:
        tables = [path for path in folder.rglob("*.parquet") if _TRL_TABLE.fullmatch(path.name)]
    training = [path for path in tables if not is_evaluation(path)]
    return sorted(training or tables, key=_natural)


def _natural(path: Path) -> list:
    """Sort key by which `2.jsonl` comes before `10.jsonl`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path))]


def _named(files_of: dict[Path, list[Path]]) -> dict[str, list[Path]]:
    """Name each run by its file or folder, leaving out TRL's `completions`; by the path where names clash."""
    short = {run: run.parent if run.name == "completions" else run for run in files_of}
    names = {run: path.name if path.is_dir() else path.stem for run, path in short.items()}
    if len(set(names.values())) < len(names):
        names = {run: os.path.relpath(path) for run, path in short.items()}
    return dict(zip(names.values(), files_of.values(), strict=True))
