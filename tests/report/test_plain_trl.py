"""On tables that a trainer wrote, the rule that it trained with gives the advantages that it logged."""

import pandas as pd
import pytest
from trl import GRPOConfig, GRPOTrainer

from tests.trainer.support import digest, drawn, has_q, prompts, run, settings
from trl_dara.report.reading import find_runs
from trl_dara.report.recording import read_recording
from trl_dara.report.replay import replay
from trl_dara.report.summary import summarize


WEIGHTS = [1.0, -0.5, 2.0]


def trained_with_trl(model, folder, **given):
    """Three rewards, none constant in any group, one of which leaves out some completions."""
    rewards = [drawn(kind, seed, 4) for seed, kind in enumerate(("binary", "thirds", "sometimes"))]
    args = GRPOConfig(**settings(folder, log_completions=True, max_steps=3, **given))
    GRPOTrainer(model=model, reward_funcs=rewards, args=args, train_dataset=prompts()).train()


def replayed(folder, weights, **given):
    ((name, files),) = find_runs([str(folder)]).items()
    return replay(read_recording(name, files, **given), weights)


@pytest.mark.parametrize(
    "rule, other, setting",
    [
        ("grpo", "gdpo", "sum_then_normalize"),
        ("gdpo", "grpo", "normalize_then_sum"),
    ],
)
def test_advantages_are_those_that_trl_logged(tiny_model, tmp_path, rule, other, setting):
    trained_with_trl(tiny_model, tmp_path, multi_objective_aggregation=setting, reward_weights=WEIGHTS)
    result = replayed(tmp_path, WEIGHTS)
    assert result.channels == ["binary", "thirds", "sometimes"]
    assert result.steps.tolist() == [1, 2, 3] and result.recording.num_generations == 4
    assert (result.channel_metrics["density"] == 1).all()  # no group is constant on any channel
    assert result.rules[rule].logged_difference < 1e-4
    assert result.rules[other].logged_difference > 0.05
    (finding,) = [text for text in summarize(result)["findings"] if text.startswith("The advantages in the table")]
    assert f" {rule} " in finding

    wrong = summarize(replayed(tmp_path, [1.0, 1.0, 1.0]))
    assert any(text.startswith("No rule gives the advantages") for text in wrong["findings"])


def test_a_generation_batch_logged_at_several_steps_counts_once(tiny_model, tmp_path):
    trained_with_trl(tiny_model, tmp_path, steps_per_generation=2, per_device_train_batch_size=8)
    tables = [pd.read_parquet(path) for path in sorted((tmp_path / "completions").iterdir())]
    assert tables[0]["completion"].tolist() == tables[1]["completion"].tolist()
    result = replayed(tmp_path, [1.0, 1.0, 1.0])
    assert result.steps.tolist() == [1, 3]
    assert any("repeat the batch" in note for note in result.recording.notes)


@pytest.mark.parametrize("rule", ["dara_asym", "rvpo"])
def test_this_library_s_tables_too(tiny_model, tmp_path, rule):
    run(tiny_model, tmp_path, [digest, has_q], aggregation=rule, calibration_window=None, log_completions=True)
    result = replayed(tmp_path, [1.0, 1.0])
    assert result.channels == ["digest", "has_q"]
    assert result.rules[rule].logged_difference < 1e-6
