"""
Rewards of ToolRL (https://huggingface.co/papers/2504.13958): a sparse one for the format, 0 or 1, and a graded one for
the tool calls, in [-3, 3].

Both compare a completion with `ground_truth`, a column of the data set that holds a model answer of think, tool-call
and response blocks:

    <think> I should use the appropriate tool. </think>
    <tool_call>
    {"name": "get_weather", "parameters": {"city": "Oslo"}}
    </tool_call>

Whatever a completion contains, it is scored in linear time and never raises: a model in training writes everything
sooner or later. A malformed ground truth does raise, since it is an error in the data.
"""

import json
from collections import Counter

from .text import completion_text, fits_template


MAX_CORRECTNESS = 3.0
MIN_CORRECTNESS = -3.0

# What Python raises on a tool call that is no JSON, nested too deeply, or not an object with a name and parameters.
_MALFORMED = (ValueError, RecursionError, TypeError, KeyError, AttributeError)


def tool_format_reward(completions: list, ground_truth: list[str], **kwargs) -> list[float]:
    """
    Reward function for the format: 1 if the stripped completion is a think block followed by exactly the blocks of the
    ground truth (tool call, response, or both in this order), each on a new line, with each of their tags occurring
    once. What the blocks contain is not checked, and neither is the number of think tags.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Plain or conversational completions.
        ground_truth (`list[str]`):
            One model answer per completion.
        **kwargs:
            Not used; the trainer passes the prompts and the other columns of the data set.

    Returns:
        `list[float]`: 1.0 or 0.0 per completion.

    Raises:
        `ValueError`: when a ground truth is malformed.

    Example:

    ```python
    >>> from trl_dara.rewards import tool_format_reward

    >>> truth = "<think> Greet. </think>\\n<response> Hello! </response>"
    >>> tool_format_reward(["<think> Hm. </think>\\n<response> Hi. </response>", "Hi."], ground_truth=[truth, truth])
    [1.0, 0.0]
    ```
    """
    rewards = []
    for completion, truth in zip(completions, ground_truth, strict=True):
        parse_ground_truth(truth)
        rewards.append(float(_has_format(completion_text(completion).strip(), truth)))
    return rewards


def tool_correctness_reward(completions: list, ground_truth: list[str], **kwargs) -> list[float]:
    """
    Reward function for the tool calls, graded in [-3, 3]: 3 for the calls of the ground truth in any order; less for
    each wrong name, parameter and value; -3 for a missing or unreadable tool-call block. A ground truth without tool
    calls gives 0 whatever the completion, so the reward is constant on such prompts.

    The reward is `6 (J + sum_i m_i) / (1 + sum_i (1 + P_i)) - 3`, with the multiset Jaccard index `J` of the tool
    names and, for each call `i` of the ground truth in order, its number of parameters `P_i` and the match `m_i` of
    the best unused predicted call of the same name: the Jaccard index of the parameter names plus the number of equal
    values.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Plain or conversational completions.
        ground_truth (`list[str]`):
            One model answer per completion.
        **kwargs:
            Not used; the trainer passes the prompts and the other columns of the data set.

    Returns:
        `list[float]`: one reward per completion.

    Raises:
        `ValueError`: when a ground truth is malformed.

    Example, with one of two parameters wrong:

    ```python
    >>> from trl_dara.rewards import tool_correctness_reward

    >>> call = '<tool_call>\\n{"name": "add", "parameters": {"a": 1, "b": 2}}\\n</tool_call>'
    >>> tool_correctness_reward([call, call.replace("2", "3"), "3"], ground_truth=[call] * 3)
    [3.0, 1.5, -3.0]
    ```
    """
    rewards = []
    for completion, truth in zip(completions, ground_truth, strict=True):
        true_calls = parse_ground_truth(truth)
        rewards.append(_correctness(completion_text(completion), true_calls) if true_calls else 0.0)
    return rewards


def parse_ground_truth(ground_truth: str) -> list[dict]:
    """
    Read the tool calls of a ground truth.

    Args:
        ground_truth (`str`):
            Model answer of a data set.

    Returns:
        `list[dict]`: the calls, each with `name` and `parameters`; empty for an answer without tool calls.

    Raises:
        `ValueError`: when it is no text, or has a tool-call block that cannot be read.
    """
    if not isinstance(ground_truth, str):
        raise ValueError(
            f"`ground_truth` is {ground_truth!r}. Pass the text of a model answer, such as '<think> ... </think>\\n"
            "<response> ... </response>'."
        )
    if "<tool_call>" not in ground_truth:
        return []
    try:
        calls = _parse_calls(ground_truth)
        well_formed = all(isinstance(call["name"], str) and isinstance(call["parameters"], dict) for call in calls)
    except _MALFORMED:
        well_formed = False
    if not well_formed:
        raise ValueError(
            f"`ground_truth` has a malformed tool-call block: {ground_truth!r}. Between <tool_call> and </tool_call>, "
            'put one JSON object {"name": "...", "parameters": {...}} per line, or leave this row out of the data set.'
        )
    return calls


def _has_format(text: str, ground_truth: str) -> bool:
    """Match `<think>...</think>` and the blocks of the ground truth against the whole text."""
    tool_call, response = "<tool_call>" in ground_truth, "<response>" in ground_truth
    tags = ["<tool_call>", "</tool_call>"] * tool_call + ["<response>", "</response>"] * response
    if any(text.count(tag) != 1 for tag in tags):
        return False
    blocks = ["<think>*</think>"]
    blocks += ["<tool_call>\n*\n</tool_call>"] * tool_call + ["<response>*</response>"] * response
    return fits_template(text, "\n".join(blocks))


def _parse_calls(text: str) -> list:
    """Read the JSON values, one per line, between the first tool-call tags."""
    if "<tool_call>" not in text or "</tool_call>" not in text:
        raise ValueError("no tool-call block")
    block = text.split("<tool_call>", 2)[1].split("</tool_call>", 1)[0]
    return [json.loads(line) for line in block.strip().split("\n")]


def _correctness(text: str, true_calls: list[dict]) -> float:
    try:
        predicted_calls = _parse_calls(text)
        if predicted_calls == true_calls:
            return MAX_CORRECTNESS
        score = _match(true_calls, predicted_calls)
    except _MALFORMED:
        return MIN_CORRECTNESS
    highest = 1 + sum(1 + len(call["parameters"]) for call in true_calls)
    return (MAX_CORRECTNESS - MIN_CORRECTNESS) * score / highest + MIN_CORRECTNESS


def _match(true_calls: list[dict], predicted_calls: list) -> float:
    """Score of the names, plus that of the best unused predicted call for each true call."""
    names = [call["name"] for call in predicted_calls]
    if any(isinstance(name, (list, dict)) for name in names):
        raise TypeError("a name is no scalar")
    # Counting the few true names only keeps this linear whatever the predicted names hash to.
    common = sum(min(count, names.count(name)) for name, count in Counter(call["name"] for call in true_calls).items())
    score = common / (len(true_calls) + len(names) - common)

    used = set()
    for true_call in true_calls:
        best, best_index = 0.0, None
        for index, call in enumerate(predicted_calls):
            if index not in used and call["name"] == true_call["name"]:
                match = _match_parameters(true_call["parameters"], call["parameters"])
                if match > best:  # the first of equally good calls is taken
                    best, best_index = match, index
        used.add(best_index)
        score += best
    return score


def _match_parameters(true: dict, predicted: dict) -> float:
    """Jaccard index of the keys (1 for two empty ones) plus the number of equal values."""
    keys = true.keys() | predicted.keys()
    shared = true.keys() & predicted.keys()
    same_keys = len(shared) / len(keys) if keys else 1.0
    return same_keys + sum(true[key] == predicted[key] for key in shared)
