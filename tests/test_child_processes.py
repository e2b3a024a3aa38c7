"""A folder called `trl_dara` in the working folder, such as a clone, while the package is installed in editable mode."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]

# As the command `trl-dara` starts: the package is imported, its parent is not on the path, nor is the working folder.
PROGRAM = f"""
import sys
sys.path[0] = {str(ROOT)!r}
from trl_dara.cli.main import main
sys.path.pop(0)
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        # The trainer is imported before the data are looked at
        (
            "grpo --model_name_or_path nowhere --reward_funcs think_format_reward --use_cpu --bf16 false",
            "ValueError: Set one of `dataset_name` and `datasets`.",
        ),
        ("demo --rules gdpo --steps 1 --prompts 4 --output_dir out", "gdpo-seed0 step 1/1: format "),
    ],
)
def test_it_does_not_hide_the_package_from_child_processes(tmp_path, argv, says):
    (tmp_path / "trl_dara" / "docs").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", PROGRAM, *argv.split()]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert says in result.stdout + result.stderr, result.stdout + result.stderr
