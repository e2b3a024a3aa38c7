"""What the README says is what the code does."""

import importlib.util
import inspect
import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from datasets import Dataset

from trl_dara import AGGREGATIONS, MultiRewardGRPOConfig, MultiRewardGRPOTrainer, compute_advantages, rewards
from trl_dara.cli.main import SUBCOMMANDS


README = (Path(__file__).parents[1] / "README.md").read_text()
COMMON = {"eps", "window", "batch_norm", "completion_lengths"}  # explained once, below the table


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def block_with(text: str) -> str:
    (block,) = [block for block in code_blocks("python") if text in block]
    return block


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
    exec(block_with("result.advantages, result.density"), names)
    assert names["result"].density.tolist() == [1.0, 1.0]


def test_recipe_names_options_that_exist():
    (recipe,) = [yaml.safe_load(block) for block in code_blocks("yaml")]
    options = set(MultiRewardGRPOConfig.__dataclass_fields__) | {"model_name_or_path", "datasets", "reward_funcs"}
    assert set(recipe) <= options


@pytest.mark.parametrize("command", sorted(set(re.findall(r"trl-dara (\w[\w-]*)", README)) - {"or"}))
def test_commands_exist(command):
    assert command in SUBCOMMANDS


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ([\w.]+)", README))))
def test_modules_exist(module):
    assert importlib.util.find_spec(module)


def test_files_exist():
    for path in re.findall(r"(?:train_scripts|trl_dara|tests)/[\w/.-]*[\w/]", README):
        assert (Path(__file__).parents[1] / path).exists(), path


def test_make_targets_exist():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z][\w-]*)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_table_of_small_batches_is_that_of_the_results_file():
    results = Path(__file__).parents[1] / "train_scripts" / "benchmark" / "results" / "small_batches.md"
    table, _ = results.read_text().split("\n\n", 1)
    assert table in README
