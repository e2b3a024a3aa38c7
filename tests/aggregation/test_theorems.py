"""What the paper proves about density, energy and the two forms of amplification, as properties of random batches."""

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from .support import RULES, compute


properties = hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
properties_of_every_rule = hypothesis.settings(properties, max_examples=25)

VALUES = st.one_of(
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([-3.0, -1.0, 0.0, 0.5, 1.5, 3.0]),
    st.integers(-300, 300).map(lambda x: x / 100),
)


@st.composite
def batches(draw, max_channels=4, min_generations=2):
    """Rewards `(B, G, K)`, every row scored; some channels are constant in some groups."""
    num_groups, num_channels = draw(st.integers(1, 6)), draw(st.integers(1, max_channels))
    num_generations = draw(st.integers(min_generations, 8))
    groups = []
    for _ in range(num_groups * num_channels):
        if draw(st.booleans()):
            groups.append([draw(VALUES)] * num_generations)
        else:
            groups.append(draw(st.lists(VALUES, min_size=num_generations, max_size=num_generations)))
    shape = (num_groups, num_channels, num_generations)
    return torch.tensor(groups, dtype=torch.float64).view(shape).transpose(1, 2).contiguous()  # (B, G, K)


def nearly(expected, tolerance=1e-9):
    return pytest.approx(expected, rel=tolerance, abs=tolerance)


# 1. Energy is density


@pytest.mark.parametrize("rule", RULES)
@hypothesis.given(rewards=batches())
@properties_of_every_rule
def test_energy_is_density_times_degrees_of_freedom(rule, rewards):
    """E_k = B pi_k (G - 1) with eps = 0."""
    num_groups, num_generations, _ = rewards.shape
    result = compute(rule, rewards, eps=0.0)
    assert result.energy.tolist() == nearly((num_groups * result.density * (num_generations - 1)).tolist())


@pytest.mark.parametrize("rule", RULES)
@hypothesis.given(rewards=batches(), eps=st.sampled_from([1e-6, 1e-4, 1e-2, 1.0]))
@properties_of_every_rule
def test_eps_shrinks_the_energy_of_each_group(rule, rewards, eps):
    """An active group contributes (G - 1) (sd / (sd + eps))^2."""
    num_generations = rewards.shape[1]
    result = compute(rule, rewards, eps=eps)
    active = rewards.amax(1) > rewards.amin(1)  # (B, K)
    spread = rewards.std(dim=1)  # (B, K)
    expected = torch.where(active, (num_generations - 1) * (spread / (spread + eps)) ** 2, 0)  # (B, K)
    per_group = result.channel_advantages.view(rewards.shape).square().sum(1)  # (B, K)
    torch.testing.assert_close(per_group, expected, rtol=1e-9, atol=1e-9)
    assert result.energy.tolist() == nearly(expected.sum(0).tolist())


# 2. DARA-Sym matches energies


@hypothesis.given(rewards=batches())
@properties
def test_uncapped_sym_gives_live_channels_one_energy(rewards):
    result = compute("dara_sym", rewards, eps=0.0, w_max=math.inf)
    matched = result.weights**2 * result.energy
    live = result.density > 0
    assert matched[live].tolist() == nearly([result.energy.max().item()] * int(live.sum()))
    assert result.contributions.square().sum(0).tolist() == nearly(matched.tolist())


@hypothesis.given(rewards=batches(), w_max=st.sampled_from([1.0, 1.2, 1.5, 2.0, 5.0]))
@properties
def test_capped_sym_matches_as_far_as_the_cap_allows(rewards, w_max):
    result = compute("dara_sym", rewards, eps=0.0, w_max=w_max)
    expected = (w_max**2 * result.energy).clamp(max=result.energy.max())
    assert result.contributions.square().sum(0).tolist() == nearly(expected.tolist())
    assert (result.weights >= 1).all()
    assert (result.weights <= w_max).all()


# 3. Energy under DARA-Asym


@hypothesis.given(rewards=batches(), sign=st.sampled_from([1.0, -1.0]))
@properties
def test_asym_energy(rewards, sign):
    """E_k + (w_k^2 - 1) E_k+, between E_k and w_k^2 E_k, also after the batch mean has been subtracted."""
    result = compute("dara_asym", rewards, [sign] * rewards.shape[-1], eps=0.0)
    energy, top = result.energy, result.weights**2 * result.energy
    positive = (sign * result.channel_advantages).clamp(min=0).square().sum(0)
    amplified = result.contributions.square().sum(0)
    assert amplified.tolist() == nearly((energy + (result.weights**2 - 1) * positive).tolist())
    centred = (result.contributions - result.contributions.mean(0)).square().sum(0)
    for value in (amplified, centred):
        assert (value >= energy - 1e-9).all()
        assert (value <= top + 1e-9).all()


# 4. Binary rewards


def binary_groups(num_generations):
    """All 2^G outcomes of a group with a binary reward, `(2^G, G, 1)`."""
    outcomes = list(itertools.product([0.0, 1.0], repeat=num_generations))
    return torch.tensor(outcomes, dtype=torch.float64).unsqueeze(-1)


@hypothesis.given(p=st.floats(0.0, 1.0), num_generations=st.integers(1, 8))
@properties
def test_probability_of_an_active_binary_group(p, num_generations):
    """1 - p^G - (1 - p)^G, by weighing every possible group with its probability."""
    groups = binary_groups(num_generations)
    successes = groups.sum(dim=(1, 2))
    probability = p**successes * (1 - p) ** (num_generations - successes)
    active = compute("dara_sym", groups).active.squeeze(1)
    expected = 1 - p**num_generations - (1 - p) ** num_generations
    assert probability[active].sum().item() == nearly(max(expected, 0.0))


@hypothesis.given(p=st.floats(0.0, 1.0))
@properties
def test_larger_groups_have_no_less_density_and_energy_per_completion(p):
    density, energy = [], []
    for num_generations in range(1, 9):
        groups = binary_groups(num_generations)
        successes = groups.sum(dim=(1, 2))
        probability = p**successes * (1 - p) ** (num_generations - successes)  # (2^G,)
        result = compute("dara_sym", groups, eps=0.0)
        per_group = result.channel_advantages.view(-1, num_generations).square().sum(1)
        density.append((probability * result.active.squeeze(1)).sum().item())
        energy.append((probability * per_group).sum().item() / num_generations)
    for values in (density, energy):
        assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(values))


# 5. Batch normalisation of DARA-Sym only rescales


@pytest.mark.parametrize("rule", sorted({"dara_sym", "gdpo", "static_sym", "saw", "sa_mrpo"} & set(RULES)))
@hypothesis.given(rewards=batches())
@properties_of_every_rule
def test_batch_normalisation_only_rescales(rule, rewards):
    result = compute(rule, rewards)
    assert result.scores.mean().item() == pytest.approx(0.0, abs=1e-12)
    spread = result.scores.std().item()
    assert result.advantages.tolist() == nearly((result.scores / (spread + 1e-4)).tolist())


@hypothesis.given(rewards=batches())
@properties
def test_sym_score_is_the_weighted_sum(rewards):
    result = compute("dara_sym", rewards)
    expected = (result.weights * result.channel_advantages).sum(-1)
    assert result.scores.tolist() == nearly(expected.tolist())


@hypothesis.given(rewards=batches())
@properties
def test_asym_score_amplifies_the_positive_part(rewards):
    result = compute("dara_asym", rewards)
    a = result.channel_advantages
    expected = (a + (result.weights - 1) * a.clamp(min=0)).sum(-1)
    assert result.scores.tolist() == nearly(expected.tolist())


# 6. Symmetries


@pytest.mark.parametrize("rule", RULES)
@hypothesis.given(rewards=batches(), data=st.data())
@properties_of_every_rule
def test_order_does_not_matter(rule, rewards, data):
    num_groups, num_generations, num_channels = rewards.shape
    groups = data.draw(st.permutations(range(num_groups)))
    completions = data.draw(st.permutations(range(num_generations)))
    order = data.draw(st.permutations(range(num_channels)))
    weights = data.draw(
        st.lists(st.sampled_from([1.0, 0.5, 2.0, -1.0, 0.0]), min_size=num_channels, max_size=num_channels)
    )
    options = {"static_weights": [1.0 + k for k in range(num_channels)]} if rule.startswith("static") else {}
    reordered = {name: [values[k] for k in order] for name, values in options.items()}
    expected = compute(rule, rewards, weights, **options).advantages.view(num_groups, num_generations)
    shuffled = rewards[groups][:, completions][..., order]
    result = compute(rule, shuffled, [weights[k] for k in order], **reordered).advantages
    assert result.tolist() == nearly(expected[groups][:, completions].flatten().tolist(), 1e-8)


@pytest.mark.parametrize("rule", RULES)
@hypothesis.given(rewards=batches(), value=st.sampled_from([0.0, 0.1, 0.7, -2.4, 1e6]))
@properties_of_every_rule
def test_constant_channel_changes_nothing(rule, rewards, value):
    widened = torch.cat([rewards, torch.full_like(rewards[..., :1], value)], dim=-1)
    expected, result = compute(rule, rewards, eps=1e-9).advantages, compute(rule, widened, eps=1e-9).advantages
    assert result.tolist() == nearly(expected.tolist(), 1e-6)


@pytest.mark.parametrize("rule", ["gdpo", "mo_grpo", "dara_sym", "dara_asym", "static_sym", "static_asym"])
@hypothesis.given(
    rewards=batches(), factor=st.sampled_from([0.5, 3.0, 100.0]), shift=st.sampled_from([0.0, -7.0, 1000.0])
)
@properties_of_every_rule
def test_scale_and_shift_of_a_channel_matter_only_through_eps(rule, rewards, factor, shift):
    changed = rewards.clone()
    changed[..., 0] = factor * changed[..., 0] + shift
    expected, result = compute(rule, rewards, eps=1e-9), compute(rule, changed, eps=1e-9)
    hypothesis.assume(expected.scores.std() > 1e-6 or not expected.advantages.any())  # else eps is all there is
    assert result.weights.tolist() == nearly(expected.weights.tolist())
    assert result.advantages.tolist() == nearly(expected.advantages.tolist(), 1e-4)
