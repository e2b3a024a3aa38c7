"""Bad input is refused at once, by a message that names the argument, what came, and what is allowed."""

import re

import pytest
import torch

from trl_dara import AGGREGATIONS, compute_advantages

from .support import RULES, compute, random_rewards


every_rule = pytest.mark.parametrize("rule", RULES)


def refused(*words, **call):
    """The message with which `compute_advantages` refuses a call; it must contain every one of `words`."""
    arguments = {"rewards": random_rewards(0).flatten(0, 1), "num_generations": 4, **call}
    with pytest.raises(ValueError) as error:
        compute_advantages(**arguments)
    for word in words:
        assert str(word) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["dara", "GDPO", "", "normalize_then_sum", None, 3])
def test_unknown_rule(name):
    refused("aggregation", repr(name), *AGGREGATIONS, aggregation=name)


def test_misspelt_rule_gets_a_suggestion():
    assert re.search(r"Did you mean .?dara_asym", refused(aggregation="dara_asim"))


@every_rule
def test_unknown_keyword(rule):
    with pytest.raises(ValueError) as error:
        compute(rule, random_rewards(0), bogus=3)
    assert rule in str(error.value)
    assert "bogus" in str(error.value)


@pytest.mark.parametrize(
    ("rule", "legal"),
    [
        ("dara_sym", ["w_max", "5.0", "density_over", "all"]),
        ("dara_asym", ["w_max", "5.0", "density_over", "all", "zero_inactive_groups", "False"]),
        ("static_sym", ["static_weights"]),
        ("static_asym", ["static_weights"]),
        ("grpo", ["scale", "group"]),
        ("gdpo", ["eps", "0.0001"]),
    ],
)
def test_unknown_keyword_lists_what_is_legal_with_defaults(rule, legal):
    with pytest.raises(ValueError) as error:
        compute(rule, random_rewards(0), wmax=3)
    for word in legal:
        assert word in str(error.value)


@pytest.mark.parametrize("rule", ["gdpo", "grpo", "mo_grpo", "static_sym"])
def test_keyword_of_another_rule(rule):
    with pytest.raises(ValueError, match="w_max"):
        compute(rule, random_rewards(0), w_max=3.0)


# User weights


@every_rule
@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0], [1.0, 0.5, 0.25, 2.0], []])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_wrong_number_of_weights(rule, weights, as_tensor):
    with pytest.raises(ValueError, match="reward_weights") as error:
        compute(rule, random_rewards(0), torch.tensor(weights) if as_tensor else weights)
    assert "3" in str(error.value)
    assert str(len(weights)) in str(error.value) or str(weights) in str(error.value)


@every_rule
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("position", [0, 2])
def test_weight_that_is_no_number(rule, bad, position):
    weights = [1.0, 1.0, 1.0]
    weights[position] = bad
    for value in (weights, torch.tensor(weights)):
        with pytest.raises(ValueError, match="reward_weights") as error:
            compute(rule, random_rewards(0), value)
        assert str(bad) in str(error.value)
        assert "finite" in str(error.value)


def test_weights_in_two_dimensions():
    refused("reward_weights", reward_weights=torch.ones(1, 3))
    refused("reward_weights", reward_weights=torch.tensor(1.0))


# Rewards


@pytest.mark.parametrize("num_generations", [5, 7, 48])
def test_rows_that_are_not_whole_groups(num_generations):
    refused("rewards", "24", num_generations, num_generations=num_generations)


@pytest.mark.parametrize("shape", [(), (24,), (2, 3, 4, 3)])
def test_wrong_number_of_dimensions(shape):
    refused("rewards", str(tuple(shape)), "(N, K)", rewards=torch.zeros(shape))


def test_groups_of_another_size():
    refused("rewards", "(6, 4, 3)", "3", rewards=torch.zeros(6, 4, 3), num_generations=3)
    refused("rewards", "(6, 4, 3)", "8", rewards=torch.zeros(6, 4, 3), num_generations=8)


@pytest.mark.parametrize("shape", [(0, 3), (24, 0), (0, 4, 3), (6, 4, 0)])
def test_no_rewards(shape):
    refused("rewards", str(tuple(shape)), rewards=torch.zeros(shape))


@pytest.mark.parametrize("num_generations", [0, -4, 2.0, "4", None])
def test_num_generations_that_is_no_count(num_generations):
    refused("num_generations", repr(num_generations), num_generations=num_generations)


# Parameters of the rules


@every_rule
@pytest.mark.parametrize("eps", [-1e-4, -1.0, float("nan"), float("inf")])
def test_eps(rule, eps):
    with pytest.raises(ValueError, match="eps") as error:
        compute(rule, random_rewards(0), eps=eps)
    assert str(eps) in str(error.value)


@every_rule
def test_eps_of_zero_is_allowed(rule):
    assert compute(rule, random_rewards(0), eps=0.0).advantages.isfinite().all()


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym"])
@pytest.mark.parametrize("w_max", [0.99, 0.0, -5.0, float("nan")])
def test_w_max_below_one(rule, w_max):
    refused("w_max", w_max, "1", aggregation=rule, w_max=w_max)


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym"])
def test_density_over(rule):
    refused("density_over", "some", "all", "scored", aggregation=rule, density_over="some")


def test_scale_of_grpo():
    refused("scale", "tokens", "group", "batch", "none", aggregation="grpo", scale="tokens")


@pytest.mark.parametrize("rule", ["static_sym", "static_asym"])
class TestStaticWeights:
    def test_missing(self, rule):
        refused("static_weights", rule, aggregation=rule)

    @pytest.mark.parametrize("weights", [[1.0, -0.1, 1.0], [-1.0, -1.0, -1.0], [1.0, float("nan"), 1.0]])
    def test_negative_or_no_number(self, rule, weights):
        refused("static_weights", weights, ">= 0", aggregation=rule, static_weights=weights)

    def test_infinite(self, rule):
        refused("static_weights", "inf", "finite", aggregation=rule, static_weights=[1.0, float("inf"), 1.0])

    @pytest.mark.parametrize("weights", [[1.0, 5.0], [1.0] * 4, []])
    def test_wrong_number(self, rule, weights):
        refused("static_weights", "3", weights, aggregation=rule, static_weights=weights)

    def test_single_number(self, rule):
        refused("static_weights", "5.0", aggregation=rule, static_weights=5.0)

    def test_tuple_is_a_list(self, rule):
        weights = [1.0, 5.0, 0.0]
        rewards = random_rewards(0)
        expected = compute(rule, rewards, static_weights=weights).advantages
        assert torch.equal(compute(rule, rewards, static_weights=tuple(weights)).advantages, expected)


# A user's own rule


def my_rule(rewards, reward_weights, *, eps=1e-4, power=2.0):
    result = AGGREGATIONS["mo_grpo"](rewards, reward_weights, eps=eps)
    result.advantages = result.advantages.sign() * result.advantages.abs() ** power
    return result


def test_callable_is_a_rule():
    rewards = random_rewards(0)
    plain = compute("mo_grpo", rewards).advantages
    cubed = compute_advantages(rewards, 4, my_rule, power=3.0).advantages
    torch.testing.assert_close(cubed, plain**3)


def test_unknown_keyword_of_a_callable():
    message = refused("bogus", "power", "2.0", "my_rule", aggregation=my_rule, bogus=1)
    assert "eps" in message
