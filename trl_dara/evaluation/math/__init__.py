"""
Mathematics: several samples per question, graded, in three stages of which only the first needs a model.

A folder holds everything: `settings.json`, `questions/` and `raw/` (the samples) with a JSONL file per benchmark, and a
folder per grader with the scores of the samples, a CSV file with the questions and `summary.json`.
"""

from trl_dara.evaluation.math.generate import generate_samples
from trl_dara.evaluation.math.score import GRADERS, score_samples
from trl_dara.evaluation.math.summary import summarize, summarize_benchmark


PAPER_BENCHMARKS = ("math500", "aime24", "amc23", "minerva", "olympiadbench")
BENCHMARKS = (*PAPER_BENCHMARKS, "gsm8k")

__all__ = [
    "BENCHMARKS",
    "GRADERS",
    "PAPER_BENCHMARKS",
    "generate_samples",
    "score_samples",
    "summarize",
    "summarize_benchmark",
]
