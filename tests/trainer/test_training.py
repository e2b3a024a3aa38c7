"""Every rule trains, on every kind of model and batch that the trainer is for."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification
from trl import GRPOTrainer

from trl_dara import AGGREGATIONS, CalibrationWindow, MultiRewardGRPOTrainer, compute_advantages

from .support import PROMPTS, build, digest, has_a, has_q, parameters, prompts, run, scripted, train_logs


OPTIONS = {
    "static_sym": {"static_weights": {"has_a": 5.0, "digest": 1.0}},
    "static_asym": {"static_weights": {"has_a": 5.0, "digest": 1.0}},
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_rule_moves_the_parameters(tiny_model, tmp_path, aggregation):
    trainer = build(
        tiny_model,
        tmp_path,
        [digest, has_a],
        aggregation=aggregation,
        aggregation_kwargs=OPTIONS.get(aggregation),
        reward_bounds={"digest": [-10, 10], "has_a": [0, 1]},
    )
    start = parameters(trainer)
    trainer.train()
    assert (parameters(trainer) - start).abs().max() > 1e-3
    assert parameters(trainer).isfinite().all()


def test_a_rule_learns_the_reward(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, [has_a], max_steps=40, learning_rate=3e-3)
    means = [entry["rewards/has_a/mean"] for entry in train_logs(trainer)]
    assert sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.3


@pytest.mark.parametrize("aggregation", ["dara_asym", "dara_sym", "gdpo", "grpo"])
def test_the_loss_sees_the_rules_advantages(tiny_model, tmp_path, aggregation):
    """After TRL has shuffled and split the generation batch, each completion still has its own advantage."""
    trainer = run(
        tiny_model,
        tmp_path,
        [digest, has_a],
        aggregation=aggregation,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
    )
    window = CalibrationWindow(64)
    for number, batch in enumerate(trainer.batches):
        result = compute_advantages(batch.rewards, 4, aggregation, window=window)
        torch.testing.assert_close(batch.output["advantages"], result.advantages, rtol=0, atol=0)
        micro_batches = trainer.losses[2 * number : 2 * number + 2]
        assert by_completion(micro_batches) == by_completion([batch.output])


def by_completion(batches):
    """The completions of some batches with their advantages, in an order that shuffling does not change."""
    rows = []
    for batch in batches:
        for ids, mask, advantage in zip(
            batch["completion_ids"], batch["completion_mask"], batch["advantages"], strict=True
        ):
            rows.append((ids[mask.bool()].tolist(), advantage.item()))
    return sorted(rows)


def test_one_prompt_per_batch_weights_by_the_window(tiny_model, tmp_path):
    rare = scripted("rare", [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0])
    trainer = run(
        tiny_model, tmp_path, [digest, rare], aggregation="dara_sym", per_device_train_batch_size=4, max_steps=6
    )
    logs = train_logs(trainer)
    assert [entry["channels/rare/density"] for entry in logs] == [0, 0, 1, 0, 0, 1]
    seen = [0, 0, 1 / 3, 1 / 4, 1 / 5, 2 / 6]
    assert [entry["channels/rare/calibrated_density"] for entry in logs] == pytest.approx(seen)
    # Equation 6, against a channel that is always active; a channel that was never active has weight 1
    expected = [1.0 if density == 0 else density**-0.5 for density in seen]
    assert [entry["channels/rare/weight"] for entry in logs] == pytest.approx(expected)
    assert [entry["channels/digest/weight"] for entry in logs] == [1] * 6


def test_one_prompt_per_batch_without_signal_changes_nothing(tiny_model, tmp_path):
    lively, dead = [0.0, 1.0, 0.0, 2.0], [0.3, 0.3, 0.3, 0.3]
    trainer = run(tiny_model, tmp_path, [scripted("reward", lively, dead)], per_device_train_batch_size=4, max_steps=4)
    assert [bool(batch.output["advantages"].any()) for batch in trainer.batches] == [True, False, True, False]
    assert [entry["grad_norm"] > 0 for entry in train_logs(trainer)] == [True, False, True, False]


def test_without_window_each_batch_is_its_own(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, [digest, has_a, has_q], calibration_window=None, max_steps=4)
    assert trainer.calibration_window is None
    for batch in trainer.batches:
        expected = compute_advantages(batch.rewards, 4, "dara_asym", window=None)
        torch.testing.assert_close(batch.output["advantages"], expected.advantages, rtol=0, atol=0)
        torch.testing.assert_close(batch.result.calibrated_density, batch.result.density, rtol=0, atol=0)


def test_with_as_many_prompts_as_the_window_each_batch_is_its_own(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, [digest, has_a, has_q], calibration_window=4, max_steps=4)
    for batch in trainer.batches:
        expected = compute_advantages(batch.rewards, 4, "dara_asym", window=None)
        torch.testing.assert_close(batch.output["advantages"], expected.advantages, rtol=0, atol=1e-7)


def test_lora(tiny_model, tmp_path):
    trainer = build(
        tiny_model, tmp_path, [digest, has_a], peft_config=LoraConfig(target_modules=["q_proj", "v_proj"], r=4)
    )
    start = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    moved = {
        name
        for name, parameter in trainer.model.named_parameters()
        if not torch.equal(parameter.detach(), start[name])
    }
    assert moved and all("lora_" in name for name in moved)


@pytest.fixture(scope="module")
def reward_model(tiny_model, tmp_path_factory) -> str:
    """Folder of a tiny reward model with its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny_reward_model"
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=1,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_reward_model_is_a_channel(tiny_model, tmp_path, reward_model, loaded):
    scorer = LlamaForSequenceClassification.from_pretrained(reward_model) if loaded else reward_model
    trainer = run(tiny_model, tmp_path, [scorer, has_a])
    assert trainer.reward_func_names == ["tiny_reward_model", "has_a"]
    assert train_logs(trainer)[0]["channels/tiny_reward_model/density"] == 1
    assert train_logs(trainer)[0]["channels/tiny_reward_model/coverage"] == 1
    for batch in trainer.batches:
        assert batch.result.channel_advantages[:, 0].any()


def test_two_reward_models_of_one_name_stay_two_channels(tiny_model, tmp_path, reward_model):
    trainer = run(tiny_model, tmp_path, [reward_model, reward_model], max_steps=1)
    assert trainer.reward_func_names == ["tiny_reward_model", "tiny_reward_model_2"]


def test_an_async_reward_function_equals_the_same_one_without_async(tiny_model, tmp_path):
    async def digest(completions, **kwargs):  # of the same name as the plain one
        return plain(completions)

    class Judge:
        async def __call__(self, completions, **kwargs):
            return has_a(completions)

    plain = globals()["digest"]
    concurrent = run(tiny_model, tmp_path / "async", [digest, Judge()])
    sequential = run(tiny_model, tmp_path / "sync", [plain, has_a])
    assert concurrent.reward_func_names == ["digest", "Judge"]
    for ours, expected in zip(concurrent.batches, sequential.batches, strict=True):
        assert torch.equal(ours.output["advantages"], expected.output["advantages"])
    assert train_logs(concurrent)[0]["channels/Judge/time"] >= 0


def test_conversational_prompts(tiny_model, tmp_path):
    def says_a(completions, **kwargs):
        assert all(message["role"] == "assistant" for (message,) in completions)
        return has_a([message["content"] for (message,) in completions])

    conversations = Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in PROMPTS]})
    trainer = run(tiny_model, tmp_path, [says_a], train_dataset=conversations)
    assert train_logs(trainer)[0]["channels/says_a/coverage"] == 1


def test_other_columns_reach_the_reward_functions(tiny_model, tmp_path):
    def exact(completions, answer, **kwargs):
        assert len(answer) == len(completions)
        return [float(text in completion) for completion, text in zip(completions, answer, strict=True)]

    dataset = prompts().add_column("answer", ["a"] * len(PROMPTS))
    trainer = run(tiny_model, tmp_path, [exact, has_a], train_dataset=dataset, max_steps=1)
    assert torch.equal(trainer.batches[0].rewards[:, 0], trainer.batches[0].rewards[:, 1])


def test_reusing_a_generation_batch_reports_it_once(tiny_model, tmp_path):
    trainer = run(
        tiny_model,
        tmp_path,
        [digest, has_a],
        per_device_train_batch_size=8,
        steps_per_generation=2,
        num_iterations=2,
        max_steps=8,
    )
    assert len(trainer.batches) == 2
    reported = [entry["step"] for entry in train_logs(trainer) if "aggregation/prompts" in entry]
    assert reported == [1, 5]
    assert len(trainer.losses) == 8
    for number, batch in enumerate(trainer.batches):
        for first in (4 * number, 4 * number + 2):  # two passes over the same advantages
            assert by_completion(trainer.losses[first : first + 2]) == by_completion([batch.output])
    assert len(trainer.calibration_window) == 8  # once per generation, not once per step


def test_density_belongs_to_the_generation_batch(tiny_model, tmp_path):
    sparse = [1, 0, 0, 0] + [0] * 4 + [0, 1, 0, 1] + [0] * 4
    dense = [0, 1, 2, 3, 1, 0, 0, 0, 3, 1, 1, 0, 1, 0, 1, 0]

    def train(folder, **given):
        return run(tiny_model, tmp_path / folder, [scripted("dense", dense), scripted("sparse", sparse)], **given)

    whole = train("whole", per_device_train_batch_size=16, gradient_accumulation_steps=1)
    parts = train("parts", per_device_train_batch_size=4, gradient_accumulation_steps=4)
    assert len(parts.losses) == 8 and len(parts.batches) == len(whole.batches) == 2
    for ours, expected in zip(parts.batches, whole.batches, strict=True):
        assert ours.result.density.tolist() == expected.result.density.tolist() == [1, 0.5]
        assert torch.equal(ours.result.weights, expected.result.weights)
        assert torch.equal(ours.output["advantages"], expected.output["advantages"])
    assert [entry["channels/sparse/density"] for entry in train_logs(parts)] == [0.5, 0.5]
    assert [entry["aggregation/prompts"] for entry in train_logs(parts)] == [4, 4]


class WithoutRewards(GRPOTrainer):
    """A TRL that no longer calls `_calculate_rewards` where we look for it."""

    def _generate_and_score_completions(self, inputs):
        return {"advantages": torch.zeros(len(inputs))}


class WithLocalRewards(GRPOTrainer):
    """A TRL whose `_calculate_rewards` returns fewer rows than completions."""

    def _calculate_rewards(self, *args):
        return super()._calculate_rewards(*args)[::2]

    def _generate_and_score_completions(self, inputs):
        self._calculate_rewards(inputs, [row["prompt"] for row in inputs], ["a"] * len(inputs), [[1]] * len(inputs))
        return {"advantages": torch.zeros(len(inputs))}


@pytest.mark.parametrize(("changed", "got"), [(WithoutRewards, "None"), (WithLocalRewards, r"\(8, 1\)")])
def test_another_trl_is_refused_rather_than_trained_on(tiny_model, tmp_path, changed, got):
    class Changed(MultiRewardGRPOTrainer, changed):
        pass

    with pytest.raises(RuntimeError, match=rf"TRL [0-9.]+.* shape \(16, 1\); got {got}.*>=1.16,<1.17"):
        run(tiny_model, tmp_path, [digest], trainer=Changed)
