"""The real command line in child processes, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from trl_dara.cli.main import main


ROOT = Path(__file__).parents[2]

REWARDS = """
def brevity(completions, target, scale=1.0, **kwargs):
    return [-scale * abs(len(text) - length) for text, length in zip(completions, target)]


async def vowels(completions, **kwargs):
    return [float(sum(text.count(vowel) for vowel in "aeiou")) for text in completions]
"""

RECIPE = """
env:
  TRL_DARA_TEST: from the recipe
model_name_or_path: {model}
datasets:
- path: json
  data_files: prompts.jsonl
reward_funcs:
- own_rewards.py:vowels
- path: own_rewards.brevity
  name: short
  weight: 0.5
  kwargs: {{scale: 0.1}}
aggregation: dara_sym
aggregation_kwargs: {{w_max: 3}}
output_dir: out
max_steps: 2
save_steps: 2
logging_steps: 1
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
num_generations: 4
max_completion_length: 8
learning_rate: 1e-2
use_cpu: true
bf16: false
report_to: none
num_processes: 1
"""


@pytest.fixture
def working_folder(tmp_path, tiny_model):
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(model=tiny_model))
    (tmp_path / "own_rewards.py").write_text(REWARDS)
    rows = [{"prompt": prompt, "target": 5} for prompt in ("one", "the cat", "a dog", "yes no")]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def trl_dara(folder: Path, *argv: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "trl_dara.cli.main", *argv]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def log_history(checkpoint: Path) -> list[dict]:
    return json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]


def test_training_from_a_recipe_and_resuming(working_folder, tiny_model):
    result = trl_dara(working_folder, "grpo", "--config", "recipe.yaml", "--seed", "1")
    assert result.returncode == 0, result.stderr
    out = working_folder / "out"
    assert "dara_sym" in result.stdout and "Model saved to out." in result.stdout
    logs = log_history(out / "checkpoint-2")
    assert [log["step"] for log in logs] == [1, 2]
    for log in logs:
        assert log["aggregation/prompts"] == 2
        for name in ("vowels", "short"):
            assert {f"rewards/{name}/mean", f"channels/{name}/density", f"channels/{name}/weight"} <= set(log)
        expected = 1.0 * log["rewards/vowels/mean"] + 0.5 * log["rewards/short/mean"]
        assert log["reward"] == pytest.approx(expected, abs=1e-4)
    before, after = (load_file(Path(folder) / "model.safetensors") for folder in (tiny_model, out))
    assert any((before[name].float() - after[name].float()).abs().max() > 1e-4 for name in after)

    argv = ("--max_steps", "3", "--save_steps", "3", "--resume_from_checkpoint", "out/checkpoint-2")
    resumed = trl_dara(working_folder, "grpo", "--config=recipe.yaml", *argv)
    assert resumed.returncode == 0, resumed.stderr
    resumed_logs = log_history(out / "checkpoint-3")
    assert resumed_logs[:2] == logs and resumed_logs[2]["step"] == 3


def test_mistake_found_by_the_script_is_one_sentence_and_exit_code_2(working_folder):
    result = trl_dara(working_folder, "grpo", "--config", "recipe.yaml", "--reward_funcs", "own_rewards.py:brevty")
    assert result.returncode == 2
    assert "has no function 'brevty'. Did you mean 'brevity'?" in result.stderr.strip().splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_misspelt_channel_is_found_before_the_model_is_loaded(working_folder, monkeypatch, capsys):
    bounds = ("--model_name_or_path", "nowhere", "--reward_bounds", '{"shrot": [-1, 0]}')
    result = trl_dara(working_folder, "grpo", "--config", "recipe.yaml", *bounds)
    assert result.returncode == 2
    sentence = "error: `reward_bounds` names ['shrot'], but the channels are ['vowels', 'short']."
    assert result.stderr.strip().splitlines()[-1] == f"trl-dara grpo: {sentence}"
    monkeypatch.chdir(working_folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("TRL_DARA_TEST", "")
    for command in ("plan", "check"):
        with pytest.raises(SystemExit) as end:
            main([command, "--config", "recipe.yaml", *bounds])
        assert end.value.code == 2 and sentence in capsys.readouterr().err
    sys.modules.pop("own_rewards")


def test_failing_training_has_its_exit_code_and_one_traceback(working_folder):
    (working_folder / "own_rewards.py").write_text(
        REWARDS + "\n\ndef fails(completions, **kwargs):\n    return 1 / 0\n"
    )
    result = trl_dara(working_folder, "grpo", "--config", "recipe.yaml", "--reward_funcs", "own_rewards.py:fails")
    assert result.returncode == 1
    assert "channel 'fails' failed at step 0: ZeroDivisionError" in result.stderr
    assert "CalledProcessError" not in result.stderr


def test_check_and_plan_take_the_same_recipe(working_folder, monkeypatch, capsys):
    monkeypatch.chdir(working_folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_rewards", raising=False)
    monkeypatch.setenv("TRL_DARA_TEST", "")
    assert main(["plan", "--config", "recipe.yaml"]) == 0
    assert "aggregation dara_sym" in capsys.readouterr().out
    assert main(["check", "--config", "recipe.yaml", "--num_rows", "1"]) == 0
    assert {"vowels", "short"} <= set(capsys.readouterr().out.split())
    sys.modules.pop("own_rewards")
