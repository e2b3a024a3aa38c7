"""The first stage: samples of every question, appended to a file as they come."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from itertools import groupby, product
from pathlib import Path

from trl_dara.evaluation.generation import Generate, Sampling
from trl_dara.evaluation.records import append_records, iterate_records, read_records, replace_file


def generate_samples(
    questions: Iterable[dict],
    sampling: Sampling,
    generate: Generate,
    render: Callable[[list[dict]], str],
    samples_file: Path,
    questions_per_call: int = 1,
) -> Iterator[int]:
    """
    Generate what the file does not have yet. A completed call is on the disk before the next one starts.

    Args:
        questions (`Iterable[dict]`):
            Questions with `id` and `prompt` (conversational).
        sampling ([`~trl_dara.evaluation.generation.Sampling`]):
            How to sample; `n` samples per question.
        generate ([`~trl_dara.evaluation.generation.Generate`]):
            What generates.
        render (`Callable[[list[dict]], str]`):
            Applies the chat template to a prompt.
        samples_file (`Path`):
            JSONL file of the samples: `id`, `sample` (0 to n - 1), `text`, `num_tokens` and `finish_reason`.
        questions_per_call (`int`, *optional*, defaults to `1`):
            Questions of which the samples are generated and saved at a time.

    Yields:
        `int`: number of samples that were added.
    """
    samples = defaultdict(set)
    for record in iterate_records(samples_file):
        samples[record["id"]].add(record["sample"])

    def missing(question: dict) -> list[int]:
        return sorted(set(range(sampling.n)) - samples[question["id"]])

    # Neighbours that miss the same samples: all of them, none, or, after a kill in mid-write, the last ones
    for indices, group in groupby(questions, missing):
        group = list(group)
        for start, run in product(range(0, len(group), questions_per_call), _runs(indices)):
            batch = group[start : start + questions_per_call]
            # vLLM gives sample i of a prompt the seed `seed + i`
            of_batch = replace(sampling, n=len(run), seed=sampling.seed + run[0])
            generations = generate([render(question["prompt"]) for question in batch], of_batch)
            records = [
                {"id": question["id"], "sample": index, **asdict(generation)}
                for question, of_question in zip(batch, generations, strict=True)
                for index, generation in zip(run, of_question, strict=True)
            ]
            append_records(samples_file, records)
            yield len(records)


def keep_questions(questions_file: Path, questions: Iterable[dict]) -> list[dict]:
    """
    Write the questions down for the later stages, or check that they are the same as before.

    Args:
        questions_file (`Path`):
            JSONL file of the questions.
        questions (`Iterable[dict]`):
            All questions of a benchmark, with `id`, `problem` and `answer`.

    Returns:
        `list[dict]`: the questions.

    Raises:
        `ValueError`: when the file has other questions.
    """
    questions = list(questions)
    kept = [{key: question[key] for key in ("id", "problem", "answer")} for question in questions]
    if not questions_file.exists():
        replace_file(questions_file, "".join(json.dumps(question) + "\n" for question in kept))
    before = read_records(questions_file)
    if before != kept:
        different = next((new["id"] for old, new in zip(before, kept, strict=False) if old != new), "their number")
        raise ValueError(
            f"{questions_file} has other questions than the data set that is loaded now (the first difference: "
            f"{different}). Load the data of before to go on there, or use another folder."
        )
    return questions


def _runs(indices: list[int]) -> list[list[int]]:
    """Split ascending indices where one is left out."""
    runs = groupby(enumerate(indices), lambda pair: pair[1] - pair[0])
    return [[index for _, index in run] for _, run in runs]
