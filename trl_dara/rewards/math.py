r"""
Rewards for mathematical reasoning with a boxed final answer: correctness, by the strict grader or by math-verify, and
length.

The data set has the column `answer`: the true answer of each problem, without a box and without `$`
([`~math_answers.unwrap_dollars`]).
"""

import functools
import importlib.util
import logging

from .math_answers import is_correct, last_boxed_answer
from .text import completion_text
from .worker import WorkerProcessError, in_worker_process


logger = logging.getLogger(__name__)

# No true answer is nearly as long (in MATH-500: 53 characters), and algebra on a very long one takes for ever.
_LONGEST_ANSWER = 1_000

# Seconds: math-verify's own limit, a signal, for each step of one comparison; and the one after which its process is ended
# because a computation did not let the signal through.
_SIGNAL_LIMIT = 2
_PROCESS_LIMIT = 15


def boxed_correctness_reward(completions: list, answer: list[str], **kwargs) -> list[float]:
    r"""
    Reward function for the final answer: 1 if the last `\boxed{...}` of the completion is the true answer, up to the
    spelling of [`~math_answers.normalize_answer`], and 0 otherwise. Strings are compared, by the rules of the MATH data
    set; in papers that use verl's `math_reward`, the same completions are correct.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Plain or conversational completions.
        answer (`list[str]`):
            One true answer per completion.
        **kwargs:
            Not used; the trainer passes the prompts and the other columns of the data set.

    Returns:
        `list[float]`: 1.0 or 0.0 per completion.

    Raises:
        `ValueError`: when an answer is no string.

    Example:

    ```python
    >>> from trl_dara.rewards import boxed_correctness_reward

    >>> boxed_correctness_reward([r"So \boxed{\dfrac12}.", r"So \boxed{2}.", "So 1/2."], answer=[r"\frac{1}{2}"] * 3)
    [1.0, 0.0, 0.0]
    ```
    """
    return [
        float(is_correct(completion_text(completion), _checked(truth)))
        for completion, truth in zip(completions, answer, strict=True)
    ]


def math_verify_reward(completions: list, answer: list[str], **kwargs) -> list[float | None]:
    r"""
    Reward function for the final answer that uses algebra: 1 if math-verify (https://github.com/huggingface/Math-Verify)
    finds the last `\boxed{...}` of the completion equal to the true answer, 0 if not or if there is no box. It is more
    lenient than [`boxed_correctness_reward`], so results by the two do not compare: `0.5` is `\frac{1}{2}`, `1,000` is
    `1000`, `025` is `25`.

    Needs `pip install "trl[math-verify]"`. Each pair of a true answer and a boxed one is compared once, in a process
    of its own that is ended when a comparison such as that of `9^{9^{9^9}}` does not end; the completion then counts as
    wrong. Works in any thread, on Linux and macOS; a script that trains needs `if __name__ == "__main__":`. The setting
    `reward_timeout` has no effect.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Plain or conversational completions.
        answer (`list[str]`):
            One true answer per completion.
        **kwargs:
            Not used; the trainer passes the prompts and the other columns of the data set.

    Returns:
        `list[float | None]`: 1.0 or 0.0 per completion; `None`, which is not scored, where math-verify cannot read the
        true answer.

    Raises:
        `ImportError`: when math-verify is not installed.
        `ValueError`: when an answer is no string.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError('`math_verify_reward` needs math-verify: pip install "trl[math-verify]".')
    return [
        _verified(_checked(truth), last_boxed_answer(completion_text(completion)))
        for completion, truth in zip(completions, answer, strict=True)
    ]


def token_length_reward(completion_ids: list[list[int]], max_tokens: int = 4000, **kwargs) -> list[float]:
    """
    Reward function for short completions: 1 if the completion has at most `max_tokens` tokens, the end token included,
    and 0 otherwise. The tokens of tool results count as well.

    Args:
        completion_ids (`list[list[int]]`):
            Token ids of the completions, as the trainer passes them.
        max_tokens (`int`, *optional*, defaults to `4000`):
            Longest completion that is rewarded.
        **kwargs:
            Not used; the trainer passes the prompts, the completions and the columns of the data set.

    Returns:
        `list[float]`: 1.0 or 0.0 per completion.

    Example:

    ```python
    >>> from trl_dara.rewards import token_length_reward

    >>> token_length_reward(completion_ids=[[5, 2], [5, 6, 2]], max_tokens=2)
    [1.0, 0.0]
    ```
    """
    return [float(len(ids) <= max_tokens) for ids in completion_ids]


def _checked(answer: str) -> str:
    if not isinstance(answer, str):
        raise ValueError(
            f"`answer` is {answer!r} (a {type(answer).__name__}). Pass the true answer as text, such as '025' or "
            "'\\\\frac{1}{2}'; numbers lose their spelling, so turn the column into strings when the data are loaded."
        )
    return answer


def _verified(truth: str, boxed: str | None) -> float | None:
    if not _is_readable(truth):
        return None
    return float(boxed is not None and len(boxed) <= _LONGEST_ANSWER and _is_equal(truth, boxed))


@functools.lru_cache(maxsize=2**16)
def _is_readable(truth: str) -> bool:
    return _compare(truth, None)


@functools.lru_cache(maxsize=2**16)
def _is_equal(truth: str, boxed: str) -> bool:
    try:
        return _compare(truth, boxed)
    except (TimeoutError, WorkerProcessError) as error:  # caused by what the model wrote
        reason = f"it took over {_compare.timeout:g} seconds" if isinstance(error, TimeoutError) else error
        logger.warning(
            f"math-verify could not compare {boxed!r} with {truth!r}: {reason}. The answer counts as wrong."
        )
        return False


@in_worker_process
def _compare(truth: str, boxed: str | None) -> bool:
    """Whether the answers are equal; without the second one, whether the first can be read."""
    from math_verify import parse, verify  # optional

    # Without the box, parts of an answer are read as the whole: 3 for `\\left( 3, \\frac{\\pi}{2} \\right)`
    parsed = [
        parse(r"\boxed{" + text + "}", parsing_timeout=_SIGNAL_LIMIT) for text in (truth, boxed) if text is not None
    ]
    if boxed is None:
        return len(parsed[0]) > 0
    return verify(*parsed, timeout_seconds=_SIGNAL_LIMIT)


_compare.timeout = _PROCESS_LIMIT
