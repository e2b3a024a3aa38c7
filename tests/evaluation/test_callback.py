"""Joint success in the evaluations of a training run: the number, and what transformers makes of it."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, EarlyStoppingCallback, TrainerCallback

from tests.trainer.support import build, digest, eval_logs, has_a, parameters, prompts
from trl_dara.evaluation.callback import JointEvaluationCallback, success_rates


HELD_OUT = ["yes", "no", "maybe"]
GROUP = 4
SUCCESS = {"format": 1.0, "correctness": 3.0}

# Rewards of the four completions of each held-out prompt after each step
FORMAT = {
    1: {"yes": [1, 1, 1, 1], "no": [1, 1, 1, 1], "maybe": [1, 1, 1, 1]},
    2: {"yes": [1, 1, 0, 0], "no": [1, 0, 0, 0], "maybe": [1, 1, 0, 0]},
    3: {"yes": [1, 1, 1, 1], "no": [1, 1, 1, 1], "maybe": [1, 1, 1, 0]},
}
CORRECTNESS = {
    1: {"yes": [2.5, 2.5, 2.5, 2.5], "no": [2.5, 2.5, 2.5, 2.5], "maybe": [2.5, 2.5, 2.5, 2.5]},
    2: {"yes": [3, 3, 3, 3], "no": [3, -3, -3, -3], "maybe": [3, 3, -3, -3]},
    3: {"yes": [-3, -3, -3, -3], "no": [3, -3, -3, -3], "maybe": [2, 3, 3, 3]},
}
JOINT = {1: 0, 2: 5 / 12, 3: 3 / 12}


def held_out(name: str, by_step: dict[int, dict[str, list]]):
    """A reward function with the given rewards on the held-out prompts, by step, and some reward in training."""

    def reward(prompts, completions, trainer_state, **kwargs):
        if prompts[0] not in HELD_OUT:
            return digest(completions)
        rewards = by_step[trainer_state.global_step]
        return [rewards[prompt][row % GROUP] for row, prompt in enumerate(prompts)]

    reward.__name__ = name
    return reward


def build_trainer(model, folder, *, reward_funcs=None, **given):
    """A trainer that evaluates and saves after each of three steps, 8 completions at a time."""
    defaults = dict(
        eval_dataset=prompts(HELD_OUT),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        num_generations=GROUP,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        max_steps=3,
        load_best_model_at_end=True,
        metric_for_best_model="joint",
    )
    reward_funcs = reward_funcs or [held_out("format", FORMAT), held_out("correctness", CORRECTNESS)]
    return build(model, folder, reward_funcs, **{**defaults, **given})


class Seen(TrainerCallback):
    """What other callbacks get to see: loggers in `on_log`, early stopping in `on_evaluate`."""

    def __init__(self):
        self.logged, self.evaluated = [], []

    def on_log(self, args, state, control, logs, **kwargs):
        self.logged += [logs["eval_joint"]] if "eval_joint" in logs else []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.evaluated.append(metrics["eval_joint"])


def test_the_best_checkpoint_is_the_one_with_most_completions_that_satisfy_every_channel(tiny_model, tmp_path):
    trainer = build_trainer(tiny_model, tmp_path)
    seen = Seen()
    trainer.add_callback(seen)  # before the one whose metrics it sees
    trainer.add_callback(JointEvaluationCallback(trainer, SUCCESS))
    trainer.train()

    logs = eval_logs(trainer)
    assert {entry["step"]: entry["eval_joint"] for entry in logs} == JOINT
    assert [entry["eval_channels/format/success"] for entry in logs] == [1, 5 / 12, 11 / 12]
    assert [entry["eval_channels/correctness/success"] for entry in logs] == [0, 7 / 12, 4 / 12]
    assert seen.logged == seen.evaluated == list(JOINT.values())
    # The rewards alone would have chosen another
    assert max(logs, key=lambda entry: entry["eval_reward"])["step"] == 1

    assert trainer.state.best_metric == JOINT[2]
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    best = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2")
    expected = torch.cat([parameter.detach().flatten() for parameter in best.parameters()])
    torch.testing.assert_close(parameters(trainer), expected, rtol=0, atol=0)


# 12 completions in batches of 4, of 8 and 4, of 12; with 8 a generation batch is smaller than an evaluation
@pytest.mark.parametrize("per_device_eval_batch_size", [4, 8, 16])
def test_every_completion_counts_once_whatever_the_batches(tiny_model, tmp_path, per_device_eval_batch_size):
    trainer = build_trainer(
        tiny_model,
        tmp_path,
        eval_strategy="no",
        save_strategy="no",
        load_best_model_at_end=False,
        per_device_eval_batch_size=per_device_eval_batch_size,
    )
    trainer.add_callback(JointEvaluationCallback(trainer, SUCCESS))
    trainer.state.global_step = 3
    for _ in range(2):  # nothing is left over from one evaluation to the next
        metrics = trainer.evaluate()
        assert metrics["eval_joint"] == JOINT[3]
        assert metrics["eval_channels/format/success"] == 11 / 12
    trainer.state.global_step = 2
    assert trainer.evaluate()["eval_joint"] == JOINT[2]


def test_several_evaluation_data_sets_have_names_of_their_own(tiny_model, tmp_path):
    trainer = build_trainer(
        tiny_model,
        tmp_path,
        eval_dataset={"easy": prompts(["yes", "maybe"]), "hard": prompts(["no"])},
        metric_for_best_model="hard_joint",
    )
    trainer.add_callback(JointEvaluationCallback(trainer, SUCCESS))
    trainer.train()
    easy = [entry for entry in trainer.state.log_history if "eval_easy_joint" in entry]
    hard = [entry for entry in trainer.state.log_history if "eval_hard_joint" in entry]
    assert [entry["eval_easy_joint"] for entry in easy] == [0, 4 / 8, 2 / 8]
    assert [entry["eval_hard_joint"] for entry in hard] == [0, 1 / 4, 1 / 4]
    assert [entry["eval_easy_channels/correctness/success"] for entry in easy] == [0, 6 / 8, 3 / 8]
    assert trainer.state.best_metric == 1 / 4 and trainer.state.best_global_step == 2
    assert not any("eval_joint" in entry for entry in trainer.state.log_history)


def test_a_streaming_evaluation_data_set(tiny_model, tmp_path):
    trainer = build_trainer(tiny_model, tmp_path, eval_dataset=prompts(HELD_OUT).to_iterable_dataset())
    trainer.add_callback(JointEvaluationCallback(trainer, SUCCESS))
    trainer.state.global_step = 2
    assert trainer.evaluate()["eval_joint"] == JOINT[2]


def test_early_stopping_follows_the_joint_success(tiny_model, tmp_path):
    trainer = build_trainer(tiny_model, tmp_path, max_steps=20)
    trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=1))
    trainer.add_callback(JointEvaluationCallback(trainer, SUCCESS))
    trainer.train()
    assert trainer.state.global_step == 3  # the first evaluation that is no better
    assert trainer.state.best_global_step == 2


def test_resuming_keeps_the_best(tiny_model, tmp_path):
    trainer = build_trainer(tiny_model, tmp_path, max_steps=2)
    trainer.add_callback(JointEvaluationCallback(trainer, SUCCESS))
    trainer.train()
    resumed = build_trainer(tiny_model, tmp_path)
    resumed.add_callback(JointEvaluationCallback(resumed, SUCCESS))
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 3
    assert resumed.state.best_metric == JOINT[2]
    assert resumed.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert {entry["step"]: entry["eval_joint"] for entry in eval_logs(resumed)} == JOINT


def test_what_a_channel_did_not_score_is_judged_by_the_others(tiny_model, tmp_path):
    nothing = dict.fromkeys(HELD_OUT, [None] * GROUP)
    formats = {1: nothing | {"yes": [1, 1, 0, None]}, 2: nothing}
    corrects = {1: nothing | {"yes": [3, None, 3, None], "no": [3, 3, 3, -3]}, 2: nothing}
    trainer = build_trainer(
        tiny_model,
        tmp_path,
        reward_funcs=[held_out("format", formats), held_out("correctness", corrects)],
        max_steps=2,
    )
    trainer.add_callback(JointEvaluationCallback(trainer, SUCCESS))
    trainer.train()
    scored, silent = eval_logs(trainer)
    assert scored["eval_joint"] == 5 / 7  # of `yes` the first two of three that are scored, of `no` three of four
    assert scored["eval_channels/format/success"] == 2 / 3
    assert scored["eval_channels/correctness/success"] == 5 / 6
    assert silent["eval_joint"] == 0 and silent["eval_channels/format/success"] is None
    assert trainer.state.best_global_step == 1
    json.dumps(trainer.state.log_history, allow_nan=False)


def test_success_rates():
    nan = math.nan
    rewards = torch.tensor([[0.7, 1.0], [0.7, 0.0], [0.6, 1.0], [nan, 1.0], [nan, nan]])
    joint, rates = success_rates(rewards, [0.7, 1.0])  # 0.7 in single precision is below 0.7 in double precision
    assert joint == 2 / 4
    assert rates == [2 / 3, 3 / 4]
    joint, rates = success_rates(torch.full((2, 1), nan), [0.0])
    assert joint == 0 and math.isnan(rates[0])


# What counts as success


def test_success_is_the_upper_end_of_the_bounds_of_all_channels_that_steer(tiny_model, tmp_path):
    bounds = {"digest": [-10, 10], "has_a": [0, 1]}
    trainer = build(tiny_model, tmp_path, [digest, has_a], reward_bounds=bounds)
    assert JointEvaluationCallback(trainer).success == {"digest": 10, "has_a": 1}
    trainer = build(tiny_model, tmp_path, [digest, has_a], reward_bounds=bounds, reward_weights={"digest": 0})
    assert JointEvaluationCallback(trainer).success == {"has_a": 1}
    assert JointEvaluationCallback(trainer, {"digest": 5}).success == {"digest": 5}


def test_a_penalty_has_no_success_of_its_own(tiny_model, tmp_path):
    bounds = {"digest": [-10, 10], "has_a": [0, 1]}
    trainer = build(tiny_model, tmp_path, [digest, has_a], reward_bounds=bounds, reward_weights={"has_a": -1})
    with pytest.raises(ValueError, match=r"\['has_a'\] have a negative weight: .* Pass `success`"):
        JointEvaluationCallback(trainer)
    assert JointEvaluationCallback(trainer, {"digest": 5}).success == {"digest": 5}


def test_a_callback_of_another_trainer_is_refused(tiny_model, tmp_path):
    first, second = (
        build_trainer(tiny_model, tmp_path, eval_strategy="no", save_strategy="no", load_best_model_at_end=False)
        for _ in range(2)
    )
    second.state.global_step = 1
    second.add_callback(JointEvaluationCallback(first, SUCCESS))
    with pytest.raises(ValueError, match="made for another trainer"):
        second.evaluate()


@pytest.mark.parametrize(
    ("success", "message"),
    [
        (None, r"channels \['digest'\] have no `reward_bounds`.*success=\{'digest': 1.0\}"),
        ({}, "names no channel"),
        ({"has_b": 1.0}, r"names \['has_b'\], but the channels are \['digest', 'has_a'\]"),
        ({"has_a": math.nan}, "'has_a' the reward nan. Pass a finite number"),
        ({"has_a": "1"}, "'has_a' the reward '1'. Pass a finite number"),
        ({"has_a": 2}, r"'has_a' the reward 2, above the upper end of its `reward_bounds` \(?\[?0, 1"),
    ],
)
def test_success_that_cannot_be_is_refused(tiny_model, tmp_path, success, message):
    trainer = build(tiny_model, tmp_path, [digest, has_a], reward_bounds={"has_a": [0, 1]})
    with pytest.raises(ValueError, match=message):
        JointEvaluationCallback(trainer, success)
