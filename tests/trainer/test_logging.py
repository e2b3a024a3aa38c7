"""What a run logs: averages without holes, one set of names, and values that loggers can write."""

import json
import math

import pytest

from .support import build, digest, eval_logs, has_a, prompts, run, scripted, train_logs


NAMES = "density calibrated_density energy weight share coverage dead_low dead_high errors time".split()
BATCH = ["aggregation/frac_groups_inactive", "aggregation/frac_conflict", "aggregation/prompts"]


def ours(entry: dict) -> set[str]:
    """Names of a log entry that are not TRL's."""
    return {name for name in entry if name.removeprefix("eval_").startswith(("channels/", "aggregation/"))}


def strict(trainer) -> None:
    """What loggers write must be JSON, which knows neither NaN nor infinity."""
    for entry in trainer.state.log_history:
        json.dumps(entry, allow_nan=False)


def test_averages_over_a_logging_window_leave_out_batches_without_score(tiny_model, tmp_path):
    silent = [None] * 16
    first = [1.0, 0.0, 0.0, 0.0] + [0.0] * 12  # density 0.25, mean 1/16
    second = [0.0, 1.0, 0.0, 1.0] * 2 + [1.0] * 8  # density 0.5, mean 12/16
    trainer = run(
        tiny_model,
        tmp_path,
        [digest, scripted("picky", silent, first, silent, second)],
        logging_steps=4,
        max_steps=4,
        calibration_window=None,
    )
    (entry,) = train_logs(trainer)
    batches = [trainer.batches[1], trainer.batches[3]]
    assert entry["rewards/picky/mean"] == pytest.approx((1 / 16 + 12 / 16) / 2)
    assert entry["channels/picky/density"] == pytest.approx((0.25 + 0.5) / 2)
    assert entry["channels/picky/calibrated_density"] == pytest.approx((0.25 + 0.5) / 2)
    assert entry["channels/picky/weight"] == pytest.approx((2 + 2**0.5) / 2)
    assert entry["channels/picky/energy"] == pytest.approx(sum(b.result.energy[1].item() / 16 for b in batches) / 2)
    assert entry["channels/picky/dead_low"] == pytest.approx((0.75 + 0) / 2)
    assert entry["channels/picky/dead_high"] == pytest.approx((0 + 0.5) / 2)
    assert entry["channels/picky/coverage"] == 0.5  # the one that says how often there was a score
    assert entry["channels/picky/errors"] == 0
    assert entry["channels/digest/density"] == 1
    strict(trainer)


def test_a_channel_that_is_silent_throughout_logs_nothing(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, [digest, scripted("silent", [None] * 16)])
    for entry in train_logs(trainer):
        assert entry["channels/silent/coverage"] == 0
        assert entry["channels/silent/errors"] == 0
        assert entry["channels/silent/time"] >= 0
        for name in set(NAMES) - {"coverage", "errors", "time"}:
            assert entry[f"channels/silent/{name}"] is None
    strict(trainer)


def test_nothing_scored_at_all(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, [scripted("silent", [None] * 16)])
    assert not any(batch.output["advantages"].any() for batch in trainer.batches)
    assert train_logs(trainer)[0]["aggregation/frac_groups_inactive"] == 1
    strict(trainer)


LIVELY = [float(number % 3) for number in range(16)]


@pytest.mark.parametrize(
    ("first", "second"),
    [(LIVELY, LIVELY), ([None] * 16, LIVELY), ([1.0] * 16, [0.5] * 16), ([None] * 16, [None] * 16)],
)
@pytest.mark.parametrize("aggregation", ["dara_asym", "gdpo", "grpo"])
def test_the_names_do_not_depend_on_the_data(tiny_model, tmp_path, first, second, aggregation):
    trainer = run(
        tiny_model,
        tmp_path,
        [scripted("first", first), scripted("second", second)],
        aggregation=aggregation,
        reward_bounds={"second": [0, 2]},
        eval_dataset=prompts(["yes", "no"] * 2),
        eval_strategy="steps",
        eval_steps=1,
        max_steps=1,
    )
    expected = {f"channels/{channel}/{name}" for channel in ("first", "second") for name in NAMES}
    expected |= {"channels/second/saturation", *BATCH}
    (training,), (evaluation,) = train_logs(trainer), eval_logs(trainer)
    assert ours(training) == expected
    assert ours(evaluation) == {f"eval_{name}" for name in expected}
    strict(trainer)


def test_names_of_trl_stay(tiny_model, tmp_path):
    entry = train_logs(run(tiny_model, tmp_path, [digest, has_a]))[0]
    assert {"reward", "reward_std", "frac_reward_zero_std", "rewards/digest/mean", "rewards/has_a/std"} <= set(entry)


def test_the_logged_reward_is_the_weighted_sum_of_raw_rewards(tiny_model, tmp_path):
    trainer = run(
        tiny_model, tmp_path, [scripted("one", [1.0] * 16), scripted("zero", [0.0] * 16)], reward_weights=[0.7, 0.3]
    )
    for entry in train_logs(trainer):
        assert entry["reward"] == pytest.approx(0.7)
        assert entry["rewards/one/mean"] == 1
        assert entry["rewards/zero/mean"] == 0
        assert entry["aggregation/frac_groups_inactive"] == 1


def test_logged_values_are_those_of_the_batch(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, [digest, has_a], aggregation="dara_sym", max_steps=4)
    for entry, batch in zip(train_logs(trainer), trainer.batches, strict=True):
        for index, name in enumerate(trainer.reward_func_names):
            assert entry[f"channels/{name}/density"] == batch.result.density[index].item()
            assert entry[f"channels/{name}/calibrated_density"] == batch.result.calibrated_density[index].item()
            assert entry[f"channels/{name}/weight"] == batch.result.weights[index].item()
            assert entry[f"channels/{name}/energy"] == pytest.approx(batch.result.energy[index].item() / 16)


@pytest.mark.parametrize("per_device_eval_batch_size", [1, 16])
def test_evaluation_with_one_completion_per_prompt(tiny_model, tmp_path, per_device_eval_batch_size):
    trainer = run(
        tiny_model,
        tmp_path,
        [digest, has_a],
        eval_dataset=prompts(["yes", "no", "maybe"]),
        num_generations_eval=1,
        per_device_eval_batch_size=per_device_eval_batch_size,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_reward",
        greater_is_better=True,
    )
    best = max(eval_logs(trainer), key=lambda entry: entry["eval_reward"])
    assert trainer.state.best_metric == best["eval_reward"]
    for entry in eval_logs(trainer):
        assert math.isfinite(entry["eval_rewards/digest/mean"]) and math.isfinite(entry["eval_rewards/has_a/mean"])
        for name in ("density", "calibrated_density", "energy", "weight", "share", "dead_low", "dead_high"):
            assert entry[f"eval_channels/has_a/{name}"] is None
        assert entry["eval_aggregation/frac_groups_inactive"] is None
        assert entry["eval_aggregation/frac_conflict"] is None
        assert entry["eval_channels/has_a/coverage"] == 1
    assert all(batch.output["advantages"].isfinite().all() for batch in trainer.batches)
    strict(trainer)


def test_evaluation_changes_no_state_of_training(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, [digest, has_a], eval_dataset=prompts(["yes", "no"] * 3))
    window = trainer.calibration_window.state_dict()
    rows = {name: list(column) for name, column in trainer._logs_by_mode["train"]["extra"].items()}
    trainer.evaluate()
    assert trainer.calibration_window.state_dict() == window
    assert {name: list(column) for name, column in trainer._logs_by_mode["train"]["extra"].items()} == rows
    assert not trainer._metrics["train"]
    assert eval_logs(trainer)


def test_evaluation_is_calibrated_on_its_own_batch(tiny_model, tmp_path):
    trainer = build(
        tiny_model, tmp_path, [digest, has_a], eval_dataset=prompts(["yes"] * 8), num_generations_eval=2, max_steps=3
    )
    trainer.train()
    trainer.evaluate()
    (batch,) = [batch for batch in trainer.batches if batch.mode == "eval"]
    assert batch.result.active.shape == (8, 2)  # (B, K)
    assert batch.result.calibrated_density.tolist() == batch.result.density.tolist()
