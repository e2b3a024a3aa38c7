"""
The folder of one evaluation. Every stage finds in it what the one before has left, and what it has done itself:

- `settings.json`: what the answers depend on;
- `raw/{category}.jsonl`: the model's answers, a case a line;
- `scores/{category}.jsonl`: their scores;
- `summary.json` and `cases.csv`: the result, and the scores of all cases in one table.
"""

import csv
import io
import json
from pathlib import Path

from trl_dara.evaluation.bfcl.aggregate import aggregate
from trl_dara.evaluation.bfcl.benchmark import CASES, COMMIT, VERSION, category_of
from trl_dara.evaluation.bfcl.client import BFCL
from trl_dara.evaluation.bfcl.score import METRICS, digest
from trl_dara.evaluation.records import append_records, read_records, replace_file


# What every answer depends on, beside the model and the sampling
PROTOCOL = {"benchmark": "BFCL-v4", "bfcl_eval": VERSION, "gorilla_commit": COMMIT, "prompt": "ToolRL"}


def cases_to_generate(folder: Path, bfcl: BFCL, categories: list[str], limit: int | None = None) -> list[dict]:
    """
    The cases that have no answer yet.

    Args:
        folder (`Path`):
            The folder.
        bfcl ([`BFCL`]):
            Provides the cases.
        categories (`list[str]`):
            Categories to generate.
        limit (`int`, *optional*):
            Only the first so many cases of each category.

    Returns:
        `list[dict]`
    """
    cases = []
    for category in categories:
        done = {record["id"] for record in read_records(_raw(folder, category))}
        cases += [case for case in bfcl.cases(category)[:limit] if case["id"] not in done]
    return cases


def save_answer(folder: Path, record: dict) -> None:
    """
    Keep the record of a case that is over.

    Args:
        folder (`Path`):
            The folder.
        record (`dict`):
            Record of stage 1.
    """
    append_records(_raw(folder, category_of(record["id"])), [record])


def answers_to_score(folder: Path) -> list[dict]:
    """
    The records that have no score yet.

    Args:
        folder (`Path`):
            The folder.

    Returns:
        `list[dict]`
    """
    waiting = []
    for category in CASES:
        scored = {score["digest"] for score in read_records(_scores(folder, category))}
        waiting += [record for record in read_records(_raw(folder, category)) if digest(record) not in scored]
    return waiting


def save_score(folder: Path, score: dict) -> None:
    """
    Keep the score of a case.

    Args:
        folder (`Path`):
            The folder.
        score (`dict`):
            Score of stage 2.
    """
    append_records(_scores(folder, category_of(score["id"])), [score])


def summarize(folder: Path, partial: bool = False) -> dict:
    """
    Aggregate the scores and write `summary.json` and `cases.csv`.

    Args:
        folder (`Path`):
            The folder.
        partial (`bool`, *optional*, defaults to `False`):
            Accept missing cases; the result says so.

    Returns:
        `dict`: `settings` of the answers, and what [`aggregate`] gives.

    Raises:
        `ValueError`: when cases are missing, unless `partial`.
    """
    scores = {category: _current_scores(folder, category) for category in CASES}
    result = aggregate(scores, partial)
    summary = {"settings": json.loads((folder / "settings.json").read_text(encoding="utf-8")), **result}
    table = io.StringIO()
    columns = ["category", "id", *METRICS, "error_type", "error"]
    writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"category": category} | score for category in CASES for score in scores[category])
    replace_file(folder / "cases.csv", table.getvalue())
    replace_file(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


def _current_scores(folder: Path, category: str) -> list[dict]:
    """One score per case: that of the answer which is there now."""
    scores = {score["digest"]: score for score in read_records(_scores(folder, category))}
    digests = {record["id"]: digest(record) for record in read_records(_raw(folder, category))}
    return [scores[key] for key in digests.values() if key in scores]


def _raw(folder: Path, category: str) -> Path:
    return folder / "raw" / f"{category}.jsonl"


def _scores(folder: Path, category: str) -> Path:
    return folder / "scores" / f"{category}.jsonl"
