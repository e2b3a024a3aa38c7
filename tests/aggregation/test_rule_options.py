"""What the rules' keyword arguments do at their limits: token counts, bounds, thresholds."""

import math

import pytest
import torch

from trl_dara import compute_advantages

from .support import channels, compute


REWARDS = channels("1 0 0 0 | 1 1 1 0", "1 1 1 0 | 0 0 0 0")
BOUNDS = [(0.0, 1.0), (0.0, 1.0)]

TOKEN_RULES = {
    "dara_asym": {},
    "dara_sym": {},
    "gd2po_hard": {},
    "gd2po_snr": {},
    "gdpo": {},
    "rvpo": {},
    "sa_mrpo": {"reward_bounds": BOUNDS},
    "saw": {"reward_bounds": BOUNDS},
    "static_asym": {"static_weights": [1.0, 5.0]},
    "static_sym": {"static_weights": [1.0, 5.0]},
}


@pytest.mark.parametrize("rule", TOKEN_RULES)
def test_token_normalisation_is_over_the_scores_of_all_tokens(rule):
    """As if each score stood there once per token; a completion that is dropped, or has no token, has no say."""
    lengths = torch.tensor([7, 2, 0, 5, 1, 30, 4, 4])
    options = {**TOKEN_RULES[rule], "eps": 1e-4}
    result = compute(rule, REWARDS, batch_norm="token", completion_lengths=lengths, **options)
    trained = (result.scored if result.kept is None else result.kept) & (lengths > 0)
    tokens = result.scores[trained].repeat_interleave(lengths[trained])
    kappa = 1.0 if result.kappa is None else result.kappa.repeat_interleave(4)[trained]
    expected = kappa * (result.scores[trained] - tokens.mean()) / (tokens.std() + 1e-4)
    torch.testing.assert_close(result.advantages[trained], expected, rtol=0, atol=1e-12)
    assert not result.advantages[~trained].any()


@pytest.mark.parametrize("rule", TOKEN_RULES)
def test_token_normalisation_without_tokens(rule):
    options = {"batch_norm": "token", "completion_lengths": torch.zeros(8), **TOKEN_RULES[rule]}
    assert not compute(rule, REWARDS, **options).advantages.any()


@pytest.mark.parametrize("rule", TOKEN_RULES)
def test_batch_norm_is_checked(rule):
    options = TOKEN_RULES[rule]
    with pytest.raises(ValueError, match=r"needs `completion_lengths`.*\(8,\)"):
        compute(rule, REWARDS, batch_norm="token", **options)
    with pytest.raises(ValueError, match="`batch_norm` is 'tokens'. Pass 'completion' or 'token'"):
        compute(rule, REWARDS, batch_norm="tokens", **options)
    for lengths in (torch.ones(4), torch.tensor([1, 1, 1, 1, 1, 1, 1, -1])):
        with pytest.raises(ValueError, match="`completion_lengths` is .* 8 completions"):
            compute(rule, REWARDS, batch_norm="token", completion_lengths=lengths, **options)


# Bounds


@pytest.mark.parametrize("rule", ["saw", "sa_mrpo"])
def test_missing_bounds_name_the_channel(rule):
    for bounds, channel in ((None, 0), ([(0.0, 1.0), None], 1), ([None, (0.0, 1.0)], 0)):
        with pytest.raises(ValueError, match=f"`reward_bounds` has none for channel {channel}"):
            compute_advantages(REWARDS, 4, rule, reward_bounds=bounds)
    for bad in ((1.0, 0.0), (0.0, 0.0), (0.0, math.inf), (0.0, math.nan), (0.0, 1.0, 2.0)):
        with pytest.raises(ValueError, match="`reward_bounds` gives channel 1 the bounds"):
            compute_advantages(REWARDS, 4, rule, reward_bounds=[(0.0, 1.0), bad])
    for bad in ([(0.0, 1.0)], {"a": (0.0, 1.0)}):
        with pytest.raises(ValueError, match="there are 2 channels"):
            compute_advantages(REWARDS, 4, rule, reward_bounds=bad)


@pytest.mark.parametrize("rule", ["saw", "sa_mrpo"])
def test_monitor_needs_no_bounds(rule):
    result = compute_advantages(REWARDS, 4, rule, [1.0, 0.0], reward_bounds=[(0.0, 1.0), None])
    alone = compute_advantages(REWARDS[..., :1], 4, rule, reward_bounds=[(0.0, 1.0)])
    torch.testing.assert_close(result.advantages, alone.advantages, rtol=0, atol=1e-12)
    assert result.weights.tolist() == [alone.weights.item(), 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outside", [-5.0, 7.0, 1e30, -1e30])
@pytest.mark.parametrize("rule", ["saw", "sa_mrpo"])
def test_reward_outside_its_bounds(rule, outside, dtype):
    rewards = REWARDS.to(dtype, copy=True)
    rewards[0, 0, 0] = outside
    result = compute(rule, rewards, reward_bounds=BOUNDS)
    assert result.advantages.isfinite().all()
    assert (result.weights >= 0).all()


def test_everything_saturated_is_silent():
    """Means at or above the declared upper bound: all weights 0."""
    result = compute("sa_mrpo", REWARDS, reward_bounds=[(-1.0, 0.5), (-2.0, 0.25)])
    assert result.weights.tolist() == [0.0, 0.0]
    assert not result.advantages.any()


def test_saw_without_any_spread_has_equal_weights():
    result = compute("saw", torch.full((2, 4, 2), 0.1, dtype=torch.float64), reward_bounds=BOUNDS)
    assert result.weights.tolist() == [1.0, 1.0]


# The others


@pytest.mark.parametrize("rule", ["gd2po_hard", "gd2po_snr"])
@pytest.mark.parametrize("num_generations", [2, 3, 4, 5, 7, 8, 12, 16, 32, 64])
def test_rounding_takes_no_side(rule, num_generations):
    # Completions at their group's mean are common with such rewards; float32 leaves 1e-8 to 1e-6 of them
    generator = torch.Generator().manual_seed(num_generations)
    rewards = torch.randint(0, 12, (2000, num_generations, 3), generator=generator).double() / 4  # (B, G, K)
    at_mean = compute(rule, rewards).channel_advantages.abs() < 1e-12  # (N, K)
    assert at_mean.any()
    result = compute(rule, rewards.float())
    assert (result.channel_advantages[at_mean] == 0).all()
    assert torch.equal(result.kept, compute(rule, rewards).kept)


def test_gd2po_with_fewer_than_two_kept():
    """Two opposed channels: every completion is in conflict but the only one of its group."""
    result = compute("gd2po_hard", channels("1 0 0 1 | 0 - - -", "0 1 1 0 | 0 - - -"))
    assert result.kept.tolist() == [False] * 4 + [True] + [False] * 3
    assert result.kappa.tolist() == [0.0, 1.0]
    assert not result.advantages.any()


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("saw", {"delta": 0.0, "reward_bounds": BOUNDS}),
        ("sa_mrpo", {"gamma": -1.0, "reward_bounds": BOUNDS}),
        ("gd2po_snr", {"threshold": -0.1}),
        ("gd2po_snr", {"threshold": math.nan}),
        ("rvpo", {"k": 0.0}),
        ("rvpo", {"k": math.inf}),
        ("corr_grpo", {"floor": 0.0}),
    ],
)
def test_parameters_are_checked(rule, options):
    name = next(iter(options))
    with pytest.raises(ValueError, match=f"`{name}` of the rule `{rule}` is {options[name]}"):
        compute(rule, REWARDS, **options)


@pytest.mark.parametrize("k", [1e-3, 1.0, 50.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sharpness_of_rvpo(k, dtype):
    """From the mean of the contributions to their minimum, and never past either."""
    result = compute("rvpo", REWARDS.to(dtype), k=k)
    mean, minimum = result.channel_advantages[:4].mean(-1), result.channel_advantages[:4].amin(-1)
    scores = result.scores[:4]
    assert (scores <= mean + 1e-3).all()
    assert (scores >= minimum - 1e-6).all()
    if k < 0.01:
        torch.testing.assert_close(scores, mean, rtol=0, atol=1e-3)
    if k >= 50:
        torch.testing.assert_close(scores, minimum, rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("rule", "flag"),
    [("dara_asym", "zero_inactive_groups"), ("gd2po_hard", "kappa_before_norm"), ("gd2po_snr", "kappa_before_norm")],
)
@pytest.mark.parametrize("value", ["false", 0, None])
def test_a_flag_is_true_or_false(rule, flag, value):
    with pytest.raises(ValueError, match=f"`{flag}` is {value!r}. Pass True or False"):
        compute_advantages(torch.rand(8, 2), 4, rule, **{flag: value})
