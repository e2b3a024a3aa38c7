"""Situations from users' reports, each with the kind of fault it stands for. Numbers: eps 1e-4, to 2e-3."""

import itertools
import math

import pytest
import torch

from . import reference
from .support import RULES, channels, compute, random_rewards, required


def check(rule, rewards, expected, **options):
    result = compute(rule, rewards, **options)
    groups = torch.tensor(expected, dtype=torch.float64).flatten()
    torch.testing.assert_close(result.advantages, groups, rtol=0, atol=2e-3)
    return result


# A sparse format channel beside a dense accuracy channel

SPARSE = channels("1 0 1 0 | 1 0 0 0 | 1 1 1 0 | 0 1 1 0", "1 1 1 1 | 0 0 0 0 | 1 0 1 1 | 1 1 1 1")


def test_sparse_channel():
    check(
        "gdpo",
        SPARSE,
        [
            [0.930, -0.930, 0.930, -0.930],
            [1.611, -0.537, -0.537, -0.537],
            [1.074, -1.074, 1.074, -1.074],
            [-0.930, 0.930, 0.930, -0.930],
        ],
    )
    sym = check(
        "dara_sym",
        SPARSE,
        [
            [0.750, -0.750, 0.750, -0.750],
            [1.299, -0.433, -0.433, -0.433],
            [1.299, -2.165, 1.299, -0.433],
            [-0.750, 0.750, 0.750, -0.750],
        ],
    )
    asym = check(
        "dara_asym",
        SPARSE,
        [
            [0.783, -0.972, 0.783, -0.972],
            [1.425, -0.602, -0.602, -0.602],
            [1.425, -1.108, 1.425, -0.602],
            [-0.972, 0.783, 0.783, -0.972],
        ],
    )
    for result in (sym, asym):
        assert result.density.tolist() == [1.0, 0.25]
        assert result.weights.tolist() == [1.0, 2.0]
        assert result.energy.tolist() == pytest.approx([12.0, 3.0], rel=1e-3)
    assert (sym.weights**2 * sym.energy).tolist() == pytest.approx([12.0, 12.0], rel=1e-3)
    assert sym.contributions.square().sum(dim=0).tolist() == pytest.approx([12.0, 12.0], rel=1e-3)


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym"])
@pytest.mark.parametrize(("w_max", "expected"), [(5.0, 5.0), (10.0, 32**0.5), (1.0, 1.0)])
def test_weight_of_sparse_channel_is_capped(rule, w_max, expected):
    rewards = torch.zeros(32, 4, 2, dtype=torch.float64)
    rewards[:, 0, 0] = 1
    rewards[7, 2, 1] = 1
    assert compute(rule, rewards, w_max=w_max).weights.tolist() == pytest.approx([1.0, expected], abs=1e-12)


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym"])
@pytest.mark.parametrize("live", [(1, 8), (8, 1), (3, 8, 2), (0, 4, 1), (5,), (8, 8, 8)])
def test_weight_follows_density(rule, live):
    """Channel k differs in the last live[k] of eight groups; the densest live channel has weight 1, a dead one too."""
    rewards = torch.zeros(8, 4, len(live), dtype=torch.float64)
    for k, count in enumerate(live):
        rewards[8 - count :, k % 4, k] = 1 + k
    result = compute(rule, rewards)
    assert result.density.tolist() == [count / 8 for count in live]
    assert result.weights.tolist() == pytest.approx(
        [math.sqrt(max(live) / count) if count else 1.0 for count in live], abs=1e-12
    )


# A large-scale channel decides everything

CORRECT_AND_LENGTH = channels("1 1 0 0", "0 100 200 300")


def test_large_scale_channel():
    check("grpo", CORRECT_AND_LENGTH, [-1.163, -0.385, 0.385, 1.163])
    for rule in ("gdpo", "dara_sym", "dara_asym"):
        check(rule, CORRECT_AND_LENGTH, [-0.644, 1.041, -1.041, 0.644])


@pytest.mark.parametrize("rule", ["gdpo", "mo_grpo", "dara_sym", "dara_asym", "static_sym", "static_asym"])
@pytest.mark.parametrize(("factor", "shift"), [(10, 0), (1, 1000), (1e4, 0), (1, -1e6), (0.5, -7), (10, 1000)])
@pytest.mark.parametrize("channel", [0, 1])
def test_scale_and_shift_of_a_channel_do_not_matter(rule, factor, shift, channel):
    for rewards in (CORRECT_AND_LENGTH, random_rewards(0), random_rewards(1, missing=0.2)):
        changed = rewards.clone()
        changed[..., channel] = factor * changed[..., channel] + shift
        difference = compute(rule, changed).advantages - compute(rule, rewards).advantages
        assert difference.abs().max() < 1e-3


# Groups with one informative channel versus two


def test_one_informative_channel_versus_two():
    rewards = channels("1 0 1 0 | 1 0 1 0", "1 1 1 1 | 1 0 1 0")
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    check("grpo", rewards, [(0.866 * signs).tolist()] * 2)
    check("gdpo", rewards, [(0.592 * signs).tolist(), (1.183 * signs).tolist()])
    result = check("dara_sym", rewards, [(0.506 * signs).tolist(), (1.222 * signs).tolist()])
    assert result.density.tolist() == [1.0, 0.5]
    assert result.weights.tolist() == pytest.approx([1.0, 2**0.5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", ["grpo", "gdpo", "mo_grpo", "dara_sym", "dara_asym"])
def test_opposed_channels_cancel_exactly(rule, dtype):
    """No rounding residue may be normalised into a signal, for any pattern and any group size."""
    assert not compute(rule, channels("1 0 1 0", "0 1 0 1", dtype=dtype)).advantages.any()
    for num_generations in range(2, 33):
        generator = torch.Generator().manual_seed(num_generations)
        success = torch.randint(2, (8, num_generations), generator=generator).to(dtype)
        result = compute(rule, torch.stack([success, 1 - success], dim=-1))
        assert result.density[0] > 0
        assert not result.advantages.any()


# A reward that abstains


def test_abstaining_reward():
    rewards = channels("1 0 1 0 | 1 0 1 0", "- - 1 - | 1 0 1 1")
    check("gdpo", rewards, [[0.649, -0.649, 0.649, -0.649], [1.024, -1.773, 1.024, -0.274]])
    result = check("dara_sym", rewards, [[0.557, -0.557, 0.557, -0.557], [1.012, -1.923, 1.012, -0.102]])
    assert result.density.tolist() == [1.0, 0.5]
    assert result.weights.tolist() == pytest.approx([1.0, 2**0.5])
    assert result.active.tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize("missing", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore:.*nfinite")
def test_single_score_in_a_group_is_inactive(rule, missing):
    """One scored completion has nothing to be compared with, wherever it stands and however the others abstain."""
    for position, value in itertools.product(range(4), (1.0, -2.4, 1e6)):
        rewards = channels("1 0 1 0 | 1 0 1 0", "0 0 0 0 | 1 0 1 1")
        rewards[0, :, 1] = missing
        rewards[0, position, 1] = value
        result = compute(rule, rewards)
        assert result.advantages.isfinite().all()
        assert result.active.tolist() == [[True, False], [True, True]]
        assert not result.channel_advantages[:4, 1].any()
        assert not result.contributions[:4, 1].any()


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"grpo"}))  # a missing score is missing from the sum of grpo
def test_abstaining_completion_is_judged_by_the_other_channels(rule):
    """Abstaining is not scoring 0 nor the group mean: statistics are those of the scored completions."""
    result = compute(rule, channels("1 0 1 0 0", "- 4 2 - 3"), eps=1e-9)
    expected = [0, 1, -1, 0, 0]
    assert result.channel_advantages[:, 1].tolist() == pytest.approx(expected, abs=1e-8)


# A completion that nobody scored

UNSCORED = channels("1 - 0 1 | 1 0 0 0", "- - - - | 1 1 0 1")


@pytest.mark.parametrize("rule", RULES)
def test_completion_without_any_score_gets_nothing(rule):
    result = compute(rule, UNSCORED)
    assert result.scored.tolist() == [True, False] + [True] * 6
    assert result.advantages[1] == 0
    assert result.advantages.isfinite().all()


def test_completion_without_any_score():
    check("gdpo", UNSCORED, [[0.447, 0, -0.894, 0.447], [1.549, 0, -1.549, 0]])
    check("dara_sym", UNSCORED, [[0.380, 0, -0.761, 0.380], [1.454, 0.136, -1.727, 0.136]])
    check("dara_asym", UNSCORED, [[0.362, 0, -0.922, 0.362], [1.571, 0.088, -1.549, 0.088]])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("position", range(4))
def test_completion_without_any_score_is_as_if_it_were_not_there(rule, position):
    rewards = random_rewards(3, (5, 4, 3), missing=0.1)
    rewards[:, position] = torch.nan
    others = [j for j in range(4) if j != position]
    alone, options = rewards[:, others], {}
    if rule.startswith("static"):
        options["static_weights"] = [1.0, 2.0, 0.5]
    result, expected = compute(rule, rewards, **options), compute(rule, alone, **options)
    advantages = result.advantages.view(5, 4)
    assert not advantages[:, position].any()
    torch.testing.assert_close(advantages[:, others].flatten(), expected.advantages, rtol=0, atol=1e-12)
    torch.testing.assert_close(result.density, expected.density, rtol=0, atol=0)
    torch.testing.assert_close(result.energy, expected.energy, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_batch_without_any_score(rule):
    result = compute(rule, torch.full((3, 4, 2), torch.nan))
    for value in (result.advantages, result.channel_advantages, result.contributions, result.density, result.energy):
        assert not value.any()
    assert not result.scored.any()
    assert not result.active.any()


@pytest.mark.parametrize("rule", sorted(set(RULES) & set(reference.RULES)))
@pytest.mark.parametrize("rewards", [SPARSE, CORRECT_AND_LENGTH, UNSCORED])
def test_cases_by_reference(rule, rewards):
    expected = reference.compute(rule, rewards.tolist(), **required(rule, rewards)).advantages
    result = compute(rule, rewards)
    torch.testing.assert_close(
        result.advantages, torch.tensor(expected, dtype=torch.float64).flatten(), rtol=1e-9, atol=1e-9
    )
