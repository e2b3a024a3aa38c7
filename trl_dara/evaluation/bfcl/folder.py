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
from trl_dara.evaluation.bfcl.benchmark import CASES, COMMIT, VERSION, category_of, is_multi_turn
from trl_dara.evaluation.bfcl.client import BFCL
from trl_dara.evaluation.bfcl.score import METRICS, digest
from trl_dara.evaluation.records import append_records, read_records, read_settings, replace_file


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
        done = {record["id"] for record in _answers(folder, category)}
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

    Raises:
        `ValueError`: when there are no answers at all.
    """
    answers = {category: _answers(folder, category) for category in CASES}
    if not any(answers.values()):
        raise ValueError(f"{folder / 'raw'} has no answers. Generate them first, or pass the folder that has them.")
    waiting = []
    for category, records in answers.items():
        scored = {score["digest"] for score in read_records(_scores(folder, category))}
        waiting += [record for record in records if digest(record) not in scored]
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
        `ValueError`: when cases are missing, unless `partial`, or all of them.
    """
    scores = {category: _current_scores(folder, category) for category in CASES}
    result = aggregate(scores, partial)
    summary = {"settings": read_settings(folder / "settings.json"), **result}
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
    digests = {record["id"]: digest(record) for record in _answers(folder, category)}
    return [scores[key] for key in digests.values() if key in scores]


def _answers(folder: Path, category: str) -> list[dict]:
    """The records of stage 1, which may come from elsewhere or have been edited."""
    records = read_records(_raw(folder, category))
    for number, record in enumerate(records, start=1):
        if not _is_answer(record, category):
            raise ValueError(
                f"{_raw(folder, category)}, line {number} is no answer to a case of '{category}'. Each line needs `id`, "
                "`result` (a text, or in a multi-turn case a list of texts for each turn), `num_tokens` and `error`."
            )
    return records


def _is_answer(record: dict, category: str) -> bool:
    if not {"id", "result", "num_tokens", "error"} <= record.keys() or category_of(str(record["id"])) != category:
        return False
    result = record["result"] if is_multi_turn(category) else [[record["result"]]]
    return isinstance(result, list) and all(
        isinstance(turn, list) and all(isinstance(answer, str) for answer in turn) for turn in result
    )


def _raw(folder: Path, category: str) -> Path:
    return folder / "raw" / f"{category}.jsonl"


def _scores(folder: Path, category: str) -> Path:
    return folder / "scores" / f"{category}.jsonl"
