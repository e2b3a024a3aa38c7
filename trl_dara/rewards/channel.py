"""One reward function as the trainer calls it: named, its output checked, its failures and its time counted."""

import asyncio
import functools
import logging
import math
import numbers
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from trl.trainer.utils import is_async_callable

from .worker import find_worker


logger = logging.getLogger(__name__)


@dataclass
class ChannelLog:
    """
    What happened in the calls of one reward function since the last generation batch.

    Args:
        seconds (`float`, *optional*, defaults to `nan`):
            Time spent in the function on this process; NaN when it was not called.
        errors (`int`, *optional*, defaults to `0`):
            Calls that raised and were skipped.
        warned_infinite (`bool`, *optional*, defaults to `False`):
            Whether infinite rewards have been warned about, once per run.
        warned_bounds (`bool`, *optional*, defaults to `False`):
            Whether a reward outside the declared bounds has been warned about, once per run.
    """

    seconds: float = math.nan
    errors: int = 0
    warned_infinite: bool = False
    warned_bounds: bool = False

    def reset(self) -> None:
        """Forget the last batch."""
        self.seconds, self.errors = math.nan, 0


def unique_names(names: list[str]) -> list[str]:
    """
    Number repeated names, so that two partials or lambdas of one function stay two channels: `["f", "f"]` becomes
    `["f", "f_2"]`.
    """
    taken = set()
    unique = []
    for name in names:
        candidate, number = name, 1
        while candidate in taken or (number > 1 and candidate in names):
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        unique.append(candidate)
    return unique


def as_channel(
    reward_func: Callable,
    name: str,
    log: ChannelLog,
    on_error: str,
    current_step: Callable,
    timeout: float | None = None,
) -> Callable:
    """
    Wrap a reward function, sync or async, so that it has a channel's name, checked output, a time limit, and its time and
    errors on record.

    Args:
        reward_func (`Callable`):
            Function with TRL's reward signature.
        name (`str`):
            Name of the channel.
        log ([`ChannelLog`]):
            Where time and errors are recorded.
        on_error (`str`):
            `"raise"`, or `"skip"`: the channel does not score this batch.
        current_step (`Callable`):
            Returns the global step, for the error message.
        timeout (`float`, *optional*):
            Longest time that one call may take, in seconds, after which it fails with a `TimeoutError`. An async function
            is stopped where it awaits something. A sync function is stopped when it is marked with
            [`~worker.in_worker_process`]; nothing can stop another one, and a warning says so.

    Returns:
        `Callable`: function whose `__name__` is the channel's name and whose `__wrapped__` is `reward_func`.

    Raises:
        `ValueError`: when `reward_func` is marked for a worker process that cannot import it.
    """
    worker = find_worker(reward_func)
    if worker is not None:
        worker.check_loadable()

    def failed(error: Exception, completions: list) -> list[None]:
        if on_error == "raise":
            raise RuntimeError(
                f"The reward function of channel '{name}' failed at step {current_step()}: {type(error).__name__}: "
                f"{error}.{strings_hint(error, completions)} Set `on_reward_error='skip'` to leave the channel out of a "
                "batch in which it fails."
            ) from error
        log.errors += 1
        logger.warning(
            f"Channel '{name}' scores nothing in the batch at step {current_step()}: {type(error).__name__}: {error}"
        )
        return [None] * len(completions)

    if is_async_callable(reward_func):

        async def channel(prompts, completions, **kwargs):
            start = time.perf_counter()
            try:
                call = reward_func(prompts=prompts, completions=completions, **kwargs)
                output = run_through(await _within(timeout, call))
            except Exception as error:  # what the user's function raises is theirs; KeyboardInterrupt passes
                return failed(error, completions)
            finally:
                log.seconds = time.perf_counter() - start
            return checked_rewards(output, name, len(completions))

    else:
        if timeout is not None and worker is None:
            logger.warning(
                f"`reward_timeout` does not apply to channel '{name}': a sync function can only be stopped in a process of "
                "its own. Mark it with `in_worker_process`, or make it async."
            )

        def channel(prompts, completions, **kwargs):
            start = time.perf_counter()
            try:
                if worker is not None:
                    worker.timeout = timeout
                output = run_through(reward_func(prompts=prompts, completions=completions, **kwargs))
            except Exception as error:  # what the user's function raises is theirs; KeyboardInterrupt passes
                return failed(error, completions)
            finally:
                log.seconds = time.perf_counter() - start
            return checked_rewards(output, name, len(completions))

    functools.update_wrapper(channel, reward_func)
    channel.__name__ = name
    return channel


def strings_hint(error: Exception, completions: list) -> str:
    """
    A sentence for a reward that reads messages and was given strings; empty where it failed for another reason.
    """
    # Python's words for `"yes"["content"]` and for `""[0]`
    words = ("string indices must be integers", "string index out of range")
    if not isinstance(completions[0], str) or not any(text in str(error) for text in words):
        return ""
    return (
        " The prompts are strings, so the completions are strings too: read `completion`, not `completion[0]['content']`, or "
        "give the prompts as lists of messages."
    )


async def _within(timeout: float | None, call: Awaitable):
    try:
        async with asyncio.timeout(timeout) as limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():  # the function's own
            raise
        raise TimeoutError(f"no answer within {timeout:g} seconds (`reward_timeout`)") from error


def run_through(output):
    """A list of what a generator gives: its code runs, and fails, only now."""
    return list(output) if isinstance(output, Iterator) else output


def checked_rewards(output, name: str, num_completions: int) -> list[float | None]:
    """
    Check what a reward function returned.

    Args:
        output:
            A list, tuple, generator, numpy array or one-dimensional tensor with one number (or `None` for "not scored")
            per completion.
        name (`str`):
            Name of the channel, for the error message.
        num_completions (`int`):
            Number of completions that were to be scored.

    Returns:
        `list[float | None]`: one reward per completion.

    Raises:
        `TypeError`: when the output or one of its elements is no number.
        `ValueError`: when the number of rewards is not the number of completions.
    """
    expected = f"Return {num_completions} numbers, one per completion, with None for a completion that is not scored."
    if isinstance(output, (np.ndarray, torch.Tensor)):
        output = output.tolist()  # a matrix becomes a list of lists, whose rows are refused below
    if isinstance(output, (str, bytes, dict)) or not isinstance(output, Iterable):
        raise TypeError(f"The reward function of channel '{name}' returned {_shown(output)}. {expected}")
    rewards = [
        reward.item() if isinstance(reward, (np.generic, torch.Tensor)) and reward.ndim == 0 else reward
        for reward in output
    ]
    for index, reward in enumerate(rewards):
        if reward is not None and not isinstance(reward, numbers.Real):
            raise TypeError(
                f"The reward function of channel '{name}' returned {_shown(reward)} for completion {index}. {expected}"
            )
    if len(rewards) != num_completions:
        raise ValueError(f"The reward function of channel '{name}' returned {len(rewards)} rewards. {expected}")
    return [None if reward is None else float(reward) for reward in rewards]


def _shown(value) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} (a {type(value).__name__})"
