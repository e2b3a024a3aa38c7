import asyncio
import functools
import math
import sys

import pytest
from trl.rewards import think_format_reward
from trl.trainer.utils import get_callable_name, is_async_callable

from trl_dara.rewards import tool_format_reward
from trl_dara.rewards.loading import FACTORIES, REWARDS, load_reward, load_rewards, merge_weights, parse_reward


SOURCE = """
import functools

calls = []


def brevity(completions, scale=1.0, **kwargs):
    calls.append("brevity")
    return [-scale * len(completion) for completion in completions]


async def judge(completions, verdict=1.0, **kwargs):
    return [verdict for _ in completions]


def number_of_calls():
    return len(calls)


class Scorer:
    def __call__(self, completions, **kwargs):
        return [2.0 for _ in completions]


scorer = Scorer()
half = functools.partial(brevity, scale=0.5)
limit = 3
"""


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """A folder with `own_rewards.py`, the package `own_package` and the file `folder/math.py`, all with `SOURCE`."""
    for path in ("own_rewards.py", "own_package/__init__.py", "own_package/rewards.py", "folder/math.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(SOURCE)
    modules = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - modules:
        if name.startswith("own_") or str(tmp_path).replace(".", "_") in name:
            del sys.modules[name]


def load(entry):
    return load_reward(parse_reward(entry))


@pytest.mark.parametrize("name", sorted(set(REWARDS) - FACTORIES))
def test_built_in_is_the_function_of_that_name(name):
    assert get_callable_name(load(name)) == name


def test_built_in_of_trl_and_ours():
    assert load("think_format_reward") is think_format_reward
    assert load("tool_format_reward") is tool_format_reward


@pytest.mark.parametrize("path", ["own_rewards.brevity", "own_package.rewards.brevity", "own_rewards.py:brevity"])
def test_own_function_of_the_working_folder(working_folder, path):
    reward = load(path)
    assert reward(completions=["abc", ""]) == [-3.0, 0.0]
    assert get_callable_name(reward) == "brevity"


def test_absolute_path(working_folder):
    assert load(f"{working_folder / 'own_rewards.py'}:brevity")(completions=["ab"]) == [-2.0]


def test_file_is_loaded_once_and_does_not_replace_a_module_of_its_name(working_folder):
    reward, number_of_calls = load("folder/math.py:brevity"), load("folder/math.py:number_of_calls")
    reward(completions=["a"])
    assert number_of_calls() == 1
    assert sys.modules["math"] is math


def test_callable_object_and_partial(working_folder):
    assert load("own_rewards.scorer")(completions=["a"]) == [2.0]
    assert load("own_rewards.half")(completions=["ab"]) == [-1.0]


def test_kwargs_are_bound(working_folder):
    reward = load({"path": "own_rewards.brevity", "kwargs": {"scale": 2}})
    assert isinstance(reward, functools.partial)
    assert reward(completions=["ab"]) == [-4.0]
    assert get_callable_name(reward) == "brevity"


def test_factory_is_called_with_kwargs():
    kwargs = {"max_completion_len": 4, "soft_punish_cache": 2}
    reward = load({"path": "get_soft_overlong_punishment", "kwargs": kwargs})
    assert reward(completion_ids=[[1], [1, 1, 1], [1] * 5]) == [0.0, -0.5, -1.0]


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "own_rewards.brevity", "name": "short", "kwargs": {"scale": 3}},
        '{"path": "own_rewards.py:brevity", "name": "short", "kwargs": {"scale": 3}}',
        {"path": "own_rewards.half", "name": "short", "kwargs": {"scale": 3}},
    ],
)
def test_name_becomes_the_name_that_trl_reads(working_folder, entry):
    reward = load(entry)
    assert get_callable_name(reward) == "short"
    assert reward(completions=["ab"]) == [-6.0]


def test_named_async_function_stays_async(working_folder):
    reward = load({"path": "own_rewards.judge", "name": "fair", "kwargs": {"verdict": 0.5}})
    assert is_async_callable(reward) and get_callable_name(reward) == "fair"
    assert asyncio.run(reward(completions=["a", "b"])) == [0.5, 0.5]


def test_naming_one_function_twice_leaves_it_alone(working_folder):
    entries = [{"path": "own_rewards.brevity", "name": name} for name in ("a", "b")]
    functions, _ = load_rewards([*entries, "own_rewards.brevity"])
    assert [get_callable_name(function) for function in functions] == ["a", "b", "brevity"]


def test_single_entry_is_one_reward():
    for entry in ("think_format_reward", {"path": "think_format_reward"}):
        functions, weights = load_rewards(entry)
        assert functions == [think_format_reward] and weights == [None]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("format", ["'format'", "'think_format_reward' or 'gsm8k_format_reward' or 'tool_format_reward'", *REWARDS]),
        ("acuracy_reward", ["Did you mean", "'accuracy_reward'"]),
        ("own_rewards", ["no built-in", "package.module.function"]),
        ("own_reward.brevity", ["no module 'own_reward'", "working folder"]),
        ("own_package.reward.brevity", ["no module 'own_package.reward'"]),
        ("own_rewards.brevety", ["no function 'brevety'", "Did you mean 'brevity'", "judge", "number_of_calls"]),
        ("own_rewards.py:brevety", ["no function 'brevety'", "Did you mean 'brevity'", "judge"]),
        (
            "own_rewards.py",
            ["names no function", "`own_rewards.py:function`", "'brevity', 'judge', 'number_of_calls'"],
        ),
        ("nowhere.py:brevity", ["no Python file", "nowhere.py"]),
        ("folder:brevity", ["no Python file"]),
        ("own_rewards.Scorer", ["is a type, not a function", "instance"]),
        ("own_rewards.limit", ["is a int, not a function"]),
        ("", ["no built-in reward function ''"]),
        ({"path": "own_rewards.brevity", "kwargs": {"scael": 2}}, ["does not take ['scael']", "'scale'"]),
        ("get_soft_overlong_punishment", ["needs ['max_completion_len', 'soft_punish_cache']"]),
        (
            {"path": "get_cosine_scaled_reward", "kwargs": {"max_length": 2}},
            ["does not take ['max_length']", "max_len"],
        ),
        ({"path": "own_rewards.brevity", "wieght": 2}, ["['wieght']", "'path', 'name', 'weight', 'kwargs'"]),
        ({"name": "think_format_reward"}, ["has no `path`"]),
        ({"path": 3}, ["`path`", "3"]),
        ({"path": "own_rewards.brevity", "name": ""}, ["`name`", "own_rewards.brevity"]),
        ({"path": "own_rewards.brevity", "weight": math.nan}, ["`weight`", "nan", "finite"]),
        ({"path": "own_rewards.brevity", "weight": "2"}, ["`weight`", "'2'"]),
        ({"path": "own_rewards.brevity", "weight": True}, ["`weight`", "True"]),
        ({"path": "own_rewards.brevity", "kwargs": [1]}, ["`kwargs`", "[1]"]),
        ('{"path": "own_rewards.brevity"', ["JSON", '{"path": "own_rewards.brevity"']),
        (3, ["3 is neither a string nor a mapping"]),
    ],
)
def test_error_says_what_came_and_what_exists(working_folder, entry, says):
    with pytest.raises(ValueError) as error:
        load(entry)
    for text in says:
        assert text in str(error.value)


def test_error_inside_the_module_is_not_hidden(working_folder):
    (working_folder / "own_broken.py").write_text(
        "import a_missing_package\n\n\ndef reward(completions, **kwargs): ...\n"
    )
    for path in ("own_broken.reward", "own_broken.py:reward", "own_broken.py:reward"):
        with pytest.raises(ModuleNotFoundError, match="a_missing_package"):
            load(path)


def test_weights_of_entries_become_reward_weights():
    _, weights = load_rewards(["think_format_reward", {"path": "think_length_reward", "weight": 2}])
    assert merge_weights(weights, None) == [1.0, 2.0]


def test_no_weights_leave_reward_weights_alone():
    for reward_weights in (None, [1.0, 0.5], {"think_format_reward": 2.0}):
        assert merge_weights([None, None], reward_weights) == reward_weights


def test_weights_in_two_places_are_refused():
    with pytest.raises(ValueError, match=r"`weight`.*`reward_weights` is \[1.0, 0.5\]"):
        merge_weights([None, 2.0], [1.0, 0.5])
