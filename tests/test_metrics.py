"""Each metric against a batch worked out by hand."""

import math

import pytest
import torch

from trl_dara import AGGREGATIONS, compute_advantages
from trl_dara.metrics import channel_metrics


NAN = math.nan

# Four groups of four completions; group by group
CORRECT = [1, 0, 1, 0] + [1, 0, 0, 0] + [1, 1, 1, 1] + [0, 0, 0, 0]
FORMAT = [1, 1, 1, 1] + [0, 0, 0, 1] + [NAN, NAN, NAN, NAN] + [NAN, 1, NAN, NAN]
COST = [-2, -2, -2, -2] + [-2, -2, -2, -2] + [-8, -8, -8, -8] + [-8, -8, -6, -8]
SILENT = [NAN] * 16


def measure(*columns, num_generations=4, aggregation="dara_sym", reward_weights=None, bounds=None, **options):
    """Metrics of rewards given as one column per channel, named a, b, c, ..."""
    rewards = torch.tensor(columns, dtype=torch.float32).T  # (N, K)
    weights = torch.ones(len(columns)) if reward_weights is None else torch.tensor(reward_weights)  # (K,)
    result = compute_advantages(rewards, num_generations, aggregation, weights, **options)
    groups = rewards.unflatten(0, (-1, num_generations))  # (B, G, K)
    return channel_metrics(groups, result, weights, list("abcdef"[: len(columns)]), bounds or [None] * len(columns))


@pytest.fixture(scope="module")
def metrics():
    return measure(CORRECT, FORMAT, COST, SILENT, bounds=[(0, 1), None, (-10, 0), (0, 1)])


def test_density(metrics):
    assert [metrics[f"channels/{name}/density"] for name in "abc"] == [0.5, 0.25, 0.25]
    assert [metrics[f"channels/{name}/calibrated_density"] for name in "abc"] == [0.5, 0.25, 0.25]


def test_weight(metrics):
    assert [metrics[f"channels/{name}/weight"] for name in "abc"] == pytest.approx([1, 2**0.5, 2**0.5])


def test_energy_is_per_completion(metrics):
    # An active group of G scored completions has the energy G - 1, up to epsilon
    assert [metrics[f"channels/{name}/energy"] for name in "abc"] == pytest.approx([6 / 16, 3 / 16, 3 / 16], rel=1e-3)


def test_share_is_of_the_weighted_contributions():
    # A group with s ones of four: the ones get (1 - s/4) / sd, the others -(s/4) / sd
    def absolute(ones):
        share = ones / 4
        deviation = math.sqrt(4 * share * (1 - share) / 3)
        return (ones * (1 - share) + (4 - ones) * share) / deviation

    dense, sparse = absolute(2) + absolute(1), 2**0.5 * absolute(1)
    metrics = measure(CORRECT, [0] * 4 + [0, 0, 0, 1] + [0] * 8)
    assert metrics["channels/a/share"] == pytest.approx(dense / (dense + sparse), rel=1e-3)
    assert metrics["channels/b/share"] == pytest.approx(sparse / (dense + sparse), rel=1e-3)


def test_share_of_grpo_is_of_the_centred_rewards():
    # |r - mean| sums to 2 in the first channel and to 200 in the second
    metrics = measure([0, 0, 1, 1, 5, 5, 5, 5], [0, 100, 0, 100, 0, 0, 0, 0], aggregation="grpo")
    assert metrics["channels/a/share"] == pytest.approx(2 / 202)
    assert metrics["channels/b/share"] == pytest.approx(200 / 202)


def test_share_counts_the_users_weight():
    metrics = measure([0, 0, 1, 1], [0, 1, 0, 1], aggregation="gdpo", reward_weights=[3.0, -1.0])
    assert metrics["channels/a/share"] == pytest.approx(0.75)
    assert metrics["channels/b/share"] == pytest.approx(0.25)


@pytest.mark.parametrize("aggregation", ["dara_sym", "dara_asym", "gdpo", "grpo", "mo_grpo"])
def test_shares_sum_to_one(aggregation):
    metrics = measure(CORRECT, FORMAT, COST, aggregation=aggregation)
    assert sum(metrics[f"channels/{name}/share"] for name in "abc") == pytest.approx(1)


def test_coverage(metrics):
    assert [metrics[f"channels/{name}/coverage"] for name in "abcd"] == [1, 9 / 16, 1, 0]


def test_saturation_is_the_place_of_the_mean_between_the_bounds(metrics):
    assert metrics["channels/a/saturation"] == pytest.approx(7 / 16)
    assert metrics["channels/c/saturation"] == pytest.approx((10 - (8 * 2 + 7 * 8 + 6) / 16) / 10)
    assert "channels/b/saturation" not in metrics  # no bounds declared


def test_saturation_stays_between_0_and_1():
    metrics = measure([5, 6, 7, 8], [-5, -6, -7, -8], bounds=[(0, 1), (0, 1)])
    assert metrics["channels/a/saturation"] == 1
    assert metrics["channels/b/saturation"] == 0


def test_dead_groups(metrics):
    # a: one group stuck at 1, one at 0. b: one stuck at 1, one with a single score of 1, one without any score.
    # c, bounds -10 and 0: two stuck at -2, in the upper half, one at -8.
    assert [metrics[f"channels/{name}/dead_low"] for name in "abc"] == [0.25, 0, 0.25]
    assert [metrics[f"channels/{name}/dead_high"] for name in "abc"] == [0.25, 0.5, 0.5]


def test_dead_groups_without_bounds_lie_in_the_batchs_own_range():
    metrics = measure([0, 4, 0, 4, 1, 1, 1, 1, 3, 3, 3, 3, 0, 1, 2, 3])
    assert metrics["channels/a/dead_low"] == 0.25
    assert metrics["channels/a/dead_high"] == 0.25


def test_active_and_dead_groups_are_all_groups_when_everything_is_scored(metrics):
    for name in "ac":
        parts = [metrics[f"channels/{name}/{part}"] for part in ("density", "dead_low", "dead_high")]
        assert sum(parts) == 1


def test_a_silent_channel_has_nothing_but_coverage(metrics):
    silent = {name: value for name, value in metrics.items() if name.startswith("channels/d/")}
    assert silent.pop("channels/d/coverage") == 0
    assert len(silent) == 8 and all(math.isnan(value) for value in silent.values())


def test_inactive_groups(metrics):
    assert metrics["aggregation/frac_groups_inactive"] == 0.25  # the third
    assert metrics["aggregation/prompts"] == 4


def test_a_monitor_does_not_make_a_group_active():
    metrics = measure([1, 0, 1, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1], reward_weights=[1.0, 0.0])
    assert metrics["aggregation/frac_groups_inactive"] == 0.5
    assert metrics["channels/b/density"] == 1
    assert metrics["channels/b/share"] == 0
    assert metrics["aggregation/frac_conflict"] == 0


def test_conflict_is_of_opposite_signs():
    # Completions 2 and 3 of the first group are pulled both ways; nothing opposes anything in the second
    first = [1, 1, 0, 0] + [1, 0, 0, 0]
    second = [1, 0, 1, 0] + [5, 5, 5, 5]
    assert measure(first, second)["aggregation/frac_conflict"] == 2 / 8
    assert measure(first, second, reward_weights=[1.0, -1.0])["aggregation/frac_conflict"] == 2 / 8
    assert measure(first, first)["aggregation/frac_conflict"] == 0
    assert measure(first, first, reward_weights=[1.0, -1.0])["aggregation/frac_conflict"] == 1


def test_conflict_is_a_share_of_the_scored_completions():
    metrics = measure([1, 1, 0, NAN], [0, 1, 1, NAN])
    assert metrics["aggregation/frac_conflict"] == pytest.approx(2 / 3)


def test_a_batch_without_signal():
    metrics = measure([1] * 8, [0.3] * 8)
    assert metrics["aggregation/frac_groups_inactive"] == 1
    assert metrics["aggregation/frac_conflict"] == 0
    for name in "ab":
        assert metrics[f"channels/{name}/density"] == metrics[f"channels/{name}/energy"] == 0
        assert metrics[f"channels/{name}/weight"] == 1
        assert math.isnan(metrics[f"channels/{name}/share"])  # of nothing


def test_one_completion_per_prompt_compares_nothing():
    metrics = measure([1, 0, 1], [0.5, 0.5, NAN], num_generations=1, bounds=[(0, 1), None])
    defined = {name for name, value in metrics.items() if not math.isnan(value)}
    assert defined == {"channels/a/coverage", "channels/b/coverage", "channels/a/saturation", "aggregation/prompts"}
    assert metrics["channels/a/saturation"] == pytest.approx(2 / 3)
    assert metrics["channels/b/coverage"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("num_generations", [1, 2, 4])
@pytest.mark.parametrize("bounds", [None, [None, (0, 1)]])
def test_the_names_follow_from_the_configuration(num_generations, bounds):
    batches = [
        ([1, 0, 0, 1], [0, 1, 0, 0]),
        ([NAN] * 4, [0, 1, 0, 0]),
        ([1] * 4, [1] * 4),
        ([NAN] * 4, [NAN] * 4),
    ]
    keys = {tuple(measure(*batch, num_generations=num_generations, bounds=bounds)) for batch in batches}
    assert len(keys) == 1
    assert ("channels/b/saturation" in keys.pop()) is (bounds is not None)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_value_is_a_float_under_every_rule(aggregation):
    options = {"static_weights": [1.0, 2.0, 1.0]} if aggregation.startswith("static") else {}
    if aggregation in ("saw", "sa_mrpo"):
        options = {"reward_bounds": [(0, 1), (0, 1), (-10, 0)]}
    for value in measure(CORRECT, FORMAT, COST, aggregation=aggregation, **options).values():
        assert type(value) is float
