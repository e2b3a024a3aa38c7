"""The pages in `docs/`: every name in them exists, every output in them is what the code prints, every number is measured."""

import contextlib
import fnmatch
import inspect
import io
import math
import re

import pandas as pd
import pytest
import torch
import yaml
from rich.console import Console
from transformers import TrainerControl, TrainerState
from trl import GRPOTrainer, ModelConfig
from trl.trainer import grpo_trainer
from trl.trainer.utils import nanstd

import trl_dara
from tests.markdown import PAGES, README, ROOT, code_blocks, commands, inline_code, parse, squeezed
from tests.trainer.support import PROMPTS, build, has_a, has_q, prompts, scripted
from train_scripts.benchmark.candidates import CANDIDATES, candidate
from trl_dara import AGGREGATIONS, MultiRewardGRPOConfig, compute_advantages, rewards
from trl_dara.cli import replay
from trl_dara.cli.eval_bfcl import BFCLArguments
from trl_dara.cli.eval_math import MathArguments
from trl_dara.cli.generation import GenerationArguments
from trl_dara.cli.options import REMOVED
from trl_dara.evaluation.callback import JointEvaluationCallback
from trl_dara.live_view import ChannelView
from trl_dara.metrics import channel_metrics


G = 8


# Runs in which something goes wrong, as completions tables: step, group and completion say what the rewards are


def recorded(num_steps: int, num_groups: int, **rewards) -> pd.DataFrame:
    rows = [(s, b, g) for s in range(1, num_steps + 1) for b in range(num_groups) for g in range(G)]
    table = {"step": [s for s, _, _ in rows], "prompt": [f"prompt {s} {b}" for s, b, _ in rows]}
    return pd.DataFrame(table | {name: [float(reward(*row)) for row in rows] for name, reward in rewards.items()})


def spread(s, b, g):
    """Eight values from -3 to 3, in an order that has nothing to do with the other rewards."""
    return -3 + 6 * (g * 3 % 8) / 7


SYMPTOMS = {
    "easy and impossible": recorded(12, 4, format=lambda s, b, g: s > 6 or g > 0, accuracy=lambda s, b, g: 0),
    "starved": recorded(6, 20, format=lambda s, b, g: b == 0 and g < 4, correctness=spread),
    "drowned": recorded(6, 20, format=lambda s, b, g: g < 4, correctness=spread),
    "dead": recorded(6, 16, accuracy=lambda s, b, g: b % 2),
    "not scored": recorded(4, 16, judge=lambda s, b, g: math.nan, format=lambda s, b, g: g < 4),
}


def live_lines(table: pd.DataFrame) -> str:
    """What the live view prints of a recorded run."""
    names = list(table.columns[2:])
    view = ChannelView(names)
    view.console = Console(width=1000)
    state = TrainerState(is_world_process_zero=True)
    with view.console.capture() as capture:
        for step, rows in table.groupby("step"):
            rewards = torch.tensor(rows[names].to_numpy())  # (N, K)
            result = compute_advantages(rewards, G, "dara_asym")
            weights = torch.ones(len(names))  # (K,)
            logs = channel_metrics(rewards.view(-1, G, len(names)), result, weights, names, [None] * len(names))
            logs |= {f"rewards/{name}/{key}": rows[name].agg(key) for name in names for key in ("mean", "std")}
            state.global_step = step
            logs = {key: None if math.isnan(value) else value for key, value in logs.items()}  # as TRL logs NaN
            view.on_log(None, state, TrainerControl(), logs=logs)
    return capture.get()


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> str:
    """What `trl-dara replay` and the live view say of the runs, on one line."""
    folder = tmp_path_factory.mktemp("recorded")
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setenv("COLUMNS", "1000")
        for name, table in SYMPTOMS.items():
            table.to_parquet(folder / f"{name}.parquet")
            assert replay.run([str(folder / f"{name}.parquet")]) == 0
            print(live_lines(table))
    return squeezed(output.getvalue())


def quoted(page: str) -> list[str]:
    return [line for block in code_blocks(PAGES[page], "text") for line in block.splitlines()]


@pytest.mark.parametrize("line", quoted("symptoms.md"))
def test_output_on_the_page_of_symptoms_is_what_is_printed(printed, line):
    assert squeezed(line) in printed


def test_every_symptom_is_in_the_list_of_its_page():
    page = PAGES["symptoms.md"]
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    listed = re.findall(r"^- \[(.+)\]\(#(.+)\)$", page, re.MULTILINE)
    assert listed == [(heading, anchor(heading)) for heading in headings]


def anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


# Names: each code in backticks is something of this library or of TRL, or is listed here

NO_NAMES = {
    "symptoms.md": [
        "channels/{name}/...",
        "aggregation/...",
        "completion",
        'completion[0]["content"]',
        '"mode": "skip"',
    ],
    "which_rule.md": ["1 + (w - 1)(1 - p)", "none", "any", "sum", "format_reward"],
    "gdpo_elsewhere.md": ["std + eps", "sqrt(var + 1e-8)"],
    "evaluation.md": ["transformers", "vllm", "vllm_server", "score", "aggregate", "cases.csv"],
}
OF_OTHER_PROJECTS = [
    *["apply_gdpo", "adv_estimator: gdpo", "algorithm.adv_estimator=gdpo", "adv_estimator.name: gdpo", "rl: gdpo"],
    *["scale_rewards: gdpo", "gdpo_reward_weights", "gdpo_reward_keys", "use_leave_one_out_baseline"],
]


@pytest.fixture(scope="module")
def metrics(tiny_model, tmp_path_factory) -> set[str]:
    """What a run with everything logs, with `{name}` for the channels, and what TRL logs with vLLM."""
    trainer = build(
        tiny_model,
        tmp_path_factory.mktemp("run"),
        [has_a, has_q],
        eval_dataset=prompts(PROMPTS[:4]),
        eval_strategy="steps",
        eval_steps=1,
        max_steps=1,
        reward_bounds={"has_a": [0, 1], "has_q": [0, 1]},
        group_filter="any",
    )
    trainer.add_callback(JointEvaluationCallback(trainer))
    trainer.train()
    logged = {key for entry in trainer.state.log_history for key in entry}
    with_vllm = set(re.findall(r'"(sampling/[^"]+)"', inspect.getsource(grpo_trainer)))
    return with_vllm | {re.sub("has_a|has_q", "{name}", key) for key in logged}


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(page, metrics):
    known = {
        *NO_NAMES[page],
        *OF_OTHER_PROJECTS,
        "None",
        "TypeError",
        "normalize_then_sum",
        *metrics,
        *AGGREGATIONS,
        *REMOVED,
    }
    rules = (*AGGREGATIONS.values(), candidate)
    known |= {name for rule in rules for name in inspect.signature(rule).parameters} | set(CANDIDATES)
    known |= set(vars(GRPOTrainer)) | set(trl_dara.__all__) | set(rewards.__all__) | {"JointEvaluationCallback"}
    kinds = (MultiRewardGRPOConfig, ModelConfig, MathArguments, BFCLArguments, GenerationArguments)
    known |= {field for kind in kinds for field in kind.__dataclass_fields__}
    unknown = []
    for code in set(inline_code(PAGES[page])) - known:
        metric = re.sub(r"channels/\w+/", "channels/{name}/", code)
        option, value = re.fullmatch(r"(\w*)(?:: |=)?(.*)", code).groups()
        if code.startswith("--") and set(re.findall(r"--(\w+)", code)) <= known:
            continue
        if code.startswith(("trl-dara ", "make ")) or metric in metrics or fnmatch.filter(AGGREGATIONS, code):
            continue
        if option == "aggregation_kwargs" and set(yaml.safe_load(value)) <= known:
            continue
        if option in known and (option != "aggregation" or value in AGGREGATIONS):
            continue
        if not ((ROOT / code).is_file() or (ROOT / f"{code.replace('.', '/')}.py").is_file()):
            unknown.append(code)
    assert unknown == []


def first_log(model, folder, *reward_funcs, **given) -> dict[str, float]:
    trainer = build(model, folder, list(reward_funcs), max_steps=1, **given)
    trainer.train()
    return trainer.state.log_history[0]


def test_a_loss_of_0_with_and_without_a_signal(tiny_model, tmp_path):
    log = first_log(tiny_model, tmp_path, has_a)
    assert abs(log["loss"]) < 0.1 < log["grad_norm"]
    log = first_log(tiny_model, tmp_path, scripted("always", [1.0] * 16))
    assert log["loss"] == log["grad_norm"] == 0 and log["aggregation/frac_groups_inactive"] == 1


def test_rewards_with_a_constant_sum(tiny_model, tmp_path):
    first, second = scripted("first", [1.0, 0.0] * 8), scripted("second", [0.0, 1.0] * 8)
    log = first_log(tiny_model, tmp_path, first, second, aggregation="gdpo")
    assert log["frac_reward_zero_std"] == 1 and log["aggregation/frac_groups_inactive"] == 0
    assert log["grad_norm"] == 0
    second = scripted("second", [0.0, 1.0] * 2 + [1.0] * 12)  # differs in one group of four
    log = first_log(tiny_model, tmp_path, first, second, aggregation="dara_sym")
    assert log["channels/second/weight"] == 2 and log["grad_norm"] > 0


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith("https://"):
            continue
        file, _, fragment = target.partition("#")
        path = (ROOT / "docs" / file).resolve() if file else ROOT / "docs" / page
        assert path.is_file(), target
        if fragment:
            assert fragment in map(anchor, re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)), target


def test_the_readme_links_every_page():
    for page in PAGES:
        assert f"(docs/{page})" in README


@pytest.mark.parametrize("command", sorted({command for page in PAGES.values() for command in commands(page)}))
def test_commands_are_taken_by_their_parsers(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(code_blocks(README, "yaml")[0])
    parse(command)


def test_the_python_blocks_are_those_that_are_executed_here():
    assert {page for page in PAGES if code_blocks(PAGES[page], "python")} == {"gdpo_elsewhere.md", "evaluation.md"}


def test_token_normalisation_moves_a_group_without_a_signal():
    (block,) = code_blocks(PAGES["gdpo_elsewhere.md"], "python")
    names = {}
    exec(block, names)
    assert names["by_completion"][4:].tolist() == [0.0] * 4
    torch.testing.assert_close(names["by_token"][4:], torch.full((4,), -0.418), rtol=0, atol=5e-4)


def test_statistics_of_a_curve():
    (block,) = code_blocks(PAGES["evaluation.md"], "python")
    names = {"format_rewards": [0.0] * 20 + [1.0] * 40, "accuracy_per_question": [0.0, 1.0] * 50}
    *calls, interval = [line for line in block.splitlines() if line.startswith(("stable", "first", "boot"))]
    exec(block, names)
    low, high = eval(interval, names)
    assert 0.3 < low < 0.5 < high < 0.7
    assert eval(calls[1], names) == 21


def test_rounding_error_of_a_constant_reward_is_as_large_as_the_page_says():
    rewards = torch.full((1, 8, 1), 0.3)  # (B, G, K)
    residue = (rewards - torch.nanmean(rewards, dim=1, keepdim=True)).abs().max().item()
    std = nanstd(rewards, dim=1).item()
    for eps, said in [(1e-4, "0.0003"), (1e-6, "0.03"), (1e-8, "0.7")]:
        assert residue == 0 or 0.5 < residue / (std + eps) / float(said) < 2  # some processors round otherwise
        assert said in PAGES["gdpo_elsewhere.md"]
    assert not compute_advantages(rewards.view(8, 1), 8, "gdpo").advantages.any()
