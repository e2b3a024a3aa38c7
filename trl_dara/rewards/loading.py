"""
Reward functions as one writes them on the command line and in a YAML file:

- the name of a built-in one, a key of `REWARDS`: `think_format_reward`;
- a dotted path, from the working folder or an installed package: `my_package.rewards.brevity`;
- a function in a file, relative to the working folder: `rewards.py:brevity`;
- a mapping (on the command line a JSON string) of `path`, one of the three above, and any of `name`, `weight`, `kwargs`.
"""

import difflib
import functools
import importlib
import importlib.util
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType

from trl.trainer.utils import is_async_callable

from . import __all__ as exported
from .worker import find_worker


_OF_TRL = (
    "accuracy_reward",
    "get_cosine_scaled_reward",
    "get_repetition_penalty_reward",
    "get_soft_overlong_punishment",
    "reasoning_accuracy_reward",
    "think_format_reward",
)
_OURS = tuple(name for name in exported if name.endswith("_reward"))
# Paths rather than functions: a built-in is imported when it is used.
REWARDS = {name: f"trl.rewards.{name}" for name in _OF_TRL} | {name: f"trl_dara.rewards.{name}" for name in _OURS}

# Built-ins that are called with `kwargs` to get the reward function.
FACTORIES = frozenset({"get_cosine_scaled_reward", "get_repetition_penalty_reward", "get_soft_overlong_punishment"})

_OWN_FUNCTIONS = "Write a function of your own as `package.module.function` or `path/to/file.py:function`."


@dataclass(frozen=True)
class RewardSpec:
    """
    One entry of `reward_funcs`.

    Args:
        path (`str`):
            Name of a built-in reward function, dotted path, or `path/to/file.py:function`.
        name (`str`, *optional*):
            Name of the channel. By default the function's `__name__`.
        weight (`float`, *optional*):
            Weight of the channel, instead of an entry in `reward_weights`.
        kwargs (`dict`, *optional*):
            Keyword arguments bound to the function with `functools.partial`; those of the factory for a built-in whose
            name starts with `get_`.
    """

    path: str
    name: str | None = None
    weight: float | None = None
    kwargs: dict = field(default_factory=dict)

    def __post_init__(self):
        if not isinstance(self.path, str):
            raise ValueError(f"`path` in `reward_funcs` is {self.path!r}. Pass a string. {_OWN_FUNCTIONS}")
        if not (self.name is None or (isinstance(self.name, str) and self.name)):
            raise ValueError(f"`name` of the reward {self.path!r} is {self.name!r}. Pass a non-empty string.")
        is_number = isinstance(self.weight, (int, float)) and not isinstance(self.weight, bool)
        if self.weight is not None and not (is_number and math.isfinite(self.weight)):
            raise ValueError(f"`weight` of the reward {self.path!r} is {self.weight!r}. Pass a finite number.")
        if not isinstance(self.kwargs, dict):
            raise ValueError(
                f"`kwargs` of the reward {self.path!r} is {self.kwargs!r}. Pass a mapping of keyword arguments."
            )


def parse_reward(entry: str | dict) -> RewardSpec:
    """
    Read one entry of `reward_funcs`.

    Args:
        entry (`str` or `dict`):
            Path of a reward function, or a mapping with the fields of [`RewardSpec`]; a string that starts with `{` is a
            mapping in JSON.

    Returns:
        [`RewardSpec`]

    Raises:
        `ValueError`: for anything else.
    """
    if isinstance(entry, str) and entry.lstrip().startswith("{"):
        try:
            entry = json.loads(entry)
        except json.JSONDecodeError as error:
            raise ValueError(f"`reward_funcs`: {entry!r} starts like a JSON mapping but is none: {error}.") from None
    if isinstance(entry, str):
        return RewardSpec(entry)
    legal = [option.name for option in fields(RewardSpec)]
    if not isinstance(entry, dict):
        raise ValueError(f"`reward_funcs`: {entry!r} is neither a string nor a mapping with the keys {legal}.")
    unknown = [key for key in entry if key not in legal]
    if unknown or "path" not in entry:
        problem = f"has the unknown keys {unknown}" if unknown else "has no `path`"
        raise ValueError(
            f"`reward_funcs`: the mapping {entry} {problem}. Its keys: {legal}, of which `path` is required."
        )
    return RewardSpec(**entry)


def load_reward(spec: RewardSpec) -> Callable:
    """
    Import the function of a spec, bind its `kwargs` and give it its `name`.

    Args:
        spec ([`RewardSpec`]):
            What to load. The working folder is importable.

    Returns:
        `Callable`: reward function whose `__name__` is the channel's name; an async function stays async.

    Raises:
        `ValueError`: when there is no such module, file or function, or when `kwargs` do not fit; the message lists what
        exists. An error inside the user's module is raised as it is.
    """
    function = _find(spec.path)
    if spec.kwargs or spec.path in FACTORIES:
        _check_kwargs(spec, function)
    if spec.path in FACTORIES:
        function = function(**spec.kwargs)
    elif spec.kwargs:
        function = functools.partial(function, **spec.kwargs)
    return function if spec.name is None else _renamed(function, spec.name)


def load_rewards(entries: str | dict | Iterable[str | dict]) -> tuple[list[Callable], list[float | None]]:
    """
    Load all entries of `reward_funcs`.

    Args:
        entries (`str`, `dict` or an iterable of them):
            One entry or several, as for [`parse_reward`].

    Returns:
        `tuple[list[Callable], list[float | None]]`: the reward functions, and the `weight` that each entry gives.
    """
    specs = [parse_reward(entry) for entry in ([entries] if isinstance(entries, (str, dict)) else entries)]
    return [load_reward(spec) for spec in specs], [spec.weight for spec in specs]


def merge_weights(weights: list[float | None], reward_weights: list[float] | dict | None):
    """
    Turn the weights of the entries into `reward_weights`.

    Args:
        weights (`list[float | None]`):
            `weight` of each entry of `reward_funcs`, `None` where it gives none.
        reward_weights (`list[float]` or `dict[str, float]`, *optional*):
            The setting of that name.

    Returns:
        `list[float]` or `dict[str, float]` or `None`: `reward_weights` when no entry has a `weight`, else one weight per
        entry, 1 where it gives none.

    Raises:
        `ValueError`: when both are given.
    """
    if all(weight is None for weight in weights):
        return reward_weights
    if reward_weights is not None:
        raise ValueError(
            f"`reward_funcs` has `weight` entries ({weights}) and `reward_weights` is {reward_weights}. Give the weights "
            "in one of the two places."
        )
    return [1.0 if weight is None else float(weight) for weight in weights]


def _find(path: str) -> Callable:
    if path in REWARDS:
        module, _, name = REWARDS[path].rpartition(".")
        return getattr(importlib.import_module(module), name)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    file, colon, name = path.rpartition(":")
    if colon:
        module = _import_file(file)
    elif path.endswith(".py"):
        found = _functions(_import_file(path))
        raise ValueError(f"`reward_funcs`: {path!r} names no function. Write `{path}:function`, one of {found}.")
    elif "." in path:
        module, _, name = path.rpartition(".")
        module = _import_module(module)
    else:
        raise ValueError(
            f"`reward_funcs`: there is no built-in reward function {path!r}.{_did_you_mean(path, REWARDS)} Built-in: "
            f"{', '.join(sorted(REWARDS))}. {_OWN_FUNCTIONS}"
        )
    if name not in vars(module):
        found = _functions(module)
        raise ValueError(
            f"`reward_funcs`: {module.__file__} has no function {name!r}.{_did_you_mean(name, found)} It has {found}."
        )
    function = vars(module)[name]
    if inspect.isclass(function) or not callable(function):
        raise ValueError(
            f"`reward_funcs`: {path!r} is a {type(function).__name__}, not a function. Name a function, or an instance of "
            "a class with `__call__`."
        )
    return function


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists and one of its own imports does not
        raise ValueError(
            f"`reward_funcs`: there is no module {error.name!r}, looked for in the working folder {os.getcwd()} and among "
            f"the installed packages. {_OWN_FUNCTIONS}"
        ) from None


def _import_file(file: str) -> ModuleType:
    path = Path(file).resolve()
    if not path.is_file() or path.suffix != ".py":
        raise ValueError(f"`reward_funcs`: there is no Python file {str(path)!r}. {_OWN_FUNCTIONS}")
    # The whole path, so that a file called like a module of Python (`math.py`) does not replace that module, and two
    # functions of one file share its state.
    name = str(path.with_suffix("")).replace(".", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if (inspect.isroutine(value) or find_worker(value) is not None) and value.__module__ == module.__name__
    ]


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    # `format` is close to `think_format_reward` for a reader, not for difflib
    close = [candidate for candidate in names if name in candidate] or difflib.get_close_matches(name, names, n=2)
    return f" Did you mean {' or '.join(map(repr, close))}?" if name and close else ""


def _check_kwargs(spec: RewardSpec, function: Callable) -> None:
    named = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    # A misspelt argument would otherwise vanish in the `**kwargs` that every reward function has.
    unknown = [name for name in spec.kwargs if name not in named]
    missing = [
        name
        for name, parameter in named.items()
        if spec.path in FACTORIES and parameter.default is parameter.empty and name not in spec.kwargs
    ]
    if unknown or missing:
        problem = f"does not take {unknown}" if unknown else f"needs {missing}"
        raise ValueError(
            f"`kwargs` of the reward {spec.path!r} is {spec.kwargs}, but the function {problem}. It takes {list(named)}."
        )


def _renamed(function: Callable, name: str) -> Callable:
    if is_async_callable(function):

        async def reward(*args, **kwargs):
            return await function(*args, **kwargs)

    else:

        def reward(*args, **kwargs):
            return function(*args, **kwargs)

    functools.update_wrapper(reward, function)
    reward.__name__ = name
    return reward
