"""What the README says is what the code does."""

import importlib.util
import inspect
import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
import yaml
from datasets import Dataset
from trl import GRPOTrainer

from tests.markdown import README, ROOT, code_blocks, commands, parse
from tests.trainer.support import prompts, settings
from trl_dara import AGGREGATIONS, MultiRewardGRPOConfig, MultiRewardGRPOTrainer, compute_advantages, rewards
from trl_dara.cli.main import SUBCOMMANDS
from trl_dara.rewards.worker import find_worker


COMMON = {"eps", "window", "batch_norm", "completion_lengths"}  # explained once, below the table

# A line of each Python block, by which the tests below find the one that they run
EXECUTED = [
    "load_dataset(",
    "def best_channel",
    "result.density",
    "JointEvaluationCallback",
    "in_worker_process",
]


def block_with(text: str, language: str = "python") -> str:
    (block,) = [block for block in code_blocks(README, language) if text in block]
    return block


def test_every_python_block_is_executed_below():
    for block in code_blocks(README, "python"):
        assert sum(line in block for line in EXECUTED) == 1, block


def table_rows(header: str) -> list[list[str]]:
    lines = README.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(header))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_table_of_rules_is_complete():
    own = {}
    for cells in table_rows("| `aggregation` |"):
        for rule in re.findall(r"`(\w+)`", cells[0]):
            own[rule] = set(re.findall(r"`(\w+)`", cells[3]))
    expected = {}
    for name, rule in AGGREGATIONS.items():
        options = inspect.signature(rule).parameters.values()
        expected[name] = {option.name for option in options if option.kind is option.KEYWORD_ONLY} - COMMON
        if any(option.kind is option.VAR_KEYWORD for option in options):  # gd2po_hard hands its options on
            expected[name] = own[name]
    assert own == expected


def test_table_of_reward_functions_is_complete():
    arguments = {}
    for cells in table_rows("| reward function |"):
        for name in re.findall(r"`(\w+)`", cells[0]):
            arguments[name] = set(re.findall(r"`(\w+)`", cells[1]))
    expected = {}
    for name in filter(lambda name: name.endswith("_reward"), rewards.__all__):
        required = [p.name for p in inspect.signature(vars(rewards)[name]).parameters.values() if p.default is p.empty]
        expected[name] = set(required) - {"completions", "completion_ids", "kwargs"}
    assert arguments == expected


def test_table_of_metrics_is_complete(tiny_model, tmp_path):
    documented = set()
    for cells in table_rows("| metric |"):
        documented |= set(re.findall(r"`([^`]+)`", cells[0]))

    def letters(completions, **kwargs):
        return [len(set(completion[0]["content"])) / 10 for completion in completions]

    args = MultiRewardGRPOConfig(
        str(tmp_path),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=6,
        max_steps=1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
        use_cpu=True,
        reward_bounds={"letters": [0, 1]},
        reward_weight_schedules={"letters": {"type": "constant", "value": 1.0}},
        group_filter="any",
    )
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"the cat {n}"}] for n in range(8)]})
    trainer = MultiRewardGRPOTrainer(tiny_model, letters, args, dataset)
    trainer.train()
    ours = ("channels/", "aggregation/", "group_filter/")
    logged = {key.replace("letters", "{name}") for key in trainer.state.log_history[0] if key.startswith(ours)}
    assert logged == documented


def test_fifteen_lines_in_a_script_train(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": [{"role": "user", "content": f"the cat {n}"}], "answer": "a"} for n in range(8)]
    Path("questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    block = block_with("load_dataset(")
    assert len([line for line in block.splitlines() if line.strip()]) <= 20
    settings = (
        "use_cpu=True, bf16=False, report_to='none', max_steps=1, max_completion_length=6, num_generations=4, "
        "save_strategy='no'"
    )
    script = block.replace("Qwen/Qwen2.5-0.5B-Instruct", tiny_model).replace(
        '    aggregation="dara_asym",\n',
        f'    aggregation="dara_asym",\n    args=__import__("trl_dara").MultiRewardGRPOConfig("out", {settings}),\n',
    )
    names = {}
    exec(script, names)
    assert names["trainer"].state.global_step == 1


def test_own_rule_and_use_without_a_trainer():
    names = {}
    exec(block_with("def best_channel"), names)
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    result = compute_advantages(rewards, 4, names["best_channel"], bonus=2.0)
    assert result.advantages.argmax() in (0, 2) and result.advantages[1] < 0
    exec(block_with("result.density"), names)
    assert names["result"].density.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("side", "-+")
def test_the_two_lines_from_grpo_trainer_train_before_and_after(tiny_model, tmp_path, side):
    lines = block_with("GRPOTrainer", "diff").splitlines()
    assert [line[0] for line in lines if line.startswith(("-", "+"))] == ["-", "+"] * 2
    script = "\n".join(line[1:] for line in lines if not line or line[0] in (" ", side))
    names = {
        "model": tiny_model,
        "format_reward": lambda completions, **kwargs: [float("a" in completion) for completion in completions],
        "correctness_reward": lambda completions, **kwargs: [float(len(completion)) for completion in completions],
        "dataset": prompts(),
    }
    given = {
        key: value
        for key, value in settings("out", max_steps=1).items()
        if key not in ("output_dir", "num_generations")
    }
    script = script.replace('GRPOConfig("out"', f"GRPOConfig({str(tmp_path)!r}, **{given!r}")
    exec(script, names)
    assert type(names["trainer"]) is {"-": GRPOTrainer, "+": MultiRewardGRPOTrainer}[side]
    assert names["trainer"].state.global_step == 1


def test_the_joint_evaluation_of_a_script_chooses_the_best_checkpoint(tiny_model, tmp_path):
    def format(completions, **kwargs):
        return [1.0] * len(completions)

    def correctness(completions, **kwargs):
        return [3.0 if index % 2 else -3.0 for index in range(len(completions))]

    given = settings(tmp_path, max_steps=1, eval_steps=1, save_steps=1)
    overridden = ("output_dir", "save_strategy")
    script = block_with("JointEvaluationCallback").replace('"out",', f"{str(tmp_path)!r}, **given,")
    script = script.replace("    eval_steps=50,\n    save_steps=50,\n", "")
    names = {
        "given": {key: value for key, value in given.items() if key not in overridden},
        "model": tiny_model,
        "format": format,
        "correctness": correctness,
        "train_dataset": prompts(),
        "eval_dataset": prompts(),
    }
    exec(script, names)
    names["trainer"].train()
    assert names["trainer"].state.best_metric == 0.5


def test_a_reward_for_a_worker_process():
    names = {}
    exec(block_with("in_worker_process"), names)
    assert find_worker(names["accuracy"]) is not None


def test_recipe_names_options_that_exist():
    (recipe,) = [yaml.safe_load(block) for block in code_blocks(README, "yaml")]
    options = set(MultiRewardGRPOConfig.__dataclass_fields__) | {"model_name_or_path", "datasets", "reward_funcs"}
    assert set(recipe) <= options


@pytest.mark.parametrize("command", sorted(set(re.findall(r"trl-dara (\w[\w-]*)", README)) - {"or"}))
def test_commands_exist(command):
    assert command in SUBCOMMANDS


@pytest.mark.parametrize("command", commands(README))
def test_commands_are_taken_by_their_parsers(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(block_with("", "yaml"))
    parse(command)


def test_small_batches_are_explained_where_the_script_and_the_recipe_are():
    quick_start = README[README.index("### In your script") : README.index("### On the command line")]
    assert "(#small-batches)" in quick_start and "\n### Small batches\n" in README
    defaults = MultiRewardGRPOConfig("out", use_cpu=True, bf16=False)
    assert defaults.generation_batch_size == defaults.num_generations == 8  # one prompt


def test_extras_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"trl-dara\[([\w-]+)\]", README)) <= set(extras)


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ([\w.]+)", README))))
def test_modules_exist(module):
    assert importlib.util.find_spec(module)


def test_files_exist():
    for path in re.findall(r"(?:train_scripts|trl_dara|tests)/[\w/.-]*[\w/]", README):
        assert (ROOT / path).exists(), path


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z][\w-]*)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
