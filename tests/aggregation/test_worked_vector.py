"""One batch worked out by hand for every rule: five groups of four completions, correctness and format."""

import pytest
import torch

from trl_dara import AGGREGATIONS

from . import reference
from .support import channels, compute


REWARDS = channels(
    "3 -3 1.5 3 | -3 -3 -3 -3 | 2 2 -1 .5 | 3 -3 3 3 | 3 3 3 3",  # correctness
    "1 0 1 0 | 0 0 1 0 | 1 1 1 1 | 1 1 1 1 | 1 1 1 1",  # format
)
BOUNDS = {"reward_bounds": [(-3.0, 3.0), (0.0, 1.0)]}
STATIC = {"static_weights": [1.0, 1.5**0.5]}  # what DARA computes here

EXPECTED = {
    "grpo": [
        [0.7550, -1.4702, 0.2782, 0.4371],
        [-0.5, -0.5, 1.5, -0.5],
        [0.7833, 0.7833, -1.3056, -0.2611],
        [0.5, -1.5, 0.5, 0.5],
        [0, 0, 0, 0],
    ],
    "gdpo": [
        [1.5794, -2.3994, 1.0328, -0.2128],
        [-0.5174, -0.5174, 1.5521, -0.5174],
        [0.8106, 0.8106, -1.3510, -0.2702],
        [0.5174, -1.5521, 0.5174, 0.5174],
        [0, 0, 0, 0],
    ],
    "dara_sym": [
        [1.6231, -2.3704, 1.1249, -0.3775],
        [-0.5775, -0.5775, 1.7326, -0.5775],
        [0.7388, 0.7388, -1.2313, -0.2463],
        [0.4715, -1.4146, 0.4715, 0.4715],
        [0, 0, 0, 0],
    ],
    "dara_asym": [
        [1.6461, -2.3011, 1.1299, -0.2365],
        [-0.5240, -0.5240, 1.7595, -0.5240],
        [0.7299, 0.7299, -1.3111, -0.2906],
        [0.4531, -1.5011, 0.4531, 0.4531],
        [-0.0355, -0.0355, -0.0355, -0.0355],
    ],
    "dvao": [
        [0.6951, -1.3536, 0.2561, 0.4024],
        [-0.5, -0.5, 1.5, -0.5],
        [0.7833, 0.7833, -1.3056, -0.2611],
        [0.5, -1.5, 0.5, 0.5],
        [0, 0, 0, 0],
    ],
    "mo_grpo": [
        [1.5264, -2.3188, 0.9981, -0.2057],
        [-0.5, -0.5, 1.5, -0.5],
        [0.7833, 0.7833, -1.3056, -0.2611],
        [0.5, -1.5, 0.5, 0.5],
        [0, 0, 0, 0],
    ],
    "saw": [
        [1.5269, -2.4115, 0.9372, -0.0526],
        [-0.4560, -0.4560, 1.3679, -0.4560],
        [0.8745, 0.8745, -1.4575, -0.2915],
        [0.5582, -1.6745, 0.5582, 0.5582],
        [0, 0, 0, 0],
    ],
    "sa_mrpo": [
        [1.5526, -2.4078, 0.9825, -0.1273],
        [-0.4849, -0.4849, 1.4548, -0.4849],
        [0.8454, 0.8454, -1.4090, -0.2818],
        [0.5396, -1.6189, 0.5396, 0.5396],
        [0, 0, 0, 0],
    ],
    "gd2po_hard": [
        [1.1462, -1.7619, 0.7467, 0],
        [-0.5151, -0.5151, 1.5017, -0.5151],
        [0.7790, 0.7790, -1.3275, -0.2742],
        [0.4933, -1.5236, 0.4933, 0.4933],
        [-0.0109, -0.0109, -0.0109, -0.0109],
    ],
}
EXPECTED["static_sym"] = EXPECTED["dara_sym"]
EXPECTED["static_asym"] = EXPECTED["dara_asym"]

OPTIONS = {"saw": BOUNDS, "sa_mrpo": BOUNDS, "static_sym": STATIC, "static_asym": STATIC}
WEIGHTS = {
    "dara_sym": [1, 1.224745],
    "dara_asym": [1, 1.224745],
    "static_sym": [1, 1.224745],
    "static_asym": [1, 1.224745],
    "saw": [1.1008, 0.8992],
    "sa_mrpo": [0.7869, 0.7071],
}
# Rules without a row of published numbers: the reference alone says what is right.
REFERENCE_ONLY = {"gd2po_snr", "rvpo", "corr_grpo"}


@pytest.mark.parametrize("rule", sorted(EXPECTED))
def test_reference_reproduces_table(rule):
    result = reference.compute(rule, REWARDS.tolist(), eps=1e-6, **OPTIONS.get(rule, {}))
    torch.testing.assert_close(torch.tensor(result.advantages), torch.tensor(EXPECTED[rule]), rtol=0, atol=1e-4)
    if rule in WEIGHTS:
        assert result.weights == pytest.approx(WEIGHTS[rule], abs=1e-4)


@pytest.mark.parametrize("rule", sorted(set(EXPECTED) & set(AGGREGATIONS)))
def test_table(rule):
    result = compute(rule, REWARDS, eps=1e-6, **OPTIONS.get(rule, {}))
    expected = torch.tensor(EXPECTED[rule], dtype=torch.float64).flatten()
    torch.testing.assert_close(result.advantages, expected, rtol=0, atol=1e-4)
    if rule in WEIGHTS:
        torch.testing.assert_close(result.weights, torch.tensor(WEIGHTS[rule], dtype=torch.float64), rtol=0, atol=1e-4)


@pytest.mark.parametrize("rule", sorted(AGGREGATIONS))
def test_statistics(rule):
    result = compute(rule, REWARDS, eps=1e-6, **OPTIONS.get(rule, {}))
    assert result.density.tolist() == pytest.approx([0.6, 0.4])
    assert result.energy.tolist() == pytest.approx([9.0, 6.0], abs=1e-3)  # B * pi * (G - 1)
    assert result.active.tolist() == [[True, True], [False, True], [True, False], [True, False], [False, False]]
    assert result.scored.all()


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym"])
def test_dara_weights(rule):
    result = compute(rule, REWARDS, eps=1e-6)
    assert result.weights.tolist() == pytest.approx([1.0, 1.5**0.5], abs=1e-12)
    assert result.calibrated_density.tolist() == result.density.tolist()


@pytest.mark.parametrize("rule", sorted(AGGREGATIONS))
def test_reference_agrees_to_rounding(rule):
    options = OPTIONS.get(rule, {})
    expected = reference.compute(rule, REWARDS.tolist(), eps=1e-6, **options).advantages
    advantages = compute(rule, REWARDS, eps=1e-6, **options).advantages.view(5, 4)
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


def test_every_rule_is_held_to_a_number():
    assert set(AGGREGATIONS) - set(EXPECTED) <= REFERENCE_ONLY
    assert set(AGGREGATIONS) <= set(reference.RULES)
