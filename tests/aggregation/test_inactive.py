"""A constant channel is inactive, exactly: whatever its value, the group size, its neighbours and the memory layout."""

import pytest
import torch

from .support import RULES, compute


def lattice(largest):
    """The values 6 a / b - 3 that the tool-calling correctness reward takes, for denominators up to `largest`."""
    return sorted({6 * a / b - 3 for b in range(1, largest + 1) for a in range(b + 1)})


SPECIAL = [0.1, 0.6, 0.7, 0.9, 1.1, -2.4, 1e-3, 1 / 3, 1000.1, 1e30, -1e30, 1e-30, -1e-30, 3e38, 1.2e-45]


def contiguous(rewards):
    return rewards.contiguous()


def channels_first(rewards):
    return rewards.permute(2, 0, 1).contiguous().permute(1, 2, 0)


def strided(rewards):
    wide = rewards.new_zeros([2 * size for size in rewards.shape])
    view = wide[1::2, ::2, 1::2]
    view.copy_(rewards)
    return view


def completions_first(rewards):
    return rewards.transpose(0, 1).contiguous().transpose(0, 1)


LAYOUTS = [contiguous, channels_first, strided, completions_first]


def batch(values, num_generations, num_channels, dtype):
    """One group per value; the channel in question holds it throughout, the others are binary. `(B, G, K)`, index."""
    generator = torch.Generator().manual_seed(num_generations)
    shape = (len(values), num_generations, num_channels)
    rewards = torch.randint(2, shape, generator=generator).to(dtype)
    position = num_generations % num_channels
    rewards[..., position] = torch.tensor(values, dtype=dtype).unsqueeze(1)
    return rewards, position


def assert_inactive(result, position):
    assert not result.active[:, position].any()
    assert not result.density[position].any()
    assert not result.energy[position].any()
    assert not result.channel_advantages[:, position].any()
    assert not result.contributions[:, position].any()
    assert result.advantages.isfinite().all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rule", RULES)
def test_every_group_size_and_number_of_channels(rule, layout):
    values = lattice(12) + SPECIAL
    for num_generations in range(2, 33):
        for num_channels in range(1, 7):
            rewards, position = batch(values, num_generations, num_channels, torch.float32)
            result = compute(rule, layout(rewards))
            assert_inactive(result, position)
            if num_channels == 1:
                assert not result.advantages.any()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("num_generations", [3, 5, 7, 8, 12, 16, 24, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_value_of_the_lattice(rule, num_generations, dtype):
    for num_channels in (1, 2):
        rewards, position = batch(lattice(75), num_generations, num_channels, dtype)
        assert_inactive(compute(rule, rewards), position)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [0.1, 0.7, -2.4, 1e30, -1e-30])
def test_expanded_memory(rule, value):
    """One stored number seen as a whole batch, and one stored completion seen as a group."""
    for num_generations in range(2, 33):
        rewards = torch.tensor(value).expand(3, num_generations, 2)
        result = compute(rule, rewards)
        assert_inactive(result, slice(None))
        assert not result.advantages.any()
        group = torch.rand(3, 1, 2, generator=torch.Generator().manual_seed(0)).expand(3, num_generations, 2)
        result = compute(rule, group)
        assert_inactive(result, slice(None))
        assert not result.advantages.any()


@pytest.mark.parametrize("rule", RULES)
def test_missing_scores_do_not_wake_a_constant(rule):
    """Fewer values are averaged, so they round differently; what remains is as constant as before."""
    generator = torch.Generator().manual_seed(0)
    for num_generations in (3, 7, 8, 12, 24, 32):
        rewards, position = batch(lattice(40) + SPECIAL, num_generations, 3, torch.float32)
        unscored = torch.rand(rewards.shape[:2], generator=generator) < 0.4
        rewards[..., position][unscored] = torch.nan
        assert_inactive(compute(rule, rewards), position)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_smallest_difference_is_seen(rule, dtype):
    """The opposite mistake: rewards apart by one part in a thousand are no constant."""
    rewards = torch.full((4, 8, 1), 0.7, dtype=dtype)
    rewards[2, 5] += 1e-3
    result = compute(rule, rewards)
    assert result.active.squeeze(1).tolist() == [False, False, True, False]
    assert result.density.item() == 0.25
    assert result.advantages.view(4, 8)[2, 5] > 0
