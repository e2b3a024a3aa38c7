"""The window of recent groups: what it estimates, what enters it, and that it survives a checkpoint bit by bit."""

import copy
import json

import pytest
import torch

from trl_dara.calibration import CalibrationWindow

from . import reference
from .support import RULES, WINDOWED, channels, compute, random_rewards


OPTIONS = {"static_sym": {"static_weights": [1.0, 2.0, 0.5]}, "static_asym": {"static_weights": [1.0, 2.0, 0.5]}}
windowed = pytest.mark.parametrize("rule", WINDOWED)


def stream(sizes, seed=0, missing=0.0, num_generations=4):
    """Batches of `sizes` groups on three channels: a rare one, a dense one, and one that is silent every other batch."""
    batches = []
    for step, size in enumerate(sizes):
        rewards = random_rewards(100 * seed + step, (size, num_generations, 3), missing)
        if step % 2:
            rewards[..., 2] = 0.3
        batches.append(rewards)
    return batches


# Against a slow loop


@windowed
@pytest.mark.parametrize("size", [1, 5, 64])
@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("sizes", [[1] * 20, [4] * 8, [3, 1, 7, 2, 6, 1], [2, 70, 1, 3, 64, 5]], ids=str)
def test_window_against_reference(rule, size, missing, sizes):
    window, slow = CalibrationWindow(size=size), reference.Window(size)
    weights = [1.0, 0.5, -1.0]
    for rewards in stream(sizes, seed=size, missing=missing):
        result = compute(rule, rewards, weights, window=window, **OPTIONS.get(rule, {}))
        expected = reference.compute(rule, rewards.tolist(), weights, window=slow, **OPTIONS.get(rule, {}))
        advantages = torch.tensor(expected.advantages, dtype=torch.float64).flatten()
        torch.testing.assert_close(result.advantages, advantages, rtol=0, atol=1e-9)
        assert result.weights.tolist() == pytest.approx(expected.weights, abs=1e-12)
        assert result.density.tolist() == pytest.approx(expected.statistics.density, abs=1e-12)
        if rule.startswith("dara"):
            assert result.calibrated_density.tolist() == pytest.approx(expected.density, abs=1e-12)


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym"])
def test_window_of_scored_groups_against_reference(rule):
    window, slow = CalibrationWindow(size=6), reference.Window(6)
    for rewards in stream([1, 3, 2, 1, 1, 4, 1], missing=0.6):
        result = compute(rule, rewards, window=window, density_over="scored")
        expected = reference.compute(rule, rewards.tolist(), window=slow, density_over="scored")
        assert result.calibrated_density.tolist() == pytest.approx(expected.density, abs=1e-12)
        assert result.weights.tolist() == pytest.approx(expected.weights, abs=1e-12)
        advantages = torch.tensor(expected.advantages, dtype=torch.float64).flatten()
        torch.testing.assert_close(result.advantages, advantages, rtol=0, atol=1e-9)


# How much of the past it holds


@windowed
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "sizes"), [(64, [64, 64, 64]), (64, [100, 64, 81]), (4, [4, 9, 5]), (1, [1, 3, 1])])
def test_batches_at_least_as_large_as_the_window_are_on_their_own(rule, dtype, size, sizes):
    window = CalibrationWindow(size=size)
    for rewards in stream(sizes, missing=0.2):
        rewards = rewards.to(dtype)
        result = compute(rule, rewards, window=window, **OPTIONS.get(rule, {}))
        alone = compute(rule, rewards, **OPTIONS.get(rule, {}))
        torch.testing.assert_close(result.advantages, alone.advantages, rtol=0, atol=1e-7)
        torch.testing.assert_close(result.weights, alone.weights, rtol=0, atol=1e-7)
        torch.testing.assert_close(result.calibrated_density, result.density, rtol=0, atol=1e-7)


def test_density_is_over_the_most_recent_groups():
    window = CalibrationWindow(size=4)
    active, silent = channels("1 0", "1 0"), channels("1 0", "1 1")
    densities = []
    for rewards in (active, silent, silent, silent, silent, active):
        result = compute("dara_sym", rewards, window=window)
        densities.append(result.calibrated_density[1].item())
        assert result.density[1] == (rewards is active)  # of this batch only
    assert densities == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 0, 1 / 4])


def test_a_batch_larger_than_the_window_leaves_its_last_groups_behind():
    window = CalibrationWindow(size=4)
    compute("dara_sym", torch.cat([channels("1 0", "1 0")] * 6 + [channels("1 0", "1 1")] * 2), window=window)
    result = compute("dara_sym", channels("1 0", "1 1"), window=window)
    assert result.calibrated_density.tolist() == [1.0, 0.25]  # one of the six, the two silent ones, and this one


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym"])
def test_one_group_per_batch_is_weighted_by_the_past(rule):
    """Without a window one group has density 0 or 1 and every weight is 1; with one, rare channels weigh more."""
    window = CalibrationWindow(size=64)
    batches = [channels("1 0 1 0", "1 1 1 1")] * 3 + [channels("1 0 0 0", "0 0 1 0")]
    for rewards in batches:
        result = compute(rule, rewards, window=window)
        assert compute(rule, rewards).weights.tolist() == [1.0, 1.0]
    assert result.calibrated_density.tolist() == [1.0, 0.25]
    assert result.weights.tolist() == [1.0, 2.0]
    assert result.density.tolist() == [1.0, 1.0]


# Silent batches


@windowed
@pytest.mark.parametrize("value", [0.0, 0.7, -2.4])
def test_silent_batch_gets_zeros_and_enters_the_window(rule, value):
    options = {"static_weights": [1.0, 2.0]} if rule.startswith("static") else {}
    window, untouched = CalibrationWindow(size=8), CalibrationWindow(size=8)
    lively = channels("1 0 1 0 | 1 0 0 0", "1 0 0 0 | 1 1 1 1")
    for each in (window, untouched):
        compute(rule, lively, window=each, **options)
    silent = compute(rule, torch.full((2, 4, 2), value, dtype=torch.float64), window=window, **options)
    assert not silent.advantages.any()
    with_silence = compute(rule, lively, window=window, **options)
    without = compute(rule, lively, window=untouched, **options)
    assert with_silence.calibrated_density.tolist() == pytest.approx([4 / 6, 2 / 6])
    assert without.calibrated_density.tolist() == pytest.approx([1.0, 0.5])
    assert with_silence.advantages.abs().max() > without.advantages.abs().max()  # zeros make the spread smaller


@windowed
def test_batch_in_which_only_a_monitor_varies_gets_zeros(rule):
    options = {"static_weights": [1.0, 2.0]} if rule.startswith("static") else {}
    window = CalibrationWindow(size=8)
    for rewards in (channels("1 0 1 0", "1 0 0 0"), channels("1 0 1 1", "0 0 0 0")):
        result = compute(rule, rewards, [0.0, 1.0], window=window, **options)
    assert not result.advantages.any()


@windowed
def test_batch_that_nobody_scored_counts_as_groups_but_not_as_rows(rule):
    options = {"static_weights": [1.0]} if rule.startswith("static") else {}
    window = CalibrationWindow(size=8)
    lively = channels("1 0 1 0")
    compute(rule, lively, window=window, **options)
    unscored = compute(rule, channels("- - - -"), window=window, **options)
    assert not unscored.advantages.any()
    result = compute(rule, lively, window=window, **options)
    assert result.calibrated_density.tolist() == pytest.approx([2 / 3])
    values = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64) * result.scores[0].abs()
    torch.testing.assert_close(result.advantages, result.scores / (values.std() + 1e-4), rtol=0, atol=1e-12)


# The normaliser


def test_scores_are_kept_as_they_were_weighted():
    """The second batch finds the first one's scores with the weights of that time, not with today's."""
    window = CalibrationWindow(size=64)
    first = compute("dara_sym", channels("1 0 0 0", "1 0 0 0"), window=window)
    compute("dara_sym", channels("1 0 0 0", "1 1 1 1"), window=window)
    third = compute("dara_sym", channels("1 0 0 0", "0 1 0 0"), window=window)
    assert first.weights.tolist() == [1.0, 1.0]
    assert third.weights.tolist() == pytest.approx([1.0, 1.5**0.5])
    z = 0.75 / (0.5 + 1e-4)  # of the one success of four; the failures have -z / 3
    one = torch.tensor([z, -z / 3, -z / 3, -z / 3], dtype=torch.float64)
    other = torch.tensor([-z / 3, z, -z / 3, -z / 3], dtype=torch.float64)
    seen = torch.cat([2 * one, one, one + 1.5**0.5 * other])
    expected = (seen[-4:] - seen.mean()) / (seen.std() + 1e-4)
    torch.testing.assert_close(third.advantages, expected, rtol=0, atol=1e-12)


def test_normaliser_keeps_energy_differences_between_batches():
    """A batch with two live channels pushes harder than one with a single live channel; alone, each is scaled to 1."""
    both, single = channels("1 0 0 0", "1 0 0 0"), channels("1 0 0 0", "1 1 1 1")
    window = CalibrationWindow(size=64)
    for _ in range(4):
        strong = compute("dara_sym", both, window=window).advantages.std()
        weak = compute("dara_sym", single, window=window).advantages.std()
    assert strong > 1.5 * weak
    assert compute("dara_sym", both).advantages.std().item() == pytest.approx(1.0, abs=1e-3)
    assert compute("dara_sym", single).advantages.std().item() == pytest.approx(1.0, abs=1e-3)


# State


@windowed
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_round_trip_continues_bit_by_bit(rule, dtype):
    options = OPTIONS.get(rule, {})
    batches = [rewards.to(dtype) for rewards in stream([3, 1, 2, 1, 4, 1, 2, 3], missing=0.3)]
    window = CalibrationWindow(size=7)
    for rewards in batches[:4]:
        compute(rule, rewards, window=window, **options)
    saved = json.loads(json.dumps(window.state_dict(), allow_nan=False))
    resumed = CalibrationWindow(size=7)
    resumed.load_state_dict(saved)
    for rewards in batches[4:]:
        expected = compute(rule, rewards, window=window, **options)
        result = compute(rule, rewards, window=resumed, **options)
        for name in ("advantages", "weights", "calibrated_density", "scores"):
            assert torch.equal(getattr(result, name), getattr(expected, name)), name
    assert resumed.state_dict() == window.state_dict()


def test_saved_state_does_not_change_with_the_window():
    window = CalibrationWindow(size=7)
    batches = stream([3, 1, 2, 2])
    for rewards in batches[:2]:
        compute("dara_asym", rewards, window=window)
    saved = window.state_dict()
    before = copy.deepcopy(saved)
    compute("dara_asym", batches[2], window=window)
    assert saved == before
    window.load_state_dict(saved)  # and going back to it forgets what came after
    fresh = CalibrationWindow(size=7)
    for rewards in batches[:2]:
        compute("dara_asym", rewards, window=fresh)
    expected = compute("dara_asym", batches[3], window=fresh)
    assert torch.equal(compute("dara_asym", batches[3], window=window).advantages, expected.advantages)


def test_empty_window_round_trip():
    window = CalibrationWindow(size=7)
    window.load_state_dict(json.loads(json.dumps(CalibrationWindow(size=7).state_dict(), allow_nan=False)))
    rewards = random_rewards(0)
    assert torch.equal(compute("dara_sym", rewards, window=window).advantages, compute("dara_sym", rewards).advantages)


@pytest.mark.parametrize("rule", sorted(set(RULES) - set(WINDOWED)))
def test_other_rules_neither_read_nor_extend_the_window(rule):
    window = CalibrationWindow(size=8)
    for rewards in stream([1, 2, 1]):
        compute("dara_sym", rewards, window=window)
    before = copy.deepcopy(window.state_dict())
    rewards = random_rewards(0)
    result = compute(rule, rewards, window=window)
    assert window.state_dict() == before
    assert torch.equal(result.advantages, compute(rule, rewards).advantages)


@windowed
def test_without_a_window_nothing_is_remembered(rule):
    batches = stream([1, 1, 4])
    fresh = [compute(rule, rewards, **OPTIONS.get(rule, {})).advantages for rewards in batches]
    again = [compute(rule, rewards, **OPTIONS.get(rule, {})).advantages for rewards in reversed(batches)]
    for expected, result in zip(fresh, reversed(again), strict=True):
        assert torch.equal(expected, result)


@windowed
def test_windows_do_not_share_their_groups(rule):
    options = OPTIONS.get(rule, {})
    one, other = CalibrationWindow(size=8), CalibrationWindow(size=8)
    batches = stream([1, 1, 1])
    for rewards in batches:
        compute(rule, rewards, window=one, **options)
    expected = compute(rule, batches[2], **options).advantages
    assert torch.equal(compute(rule, batches[2], window=other, **options).advantages, expected)


@windowed
def test_writing_into_a_result_does_not_reach_the_window(rule):
    options = OPTIONS.get(rule, {})
    clean, touched = CalibrationWindow(size=8), CalibrationWindow(size=8)
    for rewards in stream([2, 1, 3]):
        expected = compute(rule, rewards, window=clean, **options)
        result = compute(rule, rewards, window=touched, **options)
        assert torch.equal(result.advantages, expected.advantages)
        for name in ("scores", "active", "weights", "calibrated_density"):
            getattr(result, name).zero_()


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("dara_sym", {"w_max": 0.5}),
        ("dara_asym", {"density_over": "some"}),
        ("static_sym", {"static_weights": [1.0]}),
        ("static_asym", {"static_weights": [1.0, -2.0, 1.0]}),
    ],
)
def test_refused_call_leaves_the_window_alone(rule, options):
    window = CalibrationWindow(size=8)
    compute("dara_sym", random_rewards(0), window=window)
    before = copy.deepcopy(window.state_dict())
    with pytest.raises(ValueError):
        compute(rule, random_rewards(1), window=window, **options)
    assert window.state_dict() == before


# Construction


def test_default_size_is_64():
    window = CalibrationWindow()
    for rewards in stream([32, 32]):
        result = compute("dara_sym", rewards, window=window)
    assert result.calibrated_density[2] == pytest.approx(0.5)  # active in the first half only
    assert compute("dara_sym", stream([33])[0], window=window).calibrated_density[2] == pytest.approx(33 / 64)


@pytest.mark.parametrize("size", [0, -1, 2.5, 64.0, "64", None, float("nan"), True])
def test_size_must_be_a_positive_integer(size):
    with pytest.raises(ValueError, match=r"size") as error:
        CalibrationWindow(size=size)
    assert repr(size) in str(error.value)
