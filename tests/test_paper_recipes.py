"""The recipes for the paper's tables, read as the training scripts read them, against the paper's settings."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from datasets import Dataset

from train_scripts import math_reasoning, tool_calling
from trl_dara import rewards
from trl_dara.cli.plan import plan_batches


ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "train_scripts/recipes"
SCRIPTS = {"tool_calling": tool_calling, "math_reasoning": math_reasoning}

ALL_RULES = ["grpo", "gdpo", "dvao", "gd2po_hard", "dara_asym", "dara_sym"]
FOUR_RULES = ["grpo", "gdpo", "dara_asym", "dara_sym"]
NORMALIZED_RULES = ["gdpo", "gd2po_hard", "dara_asym", "dara_sym", "static_asym", "static_sym"]

# Table: the files that reproduce it
TABLES = {
    "Table 1": [f"tool_calling/qwen2.5-{size}-instruct/{rule}.yaml" for size in ("1.5b", "3b") for rule in ALL_RULES],
    "Table 2": [f"tool_calling/qwen2.5-1.5b-instruct/{rule}_length.yaml" for rule in FOUR_RULES],
    "Table 3": [
        f"math_reasoning/{model}/{rule}.yaml"
        for model in ("deepseek-r1-distill-qwen-1.5b", "deepseek-r1-distill-qwen-7b", "qwen3-4b-instruct-2507")
        for rule in ALL_RULES
    ],
    "Table 4 (a)": [
        f"math_reasoning/deepseek-r1-distill-qwen-1.5b/{rule}.yaml"
        for rule in ("dara_asym", "dara_sym", "static_asym", "static_sym")
    ],
    "Table 4 (b)": [
        f"math_reasoning/qwen3-4b-{model}-2507/{rule}.yaml"
        for model in ("instruct", "thinking")
        for rule in ("grpo", "dara_asym")
    ],
    "Table 8": [
        f"tool_calling/qwen2.5-1.5b-instruct/{rule}{suffix}.yaml"
        for rule in FOUR_RULES
        for suffix in ("", "_g8", "_g16", "_g32")
    ],
}
FILES = sorted({file for files in TABLES.values() for file in files})

MODELS = {
    "qwen2.5-1.5b-instruct": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-3b-instruct": "Qwen/Qwen2.5-3B-Instruct",
    "deepseek-r1-distill-qwen-1.5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "deepseek-r1-distill-qwen-7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "qwen3-4b-instruct-2507": "Qwen/Qwen3-4B-Instruct-2507",
    "qwen3-4b-thinking-2507": "Qwen/Qwen3-4B-Thinking-2507",
}

SHARED_SETTINGS = {
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "num_iterations": 1,
    "loss_type": "dapo",  # token mean
    "importance_sampling_level": "token",
    "epsilon": 0.2,
    "delta": None,
    "scale_rewards": "group",
    "reward_weights": None,
    "calibration_window": None,  # density of the batch, as in the paper
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_importance_sampling_correction": False,
    "seed": 0,
}
TOOL_SETTINGS = {
    "max_completion_length": 1024,
    "max_steps": 400,
    "epsilon_high": None,
    "beta": 0.0,
    "entropy_coef": 0.001,
    "group_filter": "none",
}
MATH_SETTINGS = {
    "max_completion_length": 8000,
    "max_steps": 800,
    "epsilon_high": 0.28,
    "beta": 0.0005,
    "entropy_coef": 0.0,
    "group_filter": "sum",
}


def header(file: str) -> str:
    """The comment at the top of a recipe, as one line."""
    lines = (RECIPES / file).read_text().split("\n\n", 1)[0].splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines)


def launch_command(file: str) -> list[str]:
    """The command in the header, its lines joined."""
    command = re.search(r"accelerate launch .*?--config \S+", header(file))[0]
    return shlex.split(command.replace("\\ ", " "))


def read(file: str) -> list:
    """The arguments that the script of a recipe reads from it, on a machine without a GPU."""
    script = SCRIPTS[file.split("/")[0]]
    return script.parse(["--config", str(RECIPES / file), "--use_cpu", "--bf16", "False"])


def test_there_is_a_recipe_for_each_line_of_the_tables():
    found = {str(path.relative_to(RECIPES)) for task in SCRIPTS for path in (RECIPES / task).rglob("*.yaml")}
    assert found == set(FILES)


@pytest.mark.parametrize("file", FILES)
def test_the_header_names_the_tables_and_the_command(file):
    named = {table for table in TABLES if table in header(file)}
    assert named == {table for table, files in TABLES.items() if file in files}
    command = launch_command(file)
    options = dict(zip(command[2::2], command[3::2], strict=True))
    assert options == {
        "--config_file": options["--config_file"],
        "--num_processes": "4" if file.startswith("tool") else "8",
        "-m": f"train_scripts.{file.split('/')[0]}",
        "--config": f"train_scripts/recipes/{file}",
    }
    assert (ROOT / options["--config_file"]).is_file()


@pytest.mark.parametrize("file", FILES)
def test_the_header_states_the_differences(file):
    differences = header(file).partition("Differences")[2]
    rule = yaml.safe_load((RECIPES / file).read_text())["aggregation"]
    assert ("normalises over tokens" in differences) == (rule in NORMALIZED_RULES)
    assert ("sum of |A|" in differences) == rule.startswith("dara")
    assert ("population" in differences) == (rule == "dvao")
    expected = ["KL:", "dual clip", "micro-batches"]
    if file.startswith("math"):
        expected += ["d² / 2", "refilled", "768 candidates"]
    for text in expected:
        assert text in differences


@pytest.mark.parametrize("file", FILES)
def test_the_settings_are_those_of_the_paper(file):
    task, folder, name = Path(file).with_suffix("").parts
    script_args, training_args, model_args = read(file)
    settings = SHARED_SETTINGS | (TOOL_SETTINGS if task == "tool_calling" else MATH_SETTINGS)
    assert {key: vars(training_args)[key] for key in settings} == settings
    assert model_args.model_name_or_path == MODELS[folder]
    assert not model_args.use_peft
    assert script_args.max_prompt_length == (2048 if task == "tool_calling" else 1024)
    assert training_args.vllm_max_model_length == script_args.max_prompt_length + training_args.max_completion_length
    assert training_args.aggregation == re.sub("_(length|g8|g16|g32)$", "", name)
    if task == "tool_calling":
        assert script_args.think_length == name.endswith("_length")
    else:
        assert (script_args.task, script_args.dataset_path, script_args.eval_size) == ("deepscaler", None, 200)
        # As many candidates as 2 batches of 768 groups, for the larger models 4
        candidates = 768 * (2 if folder.endswith("1.5b") else 4)
        assert training_args.group_filter_max_rounds * 512 == candidates


@pytest.mark.parametrize("file", FILES)
def test_the_batches_are_those_of_the_paper(file):
    num_processes = int(launch_command(file)[5])
    _, training_args, _ = read(file)
    training_args.generation_batch_size = None  # for one process; the plan is for those of the command
    plan = plan_batches(training_args, num_processes, None)
    completions_per_update = (
        training_args.per_device_train_batch_size * num_processes * training_args.gradient_accumulation_steps
    )
    if file.startswith("tool"):
        group_size = int(file.removesuffix(".yaml").partition("_g")[2]) if re.search(r"_g\d+", file) else 4
        prompts = {4: 512, 8: 256, 16: 128, 32: 64}[group_size]
        assert (plan.num_generations, plan.prompts, plan.completions) == (group_size, prompts, 2048)
        assert (plan.updates_per_generation, completions_per_update) == (4, 512)
    else:
        assert (plan.num_generations, plan.prompts, plan.completions) == (16, 512, 8192)
        assert (plan.updates_per_generation, completions_per_update) == (8, 64 * 16)
        # The group filter needs whole groups on each process
        assert training_args.per_device_train_batch_size * training_args.steps_per_generation % 16 == 0
    assert plan.generations == 100
    assert training_args.logging_steps == plan.updates_per_generation  # one entry per rollout step
    assert training_args.save_steps % plan.updates_per_generation == 0  # resuming starts with a new rollout step
    assert training_args.max_steps % training_args.save_steps == 0
    if "Table 3" in header(file):
        assert 50 * plan.updates_per_generation % training_args.save_steps == 0


@pytest.mark.parametrize("file", FILES)
def test_only_the_static_weights_are_an_option_of_a_rule(file):
    _, training_args, _ = read(file)
    if "static" not in file:
        assert training_args.aggregation_kwargs is None
    else:
        static_weights = training_args.aggregation_kwargs["static_weights"]
        assert static_weights == {
            rewards.boxed_correctness_reward.__name__: 1.0,
            rewards.token_length_reward.__name__: 5.0,
        }


def test_the_recipes_of_a_task_differ_only_in_what_the_tables_compare():
    for task in SCRIPTS:
        varying = {"aggregation", "model_name_or_path", "output_dir"}
        varying |= {"think_length", "num_generations"} if task == "tool_calling" else {"group_filter_max_rounds"}
        varying |= {"aggregation_kwargs"}
        recipes = [yaml.safe_load((RECIPES / file).read_text()) for file in FILES if file.startswith(task)]
        common = [{key: value for key, value in recipe.items() if key not in varying} for recipe in recipes]
        assert all(recipe == common[0] for recipe in common)
        assert len({recipe["output_dir"] for recipe in recipes}) == len(recipes)


@pytest.mark.parametrize(
    "file",
    [
        "tool_calling/qwen2.5-1.5b-instruct/dara_asym_length.yaml",
        "math_reasoning/deepseek-r1-distill-qwen-1.5b/static_sym.yaml",
    ],
)
def test_a_recipe_trains(file, tiny_model, tmp_path):
    if file.startswith("tool"):
        truth = '<think> Count. </think>\n<tool_call>\n{"name": "count", "parameters": {"to": 3}}\n</tool_call>'
        row = {"prompt": [{"role": "user", "content": "one two three"}], "ground_truth": truth}
        Dataset.from_list([row] * 4).to_parquet(tmp_path / "rows.parquet")
        data = f"--dataset_path {tmp_path}/rows.parquet --eval_strategy no --eval_dataset_path {tmp_path}/rows.parquet"
    else:
        rows = [json.dumps({"problem": f"one two {n}", "answer": "3"}) for n in range(204)]
        (tmp_path / "rows.jsonl").write_text("\n".join(rows))
        data = f"--dataset_path {tmp_path}/rows.jsonl"
    smaller = (
        f"--model_name_or_path {tiny_model} {data} --output_dir {tmp_path}/out --use_cpu --bf16 False --use_vllm False "
        "--gradient_checkpointing False --num_generations 2 --per_device_train_batch_size 4 --max_completion_length 4 "
        "--gradient_accumulation_steps 1 --steps_per_generation 1 --max_steps 1 --logging_steps 1 --report_to none"
    )
    script = SCRIPTS[file.split("/")[0]]
    trainer = script.main(*script.parse(["--config", str(RECIPES / file), *smaller.split()]))
    assert trainer.state.global_step == 1
    assert len(trainer.channels.names) == (3 if file.startswith("tool") else 2)
    assert (tmp_path / "out/model.safetensors").exists()


@pytest.mark.parametrize(
    "text",
    [(ROOT / "README.md").read_text(), tool_calling.__doc__, math_reasoning.__doc__],
    ids=["README", "tool", "math"],
)
def test_files_that_commands_name_exist(text):
    names = re.findall(r"train_scripts/[\w./-]+\.yaml", text)
    assert names
    assert [name for name in names if not (ROOT / name).is_file()] == []
