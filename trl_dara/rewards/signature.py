"""Whether a reward function takes what the trainer passes, decided before it is called."""

import inspect
from collections.abc import Callable, Iterable


# What TRL passes beside the columns of the data set, always by keyword.
TRAINER_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


def signature_problem(function: Callable, channel: str, columns: Iterable[str]) -> str | None:
    """
    Compare a reward function's parameters with what the trainer passes.

    Args:
        function (`Callable`):
            The reward function.
        channel (`str`):
            Name of its channel.
        columns (`Iterable[str]`):
            Columns of the data set, without `prompt` and `completion`.

    Returns:
        `str` or `None`: a sentence that names the channel, the argument and the columns, when the call would fail.
    """
    given = [*TRAINER_ARGUMENTS, *columns]
    parameters = inspect.signature(function).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    missing = [name for name, p in named.items() if p.default is p.empty and name not in given]
    if missing:
        return (
            f"The reward function of channel '{channel}' needs {missing}, but the columns of the data set are "
            f"{list(columns)}, and the trainer adds {list(TRAINER_ARGUMENTS)}. Rename a column or the argument, or bind the "
            "argument with `functools.partial` (`kwargs` in `reward_funcs`)."
        )
    refused = [name for name in given if name not in named]
    if refused and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        return (
            f"The reward function of channel '{channel}' does not take {refused}, which the trainer passes. Add `**kwargs` "
            "to its arguments."
        )
    return None
