"""A run that is killed at the worst moments goes on from its last complete checkpoint as if nothing had happened."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trl_dara.scripts import grpo
from trl_dara.state import last_complete_checkpoint


ROOT = Path(__file__).parents[2]

# Arguments: folder of the model, output folder, when to kill ("", "step" or "saving")
SCRIPT = """
import os
import signal
import sys

import torch

from tests.trainer.support import build, digest, has_q
from trl_dara import MultiRewardGRPOTrainer
from trl_dara.state import last_complete_checkpoint

torch.set_num_threads(1)
model, output_dir, moment = sys.argv[1:]


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


class Killed(MultiRewardGRPOTrainer):
    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if moment == "step" and self.state.global_step == 3:  # the fourth step, after generation
            kill()
        return loss

    def _save_rng_state(self, output_dir):
        # The model and our state are written, `trainer_state.json` is not
        if moment == "saving" and self.state.global_step == 4:
            kill()
        super()._save_rng_state(output_dir)


trainer = build(
    model,
    output_dir,
    [digest, has_q],
    trainer=Killed,
    aggregation="dara_sym",
    reward_weight_schedules={"has_q": {"type": "linear", "start": 0.0, "end": 1.0, "steps": 6}},
    group_filter="has_q",
    max_steps=6,
    save_strategy="steps",
    save_steps=2,
)
trainer.train(resume_from_checkpoint=last_complete_checkpoint(output_dir))
"""


@pytest.fixture(scope="module")
def train(tiny_model, tmp_path_factory):
    """Run the script in a process of its own."""
    script = tmp_path_factory.mktemp("script") / "train.py"
    script.write_text(SCRIPT)

    def run(output_dir: Path, moment: str = "") -> subprocess.CompletedProcess:
        command = [sys.executable, str(script), tiny_model, str(output_dir), moment]
        environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    return run


@pytest.fixture(scope="module")
def uninterrupted(train, tmp_path_factory) -> Path:
    """Folder of a run that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    result = train(folder)
    assert result.returncode == 0, result.stderr
    return folder


def log_history(checkpoint: Path) -> list[dict]:
    return json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]


def comparable(entry: dict) -> dict:
    """The values of a log entry that are not times, NaN where there is none."""
    values = {name: value for name, value in entry.items() if not name.endswith("time")}
    return {name: math.nan if value is None else value for name, value in values.items()}


@pytest.mark.parametrize(("moment", "incomplete"), [("step", None), ("saving", "checkpoint-4")])
def test_killed_and_started_again(train, uninterrupted, tmp_path, moment, incomplete):
    killed = train(tmp_path, moment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert last_complete_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-2")
    if incomplete is not None:
        left = {path.name for path in (tmp_path / incomplete).iterdir()}
        assert {"model.safetensors", "trl_dara_state.json"} <= left and "trainer_state.json" not in left

    again = train(tmp_path)
    assert again.returncode == 0, again.stderr
    assert (f"{incomplete} is incomplete" in again.stderr) is (incomplete is not None)

    ours, expected = log_history(tmp_path / "checkpoint-6"), log_history(uninterrupted / "checkpoint-6")
    assert [entry["step"] for entry in ours] == [1, 2, 3, 4, 5, 6]
    for our_entry, expected_entry in zip(ours, expected, strict=True):
        assert comparable(our_entry) == pytest.approx(comparable(expected_entry), rel=1e-5, abs=1e-5, nan_ok=True)
    our_model, expected_model = (
        load_file(folder / "checkpoint-6" / "model.safetensors") for folder in (tmp_path, uninterrupted)
    )
    for name, value in expected_model.items():
        torch.testing.assert_close(our_model[name], value, rtol=0, atol=1e-5)
    our_state, expected_state = (
        json.loads((folder / "checkpoint-6" / "trl_dara_state.json").read_text())
        for folder in (tmp_path, uninterrupted)
    )
    assert (our_state["run"].pop("resumed_at"), expected_state["run"].pop("resumed_at")) == ([2], [])
    assert our_state == expected_state


REWARD = """
def brevity(completions, **kwargs):
    return [-float(len(completion)) for completion in completions]
"""


@pytest.fixture
def command_line(tiny_model, tmp_path, monkeypatch):
    """The training script with a recipe whose run ends at step 2, in this process."""
    (tmp_path / "rewards_of_the_test.py").write_text(REWARD)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "the cat"}\n{"prompt": "one two"}\n')
    monkeypatch.chdir(tmp_path)
    recipe = f"""
model_name_or_path: {tiny_model}
datasets:
- path: json
  data_files: prompts.jsonl
reward_funcs: [rewards_of_the_test.py:brevity]
output_dir: out
max_steps: 2
save_steps: 1
logging_steps: 1
per_device_train_batch_size: 4
num_generations: 4
max_completion_length: 4
use_cpu: true
bf16: false
report_to: none
"""

    def run(*argv: str, more: str = "") -> None:
        Path("recipe.yaml").write_text(recipe + more)
        parser = grpo.make_parser()
        namespace, _ = grpo.read_options(parser, ["--config", "recipe.yaml", *argv])
        grpo.main(
            grpo.build_script_arguments(parser, namespace),
            *(
                grpo.build(parser, namespace, options)
                for options in (grpo.MultiRewardGRPOConfig, grpo.ModelConfig, grpo.DatasetMixtureConfig)
            ),
        )

    return run


@pytest.mark.parametrize("argv", [["--resume_from_checkpoint", "true"], ["--resume_from_checkpoint", "True"], []])
def test_resume_from_checkpoint_true_means_the_last_complete_one(command_line, tmp_path, capsys, argv):
    more = "" if argv else "resume_from_checkpoint: true\n"
    command_line(*argv, more=more)
    assert "There is no complete checkpoint in out: training starts anew." in capsys.readouterr().out

    (tmp_path / "out" / "checkpoint-2" / "trainer_state.json").write_text('{"epoch"')  # killed while writing
    first = log_history(tmp_path / "out" / "checkpoint-1")
    command_line(*argv, "--max_steps", "3", more=more)
    assert "training starts anew" not in capsys.readouterr().out
    history = log_history(tmp_path / "out" / "checkpoint-3")
    assert [entry["step"] for entry in history] == [1, 2, 3]
    assert history[:1] == first  # with its times: the step was not taken a second time


def test_resume_from_checkpoint_may_be_a_path(command_line, tmp_path):
    command_line()
    before = log_history(tmp_path / "out" / "checkpoint-2")
    command_line("--max_steps", "3", "--resume_from_checkpoint", "out/checkpoint-1")
    history = log_history(tmp_path / "out" / "checkpoint-3")
    assert [entry["step"] for entry in history] == [1, 2, 3]
    assert history[0] == before[0] and history[1] != before[1]  # the second step was taken again
