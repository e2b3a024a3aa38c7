"""The second stage: each sample graded from its text, without a model."""

from collections.abc import Iterable, Mapping

from trl_dara.evaluation.math.numeric import is_numerically_equal
from trl_dara.rewards.math import math_verify_reward
from trl_dara.rewards.math_answers import is_correct


LENGTH_LIMIT = 4000  # tokens; what is longer exceeds

GRADERS = {
    "numeq": "strict grader (spelling of the MATH data set), with the numeric fallback NumEq",
    "math_verify": "math-verify (algebra; not comparable with strict grading)",
}


def score_samples(samples: Iterable[dict], answers: Mapping[str, str], grader: str = "numeq") -> list[dict]:
    """
    Grade samples. A truncated sample is graded from its text like any other.

    Args:
        samples (`Iterable[dict]`):
            Records of [`generate_samples`]. Of several with the same id and index the first counts.
        answers (`Mapping[str, str]`):
            True answer of each question, by id.
        grader (`str`, *optional*, defaults to `"numeq"`):
            A key of [`GRADERS`]: decides `correct`. math-verify leaves an answer that it cannot read to the strict
            grader.

    Returns:
        `list[dict]`: per sample `id`, `sample`, `num_tokens`, `finish_reason`, and the booleans `strict` (correct by the
        strict grader), `correct`, `exceeds` (more than 4,000 tokens, the end token included) and `joint` (correct and not
        exceeding).

    Raises:
        `ValueError`: for a grader that does not exist, and for a sample of a question without an answer.
    """
    if grader not in GRADERS:
        raise ValueError(f"`grader` is {grader!r}. Pass one of {', '.join(map(repr, GRADERS))}.")
    samples = list(samples)
    unknown = sorted({sample["id"] for sample in samples} - set(answers))
    if unknown:
        raise ValueError(
            f"There are samples of questions that have no answer, {unknown[0]} and {len(unknown) - 1} more. The questions must "
            "be those that the samples were generated for."
        )
    samples = list({(sample["id"], sample["sample"]): sample for sample in reversed(samples)}.values())[::-1]
    texts = [sample["text"] for sample in samples]
    truths = [answers[sample["id"]] for sample in samples]
    strict = [is_correct(text, truth) for text, truth in zip(texts, truths, strict=True)]
    if grader == "math_verify":
        verified = math_verify_reward(texts, truths)
        correct = [by_strict if by is None else by == 1 for by_strict, by in zip(strict, verified, strict=True)]
    else:
        correct = [
            by_strict or is_numerically_equal(text, truth)
            for by_strict, text, truth in zip(strict, texts, truths, strict=True)
        ]
    return [
        {
            "id": sample["id"],
            "sample": sample["sample"],
            "strict": by_strict,
            "correct": is_right,
            "exceeds": sample["num_tokens"] > LENGTH_LIMIT,
            "joint": is_right and sample["num_tokens"] <= LENGTH_LIMIT,
            "num_tokens": sample["num_tokens"],
            "finish_reason": sample["finish_reason"],
        }
        for sample, by_strict, is_right in zip(samples, strict, correct, strict=True)
    ]
