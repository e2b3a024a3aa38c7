"""Rewards on the text of a completion, whatever the task."""


def completion_text(completion: str | list[dict]) -> str:
    """
    Get the text of one completion as TRL passes it to reward functions.

    Args:
        completion (`str` or `list[dict]`):
            A plain completion, or the messages of a conversational one, of which the last counts.

    Returns:
        `str`: the text; empty where the last message has no text content.
    """
    if isinstance(completion, list):
        completion = completion[-1].get("content") if completion else None
    return completion if isinstance(completion, str) else ""


def fits_template(text: str, template: str) -> bool:
    """
    Whether a text is the template with any text, line breaks included, in place of each `*`. Takes linear time, which a
    regular expression with `.*` does not.

    Args:
        text (`str`):
            A completion, as a whole.
        template (`str`):
            Literal text with at least one `*`, such as `"<think>*</think>"`.

    Returns:
        `bool`
    """
    first, *middle, last = template.split("*")
    if not (text.startswith(first) and text.endswith(last)):
        return False
    # If any places of the literals fit, the leftmost ones do.
    position, end = len(first), len(text) - len(last)
    for literal in middle:
        position = text.find(literal, position, end)
        if position < 0:
            return False
        position += len(literal)
    return position <= end


def think_length_reward(completions: list, max_words: int = 16, **kwargs) -> list[float]:
    """
    Reward function for short reasoning: 1 if the think block has at most `max_words` words. The block is the text
    between the last `<think>` and the next `</think>`; words are separated by white space. A completion without the
    two tags gets 0, an empty block 1.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Plain or conversational completions.
        max_words (`int`, *optional*, defaults to `16`):
            Longest think block that is rewarded, in words.
        **kwargs:
            Not used; the trainer passes the prompts and the other columns of the data set.

    Returns:
        `list[float]`: 1.0 or 0.0 per completion.

    Example:

    ```python
    >>> from trl_dara.rewards import think_length_reward

    >>> think_length_reward(["<think> Four. </think>\\n4", "<think> Let me count. </think>\\n4", "4"], max_words=2)
    [1.0, 0.0, 0.0]
    ```
    """
    return [float(_thinks_briefly(completion_text(completion), max_words)) for completion in completions]


def _thinks_briefly(text: str, max_words: int) -> bool:
    _, opening, rest = text.rpartition("<think>")
    thought, closing, _ = rest.partition("</think>")
    return bool(opening and closing) and len(thought.split()) <= max_words
