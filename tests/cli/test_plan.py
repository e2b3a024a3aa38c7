import itertools
import json
import math
from argparse import Namespace
from pathlib import Path

import datasets
import pytest

from trl_dara import MultiRewardGRPOConfig, MultiRewardGRPOTrainer
from trl_dara.cli import plan
from trl_dara.cli.plan import expected_density, plan_batches


RECIPES = Path(__file__).parents[2] / "train_scripts" / "recipes"


def options(**changes) -> Namespace:
    defaults = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_generations": 8,
        "steps_per_generation": None,
        "generation_batch_size": None,
        "num_iterations": 1,
        "num_train_epochs": 1.0,
        "max_steps": -1,
    }
    return Namespace(**{**defaults, **changes})


# fmt: off
@pytest.mark.parametrize(
    ("changes", "num_processes", "num_prompts", "expected"),  # B, updates per generation, total, generations, left out
    [
        ({}, 1, 10, (1, 1, 10, 10, 0)),
        # 8 * 4 = 32 completions are 4 prompts, one step; 25 batches in each of 3 epochs
        ({"gradient_accumulation_steps": 4, "num_train_epochs": 3}, 1, 100, (4, 1, 75, 75, 0)),
        # 4 * 2 * 8 = 64 completions are 8 prompts; 16 batches, two to a step; 12 of them in an epoch, 4 prompts left
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 8,
          "num_iterations": 2}, 2, 100, (8, 8, 96, 12, 4)),
        # two batches to a generation, four to a step: two generations to a step
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2, "num_train_epochs": 3}, 1, 5, (2, 0.5, 3, 6, 1)),
        ({"generation_batch_size": 32}, 1, 8, (4, 4, 8, 2, 0)),
        ({"generation_batch_size": 32, "num_generations": 4}, 2, 8, (8, 2, 2, 1, 0)),
        ({"max_steps": 7}, 1, None, (1, 1, 7, 7, None)),
        ({"max_steps": 7, "gradient_accumulation_steps": 2, "steps_per_generation": 6}, 1, 10, (6, 3, 7, 3, 4)),
        ({}, 1, None, (1, 1, None, None, None)),
    ],
)
# fmt: on
def test_batches_by_hand(changes, num_processes, num_prompts, expected):
    result = plan_batches(options(**changes), num_processes, num_prompts)
    found = (
        result.prompts,
        result.updates_per_generation,
        result.total_steps,
        result.generations,
        result.unused_prompts,
    )
    assert found == expected
    assert result.completions == result.prompts * changes.get("num_generations", 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_generations": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 2.5},
        {"num_generations": 2, "generation_batch_size": 16, "num_iterations": 2, "gradient_accumulation_steps": 3},
        {"num_generations": 4, "gradient_accumulation_steps": 4, "steps_per_generation": 2},
        {"num_generations": 8, "max_steps": 5},
    ],
)
def test_batches_are_those_of_the_trainer(changes, tiny_model, tmp_path):
    num_prompts = 13
    args = MultiRewardGRPOConfig(
        str(tmp_path), use_cpu=True, bf16=False, report_to="none", per_device_train_batch_size=8, **changes
    )
    trainer = MultiRewardGRPOTrainer(
        tiny_model,
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=args,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["one"] * num_prompts}),
    )
    *_, total_steps = trainer.set_initial_training_values(args, trainer.get_train_dataloader())
    result = plan_batches(options(**{"num_train_epochs": 3.0, **changes}), 1, num_prompts)
    assert result.prompts == args.generation_batch_size // args.num_generations
    assert result.total_steps == total_steps


@pytest.mark.parametrize(
    ("changes", "num_prompts", "says"),
    [
        ({"num_generations": 6}, None, ["8 * 1 * 1 = 8 completions", "`num_generations` = 6", "fits: 24."]),
        (
            {"gradient_accumulation_steps": 4, "num_generations": 12},
            None,
            ["= 32 completions", "`generation_batch_size` that fits: 24 or 48"],
        ),
        ({"generation_batch_size": 20}, None, ["`generation_batch_size` is 20", "multiple of", "= 8"]),
        ({"generation_batch_size": 4}, None, ["`generation_batch_size` is 4"]),
        (
            {"generation_batch_size": 8, "steps_per_generation": 1},
            None,
            ["one of `generation_batch_size` and `steps_per_generation`"],
        ),
        ({"gradient_accumulation_steps": 4}, 3, ["3 prompts", "needs 4"]),
        ({"num_generations": 1}, None, ["`num_generations` is 1", "at least 2"]),
        ({"per_device_train_batch_size": 0}, None, ["`per_device_train_batch_size` is 0"]),
    ],
)
def test_batches_that_do_not_fit(changes, num_prompts, says):
    with pytest.raises(ValueError) as error:
        plan_batches(options(**changes), 1, num_prompts)
    for text in says:
        assert text in str(error.value)


@pytest.mark.parametrize("size", [24, 48])
def test_suggested_batch_size_fits(size):
    plan_batches(options(num_generations=12, generation_batch_size=size), 1, None)


def test_expected_density_by_enumeration():
    for rate, size in itertools.product([0.0, 0.1, 0.25, 0.5, 1.0], [2, 3, 4]):
        share = sum(
            math.prod(rate if success else 1 - rate for success in group)
            for group in itertools.product([0, 1], repeat=size)
            if len(set(group)) == 2
        )
        assert expected_density(rate, size) == pytest.approx(share, abs=1e-12)


@pytest.fixture
def printed(capsys, monkeypatch):
    """Runs `trl-dara plan` and returns the rows of its tables and its other lines."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*argv):
        assert plan.run(list(argv)) == 0
        lines = capsys.readouterr().out.splitlines()
        cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
        return {row[0]: row[1:] for row in cells}, " ".join(line for line in lines if line[:1] not in "│┃┏┡└")

    return run


def test_plan_of_a_recipe_with_data(printed, tmp_path):
    """bf16 is on, and no accelerator is needed."""
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"prompt": str(i)}) + "\n" for i in range(101)))
    (tmp_path / "recipe.yaml").write_text(
        f"dataset_name: {tmp_path}\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nnum_processes: 2\n"
        "num_train_epochs: 2\nreward_funcs: [nowhere.py:unknown]\n"
    )
    rows, text = printed("--config", str(tmp_path / "recipe.yaml"), "--success_rate", "0.25", "0.5")
    assert rows["prompts per generation batch (B)"] == ["4"]
    assert rows["completions per generation batch"] == ["32 (8 per prompt)"]
    assert rows["optimiser steps per generation batch"] == ["1"]
    assert rows["optimiser steps"] == ["50"]
    assert rows["generation batches"] == ["50"]
    assert rows["epochs"] == ["2"]
    assert rows["prompts in the data"] == ["101"]
    assert rows["prompts left out of an epoch"] == ["1"]
    assert rows["smallest step of a batch's density (1 / B)"] == ["0.25"]
    assert rows["largest weight, this batch only: min(w_max, sqrt(B))"] == ["2"]
    assert rows["0.25"] == ["0.3750", "0.6797", "0.8999", "0.9900", "0.9999"]
    assert rows["0.5"] == ["0.5000", "0.8750", "0.9922", "1.0000", "1.0000"]
    assert "One prompt" not in text


@pytest.mark.parametrize(
    ("recipe", "processes", "script", "prompts", "steps", "generations"),
    [
        # From the comments of the recipes: 100 rollout steps each
        ("tool_calling/qwen2.5-1.5b-instruct/dara_asym_length", 4, "tool_calling", "512", "400", "100"),
        ("math_reasoning/deepseek-r1-distill-qwen-1.5b/dara_asym", 8, "math_reasoning", "512", "800", "100"),
    ],
)
def test_plan_of_a_recipe_of_a_training_script(printed, recipe, processes, script, prompts, steps, generations):
    rows, text = printed("--config", str(RECIPES / f"{recipe}.yaml"), "--num_processes", str(processes))
    assert f"A recipe for `python -m train_scripts.{script}`, whose data" in text
    assert rows["prompts per generation batch (B)"] == [prompts]
    assert rows["optimiser steps"] == [steps] and rows["generation batches"] == [generations]


def test_weight_bounds_follow_the_rule_and_the_window(printed):
    batch = ("--per_device_train_batch_size", "32", "--num_prompts", "8")
    rows, _ = printed(*batch, "--aggregation_kwargs", '{"w_max": 100}', "--calibration_window", "16")
    assert rows["largest weight, this batch only: min(w_max, sqrt(B))"] == ["2"]
    assert rows["largest weight, window of 16 groups"] == ["4"]
    rows, _ = printed(*batch, "--calibration_window", "none")
    assert not any(name.startswith("largest weight, window") for name in rows)
    rows, _ = printed(*batch, "--aggregation", "gdpo")
    assert not any(name.startswith("largest weight") for name in rows)


def test_own_group_size_is_a_column(printed):
    rows, _ = printed("--per_device_train_batch_size", "12", "--num_generations", "6", "--success_rate", "0.5")
    assert rows["0.5"] == ["0.5000", "0.8750", "0.9688", "0.9922", "1.0000", "1.0000"]  # G = 2, 4, 6, 8, 16, 32


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--calibration_window", "64"], "only the window of the 64 most recent groups lets weights differ"),
        ([], "every weight is 1, so DARA is GDPO unless `calibration_window` is set"),
        (["--aggregation", "grpo"], "such a density says little"),
    ],
)
def test_one_prompt_per_batch_is_warned_about(printed, argv, says):
    rows, text = printed("--per_device_train_batch_size", "8", *argv)
    assert rows["prompts per generation batch (B)"] == ["1"]
    assert rows["optimiser steps"] == ["unknown"]
    assert "One prompt per generation batch" in text and says in text
    assert "`gradient_accumulation_steps`" in text and "`--num_prompts`" in text


def test_data_that_cannot_be_loaded_is_said(printed, tmp_path):
    rows, text = printed("--per_device_train_batch_size", "8", "--dataset_name", str(tmp_path / "nowhere"))
    assert "cannot be loaded" in text and rows["prompts in the data"] == ["unknown"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--per_device_train_batch_size", "4"], "fits: 8"),
        (["--aggregation", "darra_sym"], "Did you mean 'dara_sym'"),
        (["--aggregation_kwargs", '{"w_min": 2}'], "does not take ['w_min']"),
        (["--success_rate", "1.5"], "`success_rate` is [1.5]"),
        (["--num_processes", "0"], "`num_processes` is 0"),
        (["--num_prompts", "0"], "`num_prompts` is 0"),
        (["--num_promts", "3"], "Did you mean `num_prompts`"),
        (["--max_prompt_length", "3"], "`max_prompt_length` does not exist any more"),
    ],
)
def test_wrong_options(capsys, argv, says):
    with pytest.raises(SystemExit) as end:
        plan.run(argv)
    assert end.value.code == 2
    usage, error = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("trl-dara plan: error: ") and says in error
