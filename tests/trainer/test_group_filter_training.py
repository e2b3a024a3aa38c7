import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset, IterableDataset
from peft import LoraConfig

from trl_dara import MultiRewardGRPOConfig
from trl_dara.group_filter import GroupFilter

from .filtering import (
    check_generation,
    check_loss_inputs,
    constant,
    make_dataset,
    make_trainer,
    metric,
    varied,
)


HALF_LIVE = [index % 2 == 0 for index in range(24)]
ROOT = Path(__file__).parents[2]


def is_live(prompt: str) -> bool:
    return int(prompt.split()[-1]) % 2 == 0


def found_in(generation: dict, num_generations: int = 4) -> list[list[bool]]:
    """For each round of a generation on one process, which groups are informative."""
    return [[is_live(prompt) for prompt in prompts[::num_generations]] for prompts in generation["rounds"]]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"steps_per_generation": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
        {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
        {"num_iterations": 2, "max_steps": 4},
        {"beta": 0.1},
        {"peft_config": LoraConfig(r=2, target_modules=["q_proj", "v_proj"]), "beta": 0.1},
        {"mask_truncated_completions": True, "pad_to_multiple_of": 8, "max_completion_length": 100},
        {"aggregation": "dara_asym", "calibration_window": None},
    ],
    ids=["plain", "accumulation", "off-policy", "iterations", "kl", "lora", "masked-padded", "dara"],
)
def test_trains_on_informative_groups_only(tiny_model, tmp_path, settings):
    # Ten rounds of two prompts or more: half of the prompts are informative, so that they never run out
    trainer = make_trainer(
        tiny_model,
        tmp_path,
        make_dataset(HALF_LIVE),
        log_completions=True,
        **{"group_filter_max_rounds": 10, **settings},
    )
    before = {name: values.detach().clone() for name, values in trainer.model.named_parameters()}
    trainer.train()

    assert len(trainer.generations) == trainer.state.global_step * trainer.args.gradient_accumulation_steps / (
        trainer.args.steps_per_generation * trainer.num_iterations
    )
    for generation in trainer.generations:
        check_generation(trainer, generation)
        assert all(is_live(prompt) for prompt in generation["table"]["prompt"])
        batch = generation["batch"]
        assert batch["num_items_in_batch"] == batch["completion_mask"].sum()
        # The last round was needed: the rounds before it held too few
        found = found_in(generation)
        wanted = trainer.args.generation_batch_size // 4
        assert sum(map(sum, found[:-1])) < wanted <= sum(map(sum, found))
    check_loss_inputs(trainer)
    assert max(len(generation["rounds"]) for generation in trainer.generations) > 1
    assert any(not torch.equal(before[name], values) for name, values in trainer.model.named_parameters())
    assert all(values.isfinite().all() for values in trainer.model.parameters())


def test_metrics_are_those_of_the_rounds(tiny_model, tmp_path):
    trainer = make_trainer(tiny_model, tmp_path, make_dataset(HALF_LIVE), max_steps=6)
    trainer.train()
    rounds, informative, filler = [], [], []
    for generation in trainer.generations:
        found = found_in(generation)
        rounds.append(len(found))
        informative.append(sum(map(sum, found)) / (2 * len(found)))
        filler.append(1 - min(2, sum(map(sum, found))) / 2)
    assert metric(trainer, "group_filter/rounds") == rounds
    assert metric(trainer, "group_filter/frac_informative") == pytest.approx(informative)
    assert metric(trainer, "group_filter/frac_filler") == pytest.approx(filler)
    assert len(set(rounds)) > 1
    # Per-channel metrics are those of the trained batch, TRL's those of everything generated
    assert metric(trainer, "channels/varied/density") == pytest.approx([1 - share for share in filler])
    assert metric(trainer, "aggregation/prompts") == [2] * 6


def test_missing_groups_are_filled_and_none_that_was_found_is_lost(tiny_model, tmp_path):
    trainer = make_trainer(
        tiny_model,
        tmp_path,
        make_dataset([index == 0 for index in range(12)]),
        max_steps=3,
        per_device_train_batch_size=16,
        group_filter_max_rounds=3,
    )
    trainer.train()
    found_at_all = 0
    for generation in trainer.generations:
        check_generation(trainer, generation)
        prompts = [prompt for prompts in generation["rounds"] for prompt in prompts[::4]]
        found = [prompt for prompt in prompts if prompt == "the cat 0"]
        filler = [prompt for prompt in prompts if prompt != "the cat 0"]
        assert len(generation["rounds"]) == 3
        assert generation["table"]["prompt"][::4] == (found + filler)[:4]  # in the order of generation
        found_at_all += len(found)
    assert found_at_all > 0
    assert all(0 < share <= 1 for share in metric(trainer, "group_filter/frac_filler"))


def split_between_two(completions, **kwargs):
    return [float(index % 2) for index in range(len(completions))]


def the_other_half(completions, **kwargs):
    return [1.0 - index % 2 for index in range(len(completions))]


@pytest.mark.parametrize(
    ("group_filter", "rounds"), [("none", 1), ("any", 1), ("sum", 2), ("the_other_half", 1), ("constant", 2)]
)
def test_criterion_decides(tiny_model, tmp_path, group_filter, rounds):
    trainer = make_trainer(
        tiny_model,
        tmp_path,
        make_dataset([True] * 4),
        reward_funcs=[split_between_two, the_other_half, constant],
        group_filter=group_filter,
        group_filter_max_rounds=2,
        max_steps=1,
    )
    trainer.train()
    assert len(trainer.rounds) == rounds


def test_channel_without_weight_does_not_count(tiny_model, tmp_path):
    trainer = make_trainer(
        tiny_model,
        tmp_path,
        make_dataset([True] * 4),
        reward_weights={"varied": 0.0, "constant": 1.0},
        group_filter_max_rounds=2,
        max_steps=1,
    )
    trainer.train()
    assert metric(trainer, "group_filter/rounds") == [2]
    assert metric(trainer, "group_filter/frac_filler") == [1]


class ScriptedRollout:
    """Completions that depend on the prompt and the place in the group alone, of many lengths, in part from a tool."""

    def __init__(self):
        self.shapes = []

    def __call__(self, prompts, trainer):
        prompt_ids, completion_ids = [], []
        for row, prompt in enumerate(prompts):
            index, place = int(prompt.split()[-1]), row % 4
            prompt_ids.append(trainer.processing_class(prompt + " dog" * (index // 3))["input_ids"])
            length = 1 + index // 2 + place
            completion_ids.append([10 + (7 * index + place + 13 * token) % 200 for token in range(length)])
        self.shapes.append((max(map(len, prompt_ids)), max(map(len, completion_ids))))
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "logprobs": [[-2.0] * len(ids) for ids in completion_ids],
            "env_mask": [[int(token != 1) for token in range(len(ids))] for ids in completion_ids],
        }


def test_a_merged_batch_trains_as_the_same_rows_generated_together(tiny_model, tmp_path):
    dataset = make_dataset(HALF_LIVE)

    def train(name, dataset, **settings):
        trainer = make_trainer(
            tiny_model,
            tmp_path / name,
            dataset,
            max_completion_length=16,
            per_device_train_batch_size=8,
            steps_per_generation=2,
            gradient_accumulation_steps=2,
            num_iterations=2,
            max_steps=2,
            beta=0.1,
            optim="sgd",
            learning_rate=0.05,
            shuffle_dataset=False,  # short completions in the first round, longer ones after it
            rollout_func=ScriptedRollout(),
            **settings,
        )
        trainer.train()
        return trainer

    filtered = train("filtered", dataset, group_filter="any", group_filter_max_rounds=10)
    assert len(filtered.generations) == 1
    for widths in zip(*filtered.rollout_func.shapes, strict=True):
        assert len(set(widths)) > 1  # the rounds were padded to different widths
    prompts = filtered.generations[0]["table"]["prompt"][::4]
    together = train(
        "together",
        Dataset.from_dict({"prompt": prompts, "live": [True] * len(prompts)}),
        group_filter="none",
    )
    merged, single = filtered.generations[0]["batch"], together.generations[0]["batch"]
    assert {"old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps", "tool_mask"} <= set(merged)
    assert merged.keys() == single.keys()
    width, length = single["prompt_ids"].shape[1], single["completion_ids"].shape[1]
    # A round is as wide as its longest row, selected or not
    assert not merged["prompt_mask"][:, :-width].any() and not merged["completion_mask"][:, length:].any()
    for key, values in single.items():
        if key.endswith("logps"):
            torch.testing.assert_close(merged[key][:, :length], values, rtol=1e-4, atol=1e-4)
        elif key.startswith("prompt_"):
            assert torch.equal(merged[key][:, -width:], values)
        elif key in ("advantages", "num_items_in_batch"):
            torch.testing.assert_close(merged[key], values, rtol=0, atol=1e-6)
        else:
            assert torch.equal(merged[key][:, :length], values)
    for key in ("loss", "kl", "grad_norm"):
        assert metric(filtered, key) == pytest.approx(metric(together, key), rel=1e-3, abs=1e-5)
    for (name, values), others in zip(filtered.model.named_parameters(), together.model.parameters(), strict=True):
        torch.testing.assert_close(values, others, rtol=0, atol=1e-5, msg=name)


def test_evaluation_is_not_filtered(tiny_model, tmp_path):
    trainer = make_trainer(
        tiny_model,
        tmp_path,
        make_dataset(HALF_LIVE),
        eval_dataset=make_dataset([False] * 4),
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=4,
    )
    trainer.train()
    unevaluated = make_trainer(tiny_model, tmp_path, make_dataset(HALF_LIVE))
    unevaluated.train()
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(evaluations) == 2
    for entry in evaluations:
        assert entry["eval_rewards/varied/mean"] == 0.5
        assert entry["eval_aggregation/prompts"] == 1  # batches of one group, none filled up
        assert not any("group_filter" in name for name in entry)
    assert trainer.group_filter.refill.drawn == unevaluated.group_filter.refill.drawn
    # Evaluation generates, which moves the generator of random numbers, so that only the first batch is the same
    assert trainer.rounds[0] == unevaluated.rounds[0]
    assert trainer.generations[0]["table"] == unevaluated.generations[0]["table"]


@pytest.mark.parametrize("aggregation", ["gdpo", "dara_asym"])
def test_resumed_run_sees_the_same_prompts(tiny_model, tmp_path, aggregation):
    settings = {
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "aggregation": aggregation,
        "steps_per_generation": 2,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
    }
    whole = make_trainer(tiny_model, tmp_path, make_dataset(HALF_LIVE), **settings)
    whole.train()
    resumed = make_trainer(tiny_model, tmp_path, make_dataset(HALF_LIVE), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    rounds_before = sum(len(generation["rounds"]) for generation in whole.generations[:2])
    assert rounds_before > 2  # there is a position to restore
    assert resumed.rounds == whole.rounds[rounds_before:]
    assert resumed.group_filter.refill.drawn == whole.group_filter.refill.drawn
    for mine, theirs in zip(resumed.generations, whole.generations[2:], strict=True):
        assert mine["table"]["completion"] == theirs["table"]["completion"]
        torch.testing.assert_close(mine["batch"]["advantages"], theirs["batch"]["advantages"], rtol=0, atol=1e-5)
    for name in ("reward", "channels/varied/density", "group_filter/rounds", "group_filter/frac_filler"):
        assert metric(resumed, name)[-2:] == pytest.approx(metric(whole, name)[-2:], abs=1e-5)
    for values, others in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(values, others, rtol=0, atol=1e-5)


def test_a_checkpoint_made_without_the_filter_starts_it_at_the_beginning(tiny_model, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1}
    make_trainer(tiny_model, tmp_path, make_dataset(HALF_LIVE), max_steps=1, group_filter="none", **settings).train()
    resumed = make_trainer(tiny_model, tmp_path, make_dataset([False] * 24), max_steps=2, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert resumed.group_filter.refill.drawn == 2 * 2  # two more rounds of two prompts


@pytest.mark.parametrize(
    ("settings", "dataset", "message"),
    [
        ({"group_filter": "correct"}, make_dataset([True] * 8), r"names \['correct'\], but the channels are"),
        ({"group_filter_max_rounds": 0}, make_dataset([True] * 8), "`group_filter_max_rounds` is 0"),
        (
            {"max_steps": 1},
            IterableDataset.from_generator(lambda: iter([{"prompt": "the cat", "live": True}])),
            "a streaming data set does not allow",
        ),
        (
            {},
            make_dataset([True] * 8).add_column("image", ["cat.png"] * 8),
            r"does not support images, but `train_dataset` has the columns \['image'\]",
        ),
    ],
    ids=["channel", "rounds", "streaming", "images"],
)
def test_refusals(tiny_model, tmp_path, settings, dataset, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(tiny_model, tmp_path, dataset, reward_funcs=[varied, constant], **settings)


def test_data_owned_by_an_environment_is_refused(tmp_path):
    args = MultiRewardGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, group_filter="any", report_to="none")
    with pytest.raises(ValueError, match="an environment's data does not allow"):
        GroupFilter(args, ["correct"], None, Accelerator(cpu=True), pad_token_id=0)


@pytest.mark.parametrize(
    ("per_device", "steps", "num_generations", "legal"),
    [
        (3, 4, 8, "`steps_per_generation` 8, or `per_device_train_batch_size` 2 or 4"),
        (2, 3, 4, "`steps_per_generation` 2 or 4, or `per_device_train_batch_size` 4"),
        (1, 6, 4, "`steps_per_generation` 4 or 8, or `per_device_train_batch_size` 2"),
    ],
)
def test_groups_on_two_processes_are_refused(tmp_path, per_device, steps, num_generations, legal):
    """Two processes would make the whole batch divisible, but not each process's part; construction reads the sizes."""
    args = MultiRewardGRPOConfig(
        str(tmp_path), num_generations=2, use_cpu=True, bf16=False, group_filter="any", report_to="none"
    )
    args.per_device_train_batch_size, args.steps_per_generation, args.num_generations = (
        per_device,
        steps,
        num_generations,
    )
    with pytest.raises(ValueError, match=f"is not divisible by `num_generations` = {num_generations}.*{legal}"):
        GroupFilter(args, ["correct"], make_dataset([True] * 8), Accelerator(cpu=True), pad_token_id=0)


@pytest.fixture(scope="module")
def two_processes(tiny_model, tmp_path_factory) -> dict[str, list[dict]]:
    """What each of two processes recorded in each case of the child script."""
    folder = tmp_path_factory.mktemp("two_processes")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv_backend=c10d"]
    command += ["--rdzv_endpoint=localhost:0", "-m", "tests.trainer.group_filter_worker", tiny_model, str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    cases = ("half_live", "resumed", "dead_on_rank_1", "channel_fails_on_rank_1")
    return {
        case: [json.loads((folder / case / f"rank_{rank}.json").read_text()) for rank in range(2)] for case in cases
    }


@pytest.mark.parametrize("case", ["half_live", "resumed", "dead_on_rank_1", "channel_fails_on_rank_1"])
def test_two_processes_agree(two_processes, case):
    first, second = two_processes[case]
    assert first["num_rounds"] == second["num_rounds"]
    assert first["drawn"] == second["drawn"] > 0
    assert first["tables"] == second["tables"]
    assert first["metrics"] == second["metrics"]
    assert first["parameters"] == second["parameters"]
    for index, count in enumerate(first["num_items_in_batch"]):
        assert count == second["num_items_in_batch"][index] == first["tokens"][index] + second["tokens"][index]
    assert all(mine != theirs for mine, theirs in zip(first["prompts"], second["prompts"], strict=True))


def test_two_processes_with_enough_informative_groups(two_processes):
    first, _ = two_processes["half_live"]
    assert first["metrics"]["group_filter/frac_filler"] == [0.0] * 4
    assert max(first["num_rounds"]) > 1
    assert all(is_live(prompt) for table in first["tables"] for prompt in table["prompt"])


def test_a_process_with_enough_waits_for_one_without(two_processes):
    first, _ = two_processes["dead_on_rank_1"]
    assert first["num_rounds"] == [3, 3]
    assert first["metrics"]["group_filter/frac_informative"] == [0.5, 0.5]
    assert first["metrics"]["group_filter/frac_filler"] == [0.5, 0.5]


def test_a_channel_that_failed_on_one_process_is_informative_on_none(two_processes):
    first, _ = two_processes["channel_fails_on_rank_1"]
    assert first["num_rounds"] == [3, 3]
    assert first["metrics"]["group_filter/frac_filler"] == [1.0, 1.0]


def test_two_processes_resume_with_the_same_prompts(two_processes):
    for resumed, whole in zip(two_processes["resumed"], two_processes["half_live"], strict=True):
        before = sum(whole["num_rounds"][:2])
        assert before > 2  # there is a position to restore
        assert resumed["prompts"] == whole["prompts"][before:]
        assert resumed["tables"] == whole["tables"][2:]
        assert resumed["drawn"] == whole["drawn"]
        assert resumed["parameters"] == pytest.approx(whole["parameters"], abs=1e-5)
