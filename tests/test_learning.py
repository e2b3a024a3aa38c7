"""
The claim, on a transformer in training: density-aware weights learn the sparse reward sooner, at a small cost in the dense
one, and the weights are those of the paper's equations. Six runs of 30 steps on the synthetic tool-calling task.
"""

import math

import pytest

from trl_dara.demo.runs import CHANNELS, Run, channel_series, run_all


pytestmark = pytest.mark.slow

SEEDS = (0, 1)
DARA = ("dara_sym", "dara_asym")


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("learning")
    runs = [Run(f"{rule}-seed{seed}", rule, seed, steps=30) for seed in SEEDS for rule in ("gdpo", *DARA)]
    run_all(runs, output_dir, parallel=2, refresh=lambda left: None)
    return {(run.rule, run.seed): run.history(output_dir) for run in runs}


def mean_reward(history, channel) -> float:
    rewards = channel_series(history, "reward", channel)
    assert len(rewards) == 30
    return math.fsum(rewards) / len(rewards)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", DARA)
def test_format_is_learned_sooner(histories, rule, seed):
    gain = mean_reward(histories[rule, seed], "format") - mean_reward(histories["gdpo", seed], "format")
    assert gain >= 0.06


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", DARA)
def test_correctness_pays_little(histories, rule, seed):
    loss = mean_reward(histories["gdpo", seed], "correctness") - mean_reward(histories[rule, seed], "correctness")
    assert loss <= 0.25


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", DARA)
def test_weight_is_equation_6_of_the_calibrated_density(histories, rule, seed):
    history = histories[rule, seed]
    densities = {channel: channel_series(history, "calibrated_density", channel) for channel in CHANNELS}
    for step in range(30):
        reference = max(densities[channel][step] for channel in CHANNELS)
        for channel in CHANNELS:
            density = densities[channel][step]
            expected = min(5.0, math.sqrt(reference / density)) if density > 0 else 1.0
            assert channel_series(history, "weight", channel)[step] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", DARA)
def test_weight_falls_as_the_format_becomes_dense(histories, rule, seed):
    history = histories[rule, seed]
    weights, densities = (channel_series(history, metric, "format") for metric in ("weight", "density"))
    peak = densities.index(max(densities))
    assert weights[0] > 3
    assert min(weights[: peak + 1]) < 1.5


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", ("gdpo", *DARA))
def test_energy_follows_from_density(histories, rule, seed):
    num_groups, num_generations = 64, 4
    for channel in CHANNELS:
        energies = channel_series(histories[rule, seed], "energy", channel)  # per completion
        densities = channel_series(histories[rule, seed], "density", channel)
        for energy, density in zip(energies, densities, strict=True):
            total = energy * num_groups * num_generations
            assert total == pytest.approx(num_groups * density * (num_generations - 1), rel=1e-3)
