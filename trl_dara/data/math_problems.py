r"""
Mathematics in TRL's prompt format: the training sets DeepScaleR-Preview and GSM8K, and six benchmarks, from the Hub or
from local files.

The prompt is one user turn, the problem and the request to put the final answer within `\boxed{}`, as in the papers on
GDPO (https://huggingface.co/papers/2601.05242, section 4.2) and DARA; [`gsm8k_prompt`] asks for the tags that
`trl_dara.rewards.gsm8k` rewards instead.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset

from ..rewards.gsm8k import gsm8k_gold
from ..rewards.math_answers import normalize_answer, unwrap_dollars
from .loading import load_rows


def _as_written(answer) -> str:
    if isinstance(answer, str):
        return answer.strip()
    if isinstance(answer, bool) or not isinstance(answer, (int, float)) or not math.isfinite(answer):
        raise ValueError(f"the answer is {answer!r}, which is neither text nor a number.")
    # Where one answer of a file has a point, `142` is read as `142.0`
    return str(int(answer) if answer == int(answer) else answer)


def _integer(answer) -> str:
    """AMC's answers are whole numbers with a point: `142.0`."""
    return str(int(_as_written(answer).removesuffix(".0")))


def _first_unwrapped(answer) -> str:
    """OlympiadBench's answers are lists of one LaTeX string, often between dollars."""
    return unwrap_dollars(_as_written(answer[0] if isinstance(answer, list) else answer))


@dataclass(frozen=True)
class MathSource:
    """
    Where the problems of a data set are, and how their answers are written.

    Args:
        hub_id (`str`):
            Id of the data set on the Hub.
        split (`str`):
            Its split.
        config (`str`, *optional*):
            Its configuration.
        problem_column (`str`, *optional*, defaults to `"problem"`):
            Column of the problems.
        answer_column (`str`, *optional*, defaults to `"answer"`):
            Column of the answers.
        to_answer (`Callable`, *optional*):
            Takes an entry of the answer column and returns the final answer.
    """

    hub_id: str
    split: str
    config: str | None = None
    problem_column: str = "problem"
    answer_column: str = "answer"
    to_answer: Callable[..., str] = _as_written


MATH_BENCHMARKS = {
    "math500": MathSource("HuggingFaceH4/MATH-500", "test"),
    "aime24": MathSource("HuggingFaceH4/aime_2024", "train"),
    "amc23": MathSource("AI-MO/aimo-validation-amc", "train", to_answer=_integer),
    "minerva": MathSource("math-ai/minervamath", "test", problem_column="question"),
    "olympiadbench": MathSource(
        "Hothan/OlympiadBench", "train", "OE_TO_maths_en_COMP", "question", "final_answer", _first_unwrapped
    ),
    "gsm8k": MathSource("openai/gsm8k", "test", "main", "question", to_answer=gsm8k_gold),
}

MATH_TRAINING_SETS = {
    "deepscaler": MathSource("agentica-org/DeepScaleR-Preview-Dataset", "train"),
    "gsm8k": MathSource("openai/gsm8k", "train", "main", "question", to_answer=gsm8k_gold),
}


def boxed_prompt(problem: str) -> list[dict[str, str]]:
    r"""
    Ask for a final answer in a box.

    Args:
        problem (`str`):
            The problem.

    Returns:
        `list[dict[str, str]]`: one user turn.

    Example:

    ```python
    >>> from trl_dara.data.math_problems import boxed_prompt

    >>> print(boxed_prompt("What is 1 + 1?")[0]["content"])
    What is 1 + 1?
    <BLANKLINE>
    Please reason step by step, and put your final answer within \boxed{}.
    ```
    """
    content = f"{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."
    return [{"role": "user", "content": content}]


def gsm8k_prompt(problem: str) -> list[dict[str, str]]:
    """
    Ask for reasoning between think tags and a number between answer tags.

    Args:
        problem (`str`):
            The problem.

    Returns:
        `list[dict[str, str]]`: a system and a user turn.
    """
    instruction = (
        "Solve the problem. Reason first, then give the final answer as a plain number without units, in exactly this "
        "format:\n<think>\nyour reasoning\n</think>\n<answer>\nthe number\n</answer>"
    )
    return [{"role": "system", "content": instruction}, {"role": "user", "content": problem}]


def load_math_benchmark(name: str, path: str | Path | None = None) -> Dataset:
    r"""
    Load a benchmark: all its problems, with the prompt of [`boxed_prompt`].

    Answers are strings as the benchmark writes them (`025` stays), without what is around them: AMC's `142.0` becomes
    `142`, of OlympiadBench the first entry of the list counts, without its dollars, and of GSM8K what follows `####`.
    Numbers become strings, whole ones without a point.

    Args:
        name (`str`):
            A key of [`MATH_BENCHMARKS`]: `math500`, `aime24`, `amc23`, `minerva`, `olympiadbench` or `gsm8k`.
        path (`str` or `Path`, *optional*):
            A parquet, jsonl or json file, with the columns of the benchmark or with `problem` and `answer`. By default
            the benchmark comes from the Hub.

    Returns:
        [`~datasets.Dataset`] with the columns `id` (such as `math500-17`, by position), `problem`, `prompt`
        (conversational) and `answer`.

    Raises:
        `OSError`: when there is no such file, or the Hub cannot be reached.
        `ValueError`: when the name, a column or an answer is not as it must be.
    """
    return _load(name, MATH_BENCHMARKS, path, boxed_prompt)


def load_math_training_set(
    name: str, path: str | Path | None = None, make_prompt: Callable[[str], list[dict[str, str]]] = boxed_prompt
) -> Dataset:
    """
    Load problems to train on.

    Args:
        name (`str`):
            A key of [`MATH_TRAINING_SETS`]: `deepscaler` or `gsm8k`.
        path (`str` or `Path`, *optional*):
            As for [`load_math_benchmark`].
        make_prompt (`Callable`, *optional*, defaults to [`boxed_prompt`]):
            Takes a problem and returns the messages of its prompt; [`gsm8k_prompt`] is the other one here.

    Returns:
        [`~datasets.Dataset`]: as of [`load_math_benchmark`].

    Raises:
        As [`load_math_benchmark`].
    """
    return _load(name, MATH_TRAINING_SETS, path, make_prompt)


def _load(name: str, sources: dict[str, MathSource], path: str | Path | None, make_prompt: Callable) -> Dataset:
    if name not in sources:
        raise ValueError(f"`name` is {name!r}. Pass one of {', '.join(map(repr, sources))}.")
    source = sources[name]
    rows = load_rows(path or source.hub_id, source.split, source.config)
    place = str(path or source.hub_id)
    problems = _column(rows, source.problem_column, "problem", place)
    answers = _column(rows, source.answer_column, "answer", place)
    examples = []
    for index, (problem, answer) in enumerate(zip(problems, answers, strict=True)):
        if not (isinstance(problem, str) and problem.strip()) or answer in (None, "", []):
            raise ValueError(
                f"Row {index} of {place!r} has the problem {problem!r} and the answer {answer!r}. Both must be there."
            )
        try:
            gold = source.to_answer(answer)
        except ValueError as error:
            raise ValueError(f"Row {index} of {place!r}: {error}") from None
        if not normalize_answer(gold).strip():
            raise ValueError(
                f"Row {index} of {place!r} has the answer {answer!r}, of which nothing is left to compare: an empty box would "
                "be correct. Give it an answer, or leave the row out."
            )
        examples.append({"id": f"{name}-{index}", "problem": problem, "prompt": make_prompt(problem), "answer": gold})
    return Dataset.from_list(examples)


def _column(rows: Dataset, own: str, common: str, place: str) -> list:
    for column in (own, common):
        if column in rows.column_names:
            return list(rows[column])
    raise ValueError(
        f"{place!r} has the columns {rows.column_names}. It needs `{own}`"
        + (f" or `{common}`" if own != common else "")
        + "; rename yours with `Dataset.rename_column`."
    )
