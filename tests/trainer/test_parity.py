"""`grpo` and `gdpo` are TRL's own two aggregations, and swapping rewards changes the advantages alone."""

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from .support import build, digest, drawn, has_a, parameters, run, train_logs


TRL_NAME = {"grpo": "sum_then_normalize", "gdpo": "normalize_then_sum"}


@pytest.mark.parametrize("num_generations", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("aggregation", "scale_rewards"), [("grpo", "group"), ("grpo", "batch"), ("grpo", "none"), ("gdpo", "group")]
)
@pytest.mark.parametrize("reward_weights", [None, [0.3, -2.0, 1.0]])
def test_advantages_of_the_same_run(tiny_model, tmp_path, num_generations, aggregation, scale_rewards, reward_weights):
    kinds = ["dense", "thirds", "binary"] if num_generations == 2 else ["dense", "sometimes", "thirds"]
    trainer = build(
        tiny_model,
        tmp_path,
        [drawn(kind, seed, num_generations) for seed, kind in enumerate(kinds)],
        aggregation=aggregation,
        scale_rewards=scale_rewards,
        reward_weights=reward_weights,
        num_generations=num_generations,
        per_device_train_batch_size=48,
        max_steps=3,
        max_completion_length=2,
    )
    # What `super()` computes in the same call; the setting itself is refused beside `aggregation`
    trainer.multi_objective_aggregation = TRL_NAME[aggregation]
    trainer.train()
    assert len(trainer.train_batches) == 3
    for batch, expected in zip(trainer.train_batches, trainer.trl_advantages, strict=True):
        assert batch.result.active.all()
        assert expected.abs().max() > 0.5
        torch.testing.assert_close(batch.output["advantages"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["grpo", "gdpo"])
def test_trajectory_of_trl_with_the_same_seed(tiny_model, tmp_path, aggregation):
    reward_funcs = [digest, reversed_digest]
    ours = run(tiny_model, tmp_path / "ours", reward_funcs, aggregation=aggregation, max_steps=10)
    theirs = run(
        tiny_model,
        tmp_path / "theirs",
        reward_funcs,
        trainer=GRPOTrainer,
        config=GRPOConfig,
        multi_objective_aggregation=TRL_NAME[aggregation],
        max_steps=10,
    )
    rewards = ["reward", "reward_std", *(f"rewards/{f.__name__}/{s}" for f in reward_funcs for s in ("mean", "std"))]
    assert len(train_logs(ours)) == 10
    for own, trl in zip(train_logs(ours), train_logs(theirs), strict=True):
        assert {name: own[name] for name in rewards} == {name: trl[name] for name in rewards}
    # The policy moved, so equal rewards are no accident
    start = parameters(build(tiny_model, tmp_path / "start", reward_funcs))
    assert (parameters(theirs) - start).abs().max() > 0.05
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=5e-5)


def reversed_digest(completions, **kwargs):
    return digest([completion[::-1] for completion in completions])


def test_swapping_reward_functions_changes_the_advantages_alone(tiny_model, tmp_path):
    first, second = (
        run(tiny_model, tmp_path / func.__name__, [func], max_steps=1, beta=0.1).batches[0].output
        for func in (digest, has_a)
    )
    assert set(first) == set(second)
    assert not torch.equal(first.pop("advantages"), second.pop("advantages"))
    assert {"prompt_ids", "completion_ids", "completion_mask", "ref_per_token_logps"} <= set(first)
    for name in first:
        assert torch.equal(torch.as_tensor(first[name]), torch.as_tensor(second[name])), name


def test_a_constant_channel_is_the_one_difference_from_trl(tiny_model, tmp_path):
    # 0.7 summed eight times and divided by eight is not 0.7 in float32, and TRL normalises what is left
    trainer = build(
        tiny_model, tmp_path, [scripted_constant], aggregation="gdpo", num_generations=8, max_completion_length=2
    )
    trainer.multi_objective_aggregation = "normalize_then_sum"
    trainer.train()
    assert any(advantages.abs().max() > 1e-3 for advantages in trainer.trl_advantages)
    assert not any(batch.output["advantages"].any() for batch in trainer.batches)


def scripted_constant(completions, **kwargs):
    return [0.7] * 8 + [0.1] * 8
