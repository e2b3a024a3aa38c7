"""Two gloo processes reach what one process reaches: advantages, density, weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest


ROOT = Path(__file__).parents[2]
TIME_LIMIT = 120  # a hang is a failure


def launch(tmp_path: Path, model: str, num_processes: int, *options: str, script: str = "fixed_rewards") -> list[dict]:
    """Run a child script of this folder and return what each rank wrote."""
    out = tmp_path / f"processes_{num_processes}"
    # accelerate starts several processes for `--multi_gpu` only; with `use_cpu` they meet over gloo
    several = ["--multi_gpu", "--num_processes", str(num_processes), "--main_process_port", "0"]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines", "1", "--mixed_precision", "no"]
    command += ["--dynamo_backend", "no", *(several if num_processes > 1 else ["--num_processes", "1", "--cpu"])]
    command += ["-m", f"tests.distributed.{script}", model, str(out), *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIME_LIMIT, env=os.environ)
    assert result.returncode == 0, result.stderr[-3000:]
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(num_processes)]


# 12 completions in groups of 4 put the second group half on each of two processes
@pytest.mark.parametrize("completions", [16, 12])
def test_same_advantages_density_and_weights(tmp_path, tiny_model, completions):
    options = ("--completions", str(completions))
    (one,) = launch(tmp_path, tiny_model, 1, *options)
    two = launch(tmp_path, tiny_model, 2, *options)

    assert len(one["advantages"]) == 3
    for step, expected in enumerate(one["advantages"]):
        assert two[0]["advantages"][step] + two[1]["advantages"][step] == pytest.approx(expected, abs=1e-6)
    assert any(abs(advantage) > 0.1 for advantage in one["advantages"][0])

    keys = [
        key
        for key in one["logs"][0]
        if key.startswith(("channels/", "aggregation/", "rewards/")) and "time" not in key
    ]
    assert any("scored_by_the_first_half/coverage" in key for key in keys)
    for step, expected in enumerate(one["logs"]):
        for rank in range(2):
            # Only the main process's log history is meant for reading, but our metrics are the same on all of them
            logged = two[rank]["logs"][step]
            assert {key: logged[key] for key in keys} == {key: pytest.approx(expected[key], abs=1e-6) for key in keys}
        assert two[0]["logs"][step]["only_on_rank_0"] == 1.0

    table = pd.read_parquet(tmp_path / "processes_2.run" / "completions" / "completions_00003.parquet")
    assert table["advantage"].tolist() == pytest.approx(one["advantages"][2], abs=1e-6)


def test_joint_success_counts_each_completion_once(tmp_path, tiny_model):
    for rank in launch(tmp_path, tiny_model, 2, script="joint_evaluation"):
        assert rank["rows"] == 16  # five prompts twice, and to complete the last batch the first three again
        assert rank["metrics"]["eval_joint"] == 3 / 10
        assert rank["metrics"]["eval_channels/low_number/success"] == 6 / 10
        assert rank["metrics"]["eval_channels/first_of_two/success"] == 5 / 10
