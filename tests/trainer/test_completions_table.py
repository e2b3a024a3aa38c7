"""The completions table holds the rewards, and the advantages that were trained on."""

import pandas as pd
import pytest
import torch

from trl_dara import CalibrationWindow, compute_advantages

from .support import PROMPTS, digest, has_a, has_q, prompts, run


EVAL_PROMPTS = ["a question", "another one", "and a third", "and the last"]


def tables(folder, pattern) -> dict[str, pd.DataFrame]:
    return {path.name: pd.read_parquet(path) for path in sorted((folder / "completions").glob(pattern))}


@pytest.mark.parametrize("aggregation", ["dara_asym", "dara_sym", "gdpo", "mo_grpo"])
def test_advantages_of_the_table_are_those_of_the_loss(tiny_model, tmp_path, aggregation):
    trainer = run(
        tiny_model, tmp_path, [digest, has_a, has_q], aggregation=aggregation, log_completions=True, max_steps=3
    )
    written = tables(tmp_path, "completions_*.parquet")
    assert list(written) == [f"completions_{step:05d}.parquet" for step in (1, 2, 3)]
    window = CalibrationWindow(64)
    for table, batch, loss in zip(written.values(), trainer.batches, trainer.losses, strict=True):
        names = ["digest", "has_a", "has_q"]
        channels = [f"advantage/{name}" for name in names]
        assert list(table.columns) == ["step", "prompt", "completion", *names, *channels, "advantage"]
        rewards = torch.tensor(table[names].to_numpy(), dtype=torch.float32)  # (N, K)
        result = compute_advantages(rewards, 4, aggregation, window=window)
        assert table["advantage"].tolist() == result.advantages.tolist() == batch.output["advantages"].tolist()
        assert table[channels].to_numpy().tolist() == result.channel_advantages.tolist()
        assert sorted(table["advantage"]) == sorted(loss["advantages"].tolist())


def test_a_generation_batch_of_several_micro_batches_fills_one_table(tiny_model, tmp_path):
    trainer = run(
        tiny_model,
        tmp_path,
        [digest],
        log_completions=True,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=1,
    )
    (table,) = tables(tmp_path, "*.parquet").values()
    assert table["advantage"].tolist() == trainer.batches[0].output["advantages"].tolist()
    assert table["advantage/digest"].tolist() == trainer.batches[0].result.channel_advantages[:, 0].tolist()


def test_a_completion_that_is_not_scored_is_empty_in_the_table(tiny_model, tmp_path):
    def sometimes(completions, **kwargs):
        return [None if index % 4 == 0 else float(index) for index in range(len(completions))]

    run(tiny_model, tmp_path, [digest, sometimes], log_completions=True, max_steps=1)
    (table,) = tables(tmp_path, "*.parquet").values()
    assert table["sometimes"].isna().tolist() == [True, False, False, False] * 4
    assert (table["advantage/sometimes"][::4] == 0).all()


def test_columns_logged_by_a_reward_function_stay(tiny_model, tmp_path):
    def talkative(completions, log_extra, log_metric, **kwargs):
        log_extra("length", [len(completion) for completion in completions])
        log_metric("longest", max(map(len, completions)))
        return digest(completions)

    trainer = run(tiny_model, tmp_path, [talkative], log_completions=True, max_steps=1)
    (table,) = tables(tmp_path, "*.parquet").values()
    assert table["length"].tolist() == table["completion"].str.len().tolist()
    assert trainer.state.log_history[0]["longest"] == table["length"].max()


def evaluated(tiny_model, folder, eval_dataset, **given):
    return run(
        tiny_model,
        folder,
        [digest, has_a],
        eval_dataset=eval_dataset,
        log_completions=True,
        eval_strategy="steps",
        eval_steps=1,
        **given,
    )


def test_evaluation_has_tables_of_its_own(tiny_model, tmp_path):
    trainer = evaluated(tiny_model, tmp_path, prompts(EVAL_PROMPTS))
    training, evaluation = tables(tmp_path, "completions_*.parquet"), tables(tmp_path, "eval_completions_*.parquet")
    assert list(training) == ["completions_00001.parquet", "completions_00002.parquet"]
    assert list(evaluation) == ["eval_completions_00001.parquet", "eval_completions_00002.parquet"]
    assert not list((tmp_path / "completions").glob("*.train"))
    eval_batches = [batch for batch in trainer.batches if batch.mode == "eval"]
    for expected, written, batches in (
        (PROMPTS, training, trainer.train_batches),
        (EVAL_PROMPTS, evaluation, eval_batches),
    ):
        for table, batch in zip(written.values(), batches, strict=True):
            assert set(table["prompt"]) <= set(expected)
            assert table["advantage"].tolist() == batch.output["advantages"].tolist()
            assert table["advantage/has_a"].tolist() == batch.result.channel_advantages[:, 1].tolist()


def test_training_does_not_repeat_rows_of_evaluation(tiny_model, tmp_path):
    """Evaluated before the first and between all steps, with more rows than one training batch."""
    evaluated(tiny_model, tmp_path, prompts(EVAL_PROMPTS * 3), eval_on_start=True, max_steps=3)
    training = tables(tmp_path, "completions_*.parquet")
    assert list(training) == [f"completions_{step:05d}.parquet" for step in (1, 2, 3)]
    assert all(len(table) == 16 and set(table["prompt"]) <= set(PROMPTS) for table in training.values())


def test_each_evaluation_data_set_has_a_table_of_its_own(tiny_model, tmp_path):
    short, long = ["yes", "no"], ["a longer question", "and another"]
    evaluated(tiny_model, tmp_path, {"short": prompts(short), "long": prompts(long)}, max_steps=1)
    found = tables(tmp_path, "eval_completions_*.parquet")
    assert sorted(sorted(set(table["prompt"])) for table in found.values()) == sorted([sorted(long), sorted(short)])


def test_no_table_unless_asked(tiny_model, tmp_path):
    run(tiny_model, tmp_path, [digest], eval_dataset=prompts(EVAL_PROMPTS), eval_strategy="steps", eval_steps=1)
    assert not list(tmp_path.rglob("*.parquet"))
