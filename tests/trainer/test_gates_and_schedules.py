"""Gates, weight schedules and evaluation in real runs, and how such runs are resumed."""

import math

import pandas as pd
import pytest
import torch

from trl_dara import CalibrationWindow, compute_advantages

from .support import ObservedTrainer, digest, eval_logs, has_a, prompts, run, train_logs


NAMES = ["digest", "has_a", "letters"]


def letters(completions, **kwargs):
    """A dense reward that is never 0."""
    return [1.0 + len(set(completion)) for completion in completions]


GATED = {"digest": {"on": "has_a", "above": 0.5}, "letters": {"on": "has_a", "above": 0.5, "mode": "skip"}}
SCHEDULES = {
    "digest": {"type": "linear", "start": 0.0, "end": 1.0, "steps": 4},
    "has_a": {"type": "step", "start": 1.0, "end": 0.25, "at": 2},
    "letters": {"type": "constant", "value": 0.5},
}
# With reward weights (2, 1, 1), at steps 0 to 3
WEIGHTS = torch.tensor([[0.0, 1.0, 0.5], [0.5, 1.0, 0.5], [1.0, 0.25, 0.5], [1.5, 0.25, 0.5]])


class PromptsTrainer(ObservedTrainer):
    """Keeps the prompts of each round of generation of training."""

    def __init__(self, *args, **kwargs):
        self.prompts = []
        super().__init__(*args, **kwargs)

    def _calculate_rewards(self, inputs, *args):
        if self.model.training:
            self.prompts.append((self.state.global_step, [row["prompt"] for row in inputs]))
        return super()._calculate_rewards(inputs, *args)


def train(model, folder, **given):
    defaults = dict(
        reward_gates=GATED,
        reward_weight_schedules=SCHEDULES,
        reward_weights=[2.0, 1.0, 1.0],
        max_steps=4,
        log_completions=True,
    )
    return run(model, folder, [digest, has_a, letters], trainer=PromptsTrainer, **{**defaults, **given})


def test_gates_and_schedules_decide_the_advantages(tiny_model, tmp_path):
    trainer = train(tiny_model, tmp_path)
    window = CalibrationWindow(64)
    for step, entry in enumerate(train_logs(trainer)):
        weights = WEIGHTS[step]
        assert [entry[f"channels/{name}/reward_weight"] for name in NAMES] == weights.tolist()

        table = pd.read_parquet(tmp_path / "completions" / f"completions_{step + 1:05d}.parquet")
        texts = table["completion"].tolist()
        is_open = torch.tensor(has_a(texts)) > 0.5  # (N,)
        assert is_open.any() and not is_open.all()
        rewards = torch.tensor([digest(texts), has_a(texts), letters(texts)]).T  # (N, K)
        rewards[~is_open, 0] = 0.0
        rewards[~is_open, 2] = torch.nan
        for index, name in enumerate(NAMES):
            assert entry[f"rewards/{name}/mean"] == pytest.approx(rewards[:, index].nanmean().item(), abs=1e-5)
        assert entry["channels/letters/coverage"] == pytest.approx(is_open.float().mean().item())

        expected = compute_advantages(rewards, 4, "dara_asym", weights, window=window).advantages  # (N,)
        torch.testing.assert_close(torch.tensor(table["advantage"], dtype=torch.float32), expected, rtol=0, atol=1e-5)
        loss = trainer.losses[step]["advantages"]
        torch.testing.assert_close(loss.sort().values, expected.sort().values, rtol=0, atol=1e-5)


@pytest.mark.parametrize("group_filter", ["none", "any"])
@pytest.mark.parametrize("calibration_window", [None, 64])
def test_a_resumed_run_equals_the_uninterrupted_one(tiny_model, tmp_path, group_filter, calibration_window):
    given = dict(
        group_filter=group_filter,
        calibration_window=calibration_window,
        aggregation="dara_sym",
        save_strategy="steps",
        save_steps=2,
        per_device_train_batch_size=8,
        max_completion_length=2,  # so short that `has_a` does not open the gates in many groups
    )
    whole = train(tiny_model, tmp_path / "whole", **given)
    resumed = train(
        tiny_model,
        tmp_path / "resumed",
        resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"),
        **given,
    )
    assert resumed.prompts == [(step, rows) for step, rows in whole.prompts if step >= 2]
    assert len(train_logs(resumed)) == 4
    for ours, expected in zip(train_logs(resumed), train_logs(whole), strict=True):
        assert comparable(ours) == pytest.approx(comparable(expected), rel=1e-5, abs=1e-5, nan_ok=True)
    if group_filter == "any":  # the position of the refill matters on both sides of the checkpoint
        rounds = [entry["group_filter/rounds"] for entry in train_logs(whole)]
        assert max(rounds[:2]) > 1 and max(rounds[2:]) > 1
    for ours, expected in zip(resumed.batches, whole.batches[2:], strict=True):
        torch.testing.assert_close(ours.output["advantages"], expected.output["advantages"], rtol=0, atol=1e-5)


def comparable(entry: dict) -> dict:
    """The values of a log entry that are not times, NaN where there is none."""
    values = {name: value for name, value in entry.items() if not name.endswith("time")}
    return {name: math.nan if value is None else value for name, value in values.items()}


@pytest.mark.parametrize("num_generations_eval", [1, 2, 4])
def test_the_best_model_by_eval_reward(tiny_model, tmp_path, num_generations_eval):
    trainer = train(
        tiny_model,
        tmp_path,
        reward_gates={"digest": GATED["digest"]},  # a skipped channel may have no mean at all
        eval_dataset=prompts(["yes", "no", "maybe"]),
        num_generations_eval=num_generations_eval,
        per_device_eval_batch_size=4,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        max_steps=3,
        load_best_model_at_end=True,
        metric_for_best_model="eval_reward",
        greater_is_better=True,
    )
    rewards = [entry["eval_reward"] for entry in eval_logs(trainer)]
    assert len(rewards) == 3 and all(math.isfinite(reward) for reward in rewards)
    assert trainer.state.best_metric == max(rewards)
    best = tmp_path / f"checkpoint-{1 + rewards.index(max(rewards))}"
    assert trainer.state.best_model_checkpoint == str(best)
    for entry in eval_logs(trainer):
        assert all(math.isfinite(entry[f"eval_rewards/{name}/mean"]) for name in NAMES)
    # Evaluation leaves no trace in training: as many groups in the window as were trained on
    assert len(trainer.calibration_window) == 3 * 4
    assert [entry["channels/digest/reward_weight"] for entry in train_logs(trainer)] == [0.0, 0.5, 1.0]
