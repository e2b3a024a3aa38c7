"""
The three rewards of GDPO (https://huggingface.co/papers/2601.05242) on GSM8K, each 0 or 1: a correct answer, an integer
answer, and the format:

    <think> 16 - 3 - 4 = 9 eggs, at 2 dollars each. </think>
    <answer>18</answer>

Two consequences of their rules: a completion without tags is its own answer, so a bare `18` is correct and an integer; and
a true answer with a comma, such as `1,000`, cannot be matched by an integer.
"""

from .text import completion_text, fits_template


def gsm8k_correctness_reward(completions: list, answer: list[str], **kwargs) -> list[float]:
    """
    Reward function for the answer: 1 if the text between the last `<answer>` and the next `</answer>`, stripped, equals
    the true answer. Where a tag is missing, the answer extends to that end of the completion.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Plain or conversational completions.
        answer (`list[str]`):
            One true answer per completion, as [`gsm8k_gold`] returns it.
        **kwargs:
            Not used; the trainer passes the prompts and the other columns of the data set.

    Returns:
        `list[float]`: 1.0 or 0.0 per completion.

    Example:

    ```python
    >>> from trl_dara.rewards import gsm8k_correctness_reward

    >>> gsm8k_correctness_reward(["<answer> 18 </answer>", "<answer>18.0</answer>", "18"], answer=["18"] * 3)
    [1.0, 0.0, 1.0]
    ```
    """
    return [float(_answer(completion) == truth) for completion, truth in zip(completions, answer, strict=True)]


def gsm8k_integer_reward(completions: list, **kwargs) -> list[float]:
    """
    Reward function for answers that are non-negative integers: 1 if the text that [`gsm8k_correctness_reward`] compares
    consists of digits only (`str.isdigit`).

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Plain or conversational completions.
        **kwargs:
            Not used; the trainer passes the prompts and the columns of the data set.

    Returns:
        `list[float]`: 1.0 or 0.0 per completion.

    Example:

    ```python
    >>> from trl_dara.rewards import gsm8k_integer_reward

    >>> gsm8k_integer_reward(["<answer> 18 </answer>", "<answer>1,000</answer>", "<answer>-2</answer>"])
    [1.0, 0.0, 0.0]
    ```
    """
    return [float(_answer(completion).isdigit()) for completion in completions]


def gsm8k_format_reward(completions: list, **kwargs) -> list[float]:
    r"""
    Reward function for the format: 1 if the completion is a think block, a line break and an answer block, with one line
    break after it at most and nothing around them, and each answer tag occurs once. What the blocks contain is not
    checked, and neither is the number of think tags.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Plain or conversational completions.
        **kwargs:
            Not used; the trainer passes the prompts and the columns of the data set.

    Returns:
        `list[float]`: 1.0 or 0.0 per completion.

    Example:

    ```python
    >>> from trl_dara.rewards import gsm8k_format_reward

    >>> gsm8k_format_reward(["<think>Easy.</think>\n<answer>18</answer>", "<answer>18</answer>"])
    [1.0, 0.0]
    ```
    """
    return [float(_has_format(completion_text(completion))) for completion in completions]


def gsm8k_gold(answer: str) -> str:
    """
    Get the true answer from the data set's column `answer`, which ends with a line `#### 18`.

    Args:
        answer (`str`):
            Reasoning and answer of one row.

    Returns:
        `str`: the stripped text after the first `####`.

    Raises:
        `ValueError`: when there is none.

    Example:

    ```python
    >>> from trl_dara.rewards.gsm8k import gsm8k_gold

    >>> gsm8k_gold("He eats 3 of 5.\\n#### 2")
    '2'
    ```
    """
    _, mark, gold = answer.partition("####") if isinstance(answer, str) else ("", "", "")
    if not mark:
        raise ValueError(
            f"`answer` is {answer!r}, which has no '####' before the final answer. Pass the column `answer` of GSM8K as it is."
        )
    return gold.strip()


def _answer(completion: str | list[dict]) -> str:
    return completion_text(completion).rpartition("<answer>")[2].partition("</answer>")[0].strip()


def _has_format(text: str) -> bool:
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return False
    return fits_template(text.removesuffix("\n"), "<think>*</think>\n<answer>*</answer>")
