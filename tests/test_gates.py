import math

import pytest
import torch

from trl_dara.gates import apply_gates, parse_gates


NAMES = ["correct", "short", "polite"]
NAN = math.nan


def gated(options: dict, rewards: list[list[float]]) -> list[list[float]]:
    return apply_gates(torch.tensor(rewards), parse_gates(options, NAMES)).tolist()


@pytest.mark.parametrize(("mode", "closed"), [("zero", 0.0), ("skip", NAN)])
def test_closed_where_not_above_or_not_scored(mode, closed):
    rewards = [[1.0, 0.7, 1.0], [0.5, 0.7, 1.0], [0.0, 0.7, 1.0], [NAN, 0.7, 1.0]]
    result = gated({"short": {"on": "correct", "above": 0.5, "mode": mode}}, rewards)
    expected = [row.copy() for row in rewards]
    for row in expected[1:]:
        row[1] = closed
    torch.testing.assert_close(torch.tensor(result), torch.tensor(expected), equal_nan=True)


def test_mode_defaults_to_zero():
    assert gated({"short": {"on": "correct", "above": 0}}, [[0.0, 0.7, 1.0]]) == [[0.0, 0.0, 1.0]]


def test_a_reward_that_was_not_scored_stays_so():
    result = gated({"short": {"on": "correct", "above": 0}}, [[0.0, NAN, 1.0]])
    assert math.isnan(result[0][1])


def test_gates_look_at_the_rewards_as_they_were_returned():
    options = {"short": {"on": "correct", "above": 0.5}, "polite": {"on": "short", "above": 0.5}}
    # correct is low, so short becomes 0; polite still sees that short was 0.7
    assert gated(options, [[0.0, 0.7, 1.0]]) == [[0.0, 0.0, 1.0]]


def test_input_is_unchanged_and_no_gates_change_nothing():
    rewards = torch.tensor([[0.0, 0.7, 1.0]])
    apply_gates(rewards, parse_gates({"short": {"on": "correct", "above": 0.5}}, NAMES))
    assert torch.equal(rewards, torch.tensor([[0.0, 0.7, 1.0]]))
    assert torch.equal(apply_gates(rewards, parse_gates(None, NAMES)), rewards)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shrt": {"on": "correct", "above": 0}}, r"'shrt'.*\['correct', 'short', 'polite'\]"),
        ({"short": {"on": "right", "above": 0}}, "'right'"),
        ({"short": {"on": "short", "above": 0}}, "another channel"),
        ({"short": {"on": "correct"}}, "'above'"),
        ({"short": {"on": "correct", "above": 0, "mode": "drop"}}, "'drop'"),
        ({"short": {"on": "correct", "above": 0, "below": 1}}, "'below'"),
        ({"short": 0.5}, "0.5"),
    ],
)
def test_bad_gates_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        parse_gates(options, NAMES)
