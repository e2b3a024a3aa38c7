"""What every rule must satisfy, whatever its formula."""

import copy
import dataclasses

import pytest
import torch

from trl_dara import compute_advantages

from .support import PER_GROUP, RULES, channels, compute, random_rewards, required


every_rule = pytest.mark.parametrize("rule", RULES)

SHAPES = [(6, 4, 3), (1, 2, 1), (1, 8, 2), (16, 2, 2), (3, 5, 6)]
# The row of a completion that some channel did not score counts, in the sum of grpo, as 0 on that channel (as in TRL).
DECOUPLED = sorted(set(RULES) - {"grpo"})


def tensors(result):
    """All tensors of a result by field name."""
    values = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def assert_same(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


# Shapes, types, finiteness


@every_rule
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_types_and_finiteness(rule, shape, missing, dtype):
    num_groups, num_generations, num_channels = shape
    rows = num_groups * num_generations
    result = compute(rule, random_rewards(0, shape, missing, dtype))
    for name in ("advantages", "scores"):
        assert getattr(result, name).shape == (rows,)
    for name in ("channel_advantages", "contributions"):
        assert getattr(result, name).shape == (rows, num_channels)
    for name in ("density", "calibrated_density", "energy"):
        assert getattr(result, name).shape == (num_channels,)
    assert result.weights.shape in [(num_channels,), (num_groups, num_channels)]
    assert result.active.shape == (num_groups, num_channels)
    assert result.active.dtype == torch.bool
    assert result.scored.shape == (rows,)
    assert result.scored.dtype == torch.bool
    for name, value in tensors(result).items():
        assert value.isfinite().all(), name
        assert not value.is_floating_point() or value.dtype == dtype, name


@every_rule
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_whole_numbers_are_computed_in_float32(rule, dtype):
    rewards = (random_rewards(0) > 0).to(dtype)
    result = compute(rule, rewards)
    assert result.advantages.dtype == torch.float32
    assert_same(result.advantages, compute(rule, rewards.float()).advantages, atol=0)


@every_rule
def test_rows_and_groups_are_the_same_input(rule):
    rewards = random_rewards(0, missing=0.2)
    by_rows = compute_advantages(rewards.flatten(0, 1), 4, rule, **required(rule, rewards))
    assert_same(by_rows.advantages, compute(rule, rewards).advantages, atol=0)


@every_rule
def test_results_follow_from_the_rewards(rule):
    """Density counts active groups, energy is the squared advantages, and an inactive channel has none of either."""
    rewards = random_rewards(1, (12, 4, 3), missing=0.4)
    result = compute(rule, rewards)
    low, high = rewards.nan_to_num(nan=torch.inf).amin(1), rewards.nan_to_num(nan=-torch.inf).amax(1)
    assert result.active.tolist() == (high > low).tolist()
    assert_same(result.density, result.active.double().mean(0))
    assert_same(result.energy, result.channel_advantages.square().sum(0))
    assert result.scored.tolist() == (~rewards.isnan().all(-1)).flatten().tolist()
    unscored = rewards.isnan().flatten(0, 1)
    inactive = ~result.active.repeat_interleave(4, dim=0)
    for values in (result.channel_advantages, result.contributions):
        assert not values[unscored | inactive].any()


# No side effects


def test_channel_advantages_of_many_groups_are_those_of_few():
    rewards = random_rewards(0, (30_000, 4, 3), missing=0.1, dtype=torch.float32)  # (B, G, K)
    whole = compute("gdpo", rewards)
    parts = [compute("gdpo", part) for part in rewards.split(7_000)]
    for name in ("channel_advantages", "active", "scored"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts])), name


@every_rule
def test_input_is_not_modified(rule):
    rewards, weights = random_rewards(0, missing=0.2), torch.tensor([1.0, -0.5, 0.0])
    options = required(rule, rewards)
    before = rewards.clone(), weights.clone(), copy.deepcopy(options)
    compute_advantages(rewards, 4, rule, weights, **options)
    torch.testing.assert_close(rewards, before[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(weights, before[1])
    assert options == before[2]


@every_rule
def test_result_does_not_share_memory_with_the_input(rule):
    """Writing into a result, as a caller may, must not change the rewards, nor must two fields be one tensor."""
    rewards = random_rewards(0)
    before = rewards.clone()
    result = compute(rule, rewards)
    result.advantages.fill_(7.0)
    result.contributions.fill_(7.0)
    assert torch.equal(rewards, before)


@every_rule
def test_no_gradient(rule):
    rewards = random_rewards(0).requires_grad_()
    weights = torch.ones(3, requires_grad=True)
    for name, value in tensors(compute(rule, rewards, weights)).items():
        assert not value.requires_grad, name


@every_rule
def test_same_bits_twice(rule):
    rewards = random_rewards(0, missing=0.2, dtype=torch.float32)
    once, again = tensors(compute(rule, rewards)), tensors(compute(rule, rewards.clone()))
    for name in once:
        assert torch.equal(once[name], again[name]), name


@every_rule
def test_memory_layout_does_not_matter(rule):
    rewards = random_rewards(0, missing=0.2)
    expected = compute(rule, rewards).advantages
    wide = torch.zeros(12, 8, 6, dtype=torch.float64)
    wide[::2, ::2, ::2] = rewards
    layouts = {
        "channels first": rewards.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        "completions first": rewards.transpose(0, 1).contiguous().transpose(0, 1),
        "strided": wide[::2, ::2, ::2],
    }
    for name, layout in layouts.items():
        assert not layout.is_contiguous(), name
        assert_same(compute(rule, layout).advantages, expected)
    one_group = rewards[:1].expand(6, 4, 3)
    assert_same(compute(rule, one_group).advantages, compute(rule, one_group.contiguous()).advantages)


# Symmetries


@every_rule
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_order_of_completions_does_not_matter(rule, missing):
    rewards = random_rewards(0, missing=missing)
    order = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(i)) for i in range(6)])  # (B, G)
    shuffled = rewards.gather(1, order.unsqueeze(-1).expand_as(rewards))
    expected = compute(rule, rewards).advantages.view(6, 4).gather(1, order)
    assert_same(compute(rule, shuffled).advantages.view(6, 4), expected)


@every_rule
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_order_of_groups_does_not_matter(rule, missing):
    rewards = random_rewards(0, missing=missing)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    expected, result = compute(rule, rewards), compute(rule, rewards[order])
    assert_same(result.advantages.view(6, 4), expected.advantages.view(6, 4)[order])
    assert torch.equal(result.active, expected.active[order])


@every_rule
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_order_of_channels_does_not_matter(rule, missing):
    rewards, weights = random_rewards(0, missing=missing), torch.tensor([1.0, 0.3, -2.0], dtype=torch.float64)
    order = [2, 0, 1]
    options = required(rule, rewards)
    reordered = {name: [values[k] for k in order] for name, values in options.items()}
    expected = compute(rule, rewards, weights, **options)
    result = compute(rule, rewards[..., order], weights[order], **reordered)
    assert_same(result.advantages, expected.advantages)
    assert_same(result.contributions, expected.contributions[:, order])
    assert_same(result.weights, expected.weights[..., order])
    assert_same(result.density, expected.density[order])


# Constant and silent channels


@every_rule
@pytest.mark.parametrize("position", [0, 1, 3])
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 0.7, -2.4, 1e6, 1e30, -1e-30])
@pytest.mark.parametrize("weight", [1.0, -3.0])
def test_constant_channel_changes_nothing(rule, position, value, weight):
    rewards = random_rewards(0)
    constant = torch.full((6, 4, 1), value, dtype=torch.float64)
    widened = torch.cat([rewards[..., :position], constant, rewards[..., position:]], dim=-1)
    weights = [1.0, 0.5, -1.0]
    options, more = required(rule, rewards), required(rule, widened)
    for name in options:  # what the other channels were given, they keep
        more[name] = [*options[name][:position], more[name][position], *options[name][position:]]
    expected = compute(rule, rewards, weights, eps=1e-6, **options)
    result = compute(rule, widened, [*weights[:position], weight, *weights[position:]], eps=1e-6, **more)
    # saw rescales its weights by the number of channels, which its batch normalisation undoes but for eps.
    assert_same(result.advantages, expected.advantages, atol=1e-5 if rule == "saw" else 1e-12)
    assert result.density[position] == 0
    assert result.energy[position] == 0
    assert not result.contributions[:, position].any()


@pytest.mark.parametrize("rule", DECOUPLED)
def test_constant_channel_that_scores_only_some_changes_nothing(rule):
    rewards = random_rewards(0)
    constant = torch.full((6, 4, 1), 0.7, dtype=torch.float64)
    constant[torch.rand(6, 4, 1, generator=torch.Generator().manual_seed(0)) < 0.5] = torch.nan
    widened = torch.cat([rewards, constant], dim=-1)
    options, more = required(rule, rewards), required(rule, widened)
    expected = compute(rule, rewards, eps=1e-6, **options)
    result = compute(rule, widened, eps=1e-6, **more)
    assert_same(result.advantages, expected.advantages, atol=1e-5 if rule == "saw" else 1e-12)
    assert not result.contributions[:, -1].any()


@every_rule
def test_spread_that_eps_swallows_is_inactive(rule):
    """A channel whose normalised values sum up to less than 1e-8 gives no signal and is not counted in the density."""
    rewards = channels("1 0 1 0 | 1 0 0 0", "0 1e-14 0 0 | 1 0 1 1")
    result = compute(rule, rewards)
    assert result.active.tolist() == [[True, False], [True, True]]
    assert result.density.tolist() == [1.0, 0.5]
    assert not result.contributions[:4, 1].any()


@every_rule
@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_in_which_nothing_varies(rule, missing, dtype):
    """Each group and channel has a constant of its own; the advantages are zeros, not small numbers."""
    values = torch.tensor([0.1, 0.7, -2.4, 3.0, 1e30, 0.0], dtype=dtype)
    rewards = values[torch.randint(6, (8, 1, 3), generator=torch.Generator().manual_seed(1))].repeat(1, 7, 1)
    rewards[torch.rand(rewards.shape, generator=torch.Generator().manual_seed(2)) < missing] = torch.nan
    result = compute(rule, rewards, [1.0, 0.3, -1.0])
    for name in ("advantages", "channel_advantages", "contributions", "density", "energy"):
        assert not getattr(result, name).any(), name
    assert not result.active.any()


@pytest.mark.parametrize("rule", sorted(set(PER_GROUP) & set(RULES)))
def test_group_in_which_nothing_varies(rule):
    rewards = random_rewards(0, (6, 7, 3))
    rewards[2] = torch.tensor([0.1, 0.7, -2.4])
    rewards[4] = torch.tensor([1e30, 0.7, -2.4])
    rewards[4, 1:5, 2] = torch.nan
    advantages = compute(rule, rewards, [1.0, 0.3, -1.0]).advantages.view(6, 7)
    assert not advantages[[2, 4]].any()
    assert advantages[[0, 1, 3, 5]].any(dim=1).all()


# Completions that nobody scored


@every_rule
@pytest.mark.parametrize("seed", range(5))
def test_unscorable_completions_have_no_advantage_and_no_influence(rule, seed):
    """What a zero-weight channel says about a completion that no other channel scored moves nothing."""
    rewards = random_rewards(seed, (6, 4, 3), missing=0.3)
    rewards[:, seed % 4, :2] = torch.nan
    weights = [1.0, 0.5, 0.0]
    changed = rewards.clone()
    changed[:, seed % 4, 2] = torch.tensor([1e6, torch.nan, -3.0, 0.0, 1.0, torch.nan])
    options = required(rule, rewards)
    result, other = compute(rule, rewards, weights, **options), compute(rule, changed, weights, **options)
    unscorable = rewards[..., :2].isnan().all(-1).flatten()
    assert unscorable.view(6, 4)[:, seed % 4].all()
    for outcome in (result, other):
        assert torch.equal(outcome.scored, ~unscorable)
        assert not outcome.advantages[unscorable].any()
    assert torch.equal(result.advantages, other.advantages)


# User weights


@every_rule
@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_zero_weight_is_leaving_the_channel_out(rule, position, missing):
    rewards = random_rewards(4, (8, 4, 3), missing)
    rest = [k for k in range(3) if k != position]
    weights, options = [0.7, 1.0, -2.0], required(rule, rewards)
    weights[position] = 0.0
    fewer = {name: [values[k] for k in rest] for name, values in options.items()}
    expected = compute(rule, rewards[..., rest], [weights[k] for k in rest], **fewer)
    result = compute(rule, rewards, weights, **options)
    assert_same(result.advantages, expected.advantages)
    assert_same(result.weights[..., rest], expected.weights)
    assert torch.equal(result.scored, expected.scored)
    assert not result.contributions[:, position].any()


@every_rule
def test_zero_weight_channel_is_measured_all_the_same(rule):
    rewards = random_rewards(0)
    monitored, steering = compute(rule, rewards, [0.0, 1.0, 1.0]), compute(rule, rewards)
    for name in ("density", "energy", "channel_advantages", "active"):
        assert_same(getattr(monitored, name), getattr(steering, name))


@every_rule
def test_all_weights_zero(rule):
    result = compute(rule, random_rewards(0), [0.0, 0.0, 0.0])
    assert not result.advantages.any()
    assert not result.scored.any()


@pytest.mark.parametrize("rule", sorted(set(RULES) - {"saw", "sa_mrpo"}))  # whose weights read the raw rewards
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_negative_weight_is_a_reward_turned_around(rule, missing):
    """The sign is flipped before a rule looks at it: before amplification of positives, conflicts, correlations."""
    rewards = random_rewards(0, missing=missing)
    turned = rewards * torch.tensor([1.0, -1.0, 1.0])
    expected = compute(rule, turned, [1.0, 0.5, 2.0])
    result = compute(rule, rewards, [1.0, -0.5, 2.0])
    assert_same(result.advantages, expected.advantages)


@every_rule
def test_weights_as_list_and_tensor(rule):
    rewards = random_rewards(0, dtype=torch.float32)
    expected = compute(rule, rewards, [1.0, 0.3, -2.0]).advantages
    for dtype in (torch.float32, torch.float64):
        weights = torch.tensor([1.0, 0.3, -2.0], dtype=dtype)
        assert_same(compute(rule, rewards, weights).advantages, expected, atol=1e-6)
    assert_same(compute(rule, rewards).advantages, compute(rule, rewards, [1, 1, 1]).advantages, atol=0)


# Extreme shapes


@every_rule
def test_one_completion_per_group(rule):
    result = compute(rule, random_rewards(0, (6, 1, 3), missing=0.2))
    assert not result.advantages.any()
    assert not result.density.any()


@every_rule
def test_one_channel(rule):
    """A single channel keeps its order within each group and nothing is lost of it."""
    rewards = random_rewards(0, (6, 4, 3))[..., 2:]
    advantages = compute(rule, rewards).advantages.view(6, 4)
    assert torch.equal(advantages.argsort(dim=1), rewards.squeeze(-1).argsort(dim=1))


@pytest.mark.parametrize("rule", sorted({"dara_sym", "dara_asym", "static_sym", "saw", "sa_mrpo"} & set(RULES)))
def test_one_channel_is_gdpo(rule):
    rewards = random_rewards(0, (6, 4, 1))
    expected = compute("gdpo", rewards, eps=1e-6)
    assert_same(compute(rule, rewards, eps=1e-6).advantages, expected.advantages, atol=1e-5)


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym"])
def test_one_live_channel_is_gdpo(rule):
    rewards = random_rewards(0, (6, 4, 3))
    rewards[..., 1:] = 0.7
    result = compute(rule, rewards)
    assert result.weights.tolist() == [1.0, 1.0, 1.0]
    assert_same(result.advantages, compute("gdpo", rewards).advantages)


# grpo's scale, DARA's options


def test_scale_of_grpo():
    rewards = random_rewards(0, missing=0.2)
    total = rewards.nansum(-1).masked_fill(rewards.isnan().all(-1), torch.nan)  # (B, G)
    centred = (total - total.nanmean(dim=1, keepdim=True)).nan_to_num()
    assert_same(compute("grpo", rewards, scale="none").advantages.view(6, 4), centred)
    spread = total[~total.isnan()].std()
    assert_same(compute("grpo", rewards, scale="batch").advantages.view(6, 4), centred / (spread + 1e-4))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_scale_of_grpo_with_a_constant_channel(scale):
    rewards = random_rewards(0)
    expected = compute("grpo", rewards, scale=scale).advantages
    for value in (0.1, 1e6, 1e30):
        constant = torch.full((6, 4, 1), value, dtype=torch.float64)
        result = compute("grpo", torch.cat([rewards, constant], dim=-1), scale=scale)
        assert_same(result.advantages, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_inactive_groups(dtype):
    """Positive amplification moves the mean: silent groups get a small negative advantage unless told otherwise."""
    rewards = channels("1 0 0 0 | 1 0 1 0 | 1 1 1 1", "0 0 0 1 | 1 1 1 1 | 0 0 0 0", dtype=dtype)
    default = compute("dara_asym", rewards).advantages.view(3, 4)
    zeroed = compute("dara_asym", rewards, zero_inactive_groups=True).advantages.view(3, 4)
    assert (default[2] < 0).all()
    assert not zeroed[2].any()
    assert torch.equal(default[:2], zeroed[:2])


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym"])
def test_density_over_scored_groups(rule):
    """Of four groups the second channel applies to two and differs in one; one score in a group is not enough."""
    rewards = channels("1 0 1 0 | 1 0 0 0 | 1 1 1 0 | 0 1 1 0", "- - - - | 1 - - - | 1 0 1 1 | 1 1 1 1")
    over_all = compute(rule, rewards)
    over_scored = compute(rule, rewards, density_over="scored")
    assert over_all.weights.tolist() == [1.0, 2.0]
    assert over_all.calibrated_density.tolist() == [1.0, 0.25]
    assert over_scored.weights.tolist() == pytest.approx([1.0, 2**0.5])
    assert over_scored.calibrated_density.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym"])
def test_monitor_is_not_the_reference_density(rule):
    """The densest channel has weight 0: the others are weighted as if it were not there."""
    rewards = channels("1 0 1 0 | 1 0 0 0 | 1 1 1 0 | 0 1 1 0", "1 1 1 1 | 0 0 0 1 | 1 0 1 1 | 1 1 1 1")
    assert compute(rule, rewards).weights[1].item() == pytest.approx(2**0.5)
    assert compute(rule, rewards, [0.0, 1.0]).weights[1].item() == 1.0


# Infinite rewards


@every_rule
@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_infinite_reward_is_not_scored(rule, value):
    rewards = random_rewards(0, missing=0.1)
    missing = rewards.clone()
    missing[1, 2, 0] = missing[3, :, 2] = torch.nan
    rewards[1, 2, 0] = rewards[3, :, 2] = value
    options = required(rule, missing)
    with pytest.warns(UserWarning, match="(?i)inf") as caught:
        result = compute(rule, rewards, **options)
    assert len(caught) == 1
    assert "4" in str(caught[0].message)  # how many of channel 2
    for name, expected in tensors(compute(rule, missing, **options)).items():
        assert torch.equal(tensors(result)[name], expected), name


@every_rule
@pytest.mark.filterwarnings("error")
def test_missing_scores_do_not_warn(rule):
    compute(rule, random_rewards(0, missing=0.3))
    compute(rule, torch.full((2, 4, 2), torch.nan))
    compute(rule, random_rewards(0, (3, 1, 2)))
