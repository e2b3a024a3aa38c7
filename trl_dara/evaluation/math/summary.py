"""The third stage: from the scores of the samples to the numbers of a table."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from trl_dara.evaluation.stats import bootstrap_interval


# Metric: the score of a sample that it is the mean of
METRICS = {"strict_accuracy": "strict", "accuracy": "correct", "exceed": "exceeds", "joint": "joint"}


def question_rows(scores: Iterable[dict]) -> list[dict]:
    """
    Means of each question over its samples.

    Args:
        scores (`Iterable[dict]`):
            Scores of [`score_samples`].

    Returns:
        `list[dict]`: per question `id`, `samples` (their number), the metrics as shares and `mean_tokens`.
    """
    of_question = defaultdict(list)
    for score in scores:
        of_question[score["id"]].append(score)
    return [
        {
            "id": question,
            "samples": len(samples),
            **{metric: float(np.mean([score[key] for score in samples])) for metric, key in METRICS.items()},
            "mean_tokens": float(np.mean([score["num_tokens"] for score in samples])),
        }
        for question, samples in of_question.items()
    ]


def summarize_benchmark(scores: Sequence[dict], num_questions: int, num_samples: int) -> dict:
    """
    Numbers of one benchmark. Each metric is the mean over the questions of the mean over their samples; the 95 %
    interval is a bootstrap of 2,000 resamples of the questions, whose samples stay together.

    Args:
        scores (`Sequence[dict]`):
            Scores of [`score_samples`], at least one.
        num_questions (`int`):
            Questions of the whole benchmark.
        num_samples (`int`):
            Samples that each question should have.

    Returns:
        `dict`: each of [`METRICS`] with `mean`, `low` and `high`; `rescued`, the samples that only the fallback (or the
        other grader) counts as correct; `truncated`, those without an end token; and `partial`, whether a
        question or a sample is missing.
    """
    rows = question_rows(scores)
    summary = {
        "partial": len(rows) < num_questions or any(row["samples"] < num_samples for row in rows),
        "questions": len(rows),
        "questions_in_benchmark": num_questions,
        "samples": len(scores),
        "samples_per_question": num_samples,
    }
    for metric in METRICS:
        means = [row[metric] for row in rows]
        low, high = bootstrap_interval(means, num_resamples=2000, seed=0)
        summary[metric] = {"mean": float(np.mean(means)), "low": low, "high": high}
    return summary | {
        "rescued": sum(score["correct"] and not score["strict"] for score in scores),
        "truncated": sum(score["finish_reason"] != "stop" for score in scores),
        "mean_tokens": float(np.mean([score["num_tokens"] for score in scores])),
    }


def summarize(benchmarks: Mapping[str, dict], macro_over: Sequence[str]) -> dict:
    """
    Put benchmarks together.

    Args:
        benchmarks (`Mapping[str, dict]`):
            Summaries of [`summarize_benchmark`], by name.
        macro_over (`Sequence[str]`):
            Benchmarks of the macro mean, an unweighted mean over those of them that are there.

    Returns:
        `dict`: `benchmarks`, and `macro` with the `benchmarks` it is over, `partial` (whether one is missing or partial)
        and the mean of each of [`METRICS`]; `None` when there are fewer than two.
    """
    names = [name for name in macro_over if name in benchmarks]
    macro = None
    if len(names) > 1:
        macro = {
            "partial": len(names) < len(macro_over) or any(benchmarks[name]["partial"] for name in names),
            "benchmarks": names,
            **{metric: float(np.mean([benchmarks[name][metric]["mean"] for name in names])) for metric in METRICS},
        }
    return {"benchmarks": dict(benchmarks), "macro": macro}


def summary_table(summary: dict) -> Table:
    """
    A summary in per cent, for the terminal.

    Args:
        summary (`dict`):
            What [`summarize`] returns, with `grader`.

    Returns:
        [`~rich.table.Table`]
    """
    title = "Mean over questions in %, with 95 % intervals"
    table = Table("benchmark", title=title, caption=summary["grader"], box=SIMPLE_HEAD, padding=0)
    for column in ("strict", "accuracy", "rescued", "exceed", "joint", "samples"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, numbers in summary["benchmarks"].items():
        if numbers["partial"]:
            name += f"\npartial: {numbers['questions']} of {numbers['questions_in_benchmark']} questions"
        strict, accuracy, exceed, joint = (_percent(numbers[metric]["mean"]) for metric in METRICS)
        accuracy, joint = accuracy + _interval(numbers["accuracy"]), joint + _interval(numbers["joint"])
        table.add_row(name, strict, accuracy, str(numbers["rescued"]), exceed, joint, f"{numbers['samples']:,}")
    if summary["macro"]:
        macro = summary["macro"]
        name = f"macro mean of {len(macro['benchmarks'])}" + ("\npartial" if macro["partial"] else "")
        strict, accuracy, exceed, joint = (_percent(macro[metric]) for metric in METRICS)
        table.add_section()
        table.add_row(name, strict, accuracy, "", exceed, joint, "")
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _interval(numbers: dict) -> str:
    return f"\n[{_percent(numbers['low'])}, {_percent(numbers['high'])}]"
