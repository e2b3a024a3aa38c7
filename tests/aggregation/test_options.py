"""The rules' own parameters, each against the slow loop, and the refusal of values that make no sense."""

import pytest
import torch

from . import reference
from .support import RULES, compute, random_rewards, required


OPTIONS = [
    ("grpo", {"scale": "batch"}),
    ("grpo", {"scale": "none"}),
    ("dara_sym", {"w_max": 1.3}),
    ("dara_asym", {"w_max": 1.3}),
    ("dara_sym", {"density_over": "scored"}),
    ("dara_asym", {"density_over": "scored"}),
    ("dara_asym", {"zero_inactive_groups": True}),
    ("saw", {"delta": 0.1}),
    ("sa_mrpo", {"gamma": 1.0}),
    ("sa_mrpo", {"gamma": 0.0}),
    ("gd2po_hard", {"kappa_before_norm": True}),
    ("gd2po_snr", {"kappa_before_norm": True}),
    ("gd2po_snr", {"threshold": 0.2}),
    ("gd2po_snr", {"threshold": 0.0}),
    ("rvpo", {"k": 0.1}),
    ("rvpo", {"k": 200.0}),
    ("corr_grpo", {"floor": 1.0}),
    ("corr_grpo", {"floor": 1e-6}),
]
NORMALISED = sorted(set(RULES) - {"grpo", "mo_grpo", "dvao", "corr_grpo"})
CONFLICTED = ["gd2po_hard", "gd2po_snr"]


def batch(seed):
    rewards = random_rewards(seed, (7, 4, 3), missing=0.25 * (seed % 2))
    rewards[3] = rewards[3, :1]  # nothing varies in this group
    return rewards, [1.0, 0.5, -2.0]


def assert_equal(result, expected):
    advantages = torch.tensor(expected.advantages, dtype=torch.float64).flatten()
    torch.testing.assert_close(result.advantages, advantages, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("rule", "options"), OPTIONS)
def test_parameter_against_reference(rule, options):
    changed = False
    for seed in range(20):
        rewards, weights = batch(seed)
        needed = required(rule, rewards)
        result = compute(rule, rewards, weights, **options)
        assert_equal(result, reference.compute(rule, rewards.tolist(), weights, **needed, **options))
        changed |= not torch.equal(result.advantages, compute(rule, rewards, weights).advantages)
    assert changed  # the parameter does something


@pytest.mark.parametrize("rule", NORMALISED)
def test_normalisation_over_tokens_against_reference(rule):
    for seed in range(20):
        rewards, weights = batch(seed)
        lengths = torch.randint(1, 9, (7, 4), generator=torch.Generator().manual_seed(seed))
        result = compute(rule, rewards, weights, batch_norm="token", completion_lengths=lengths.flatten())
        expected = reference.compute(
            rule, rewards.tolist(), weights, lengths=lengths.tolist(), **required(rule, rewards)
        )
        assert_equal(result, expected)
        assert not torch.equal(result.advantages, compute(rule, rewards, weights).advantages)


@pytest.mark.parametrize("rule", NORMALISED)
def test_lengths_are_ignored_unless_asked_for_and_do_not_matter_when_equal(rule):
    rewards, weights = batch(0)
    expected = compute(rule, rewards, weights).advantages
    lengths = torch.arange(1, 29)
    assert torch.equal(compute(rule, rewards, weights, completion_lengths=lengths).advantages, expected)
    equal = torch.full((28,), 10**6)  # the sample divisor n - 1 then differs from n by nothing that shows
    by_token = compute(rule, rewards, weights, batch_norm="token", completion_lengths=equal).advantages
    shrunk = expected / by_token
    shrunk = shrunk[by_token.abs() > 1e-6]
    torch.testing.assert_close(shrunk, shrunk[0].expand_as(shrunk), rtol=1e-9, atol=0)
    assert 0.9 < shrunk[0] < 1


@pytest.mark.parametrize("rule", NORMALISED)
def test_length_of_an_unscorable_completion_does_not_matter(rule):
    rewards, weights = batch(1)
    rewards[2, 1] = torch.nan
    lengths = torch.arange(1, 29)
    options = {"batch_norm": "token", **required(rule, rewards)}
    expected = compute(rule, rewards, weights, completion_lengths=lengths, **options)
    lengths[2 * 4 + 1] = 10_000
    result = compute(rule, rewards, weights, completion_lengths=lengths, **options)
    assert torch.equal(result.advantages, expected.advantages)


# Conflicts


@pytest.mark.parametrize("rule", CONFLICTED)
def test_what_is_kept(rule):
    for seed in range(10):
        rewards, weights = batch(seed)
        result = compute(rule, rewards, weights)
        statistics = reference.group_statistics(rewards.tolist(), weights, 1e-4)
        for i, j in statistics.rows:
            row = statistics.contributions[i][j]
            dropped = reference.in_conflict(row)
            if rule == "gd2po_snr":
                dropped = dropped and abs(sum(row)) / sum(map(abs, row)) < 0.8
            assert result.kept[4 * i + j] == (not dropped)
        assert not result.kept[~result.scored].any()
        assert not result.advantages[~result.kept].any()
        kept = result.kept.view(7, 4).sum(1) / result.scored.view(7, 4).sum(1).clamp(min=1)
        torch.testing.assert_close(result.kappa, kept.double())


@pytest.mark.parametrize("rule", CONFLICTED)
def test_fewer_than_two_kept_completions(rule):
    """Two opposed channels: every completion is in conflict, or all but one whose rewards are the mean."""
    opposed = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    middle = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    for rewards, kept in ((opposed, 0), (middle, 1)):
        result = compute(rule, rewards.unsqueeze(0))
        assert result.kept.sum() == kept
        assert not result.advantages.any()


# Numbers that do not overflow


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sharp_minimum_does_not_overflow(dtype):
    rewards, _ = batch(0)
    for k in (1e3, 1e6):
        result = compute("rvpo", rewards.to(dtype), [1.0, 100.0, -1000.0], k=k)
        assert result.advantages.isfinite().all()
        live = result.active.repeat_interleave(4, dim=0)
        contributions = result.channel_advantages * torch.tensor([1.0, 100.0, -1000.0], dtype=dtype)
        lowest = contributions.masked_fill(~live, torch.inf).amin(-1)
        torch.testing.assert_close(result.scores[live.any(1)], lowest[live.any(1)], rtol=1e-2, atol=1e-2)


# Refusals


def refused(rule, *words, **options):
    with pytest.raises(ValueError) as error:
        compute(rule, random_rewards(0), **options)
    for word in words:
        assert str(word) in str(error.value)


BOUNDED = sorted({"saw", "sa_mrpo"} & set(RULES))


@pytest.mark.parametrize("rule", BOUNDED)
class TestBounds:
    def test_missing(self, rule):
        refused(rule, "reward_bounds", "0", "(low, high)", reward_bounds=None)
        refused(rule, "reward_bounds", "1", "(low, high)", reward_bounds=[(0, 1), None, (0, 1)])

    @pytest.mark.parametrize("pair", [(1, 0), (1, 1), (float("nan"), 1), (0, float("inf")), (0, 1, 2), (0,)])
    def test_no_interval(self, rule, pair):
        refused(rule, "reward_bounds", "2", pair, reward_bounds=[(0, 1), (-3, 3), pair])

    @pytest.mark.parametrize("bounds", [[(0, 1)], [(0, 1)] * 4, {"fmt": (0, 1)}, (0, 1)])
    def test_wrong_number(self, rule, bounds):
        refused(rule, "reward_bounds", "3", bounds, reward_bounds=bounds)

    def test_monitor_needs_none(self, rule):
        rewards = random_rewards(0)
        bounds = required(rule, rewards)["reward_bounds"]
        expected = compute(rule, rewards, [1.0, 0.0, 1.0]).advantages
        result = compute(rule, rewards, [1.0, 0.0, 1.0], reward_bounds=[bounds[0], None, bounds[2]])
        assert torch.equal(result.advantages, expected)


@pytest.mark.parametrize("rule", NORMALISED)
def test_batch_norm(rule):
    refused(rule, "batch_norm", "tokens", "completion", "token", batch_norm="tokens")
    refused(rule, "completion_lengths", "batch_norm", "(24,)", batch_norm="token")
    for lengths in (torch.ones(23), torch.ones(6, 4), -torch.ones(24), torch.full((24,), torch.nan)):
        refused(rule, "completion_lengths", "24", batch_norm="token", completion_lengths=lengths)


PARAMETERS = [
    ("saw", "delta", [0.0, -1.0, float("nan")]),
    ("sa_mrpo", "gamma", [-0.1, float("nan"), float("inf")]),
    ("gd2po_snr", "threshold", [-0.1, float("nan")]),
    ("rvpo", "k", [0.0, -1.0, float("nan"), float("inf")]),
    ("corr_grpo", "floor", [0.0, -1.0, float("nan")]),
]


@pytest.mark.parametrize(("rule", "name", "values"), PARAMETERS)
def test_parameter_out_of_range(rule, name, values):
    for value in values:
        refused(rule, f"`{name}`", value, "Pass", **{name: value})
