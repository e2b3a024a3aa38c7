import functools

import pytest
import torch
from datasets import Dataset, IterableDataset
from torch import nn

from trl_dara.rewards import think_length_reward, tool_correctness_reward, tool_format_reward
from trl_dara.rewards.channel import ChannelLog, as_channel
from trl_dara.rewards.contract import (
    TRAINER_ARGUMENTS,
    check_reward_contract,
    columns_by_dataset,
    contract_problem,
    farthest_outside,
)

from . import worker_functions
from .worker_functions import lengths


COLUMNS = ["prompt", "answer", "level"]


def closed(completions, answer):
    return [0.0] * len(completions)


def full(prompts, completions, completion_ids, answer, level, trainer_state, log_extra, log_metric):
    return [0.0] * len(completions)


def open_ended(completions, **kwargs):
    return [0.0] * len(completions)


def with_answer(completions, answer, **kwargs):
    return [0.0] * len(completions)


def with_solution(completions, solution, **kwargs):
    return [0.0] * len(completions)


def with_default(completions, solution=None, **kwargs):
    return [0.0] * len(completions)


def keyword_only(*, completions, solution, **kwargs):
    return [0.0] * len(completions)


def everything(**kwargs):
    return [0.0] * len(kwargs["completions"])


async def judge(completions, solution, **kwargs):
    return [0.0] * len(completions)


class Grader:
    def __call__(self, completions, solution, **kwargs):
        return [0.0] * len(completions)

    def graded(self, completions, solution, **kwargs):
        return [0.0] * len(completions)


class AsyncGrader:
    async def __call__(self, completions, solution, **kwargs):
        return [0.0] * len(completions)


def wrapped(reward_func):
    @functools.wraps(reward_func)
    def inner(*args, **kwargs):
        return reward_func(*args, **kwargs)

    return inner


def channel(reward_func):
    return as_channel(reward_func, "f", ChannelLog(), "raise", lambda: 0)


def problem(reward_func, columns=COLUMNS, **kwargs):
    return contract_problem(reward_func, "f", columns, **kwargs)


def trainer_call(reward_func, columns=COLUMNS):
    """Call as TRL does, on one completion."""
    given = {name: ["x"] for name in (*TRAINER_ARGUMENTS, *columns) if name not in ("prompt", "completion")}
    return reward_func(**given)


@pytest.mark.parametrize(
    "reward_func",
    [
        full,
        open_ended,
        with_answer,
        with_default,
        everything,
        wrapped(with_answer),
        channel(with_answer),
        functools.partial(with_solution, solution=["gold"]),
        functools.partial(functools.partial(with_solution, solution=["gold"]), level=[1]),
        lambda completions, **kwargs: [0.0],
        think_length_reward,
        functools.partial(worker_functions.scaled, 5.0),
        functools.partial(worker_functions.scaled_lengths, 5.0),
        lengths,
        max,  # Python does not tell its parameters
    ],
)
def test_functions_that_fit_are_let_through(reward_func):
    assert problem(reward_func) is None


@pytest.mark.parametrize(
    "reward_func",
    [
        with_solution,
        keyword_only,
        judge,
        Grader(),
        Grader().graded,
        AsyncGrader(),
        functools.partial(with_solution, level=[1]),
        functools.partial(Grader()),
        functools.partial(judge),
        wrapped(with_solution),
        wrapped(functools.partial(with_solution)),
        channel(with_solution),
        channel(judge),
        lambda completions, solution, **kwargs: [0.0],
    ],
)
def test_missing_column_is_named_with_those_that_exist(reward_func):
    message = problem(reward_func, ["prompt", "solutions", "level"])
    assert "channel 'f' requires ['solution']" in message
    assert "['prompt', 'solutions', 'level']" in message
    assert "Did you mean 'solutions'?" in message
    assert problem(reward_func, ["prompt", "solution"]) is None


@pytest.mark.parametrize("reward_func", [closed, wrapped(closed), channel(closed), functools.partial(closed)])
def test_function_without_kwargs_is_told_to_add_them(reward_func):
    message = problem(reward_func)
    refused = ["prompts", "completion_ids", "trainer_state", "log_extra", "log_metric", "level"]
    assert f"channel 'f' does not accept {refused}" in message
    assert "`**kwargs`" in message


def test_function_without_kwargs_is_refused_even_where_columns_are_not_known():
    assert "does not accept ['prompts'" in problem(closed, None)
    assert "does not accept ['prompts'" in problem(closed, extra_possible=True)


@pytest.mark.parametrize(
    ("reward_func", "said"),
    [
        (functools.partial(with_answer, 5.0), "binds ['completions'] by position"),
        (lambda completions, /, **kwargs: [0.0], "takes ['completions'] by position only"),
        (lambda *args: [0.0], "does not accept"),
        (lambda prompt, completions, **kwargs: [0.0], "Did you mean 'prompts'?"),
        (lambda completion, **kwargs: [0.0], "Did you mean 'completions'?"),
    ],
)
def test_calls_that_would_fail_for_other_reasons(reward_func, said):
    assert said in problem(reward_func)
    with pytest.raises(TypeError):  # what it would have been in the middle of training
        trainer_call(reward_func)


@pytest.mark.parametrize("reward_func", [full, open_ended, with_answer, closed, with_solution, everything, max])
def test_says_what_python_would(reward_func):
    """Except for `max`, whose parameters are not known."""
    try:
        trainer_call(reward_func)
        fails = False
    except TypeError:
        fails = True
    assert (problem(reward_func) is not None) == (fails and reward_func is not max)


def test_worker_gets_no_trainer_objects():
    needs_state = worker_functions.in_worker_process(lambda completions, trainer_state, **kwargs: [0.0])
    message = problem(needs_state)
    assert "requires ['trainer_state']" in message and "a worker process does not get" in message
    exact = worker_functions.in_worker_process(lambda prompts, completions, completion_ids, answer, level: [0.0])
    assert problem(exact) is None


def test_columns_that_may_come_at_run_time_are_let_through():
    assert problem(with_solution, extra_possible=True) is None
    assert problem(with_solution, None) is None


def check(reward_funcs, train, evaluation=None, **kwargs):
    names = [f"f{index}" for index in range(len(reward_funcs))]
    check_reward_contract(reward_funcs, names, columns_by_dataset(train, evaluation), **kwargs)


def data(*columns):
    return Dataset.from_dict({column: ["x"] for column in columns})


def test_all_problems_come_in_one_error():
    with pytest.raises(ValueError) as caught:
        check([closed, open_ended, with_solution], data("prompt", "answer"))
    first, second = str(caught.value).splitlines()
    assert "'f0' does not accept" in first
    assert (
        "'f2' requires ['solution']" in second and "the columns of `train_dataset` are ['prompt', 'answer']" in second
    )


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        (data("prompt", "answer"), "`eval_dataset` are"),
        ({"easy": data("prompt", "solution"), "hard": data("prompt")}, r"`eval_dataset\['hard'\]` are \['prompt'\]"),
    ],
)
def test_evaluation_data_is_checked_too(evaluation, said):
    train = data("prompt", "solution")
    check([with_solution], train, data("prompt", "solution"))
    with pytest.raises(ValueError, match=said):
        check([with_solution], train, evaluation)


def test_streams_tell_their_columns_or_are_let_through():
    rows = [{"prompt": "p", "answer": "a"}]
    unknown = IterableDataset.from_generator(lambda: iter(rows))
    assert unknown.column_names is None
    check([with_solution], unknown)
    with pytest.raises(ValueError, match="requires .*solution.*'prompt', 'answer'"):
        check([with_solution], Dataset.from_list(rows).to_iterable_dataset())


def test_run_without_data_set_checks_what_the_trainer_passes():
    check([with_solution], None)
    with pytest.raises(ValueError, match="does not accept"):
        check([closed], None)


def test_environments_are_passed_when_there_are_any():
    def environment_reward(environments, _env_type=None, **kwargs):
        return [0.0] * len(environments)

    check([environment_reward], data("prompt"), has_environments=True)
    with pytest.raises(ValueError, match="requires .*environments"):
        check([environment_reward], data("prompt"))
    check([full], data("prompt", "answer", "level"))
    with pytest.raises(ValueError, match=r"does not accept \['environments'\]"):
        check([full], data("prompt", "answer", "level"), has_environments=True)


def test_removed_columns_do_not_exist():
    dataset = data("prompt", "solution", "image")
    columns = columns_by_dataset(dataset, remove_unused_columns=True)
    with pytest.raises(ValueError, match=r"`remove_unused_columns=True` are \['prompt', 'image'\]"):
        check_reward_contract([with_solution], ["f"], columns)


@pytest.mark.parametrize("column", ["prompts", "completions", "trainer_state"])
def test_column_named_like_an_argument_of_the_trainer(column):
    with pytest.raises(ValueError, match=f"`train_dataset` has the columns .'{column}'"):
        check([open_ended], data("prompt", column))
    check([nn.Linear(1, 1)], data("prompt", column))


def test_columns_that_are_not_passed_on_do_no_harm():
    check([lambda prompts, completions, **kwargs: [0.0]], data("prompt", "completion", "completion_ids"))


def test_reward_models_are_skipped():
    check([nn.Linear(1, 1)], data("prompt"))


def test_built_in_rewards_name_the_column_that_they_need():
    for reward_func in (tool_format_reward, tool_correctness_reward):
        assert "requires ['ground_truth']" in problem(reward_func)
        assert problem(reward_func, ["prompt", "ground_truth"]) is None


# Declared bounds


@pytest.mark.parametrize(
    ("rewards", "bounds", "outside"),
    [
        ([0.0, 0.5, 1.0], (0, 1), None),
        ([0.0, 1.5, 7.0, -2.0], (0, 1), 7.0),
        ([0.0, -2.0, 1.5], (0, 1), -2.0),
        ([-3.0, 3.0], (-3, 3), None),
        ([float("nan"), float("inf"), -float("inf")], (0, 1), None),
        ([float("nan"), 2.0], (0, 1), 2.0),
        ([0.1 + 0.2, 1 / 3], (0.1, 0.3), pytest.approx(1 / 3)),
        ([0.1, 0.3], (0.1, 0.3), None),  # single precision rounds them up
        ([-1e-9, 1 + 1e-7], (0, 1), None),  # the residue of a sum
        ([5.0], None, None),
    ],
)
def test_farthest_outside(rewards, bounds, outside):
    assert farthest_outside(torch.tensor(rewards), bounds) == outside
