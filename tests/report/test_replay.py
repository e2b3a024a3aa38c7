"""The numbers of a replay: worked examples, and the library's own functions on the same rewards."""

import math

import numpy as np
import pytest
import torch

from trl_dara import AGGREGATIONS, compute_advantages
from trl_dara.report.examples import MAX_CHARACTERS, example_groups, shorten
from trl_dara.report.reading import find_runs
from trl_dara.report.recording import read_recording
from trl_dara.report.replay import collides, replay
from trl_dara.report.summary import summarize
from trl_dara.report.verdicts import percent

from .tables import starved_run, trl_table, write_run


NEED_BOUNDS, NEED_WEIGHTS = {"saw", "sa_mrpo"}, {"static_sym", "static_asym"}


def replayed(folder, weights=None, **given):
    ((name, files),) = find_runs([str(folder)]).items()
    recording = read_recording(name, files)
    return replay(recording, weights or [1.0] * len(recording.channels), **given)


@pytest.fixture
def sparse_format(tmp_path):
    """Accuracy varies in all four groups of four, format in one."""
    rewards = {
        "accuracy": [1.0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0],
        "format": [1.0, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1],
    }
    table = trl_table(5, rewards, 4)
    expected = [0.783, -0.972, 0.783, -0.972, 1.425, -0.602, -0.602, -0.602]
    expected += [1.425, -1.108, 1.425, -0.602, -0.972, 0.783, 0.783, -0.972]
    return write_run(tmp_path, [table.assign(advantage=expected)])


def test_a_sparse_reward_beside_a_dense_one(sparse_format):
    result = replayed(sparse_format)
    assert result.steps.tolist() == [5]
    metrics = {name: values[0].tolist() for name, values in result.channel_metrics.items()}
    assert metrics["density"] == [1.0, 0.25]
    assert metrics["energy"] == pytest.approx([12 / 16, 3 / 16], rel=1e-3)
    assert metrics["mean"] == [0.5, 11 / 16] and metrics["coverage"] == [1.0, 1.0]
    assert metrics["dead_low"] == [0.0, 0.25] and metrics["dead_high"] == [0.0, 0.5]
    assert result.rules["dara_asym"].weight.tolist() == [[1.0, 2.0]]
    assert result.rules["gdpo"].weight.tolist() == [[1.0, 1.0]]
    assert result.rules["dara_asym"].logged_difference < 2e-3 < result.rules["gdpo"].logged_difference
    for rule, played in result.rules.items():
        direct = compute_advantages(result.recording.batches[0].rewards, 4, rule)
        parts = direct.contributions.abs().sum(dim=0)
        assert played.share[0].tolist() == pytest.approx((parts / parts.sum()).tolist())
        assert played.advantage_std[0] == pytest.approx(direct.advantages.std().item())


def test_rules_that_lack_something_are_left_out_with_the_reason(sparse_format):
    result = replayed(sparse_format)
    assert set(result.left_out) == NEED_BOUNDS | NEED_WEIGHTS
    assert set(result.rules) | set(result.left_out) == set(AGGREGATIONS)
    assert all("bounds of accuracy, format" in result.left_out[rule] for rule in NEED_BOUNDS)
    assert all("`static_weights`" in result.left_out[rule] for rule in NEED_WEIGHTS)
    one = replayed(sparse_format, reward_bounds={"format": [0, 1]})
    assert all("bounds of accuracy," in one.left_out[rule] for rule in NEED_BOUNDS)
    assert one.channel_metrics["saturation"][0, 1] == 11 / 16 and math.isnan(one.channel_metrics["saturation"][0, 0])
    both = replayed(sparse_format, reward_bounds={"accuracy": [0, 1], "format": [0, 1]})
    assert set(both.left_out) == NEED_WEIGHTS
    monitor = replayed(sparse_format, weights=[0.0, 1.0], reward_bounds={"format": [0, 1]})
    assert set(monitor.left_out) == NEED_WEIGHTS
    with pytest.raises(ValueError, match="names \\['fromat'\\]"):
        replayed(sparse_format, reward_bounds={"fromat": [0, 1]})


def collisions(tmp_path, weights):
    rewards = {"correct": [1.0, 0, 1, 0, 1, 0, 0, 0], "format": [0.0, 1, 0, 1, 0, 0, 0, 1]}
    result = replayed(write_run(tmp_path, [trl_table(0, rewards, 4)]), weights)
    return {rule: played.collisions[0] for rule, played in result.rules.items()}


def test_collisions(tmp_path):
    """(1, 0) and (0, 1) have one sum: all of the first group, and two of the second, collide under grpo."""
    equal = collisions(tmp_path / "equal", [1.0, 1.0])
    assert equal["grpo"] == 6 / 8
    assert equal["gdpo"] == 6 / 8  # both have one row of their kind in the second group: opposed and as large
    unequal = collisions(tmp_path / "unequal", [1.0, 2.0])
    assert unequal["grpo"] == unequal["gdpo"] == 0
    assert collisions(tmp_path / "monitor", [1.0, 0.0])["grpo"] == 0  # a reward without weight makes no difference


def test_collisions_against_all_pairs():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(3, (40, 8, 2), generator=generator).float()
    advantages = compute_advantages(rewards, 8, "grpo").advantages
    expected = [
        any(
            abs(advantages[8 * group + row] - advantages[8 * group + other]) < 1e-5
            and rewards[group, row].tolist() != rewards[group, other].tolist()
            for other in range(8)
        )
        for group in range(40)
        for row in range(8)
    ]
    vectors = rewards.flatten(0, 1).unique(dim=0, return_inverse=True)[1].numpy()
    found = collides(advantages.numpy(), np.arange(320) // 8, vectors)
    assert found.tolist() == expected and 0 < sum(expected) < 320


def test_a_constructed_run_names_the_starved_channel(tmp_path):
    summary = summarize(replayed(starved_run(tmp_path)))
    verdicts = {channel["name"]: (channel["verdict"], channel["sentence"]) for channel in summary["channels"]}
    assert {name: kind for name, (kind, _) in verdicts.items()} == {
        "accuracy": "drowned",
        "format": "starved",
        "length": "active",
        "brevity": "saturated",
        "tool_call": "silent",
    }
    assert verdicts["tool_call"][1] == "always 0 since step 0: no signal under any rule"
    assert verdicts["brevity"][1].startswith("saturated: always 1 since step 3")
    share = {rule["rule"]: rule["share"]["format"] for rule in summary["rules"]}
    assert verdicts["format"][1].startswith(
        f"starved: active in 6 % of groups, carries {percent(share['grpo'])} of the signal under grpo, "
        f"{percent(share['gdpo'])} under gdpo, {percent(share['dara_asym'])} under dara_asym"
    )
    assert share["grpo"] < share["gdpo"] < share["dara_asym"]


def test_dead_groups_and_conflicts_are_found(tmp_path):
    rewards = {"a": [1.0, 0, 0, 0, 1, 1, 1, 1], "b": [0.0, 1, 1, 1, 0, 0, 0, 0]}
    summary = summarize(replayed(write_run(tmp_path, [trl_table(0, rewards, 4)])))
    assert summary["frac_groups_inactive"] == 0.5 and summary["frac_conflict"] == 0.5
    assert any(text.startswith("In 50 % of groups no reward differs") for text in summary["findings"])
    assert any(text.startswith("50 % of completions are pushed up by one reward") for text in summary["findings"])


def test_one_group_only(tmp_path):
    summary = summarize(replayed(write_run(tmp_path, [trl_table(0, {"a": [1.0, 0, 0, 1]}, 4)])))
    assert any(text.startswith("Every step has one group") for text in summary["findings"])


def test_nothing_is_scored(tmp_path):
    rewards = {"a": [1.0, 0, 0, 1], "b": [None] * 4}
    tables = [trl_table(1, rewards, 4), trl_table(2, {"a": [1.0, 1, 1, 1], "b": [0.0, 0, 0, 0]}, 4)]
    summary = summarize(replayed(write_run(tmp_path, tables)))
    assert summary["channels"][1]["sentence"] == "always 0 since step 2: no signal under any rule"
    assert summary["steps"]["channels"]["mean"]["b"] == [None, 0.0]
    assert summary["rules"][0]["share"] == {"a": 1.0, "b": 0.0}


def test_examples_are_groups_of_the_last_step_with_a_collision_and_a_conflict(tmp_path):
    collision = {"a": [1.0, 0, 1, 1, 0, 0, 1, 1], "b": [0.0, 1, 1, 1, 0, 1, 0, 1]}
    quiet = {"a": [1.0, 0, 0, 0, 0, 0, 1, 1], "b": [0.0] * 8}
    folder = write_run(
        tmp_path, [trl_table(step, rewards, 4) for step, rewards in enumerate((quiet, collision, quiet))]
    )
    collided, opposed = example_groups(replayed(folder))
    assert collided["step"] == opposed["step"] == 1
    assert collided["prompt"] == "prompt 0" and collided["more"] == 0
    assert [row["text"] for row in collided["completions"]] == [f"completion 1-{index}" for index in range(4)]
    first, second = collided["completions"][:2]
    assert first["rewards"] == {"a": 1.0, "b": 0.0} and second["rewards"] == {"a": 0.0, "b": 1.0}
    assert first["advantages"]["grpo"] == pytest.approx(second["advantages"]["grpo"])
    assert list(first["advantages"]) == ["grpo", "gdpo", "dara_asym"]


def test_examples_of_a_table_without_completions_are_numbered(tmp_path):
    table = trl_table(1, {"a": [1.0, 0, 1, 0], "b": [0.0, 1, 1, 0]}, 4).drop(columns="completion")
    collided, _ = example_groups(replayed(write_run(tmp_path, [table])))
    assert [row["text"] for row in collided["completions"]] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    "value, text",
    [
        ("plain", "plain"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "ask"}], "ask"),
        (np.array([{"role": "user", "content": "ask"}]), "ask"),
        (
            [{"role": "assistant", "content": None, "tool_calls": [1]}],
            '[{"role": "assistant", "content": null, "tool_calls": [1]}]',
        ),
        ("x" * 1000, "x" * MAX_CHARACTERS + " …"),
        (None, "null"),
        (7, "7"),
    ],
)
def test_texts_of_any_kind_are_shortened(value, text):
    assert shorten(value) == text
