"""One reward function as a channel: its name, what it may return, its failures and its time."""

import asyncio
import fractions
import functools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trl_dara.rewards.channel import ChannelLog, as_channel, checked_rewards, unique_names


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (["f", "f"], ["f", "f_2"]),
        (["f", "g", "f", "f"], ["f", "g", "f_2", "f_3"]),
        (["f", "f", "f_2"], ["f", "f_3", "f_2"]),
        (["f_2", "f", "f"], ["f_2", "f", "f_3"]),
        (["<lambda>", "<lambda>"], ["<lambda>", "<lambda>_2"]),
        ([], []),
    ],
)
def test_unique_names(names, expected):
    assert unique_names(names) == expected


@given(st.lists(st.sampled_from(["f", "f_2", "f_3", "f_2_2", "g"]), max_size=8))
def test_names_are_unique_and_the_first_of_a_name_keeps_it(names):
    unique = unique_names(names)
    assert len(set(unique)) == len(unique) == len(names)
    for name in set(names):
        assert unique[names.index(name)] == name


@pytest.mark.parametrize(
    "output",
    [
        [1, 0, 2],
        (1.0, 0.0, 2.0),
        [True, False, 2],
        [np.float32(1), np.int64(0), np.float16(2)],
        np.array([1, 0, 2]),
        np.array([1.0, 0.0, 2.0], dtype=np.float16),
        torch.tensor([1, 0, 2]),
        torch.tensor([1.0, 0.0, 2.0], dtype=torch.bfloat16, requires_grad=True),
        list(torch.tensor([1.0, 0.0, 2.0])),
        (value for value in (1, 0, 2)),
        pd.Series([1, 0, 2]),
        [fractions.Fraction(1), 0, 2],
    ],
    ids=lambda output: type(output).__name__,
)
def test_numbers_become_floats(output):
    rewards = checked_rewards(output, "channel", 3)
    assert rewards == [1.0, 0.0, 2.0]
    assert all(type(reward) is float for reward in rewards)


def test_none_and_nan_stay():
    rewards = checked_rewards([None, math.nan, np.float64("nan"), 1], "channel", 4)
    assert rewards[0] is None
    assert math.isnan(rewards[1]) and math.isnan(rewards[2])


@pytest.mark.parametrize(
    ("output", "error", "came"),
    [
        ([1.0], ValueError, "returned 1 rewards"),
        ([1.0] * 4, ValueError, "returned 4 rewards"),
        ([], ValueError, "returned 0 rewards"),
        (1.0, TypeError, r"returned 1.0 \(a float\)"),
        (None, TypeError, r"returned None \(a NoneType\)"),
        (torch.tensor(1.0), TypeError, r"returned 1.0 \(a float\)"),
        (np.array(1.0), TypeError, r"returned 1.0 \(a float\)"),
        ("101", TypeError, r"returned '101' \(a str\)"),
        (b"101", TypeError, r"\(a bytes\)"),
        ({"a": 1, "b": 0, "c": 2}, TypeError, r"\(a dict\)"),
        ([[1.0], [0.0], [2.0]], TypeError, r"returned \[1.0\] \(a list\) for completion 0"),
        (np.ones((3, 1)), TypeError, r"returned \[1.0\] \(a list\) for completion 0"),
        (torch.ones(3, 1), TypeError, r"returned \[1.0\] \(a list\) for completion 0"),
        ([1.0, {"a": 1.0}, 0.0], TypeError, r"\(a dict\) for completion 1"),
        ([1.0, 0.0, "1.0"], TypeError, r"returned '1.0' \(a str\) for completion 2"),
        ([1.0, 0.0, 1j], TypeError, r"\(a complex\) for completion 2"),
        ([1.0, 0.0, torch.ones(1)], TypeError, r"\(a Tensor\) for completion 2"),
    ],
)
def test_what_is_refused(output, error, came):
    with pytest.raises(error, match=f"channel 'style'.* {came}") as raised:
        checked_rewards(output, "style", 3)
    assert "Return 3 numbers, one per completion" in str(raised.value)


def test_a_long_output_is_cut_in_the_message():
    with pytest.raises(TypeError) as raised:
        checked_rewards("x" * 10_000, "style", 3)
    assert len(str(raised.value)) < 300


def count(prompts, completions, factor=1, **kwargs):
    """How long each completion is."""
    return [factor * len(completion) for completion in completions]


class Counter:
    def __call__(self, prompts, completions, **kwargs):
        return count(prompts, completions)


class AsyncCounter:
    async def __call__(self, prompts, completions, **kwargs):
        return count(prompts, completions)


async def async_count(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    return count(prompts, completions)


def call(channel):
    output = channel(prompts=["p", "p"], completions=["ab", "c"], answer=["x", "y"])
    return asyncio.run(output) if asyncio.iscoroutine(output) else output


@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (count, [2.0, 1.0]),
        (functools.partial(count, factor=3), [6.0, 3.0]),
        (functools.partial(functools.partial(count, factor=3)), [6.0, 3.0]),
        (lambda completions, **kwargs: count(None, completions), [2.0, 1.0]),
        (Counter(), [2.0, 1.0]),
        (async_count, [2.0, 1.0]),
        (AsyncCounter(), [2.0, 1.0]),
        (functools.partial(async_count, extra=1), [2.0, 1.0]),
    ],
)
def test_a_channel_calls_its_function_and_keeps_the_time(func, expected):
    log = ChannelLog()
    channel = as_channel(func, "length", log, "raise", lambda: 0)
    assert channel.__name__ == "length"
    assert channel.__wrapped__ is func
    assert call(channel) == expected
    assert log.seconds > 0 and log.errors == 0
    log.reset()
    assert math.isnan(log.seconds)


def failing(prompts, completions, **kwargs):
    raise KeyError("missing")


async def async_failing(prompts, completions, **kwargs):
    raise KeyError("missing")


def lazily_failing(prompts, completions, **kwargs):
    yield 1.0
    raise KeyError("missing")


@pytest.mark.parametrize("func", [failing, async_failing, lazily_failing])
def test_a_failure_is_raised_with_name_and_step(func):
    log = ChannelLog()
    with pytest.raises(RuntimeError, match="channel 'judge' failed at step 7: KeyError: 'missing'") as raised:
        call(as_channel(func, "judge", log, "raise", lambda: 7))
    assert isinstance(raised.value.__cause__, KeyError)
    assert log.seconds > 0


@pytest.mark.parametrize("func", [failing, async_failing, lazily_failing])
def test_a_skipped_failure_scores_nothing_and_counts(func):
    log = ChannelLog()
    channel = as_channel(func, "judge", log, "skip", lambda: 7)
    assert call(channel) == [None, None]
    assert call(channel) == [None, None]
    assert log.errors == 2 and log.seconds > 0


def test_an_interruption_is_never_skipped():
    def interrupted(prompts, completions, **kwargs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(as_channel(interrupted, "judge", ChannelLog(), "skip", lambda: 0))


def test_a_malformed_output_is_never_skipped():
    channel = as_channel(lambda **kwargs: 1.0, "judge", ChannelLog(), "skip", lambda: 0)
    with pytest.raises(TypeError, match="channel 'judge' returned 1.0"):
        call(channel)
