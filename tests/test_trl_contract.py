"""
What `MultiRewardGRPOTrainer` assumes about TRL, one test per assumption. When a new release of TRL breaks one of them,
its name says what has to be looked at.
"""

import functools
import inspect
import tomllib
from collections import defaultdict, deque
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import pytest
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template
from trl.trainer.utils import RepeatSampler, get_callable_name, is_async_callable

from trl_dara import MultiRewardGRPOConfig, MultiRewardGRPOTrainer
from trl_dara.completions_table import empty_rows
from trl_dara.trainer import SUPPORTED_TRL

from .trainer.support import digest, has_a, prompts, scripted, settings


OVERRIDDEN = {
    "__init__",
    "_calculate_rewards",
    "_generate_and_score_completions",
    "_load_optimizer_and_scheduler",
    "_name",
    "_paper",
    "_save_checkpoint",
    "_tag_names",
    "create_model_card",
    "evaluation_loop",
    "log",
}


class Recorder(GRPOTrainer):
    """TRL's own trainer, with a record of what goes through the methods that we override."""

    def __init__(self, *args, **kwargs):
        self.rewards, self.outputs, self.logged, self.loaded, self.steps_at_load = [], [], [], [], []
        super().__init__(*args, **kwargs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.rewards.append(rewards)
        return rewards

    def _generate_and_score_completions(self, inputs):
        calls = len(self.rewards)
        output = super()._generate_and_score_completions(inputs)
        assert len(self.rewards) == calls + 1
        self.outputs.append((self.model.training, [row["prompt"] for row in inputs], output))
        self.logged.append(list(self._logs["advantages"]))
        return output

    def _load_optimizer_and_scheduler(self, checkpoint):
        self.loaded.append(checkpoint)
        self.steps_at_load.append(self.state.global_step)
        super()._load_optimizer_and_scheduler(checkpoint)


def make(model, folder, reward_funcs, *, trainer=Recorder, eval_dataset=None, train_dataset=None, **given):
    names = ("processing_class", "environment_factory")
    arguments = {name: given.pop(name) for name in names if name in given}
    return trainer(
        model=model,
        reward_funcs=reward_funcs,
        args=GRPOConfig(**settings(folder, **given)),
        train_dataset=prompts() if train_dataset is None else train_dataset,
        eval_dataset=eval_dataset,
        **arguments,
    )


def trained(*args, resume_from_checkpoint=None, **kwargs):
    trainer = make(*args, **kwargs)
    trainer.train(resume_from_checkpoint=resume_from_checkpoint)
    return trainer


# The release


def test_the_installed_trl_is_in_the_range_of_pyproject():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    (requirement,) = [Requirement(text) for text in project["dependencies"] if Requirement(text).name == "trl"]
    assert Version(version("trl")) in requirement.specifier
    assert requirement.specifier == SpecifierSet(SUPPORTED_TRL)


def test_trl_does_not_know_the_names_that_the_trainer_adds():
    added = set(vars(MultiRewardGRPOTrainer)) - OVERRIDDEN - set(vars(object)) - {"__module__", "__doc__", "__dict__"}
    assert "_compute_advantages" in added
    assert not {name for name in added if not name.startswith("__") and name in dir(GRPOTrainer)}


def test_trl_knows_the_names_that_the_trainer_overrides():
    assert OVERRIDDEN <= set(vars(MultiRewardGRPOTrainer))
    assert OVERRIDDEN <= set(dir(GRPOTrainer))


def test_attributes_of_a_trainer_do_not_clash_with_ours(tiny_model, tmp_path):
    plain = make(tiny_model, tmp_path, [digest])
    ours = MultiRewardGRPOTrainer(
        tiny_model, [digest], MultiRewardGRPOConfig(**settings(tmp_path)), train_dataset=prompts()
    )
    added = {
        "aggregation",
        "aggregation_kwargs",
        "calibration_window",
        "channels",
        "_gathered_rewards",
        "_logs_by_mode",
    }
    assert added <= set(vars(ours))
    assert not added & (set(vars(plain)) | set(dir(GRPOTrainer)))


def test_the_config_does_not_know_the_fields_that_ours_adds():
    ours = set(MultiRewardGRPOConfig.__dataclass_fields__) - set(GRPOConfig.__dataclass_fields__)
    assert {"aggregation", "aggregation_kwargs", "calibration_window", "reward_bounds", "on_reward_error"} <= ours


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_save_checkpoint", ["self", "model", "trial"]),
        ("_load_optimizer_and_scheduler", ["self", "checkpoint"]),
        ("_get_output_dir", ["self", "trial"]),
        ("log", ["self", "logs", "start_time"]),
        ("create_model_card", ["self", "model_name", "dataset_name", "tags"]),
    ],
)
def test_signature(name, expected):
    assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters) == expected


def test_the_constructor_begins_with_the_same_arguments_as_ours():
    expected = ["self", "model", "reward_funcs", "args", "train_dataset", "eval_dataset"]
    assert list(inspect.signature(GRPOTrainer.__init__).parameters)[:6] == expected
    assert list(inspect.signature(MultiRewardGRPOTrainer.__init__).parameters)[:6] == expected


def test_defaults_that_mean_not_given():
    assert GRPOConfig.multi_objective_aggregation == "sum_then_normalize"
    assert GRPOConfig.scale_rewards == "group"
    assert GRPOConfig.reward_weights is None


@pytest.mark.parametrize(("given", "stored"), [(True, "group"), (False, "none"), ("batch", "batch")])
def test_scale_rewards_is_stored_by_name(tmp_path, given, stored):
    assert GRPOConfig(**settings(tmp_path, scale_rewards=given)).scale_rewards == stored


# Rewards


def test_rewards_are_calculated_once_per_generation_as_a_matrix_with_nan_for_none(tiny_model, tmp_path):
    first = [None, 1, 2.5, True] * 4
    trainer = trained(tiny_model, tmp_path, [scripted("first", first), digest], max_steps=2)
    assert len(trainer.rewards) == len(trainer.outputs) == 2  # and once in each, as the recorder checks
    for rewards in trainer.rewards:
        assert rewards.shape == (16, 2) and rewards.dtype == torch.float32
        assert rewards[:4, 0].isnan().tolist() == [True, False, False, False]
        assert rewards[1:4, 0].tolist() == [1.0, 2.5, 1.0]


def test_reward_functions_are_called_with_these_keywords(tiny_model, tmp_path):
    calls = []

    def reward(**kwargs):
        calls.append(kwargs)
        return digest(kwargs["completions"])

    dataset = prompts().add_column("answer", ["a"] * len(prompts()))
    trainer = trained(tiny_model, tmp_path, [reward], train_dataset=dataset, max_steps=1)
    (call,) = calls
    assert set(call) == {
        *("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "answer")
    }
    assert len(call["prompts"]) == len(call["completions"]) == len(call["answer"]) == 16
    assert call["trainer_state"] is trainer.state


def test_lists_of_reward_functions_are_attributes_in_channel_order(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, [digest, has_a], reward_weights=[1.0, 0.5])
    assert trainer.reward_funcs == [digest, has_a]
    assert trainer.reward_func_names == ["digest", "has_a"]
    assert trainer.reward_processing_classes == [None, None]
    assert trainer.reward_weights.tolist() == [1.0, 0.5] and trainer.reward_weights.dtype == torch.float32


def test_names_functions_and_weights_may_be_replaced_after_construction(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, [has_a, has_a])
    trainer.reward_func_names = ["one", "two"]
    trainer.reward_funcs = [scripted("x", [1.0] * 16), scripted("y", [2.0] * 16)]
    trainer.reward_weights = torch.tensor([0.5, 10.0])
    trainer.train()
    entry = trainer.state.log_history[0]
    assert entry["rewards/one/mean"] == 1 and entry["rewards/two/mean"] == 2
    assert entry["reward"] == pytest.approx(20.5)


def test_weights_of_another_number_are_an_error_that_states_both(tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"\(3\).*\(2\)"):
        make(tiny_model, tmp_path, [digest, has_a], reward_weights=[1.0, 1.0, 1.0])


class Room:
    """An environment that rewards its visitor."""

    def reset(self, **kwargs):
        self.opened = 0

    def open_door(self, number: int) -> str:
        """
        Opens a door.

        Args:
            number: Number of the door.

        Returns:
            What is behind it.
        """
        self.opened += 1
        return "a room"

    def get_reward(self) -> float:
        return 1.0 + self.opened


def test_environments_append_a_channel_of_weight_one_during_construction(tiny_model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = qwen3_chat_template
    reward_funcs = [digest]
    trainer = make(
        tiny_model,
        tmp_path,
        reward_funcs,
        reward_weights=[0.5],
        processing_class=tokenizer,
        environment_factory=Room,
    )
    assert trainer.reward_func_names == ["digest", "Room"]
    assert trainer.reward_weights.tolist() == [0.5, 1.0]
    assert len(reward_funcs) == 2  # the caller's own list: why ours passes a copy


def test_the_trainer_names_and_weighs_the_channel_of_an_environment(tiny_model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = qwen3_chat_template
    conversations = prompts().map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    reward_funcs = [lambda completions, **kwargs: [float(len(completion)) for completion in completions]]
    trainer = MultiRewardGRPOTrainer(
        tiny_model,
        reward_funcs,
        MultiRewardGRPOConfig(**settings(tmp_path, reward_weights={"Room": 2.0}, max_steps=1)),
        train_dataset=conversations,
        processing_class=tokenizer,
        environment_factory=Room,
    )
    trainer.train()
    assert len(reward_funcs) == 1
    assert trainer.reward_func_names[1] == "Room"
    assert trainer.reward_weights.tolist() == [1.0, 2.0]
    assert trainer.state.log_history[0]["rewards/Room/mean"] == 1
    assert trainer.state.log_history[0]["channels/Room/coverage"] == 1


class Judge:
    def __call__(self, completions, **kwargs):
        return digest(completions)


class AsyncJudge:
    async def __call__(self, completions, **kwargs):
        return digest(completions)


async def async_reward(completions, **kwargs):
    return digest(completions)


@pytest.mark.parametrize(
    ("func", "name", "is_async"),
    [
        (digest, "digest", False),
        (async_reward, "async_reward", True),
        (lambda completions, **kwargs: [], "<lambda>", False),
        (functools.partial(digest, key=1), "digest", False),
        (functools.partial(functools.partial(async_reward), key=1), "async_reward", True),
        (Judge(), "Judge", False),
        (AsyncJudge(), "AsyncJudge", True),
    ],
)
def test_names_of_callables_and_whether_they_are_async(func, name, is_async):
    assert get_callable_name(func) == name
    assert is_async_callable(func) is is_async


# Advantages


def by_hand(tiny_model, folder, *columns, aggregation="sum_then_normalize", **given):
    """What TRL makes of rewards for four groups of four."""
    trainer = trained(
        tiny_model,
        folder,
        [scripted(f"channel{index}", column) for index, column in enumerate(columns)],
        multi_objective_aggregation=aggregation,
        max_steps=1,
        **given,
    )
    return trainer.outputs[0][2]["advantages"]


def test_the_advantages_of_the_output_are_this_processs_completions_in_order(tiny_model, tmp_path):
    trainer = trained(tiny_model, tmp_path, [digest], max_steps=1)
    ((training, _, output),) = trainer.outputs
    assert training
    assert output["advantages"].shape == (16,) and output["advantages"].dtype == torch.float32
    assert len(output["completion_ids"]) == len(output["prompt_ids"]) == 16
    rewards = trainer.rewards[0][:, 0].view(4, 4)  # (B, G)
    assert torch.equal(output["advantages"].view(4, 4).argsort(dim=1), rewards.argsort(dim=1))


def test_sum_then_normalize(tiny_model, tmp_path):
    # Sums 2, 1, 1, 0 with mean 1 and standard deviation sqrt(2/3) in each group
    advantages = by_hand(tiny_model, tmp_path, [1, 1, 0, 0] * 4, [1, 0, 1, 0] * 4)
    scale = 1 / ((2 / 3) ** 0.5 + 1e-4)
    assert advantages.tolist() == pytest.approx([scale, 0, 0, -scale] * 4, abs=1e-6)


# Over the batch of test_sum_then_normalize_with_another_scale: mean 2, squared deviations of 4 in 8 of 16 rewards
@pytest.mark.parametrize(("scale_rewards", "divisor"), [("none", 1.0), ("batch", (4 * 8 / 15) ** 0.5 + 1e-4)])
def test_sum_then_normalize_with_another_scale(tiny_model, tmp_path, scale_rewards, divisor):
    rewards = [2, 2, 0, 0] * 2 + [4, 4, 4, 4] + [2, 2, 2, 2]
    advantages = by_hand(tiny_model, tmp_path, rewards, scale_rewards=scale_rewards)
    assert advantages.tolist() == pytest.approx([x / divisor for x in [1, 1, -1, -1] * 2 + [0] * 8], abs=1e-6)


def test_normalize_then_sum(tiny_model, tmp_path):
    # Each channel is +-a in each group; the sums 2a, 0, 0, -2a are normalised over the batch of sixteen
    advantages = by_hand(tiny_model, tmp_path, [1, 1, 0, 0] * 4, [1, 0, 1, 0] * 4, aggregation="normalize_then_sum")
    a = 0.5 / ((1 / 3) ** 0.5 + 1e-4)
    spread = (8 * (2 * a) ** 2 / 15) ** 0.5
    assert advantages.tolist() == pytest.approx(
        [2 * a / (spread + 1e-4), 0, 0, -2 * a / (spread + 1e-4)] * 4, abs=1e-6
    )


def test_normalize_then_sum_normalises_the_rounding_error_of_a_constant_channel(tiny_model, tmp_path):
    """The trap that our rules avoid, and the one difference between `gdpo` and TRL."""
    constant = [value for value in (0.1, 0.7) for _ in range(24)]
    advantages = by_hand(
        tiny_model,
        tmp_path,
        constant,
        aggregation="normalize_then_sum",
        num_generations=24,
        per_device_train_batch_size=48,
    )
    assert advantages.abs().max() > 1e-3


def test_a_completion_that_nobody_scored_has_advantage_zero(tiny_model, tmp_path):
    assert by_hand(tiny_model, tmp_path, [1, 0, None, 1] * 4)[2::4].tolist() == [0.0] * 4


def test_completions_of_a_prompt_are_consecutive(tiny_model, tmp_path):
    trainer = trained(tiny_model, tmp_path, [digest], gradient_accumulation_steps=2, max_steps=2)
    for _, rows, _ in trainer.outputs:
        assert len(rows) == 32
        groups = [rows[start : start + 4] for start in range(0, 32, 4)]
        assert all(len(set(group)) == 1 for group in groups)
        assert len({group[0] for group in groups}) == 8


def test_the_sampler_repeats_each_prompt_and_drops_an_incomplete_batch():
    order = list(RepeatSampler(range(7), mini_repeat_count=2, batch_size=3, repeat_count=2, shuffle=False))
    assert order == [0, 0, 1, 1, 2, 2] * 2 + [3, 3, 4, 4, 5, 5] * 2
    assert list(RepeatSampler(range(2), mini_repeat_count=2, batch_size=3)) == []  # why ours checks the size


def test_generation_happens_once_per_its_steps_and_iterations(tiny_model, tmp_path):
    given = dict(per_device_train_batch_size=8, steps_per_generation=2, num_iterations=3, max_steps=7)
    assert len(trained(tiny_model, tmp_path, [digest], **given).outputs) == 2


# Modes, metrics and tables


def test_the_mode_is_that_of_the_model(tiny_model, tmp_path):
    trainer = trained(
        tiny_model, tmp_path, [digest], eval_dataset=prompts(["one", "two"]), eval_strategy="steps", eval_steps=1
    )
    assert [training for training, _, _ in trainer.outputs] == [True, False, True, False]
    assert trainer.num_generations_eval == trainer.num_generations == 4


def test_metrics_are_averaged_without_nan_and_forgotten(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, [digest])
    trainer.model.train()
    assert set(trainer._metrics) == {"train", "eval"}
    trainer._metrics["train"]["some"].extend([1.0, float("nan"), 3.0])
    trainer._metrics["train"]["none"].append(float("nan"))
    trainer._metrics["eval"]["other"].append(1.0)
    trainer.log({"loss": 0.0})
    (entry,) = trainer.state.log_history
    assert entry["some"] == 2.0 and entry["none"] is None and "other" not in entry
    assert not trainer._metrics["train"] and trainer._metrics["eval"]["other"] == [1.0]


def test_metrics_of_evaluation_are_logged_with_a_prefix(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, [digest])
    trainer.model.eval()
    trainer._metrics["eval"]["some"].append(1.0)
    trainer.log({"eval_loss": 0.0})
    assert trainer.state.log_history[0]["eval_some"] == 1.0


def test_the_rows_of_the_table_have_the_structure_of_ours(tiny_model, tmp_path):
    rows = make(tiny_model, tmp_path, [digest], gradient_accumulation_steps=2)._logs
    ours = empty_rows(32)
    assert list(rows) == list(ours)
    for name in rows:
        assert type(rows[name]) is type(ours[name]) and type(rows[name]) in (deque, defaultdict)
        if isinstance(rows[name], defaultdict):
            assert rows[name]["new"].maxlen == ours[name]["new"].maxlen == 32
        else:
            assert rows[name].maxlen == ours[name].maxlen == 32


def test_the_advantages_are_in_the_rows_before_the_batch_is_returned(tiny_model, tmp_path):
    trainer = trained(tiny_model, tmp_path, [digest])
    for (_, _, output), logged in zip(trainer.outputs, trainer.logged, strict=True):
        assert logged == output["advantages"].tolist()


def test_the_table_is_one_parquet_file_per_step(tiny_model, tmp_path):
    def reward(completions, log_extra, **kwargs):
        log_extra("length", [len(completion) for completion in completions])
        return digest(completions)

    trained(tiny_model, tmp_path, [reward], log_completions=True)
    found = sorted(path.name for path in (tmp_path / "completions").iterdir())
    assert found == ["completions_00001.parquet", "completions_00002.parquet"]
    table = pd.read_parquet(tmp_path / "completions" / found[0])
    assert list(table.columns) == ["step", "prompt", "completion", "reward", "length", "advantage"]
    assert len(table) == 16


def test_a_table_of_evaluation_would_replace_that_of_training(tiny_model, tmp_path):
    """Why ours moves it aside; when TRL gives it a name of its own, that can go."""
    given = dict(eval_dataset=prompts(["one", "two"]), eval_strategy="steps", eval_steps=1, max_steps=1)
    trained(tiny_model, tmp_path, [digest], log_completions=True, **given)
    (table,) = (tmp_path / "completions").iterdir()
    assert table.name == "completions_00001.parquet"
    assert "one" in set(pd.read_parquet(table)["prompt"])


# Checkpoints and the model card


def test_a_checkpoint_is_a_folder_whose_trainer_state_is_written_last(tiny_model, tmp_path):
    trainer = trained(tiny_model, tmp_path, [digest], save_strategy="steps", save_steps=2, max_steps=2)
    assert trainer._get_output_dir(trial=None) == str(tmp_path)
    checkpoint = tmp_path / "checkpoint-2"
    written = {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()}
    assert {"trainer_state.json", "optimizer.pt", "model.safetensors"} <= set(written)
    assert max(written, key=written.get) == "trainer_state.json"


def test_a_checkpoint_may_already_have_its_folder(tiny_model, tmp_path):
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "ours.json").write_text("{}")
    trained(tiny_model, tmp_path, [digest], save_strategy="steps", save_steps=1, max_steps=1)
    assert {"ours.json", "trainer_state.json"} <= {path.name for path in (tmp_path / "checkpoint-1").iterdir()}


def test_optimizer_and_scheduler_are_loaded_once_on_resuming_and_from_nothing_but_the_checkpoint(tiny_model, tmp_path):
    given = dict(save_strategy="steps", save_steps=1)
    assert not any(trained(tiny_model, tmp_path, [digest], **given).loaded)
    checkpoint = str(tmp_path / "checkpoint-1")
    resumed = trained(tiny_model, tmp_path, [digest], **given, resume_from_checkpoint=checkpoint)
    assert resumed.loaded == [checkpoint]
    assert resumed.steps_at_load == [1]  # the state comes first


def test_the_model_card_is_written_anew_from_name_tags_and_paper(tiny_model, tmp_path):
    class Other(GRPOTrainer):
        _name = "Other"
        _tag_names = ["some-tag"]
        _paper = {"title": "A Title", "citation": "@article{some2026}"}

    trainer = make(tiny_model, tmp_path, [digest], trainer=Other)
    card = tmp_path / "README.md"
    card.write_text("what was there before")
    trainer.create_model_card(model_name="tiny")
    text = card.read_text()
    assert "trained with Other" in text and "some-tag" in text and "@article{some2026}" in text
    assert "what was there before" not in text and "DeepSeekMath" not in text
