"""The README's commands for one run, one after the other as they stand there, on a CPU and with a tiny model."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.markdown import README, ROOT, code_blocks


REWARDS = """
def correctness_reward(completions, answer, **kwargs):
    return [float(gold in completion[0]["content"]) for completion, gold in zip(completions, answer)]


def brevity(completions, max_words, **kwargs):
    return [float(len(completion[0]["content"].split()) <= max_words) for completion in completions]
"""
# Instead of a GPU and a pretrained model
SMALL = "use_cpu: true\nbf16: false\nreport_to: none\nmax_steps: 2\nmax_completion_length: 8\nnum_generations: 4\n"


@pytest.fixture
def working_folder(tmp_path, tiny_model):
    (recipe,) = code_blocks(README, "yaml")
    recipe = re.sub("model_name_or_path: .*", f"model_name_or_path: {tiny_model}", recipe)
    (tmp_path / "recipe.yaml").write_text(recipe + SMALL)
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    rows = [{"prompt": [{"role": "user", "content": f"the cat {n}"}], "answer": "a"} for n in range(8)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_a_run_work_one_after_the_other(working_folder):
    (block,) = [block for block in code_blocks(README, "bash") if "trl-dara grpo --config recipe.yaml" in block]
    command_lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [argv[:2] for argv in command_lines] == [
        ["trl-dara", command] for command in ("grpo", "plan", "check", "replay", "report")
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    printed = {}
    for _, command, *options in command_lines:
        if command == "report":
            for name in ("a", "b"):
                shutil.copytree(working_folder / "outputs" / "run", working_folder / "outputs" / name)
        done = subprocess.run(
            [sys.executable, "-m", "trl_dara.cli.main", command, *options],
            cwd=working_folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        printed[command] = done.stdout
    for command in ("grpo", "check", "replay", "report"):
        for channel in ("think_format_reward", "correctness_reward", "brief"):
            assert channel in printed[command], f"{command} does not name {channel}"
    assert "dara_asym" in printed["plan"]
