"""Thousands of unpleasant batches for every rule: none may raise, none may give anything but finite numbers."""

import functools
import math
import warnings

import pytest
import torch

from trl_dara import AGGREGATIONS

from . import reference
from .support import PER_GROUP, RULES, compute, random_batch, required


NUM_BATCHES = 2000
NUM_COMPARED = 200


@functools.cache
def batches():
    return [random_batch(seed) for seed in range(NUM_BATCHES)]


def quiet(rule, rewards, weights, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?i)infinite")
        return compute(rule, rewards, weights, **options)


def silent_groups(rewards, weights):
    """Groups in which no channel with a weight varies, `(B,)`; decided on the raw rewards."""
    rewards = rewards if weights is None else rewards[..., torch.tensor(weights) != 0]
    finite = rewards.isfinite()
    high = rewards.masked_fill(~finite, -torch.inf).amax(1)  # (B, K)
    low = rewards.masked_fill(~finite, torch.inf).amin(1)  # (B, K)
    return ~(high > low).any(-1)


@pytest.mark.parametrize("rule", RULES)
def test_finite_and_silent_where_nothing_varies(rule):
    num_silent = 0
    for seed, (rewards, weights) in enumerate(batches()):
        rewards = rewards.to(torch.float64 if seed % 4 == 0 else torch.float32)
        result = quiet(rule, rewards, weights)
        for name in ("advantages", "scores", "contributions", "channel_advantages", "energy", "weights", "density"):
            assert getattr(result, name).isfinite().all(), (seed, name)
        advantages = result.advantages.view(rewards.shape[:2])
        silent = silent_groups(rewards, weights)
        if silent.all():
            assert not advantages.any(), seed
            num_silent += 1
        if rule in PER_GROUP:
            assert not advantages[silent].any(), seed
    assert num_silent > NUM_BATCHES / 50  # the batches do exercise it


@pytest.mark.parametrize("rule", RULES)
def test_equal_to_a_slow_loop(rule):
    for seed, (rewards, weights) in enumerate(batches()[:NUM_COMPARED]):
        eps, options = (1e-4, 1e-6)[seed % 2], required(rule, rewards)
        result = quiet(rule, rewards, weights, eps=eps, **options)
        expected = reference.compute(rule, rewards.tolist(), weights, eps, **options)
        advantages = torch.tensor(expected.advantages, dtype=torch.float64)  # (B, G)
        unit = 1.0
        if (
            rule == "corr_grpo"
        ):  # not normalised: its advantages, and their rounding errors, are as large as the rewards
            unit = advantages.abs().amax(dim=1, keepdim=True).clamp(min=1)  # (B, 1)
        difference = (result.advantages.view_as(advantages) - advantages) / unit
        assert difference.abs().max() < 1e-6, seed
        assert_same_statistics(result, expected.statistics, seed)


def assert_same_statistics(result, statistics, seed):
    """Of the channels that steer, whose scored completions are all scorable."""
    steering = statistics.steering
    assert result.scored.tolist() == [counts for group in statistics.scorable for counts in group], seed
    assert result.active[:, steering].tolist() == [[row[k] for k in steering] for row in statistics.active], seed
    assert result.density[steering].tolist() == pytest.approx([statistics.density[k] for k in steering])
    assert result.energy[steering].tolist() == pytest.approx([statistics.energy[k] for k in steering], rel=1e-6)


def test_a_slow_loop_exists_for_every_rule():
    assert set(AGGREGATIONS) <= set(reference.RULES)


def test_batches_are_as_unpleasant_as_claimed():
    rewards = [rewards for rewards, _ in batches()]
    weights = [weights for _, weights in batches() if weights is not None]
    assert {tensor.shape[1] for tensor in rewards} == set(range(1, 33))
    assert {tensor.shape[2] for tensor in rewards} == set(range(1, 7))
    assert sum(tensor.isnan().any().item() for tensor in rewards) > NUM_BATCHES / 4
    assert sum(tensor.isinf().any().item() for tensor in rewards) > NUM_BATCHES / 20
    largest = [tensor[tensor.isfinite()].abs().max().item() for tensor in rewards if tensor.isfinite().any()]
    assert max(largest) > 1e30
    assert any(any(u < 0 for u in each) for each in weights)
    assert any(any(u == 0 for u in each) for each in weights)
    assert math.isfinite(sum(map(sum, weights)))
