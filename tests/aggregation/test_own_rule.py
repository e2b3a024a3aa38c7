"""A user's own function as the aggregation rule."""

import pytest
import torch

from trl_dara import compute_advantages
from trl_dara.aggregation.ops import build_result, group_statistics


REWARDS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])


def best_channel(rewards, reward_weights, *, eps=1e-4, scale=1.0):
    groups = group_statistics(rewards, reward_weights, eps)
    scores = scale * groups.contributions.amax(dim=-1)  # (B, G)
    return build_result(groups, advantages=scores, scores=scores, contributions=groups.contributions)


def test_a_function_is_a_rule():
    result = compute_advantages(REWARDS, 4, best_channel, scale=2.0)
    one = 0.5 / (1 / 3) ** 0.5  # (1 - 1/2) / sample standard deviation of 1, 0, 1, 0
    assert result.advantages.tolist() == pytest.approx([2 * one, 2 * one, 2 * one, -2 * one], abs=1e-3)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda rewards, weights: rewards.sum(dim=-1), TypeError, "returned a Tensor. Return an AdvantageResult"),
        (lambda rewards, weights: _with(rewards, weights, lambda a: a.unflatten(0, (1, 4))), ValueError, r"\(1, 4\)"),
        (lambda rewards, weights: _with(rewards, weights, lambda a: a / 0 * 0), ValueError, "not finite"),
    ],
)
def test_what_a_rule_returns_is_checked(wrong, error, message):
    with pytest.raises(error, match=message):
        compute_advantages(REWARDS, 4, wrong)


def _with(rewards, weights, change):
    result = best_channel(rewards, weights)
    result.advantages = change(result.advantages)
    return result
