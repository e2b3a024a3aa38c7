"""A model in training writes everything sooner or later: no completion may crash a reward or make it hang."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_scripts.benchmark.rewards import REWARDS, columns

from .hostile import THINK, TRUTHS, F, block, large_texts
from .test_tool_calling import PROPERTY


HIGHEST = {name: 3.0 if name == "tool_correctness_reward" else 1.0 for name in REWARDS}
LOWEST = {name: -3.0 if name == "tool_correctness_reward" else 0.0 for name in REWARDS}


def check_rewards(rewards: dict[str, list], count: int) -> None:
    for name, values in rewards.items():
        assert len(values) == count, name
        assert all(LOWEST[name] <= value <= HIGHEST[name] for value in values), name
        assert name == "tool_correctness_reward" or set(values) <= {0.0, 1.0}, name


PLACES = ["...", block("..."), block(F, "..."), THINK + block("..."), THINK + "<answer>...</answer>", r"\boxed{...}"]


@PROPERTY
@given(
    text=st.text(st.one_of(st.characters(), st.sampled_from("\\{}$=/.% \n\x00\ud800")), max_size=60),
    place=st.sampled_from(PLACES),
    truth=st.sampled_from(TRUTHS),
)
def test_no_completion_raises(text, place, truth):
    text = place.replace("...", text)
    arguments = columns([text, [{"role": "assistant", "content": text}]], truth)
    rewards = {name: reward_func(**arguments) for name, reward_func in REWARDS.items()}
    check_rewards(rewards, 2)
    assert all(plain == conversational for plain, conversational in rewards.values())


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=3), st.just("f")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["name", "parameters", "x"]), inner, max_size=3),
    ),
)


@PROPERTY
@given(st.lists(JSON, max_size=4))
def test_no_json_raises(values):
    arguments = columns([block(*map(json.dumps, values))])
    check_rewards({name: reward_func(**arguments) for name, reward_func in REWARDS.items()}, 1)


@pytest.mark.parametrize("message", [[], [{"role": "assistant"}], [{"role": "assistant", "content": None}]])
def test_no_text_counts_as_an_empty_one(message):
    arguments, empty = columns([message]), columns([""])
    for name, reward_func in REWARDS.items():
        assert reward_func(**arguments) == reward_func(**empty), name


def test_thousands_of_texts_are_scored_without_a_crash_or_a_hang():
    # The time limit catches a hang: all of it takes 10 seconds, or hours where something is quadratic.
    result = subprocess.run(
        [sys.executable, "-m", "tests.rewards.hostile"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == len(TRUTHS)
    for rewards in lines:
        assert rewards.keys() == REWARDS.keys()
        check_rewards(rewards, len(large_texts()) + 5_000)
    for name in REWARDS:  # the texts are not all of them hopeless
        outcomes = {value for rewards in lines for value in rewards[name]}
        assert {LOWEST[name], HIGHEST[name]} <= outcomes, name
