"""
Results that survive a kill: records in JSONL files that only grow, and files that are replaced in one step.

A process that is killed while it appends leaves at most a last line without its end. Such a line is never read, and it
is removed before anything else is appended. Only one process may append: see [`only_writer`].
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


def iterate_records(path: str | Path) -> Iterator[dict]:
    """
    Read the complete records of a file one by one: a file of samples may be larger than the memory.

    Args:
        path (`str` or `Path`):
            A JSONL file.

    Yields:
        `dict`: the records in the order in which they were written; none where there is no file.

    Raises:
        `ValueError`: for a complete line that is no JSON object.
    """
    path = Path(path)
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield _parse(line, path, number)


def read_records(path: str | Path) -> list[dict]:
    """
    Read the complete records of a file, see [`iterate_records`].

    Args:
        path (`str` or `Path`):
            A JSONL file.

    Returns:
        `list[dict]`
    """
    return list(iterate_records(path))


def append_records(path: str | Path, records: list[dict]) -> None:
    """
    Append records, and return when they are on the disk.

    Args:
        path (`str` or `Path`):
            A JSONL file; it and its folder are made where they do not exist.
        records (`list[dict]`):
            What to append.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        _drop_torn_line(file)
        file.write("".join(json.dumps(record) + "\n" for record in records).encode())
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: str | Path, text: str) -> None:
    """
    Write a file such that, whenever the process is killed, there is either the old or the new one.

    Args:
        path (`str` or `Path`):
            The file; its folder is made where it does not exist.
        text (`str`):
            The new content.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


@contextmanager
def only_writer(folder: str | Path) -> Iterator[None]:
    """
    Keep other processes from appending to the records of a folder: each would do the work of the other, and cut off lines
    that the other is writing. A process that is killed stands in nobody's way.

    Args:
        folder (`str` or `Path`):
            The folder; it is made where it does not exist, and has a file `.lock` afterwards.

    Raises:
        `ValueError`: when another process is in it.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(Path(folder) / ".lock").acquire(timeout=0)
    except Timeout:
        raise ValueError(f"Another process is writing to {folder}. Wait for its end, or use another folder.") from None
    with lock:
        yield


def read_settings(path: str | Path) -> dict:
    """
    Read the settings of a folder's records.

    Args:
        path (`str` or `Path`):
            A JSON file written by [`keep_settings`].

    Returns:
        `dict`

    Raises:
        `OSError`: when there is none.
        `ValueError`: when it is damaged.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}. Repair it, or use another folder.") from None


def check_settings(path: str | Path, settings: dict) -> None:
    """
    Check that a folder's records, if there are any, were made with the same settings.

    Args:
        path (`str` or `Path`):
            A JSON file written by [`keep_settings`], or none yet.
        settings (`dict`):
            Everything that a record depends on; JSON values, and dictionaries of them.

    Raises:
        `ValueError`: when the file has other settings. The message names each that differs, with both values.
    """
    path = Path(path)
    if not path.exists():
        return
    before = _flat(read_settings(path))
    now = _flat(json.loads(json.dumps(settings)))
    differing = [
        f"`{name}` was {before.get(name)!r} and is now {now.get(name)!r}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]
    if differing:
        raise ValueError(
            f"{path.parent} has results of other settings: {'; '.join(differing)}. Pass the settings of before to go on "
            "there, or another folder."
        )


def keep_settings(path: str | Path, settings: dict) -> None:
    """
    Write down the settings that a folder's records are made with, or check that they are the same as before.

    Args:
        path (`str` or `Path`):
            A JSON file.
        settings (`dict`):
            As for [`check_settings`].

    Raises:
        `ValueError`: as [`check_settings`].
    """
    check_settings(path, settings)
    if not Path(path).exists():
        replace_file(path, json.dumps(settings, indent=2) + "\n")


def _parse(line: bytes, path: Path, number: int) -> dict:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}, line {number} is no JSON: {error}. Remove the line to go on without it.") from None
    if not isinstance(record, dict):
        raise ValueError(f"{path}, line {number} is no JSON object. Remove the line to go on without it.")
    return record


def _drop_torn_line(file) -> None:
    """Cut a file, open for reading and appending, behind its last line end."""
    end = size = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        line_end = file.read(end - start).rfind(b"\n")
        if line_end >= 0:
            end = start + line_end + 1
            break
        end = start
    if end < size:
        file.truncate(end)


def _flat(settings: dict, prefix: str = "") -> dict:
    flat = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
