"""Whether the reward functions fit the trainer and the data, decided before anything is generated."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable

import datasets
import torch
from torch import nn

from .worker import NOT_PASSED, find_worker


# What TRL passes beside the columns of the data set, always by keyword.
TRAINER_ARGUMENTS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")

# Columns that TRL does not pass on, and those that it keeps with `remove_unused_columns=True`.
_WITHHELD = ("prompt", "completion", "completion_ids")
_SIGNATURE_COLUMNS = ("prompt", "image", "images")


def check_reward_contract(
    reward_funcs: list,
    channel_names: list[str],
    columns: dict[str, list[str] | None],
    *,
    extra_columns_possible: bool = False,
    has_environments: bool = False,
) -> None:
    """
    Refuse reward functions whose first call would fail, because they require an argument that nothing supplies or do not
    accept one that is passed.

    Args:
        reward_funcs (`list`):
            Reward functions; reward models among them are skipped.
        channel_names (`list[str]`):
            Name of each one's channel.
        columns (`dict[str, list[str] | None]`):
            Columns of each data set from [`columns_by_dataset`].
        extra_columns_possible (`bool`, *optional*, defaults to `False`):
            Whether a `rollout_func` or an environment may supply columns at run time. Arguments that no column supplies
            are then let through.
        has_environments (`bool`, *optional*, defaults to `False`):
            Whether `environments` is passed.

    Raises:
        `ValueError`: naming each function, the arguments and the columns that exist.
    """
    functions = [
        (func, name) for func, name in zip(reward_funcs, channel_names, strict=True) if not isinstance(func, nn.Module)
    ]
    given = (*TRAINER_ARGUMENTS, "environments") if has_environments else TRAINER_ARGUMENTS
    for dataset, names in columns.items():
        clashes = [column for column in names or () if column in given and column not in _WITHHELD]
        if functions and clashes:
            raise ValueError(
                f"{dataset} has the columns {clashes}. The trainer passes arguments of these names to the reward "
                "functions; rename the columns."
            )
        problems = [
            contract_problem(func, name, names, given, dataset=dataset, extra_possible=extra_columns_possible)
            for func, name in functions
        ]
        if any(problems):
            raise ValueError("\n".join(filter(None, problems)))


def contract_problem(
    reward_func: Callable,
    channel: str,
    columns: Iterable[str] | None,
    trainer_arguments: Iterable[str] = TRAINER_ARGUMENTS,
    *,
    dataset: str = "the data set",
    extra_possible: bool = False,
) -> str | None:
    """
    Compare one reward function's parameters with the keywords that it will be called with.

    Partials, callable objects and async functions are looked into, and of a decorated function (one with `__wrapped__`)
    the function inside, whose parameters the decorator is taken to pass on.

    Args:
        reward_func (`Callable`):
            The reward function.
        channel (`str`):
            Name of its channel.
        columns (`Iterable[str]`, *optional*):
            Columns of the data set; `None` where they are not known.
        trainer_arguments (`Iterable[str]`, *optional*, defaults to `TRAINER_ARGUMENTS`):
            What the trainer passes beside them.
        dataset (`str`, *optional*, defaults to `"the data set"`):
            What to call the data set.
        extra_possible (`bool`, *optional*, defaults to `False`):
            Whether columns may appear at run time.

    Returns:
        `str` or `None`: a sentence when the call would fail; `None` when it would not, or when Python cannot tell the
        parameters, as of some functions written in C.
    """
    try:
        parameters = inspect.signature(reward_func).parameters.values()
    except (TypeError, ValueError):
        return None
    known = [column for column in columns or () if column not in _WITHHELD]
    in_worker = find_worker(reward_func) is not None
    given = [name for name in (*trainer_arguments, *known) if not (in_worker and name in NOT_PASSED)]
    who = f"The reward function of channel '{channel}'"

    bound = [name for name in _bound_by_position(reward_func) if name in given]
    if bound:
        return f"{who} is a partial that binds {bound} by position, which the trainer passes. Bind by keyword."
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unnamed = [p.name for p in required if p.kind is p.POSITIONAL_ONLY]
    if unnamed:
        return (
            f"{who} takes {unnamed} by position only; the trainer passes keywords. Remove the `/` from its parameters."
        )
    missing = [p.name for p in required if p.name not in given]
    if missing and columns is not None and not extra_possible:
        withheld = f", and a worker process does not get {list(NOT_PASSED)}" if in_worker else ""
        return (
            f"{who} requires {missing}, which nothing supplies: the columns of {dataset} are {list(columns)}, and the "
            f"trainer adds {list(trainer_arguments)}{withheld}.{_did_you_mean(missing, given)} Rename the column or the "
            "parameter, give the parameter a default, or bind it with `functools.partial`."
        )
    keywords = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    refused = [name for name in given if name not in keywords]
    if refused and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        return f"{who} does not accept {refused}, which the trainer passes. Add `**kwargs` to its parameters."
    return None


def columns_by_dataset(train_dataset, eval_dataset=None, remove_unused_columns: bool = False) -> dict:
    """
    Columns that reach the reward functions from each data set.

    Args:
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            The trainer's.
        eval_dataset ([`~datasets.Dataset`], [`~datasets.IterableDataset`] or a mapping of them, *optional*):
            The trainer's.
        remove_unused_columns (`bool`, *optional*, defaults to `False`):
            The setting of that name, with which TRL keeps the prompt and images only.

    Returns:
        `dict[str, list[str] | None]`: by data set; `None` where a data set does not tell its columns.
    """
    found = {"`train_dataset`": train_dataset}
    if isinstance(eval_dataset, dict):
        found |= {f"`eval_dataset[{name!r}]`": dataset for name, dataset in eval_dataset.items()}
    else:
        found["`eval_dataset`"] = eval_dataset
    columns = {}
    for name, dataset in found.items():
        names = dataset.column_names if isinstance(dataset, (datasets.Dataset, datasets.IterableDataset)) else None
        if names is not None and remove_unused_columns:
            name += " with `remove_unused_columns=True`"
            names = [column for column in names if column in _SIGNATURE_COLUMNS]
        columns[name] = names
    return columns


def farthest_outside(rewards: torch.Tensor, bounds: tuple[float, float] | None) -> float | None:
    """
    The reward that lies farthest outside the declared bounds.

    Args:
        rewards (`torch.Tensor` of shape `(N,)`):
            Rewards of one channel; those that are NaN or infinite do not count.
        bounds (`tuple[float, float]`, *optional*):
            Declared bounds of the channel.

    Returns:
        `float` or `None`: `None` when all lie inside, up to one millionth of the width, or when no bounds are declared.
    """
    if bounds is None:
        return None
    low, high = bounds
    excess = torch.maximum(low - rewards, rewards - high).masked_fill(~rewards.isfinite(), -torch.inf)  # (N,)
    worst = excess.argmax()
    return rewards[worst].item() if excess[worst] > 1e-6 * (high - low) else None


def _bound_by_position(reward_func: Callable) -> list[str]:
    """Parameters that a partial fills by position, which a keyword of the same name would fill once more."""
    if not isinstance(reward_func, functools.partial):
        return []
    return list(inspect.signature(reward_func.func).parameters)[: len(reward_func.args)]


def _did_you_mean(names: list[str], candidates: list[str]) -> str:
    close = [match for name in names for match in difflib.get_close_matches(name, candidates, n=1)]
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
