"""What TRL offers works as in TRL, with the advantages of the rule: each feature in a short real run."""

import functools
import inspect
import re

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForSequenceClassification
from trl import GRPOTrainer

from trl_dara import CalibrationWindow, compute_advantages

from . import vlm
from .support import PROMPTS, ObservedTrainer, build, digest, has_a, parameters, prompts, train_logs


def train_and_check(model, folder, reward_funcs, **given):
    """Train with a completions table per step; what reaches the loss must follow from the rewards in the tables."""
    trainer = build(model, folder, reward_funcs, log_completions=True, **given)
    start = parameters(trainer)
    trainer.train()
    moved = parameters(trainer) - start
    assert moved.isfinite().all() and moved.abs().max() > 1e-4

    tables = [pd.read_parquet(path) for path in sorted((folder / "completions").glob("completions_*.parquet"))]
    batches = trainer.train_batches
    window = CalibrationWindow(64)
    outputs = []
    for table, batch in zip(tables[:: len(tables) // len(batches)], batches, strict=True):
        rewards = torch.tensor(table[trainer.reward_func_names].to_numpy(np.float32))  # (N, K)
        expected = compute_advantages(
            rewards, 4, "dara_asym", trainer.reward_weights, window=window
        ).advantages  # (N,)
        assert expected.any()
        torch.testing.assert_close(torch.tensor(table["advantage"].to_numpy(np.float32)), expected, rtol=0, atol=1e-6)
        outputs.append({**batch.output, "advantages": expected})
    seen, wanted = by_completion(trainer.losses), by_completion(outputs * trainer.num_iterations)
    assert [ids for ids, _ in seen] == [ids for ids, _ in wanted]
    assert [advantage for _, advantage in seen] == pytest.approx([advantage for _, advantage in wanted], abs=1e-6)
    return trainer


def by_completion(batches):
    """The completions of some batches with their advantages, in an order that shuffling does not change."""
    rows = []
    for batch in batches:
        for ids, mask, advantage in zip(
            batch["completion_ids"], batch["completion_mask"], batch["advantages"], strict=True
        ):
            rows.append((ids[mask.bool()].tolist(), advantage.item()))
    return sorted(rows)


def on_messages(reward):
    """The same reward function for conversational completions: of the text of their last message."""

    @functools.wraps(reward)
    def on_last_message(completions, **kwargs):
        return reward([messages[-1]["content"] for messages in completions], **kwargs)

    return on_last_message


def conversations() -> Dataset:
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in PROMPTS]})


# Token 1 is `<|end|>`, which the tiny model would rarely say
ENDS_OFTEN = {"sequence_bias": [[[1], 4.0]]}


# Settings


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="plain_prompts"),
        pytest.param({"num_iterations": 2, "max_steps": 4}, id="num_iterations"),
        pytest.param({"per_device_train_batch_size": 8, "steps_per_generation": 2, "max_steps": 4}, id="steps"),
        pytest.param({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}, id="accumulation"),
        pytest.param(
            {
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 2,
                "steps_per_generation": 4,
                "num_iterations": 2,
                "max_steps": 8,
            },
            id="accumulation_steps_and_iterations",
        ),
        pytest.param({"log_unique_prompts": True}, id="log_unique_prompts"),
        pytest.param({"loss_type": "dr_grpo", "top_entropy_quantile": 0.5}, id="top_entropy_quantile"),
        pytest.param({"loss_type": "grpo", "importance_sampling_level": "sequence"}, id="sequence_level"),
    ],
)
def test_settings(tiny_model, tmp_path, given):
    train_and_check(tiny_model, tmp_path, [digest, has_a], **given)


LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo"]


def test_these_are_all_loss_types_of_trl():
    lines = re.findall(r"self\.loss_type (?:==|in) .*", inspect.getsource(GRPOTrainer._compute_loss))
    assert {name for line in lines for name in re.findall(r'"(\w+)"', line)} == set(LOSS_TYPES)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_types(tiny_model, tmp_path, loss_type):
    level = "sequence" if loss_type == "luspo" else "token"
    train_and_check(tiny_model, tmp_path, [digest, has_a], loss_type=loss_type, importance_sampling_level=level)


def test_beta_keeps_the_model_near_the_reference(tiny_model, tmp_path):
    trainer = train_and_check(tiny_model, tmp_path, [digest, has_a], beta=0.1)
    assert [entry["kl"] > 0 for entry in train_logs(trainer)] == [False, True]


def test_truncated_completions_may_be_masked(tiny_model, tmp_path):
    trainer = train_and_check(
        tiny_model, tmp_path, [digest, has_a], mask_truncated_completions=True, generation_kwargs=ENDS_OFTEN
    )
    for batch in trainer.batches:
        truncated = ~batch.output["completion_mask"].any(dim=1)  # (N,)
        assert truncated.any() and not truncated.all()
        assert batch.output["advantages"][truncated].any()  # the mask of the loss leaves them out, not the rule


# Data


def test_iterable_data_set(tiny_model, tmp_path):
    train_and_check(tiny_model, tmp_path, [digest, has_a], train_dataset=prompts().to_iterable_dataset())


def test_conversational_prompts(tiny_model, tmp_path):
    train_and_check(tiny_model, tmp_path, [on_messages(digest), on_messages(has_a)], train_dataset=conversations())


@pytest.mark.parametrize("column", ["image", "images"])
def test_image_text_model(tmp_path, column):
    processor = vlm.make_processor()
    rows = [
        {**row, column: vlm.image(4 * index) if column == "image" else [vlm.image(4 * index)]}
        for index, row in enumerate(conversations())
    ]
    trainer = train_and_check(
        vlm.make_model(processor),
        tmp_path,
        [on_messages(digest), on_messages(has_a)],
        train_dataset=Dataset.from_list(rows),
        processing_class=processor,
    )
    assert all(batch.output["pixel_values"].shape == (16, 3, vlm.SIDE, vlm.SIDE) for batch in trainer.batches)


# Models


LORA = LoraConfig(target_modules=["q_proj", "v_proj"], r=4, init_lora_weights=False)


def test_lora_resumed_and_merged(tiny_model, tmp_path):
    given = dict(peft_config=LORA, max_steps=4, save_strategy="steps", save_steps=2)
    whole = train_and_check(tiny_model, tmp_path / "whole", [digest, has_a], **given)
    resumed = build(tiny_model, tmp_path / "resumed", [digest, has_a], **given)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    torch.testing.assert_close(parameters(resumed), parameters(whole), rtol=0, atol=1e-6)

    ids = torch.tensor([[5, 6, 7, 8]])
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    resumed.model.eval()
    with torch.no_grad():
        adapted = resumed.model(ids).logits
        merged = resumed.model.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, adapted, rtol=1e-4, atol=1e-4)
        assert (merged(ids).logits - base(ids).logits).abs().max() > 1e-2
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]


def test_reward_model(tiny_model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=1,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "scorer")
    tokenizer.save_pretrained(tmp_path / "scorer")
    trainer = train_and_check(
        tiny_model, tmp_path / "out", [str(tmp_path / "scorer"), has_a], reward_weights={"scorer": 3.0}
    )
    assert trainer.reward_func_names == ["scorer", "has_a"]
    assert trainer.reward_weights.tolist() == [3, 1]


# Rollouts


def test_rollout_func_supplies_a_column(tiny_model, tmp_path):
    generator = torch.Generator().manual_seed(0)

    def rollout(prompts, trainer):
        tokenizer = trainer.processing_class
        completion_ids = torch.randint(8, len(tokenizer), (len(prompts), 6), generator=generator).tolist()
        return {
            "prompt_ids": tokenizer(prompts)["input_ids"],
            "completion_ids": completion_ids,
            "logprobs": None,
            "largest": [max(ids) for ids in completion_ids],
        }

    def size(completions, largest, completion_ids, **kwargs):
        assert largest == [max(ids) for ids in completion_ids]
        return [float(number) for number in largest]

    trainer = train_and_check(
        tiny_model, tmp_path, [size, has_a], trainer=functools.partial(ObservedTrainer, rollout_func=rollout)
    )
    assert train_logs(trainer)[0]["channels/size/coverage"] == 1


TOOL_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '(' + call['function']['name'] + (call['function']['arguments'] | tojson) + ')' }}{% endfor %}"
    "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@pytest.fixture
def calling_tokenizer(tiny_model):
    """A tokenizer under which a completion that has an `a` is a call of the tool `look` with what follows."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = TOOL_TEMPLATE
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|assistant|>",
        "fields": {
            "tool_calls": {
                "open": "a",
                "close_pattern": r"<\|end\|>|\Z",
                "repeats": True,
                "content": "text",
                "transform": {"type": "function", "function": {"name": "look", "arguments": {"word": "{content}"}}},
            },
            "content": {"close_pattern": r"<\|end\|>|\Z", "content": "text"},
        },
    }
    return tokenizer


LONG_ENOUGH = dict(max_completion_length=64, max_tool_calling_iterations=1, generation_kwargs=ENDS_OFTEN)


def test_tools(tiny_model, tmp_path, calling_tokenizer):
    looked_at = []

    def look(word: str) -> str:
        """
        Looks a word up.

        Args:
            word: The word.

        Returns:
            Whether it is long.
        """
        looked_at.append(word)
        return "yes" if len(word) > 20 else "no"

    def calls(completions, **kwargs):
        return [float(any(message["role"] == "tool" for message in messages)) for messages in completions]

    trainer = train_and_check(
        tiny_model,
        tmp_path,
        [on_messages(digest), calls],
        train_dataset=conversations(),
        processing_class=calling_tokenizer,
        trainer=functools.partial(ObservedTrainer, tools=[look]),
        **LONG_ENOUGH,
    )
    assert looked_at
    entry = train_logs(trainer)[0]
    assert 0 < entry["rewards/calls/mean"] < 1
    assert entry["tools/call_frequency"] > 0 and entry["tools/failure_frequency"] == 0
    assert all("tool_mask" in batch.output for batch in trainer.batches)


class Room:
    """An environment that rewards the length of what is looked at in it."""

    def reset(self, **kwargs):
        self.length = 0

    def look(self, word: str) -> str:
        """
        Looks at something.

        Args:
            word: The thing.

        Returns:
            What it looks like.
        """
        self.length = len(word)
        return "a cat"

    def get_reward(self) -> float:
        return float(self.length)


def test_environment(tiny_model, tmp_path, calling_tokenizer):
    trainer = train_and_check(
        tiny_model,
        tmp_path,
        [on_messages(digest)],
        train_dataset=conversations(),
        processing_class=calling_tokenizer,
        environment_factory=Room,
        reward_weights={"Room": 2.0},
        **LONG_ENOUGH,
    )
    assert trainer.reward_func_names == ["digest", "Room"]
    assert trainer.reward_weights.tolist() == [1, 2]
    assert train_logs(trainer)[0]["rewards/Room/mean"] > 0
    assert trainer.batches[0].result.channel_advantages[:, 1].any()


class Corridor(Room):
    """An environment that leaves the reward to others: TRL scores a rollout only in exactly the class that rewards it."""

    get_reward = None


def test_several_environments(tiny_model, tmp_path, calling_tokenizer):
    dataset = conversations().add_column("environment", ["room", "corridor"] * (len(PROMPTS) // 2))
    trainer = train_and_check(
        tiny_model,
        tmp_path,
        [on_messages(digest)],
        train_dataset=dataset,
        processing_class=calling_tokenizer,
        environment_factory={"room": Room, "corridor": Corridor},
        **LONG_ENOUGH,
    )
    assert trainer.reward_func_names == ["digest", "Room"]
    coverage = [entry["channels/Room/coverage"] for entry in train_logs(trainer)]
    assert any(0 < share < 1 for share in coverage)
