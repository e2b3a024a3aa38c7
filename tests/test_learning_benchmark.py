"""The learning benchmark: what it measures of a run, how it shows seeds that never get there, and its tasks."""

import dataclasses
import json
import os
import subprocess
import sys

import pandas as pd
import pytest

from tests.markdown import ROOT
from train_scripts.benchmark import arithmetic
from train_scripts.benchmark.experiments import EXPERIMENTS
from train_scripts.benchmark.learning import make_runs
from train_scripts.benchmark.learning_report import markdown, measure, measure_run
from train_scripts.benchmark.running import make_parser
from trl_dara.demo.runs import Run, run_all


def history(sparse: list[float], dense: list[float]) -> list[dict[str, float]]:
    return [
        {"rewards/format_reward/mean": s, "rewards/correctness_reward/mean": d}
        for s, d in zip(sparse, dense, strict=True)
    ]


def test_measures_of_a_run():
    measures = measure_run(history([0.0] * 10 + [1.0] * 40, [2.0] * 40 + [3.0] * 10), ("format", "correctness"))
    # the mean of 3 steps is 1/3 at step 11, 2/3 at step 12 and 1 at step 13
    assert [measures[f"steps to {level}"] for level in (0.3, 0.5, 0.8, 0.9)] == [11, 12, 13, 13]
    # the mean of 10 steps is 0.8 at step 18, 0.9 at step 19 and 1 at step 20
    assert [measures[f"stable at {level} %"] for level in (80, 90, 95, 99)] == [18, 19, 20, 20]
    assert (measures["mean format"], measures["final format"]) == (0.8, 1.0)
    assert (measures["mean correctness"], measures["final correctness"]) == (2.2, 3.0)


def write_runs(folder, steps_of_zeros: dict[tuple[str, int], int]) -> dict:
    runs = {}
    for (rule, seed), zeros in steps_of_zeros.items():
        run = EXPERIMENTS["A"].run("A", rule, seed)
        runs["A", rule, seed] = run
        entries = history([0.0] * zeros + [1.0] * (run.steps - zeros), [0.0] * run.steps)
        lines = [dataclasses.asdict(run), *entries]
        run.log_file(folder).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return runs


def test_tables_show_every_seed_and_no_mean_over_some(tmp_path):
    zeros = {("gdpo", 0): 20, ("gdpo", 1): 60, ("dara_sym", 0): 10, ("dara_sym", 1): 30}
    report = markdown(measure(write_runs(tmp_path, zeros), tmp_path))
    row, _ = [line for line in report.splitlines() if line.startswith("| steps to 0.8 ")]
    assert row == "| steps to 0.8 | – (23 never) | **23.0** (13 33) |"
    assert "seeds 0, 1" in report


def test_ratios_are_those_of_the_seeds(tmp_path):
    zeros = {("gdpo", 0): 17, ("gdpo", 1): 37, ("dara_sym", 0): 7, ("dara_sym", 1): 27}
    report = markdown(measure(write_runs(tmp_path, zeros), tmp_path))
    _, row = [line for line in report.splitlines() if line.startswith("| steps to 0.8 ")]
    assert row == "| steps to 0.8 | **0.62** [0.50, 0.75], 0.50 to 0.75 |"  # 10 / 20 and 30 / 40


def test_a_reference_that_never_gets_there_gives_a_bound(tmp_path):
    zeros = {("gdpo", 0): 17, ("gdpo", 1): 60, ("dara_sym", 0): 7, ("dara_sym", 1): 17}
    report = markdown(measure(write_runs(tmp_path, zeros), tmp_path))
    _, row = [line for line in report.splitlines() if line.startswith("| steps to 0.8 ")]
    assert row == "| steps to 0.8 | at most **0.41** [0.33, 0.50], 0.33 to 0.50 |"  # 10 / 20 and 20 / 61
    _, row = [line for line in report.splitlines() if line.startswith("| stable at 95 % ")]
    assert row == "| stable at 95 % | at most **0.64** [0.63, 0.66], 0.63 to 0.66 |"  # 17 / 27 and 27 / 41


def test_overview_of_several_experiments(tmp_path):
    zeros = {("gdpo", 0): 17, ("gdpo", 1): 37, ("dara_sym", 0): 7, ("dara_sym", 1): 27}
    results = measure(write_runs(tmp_path, zeros), tmp_path)
    report = markdown(pd.concat([results, results.assign(experiment="G8")]))
    head, of_a, of_g8 = report.splitlines()[0], *report.splitlines()[2:4]
    assert head == "| | `gdpo`: steps to 0.8 | `dara_sym`: ratio |"
    cells = " | **30.0** (20 40) | **0.62** [0.50, 0.75], 0.50 to 0.75 |"
    assert "ratio" not in markdown(pd.concat([results, results.assign(experiment="G8")]).query("rule != 'gdpo'"))
    assert of_a.startswith("| A: ") and of_g8.startswith("| G8: ") and of_a.endswith(cells) and of_g8.endswith(cells)


def test_runs_are_grouped_by_seed_and_have_the_library_s_defaults():
    runs = make_runs(["A", "B"], ["gdpo", "static_sym"], [0, 1])
    assert list(runs)[:4] == [("A", "gdpo", 0), ("A", "static_sym", 0), ("A", "gdpo", 1), ("A", "static_sym", 1)]
    assert {run.calibration_window for run in runs.values()} == {None} and Run("demo", "gdpo").calibration_window == 64
    assert runs["B", "static_sym", 0].aggregation_kwargs == {
        "static_weights": {"length_reward": 2, "correctness_reward": 1}
    }


@pytest.mark.parametrize("key", ["A3", "B"])
def test_a_short_run_of_each_task(key, tmp_path):
    run = dataclasses.replace(EXPERIMENTS[key].run(key, "saw", 0), steps=2, prompts=4)
    command = [
        sys.executable,
        "-m",
        "train_scripts.benchmark.training",
        json.dumps(dataclasses.asdict(run)),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert run.is_finished(tmp_path)
    measures = measure_run(run.history(tmp_path), EXPERIMENTS[key].channels)
    assert all(f"mean {channel}" in measures for channel in EXPERIMENTS[key].channels)


def test_rewards_of_sums():
    completions = [[{"content": text}] for text in ("hm so = 7", "hm so = 7 hm", "so = 8", "7", "so = 17")]
    assert arithmetic.correctness_reward(completions, answer=[7] * 5) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert arithmetic.length_reward(completion_ids=[[0] * 12, [0] * 13]) == [1.0, 0.0]


def test_runs_at_a_time_are_at_least_one(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        make_parser("", "learning").parse_args(["--parallel", "0"])
    assert "--parallel: '0' is not a whole number of at least 1" in capsys.readouterr().err
    with pytest.raises(ValueError, match="`parallel` is 0"):
        run_all([Run("demo", "gdpo")], tmp_path, parallel=0, refresh=lambda left: None)


def test_what_is_finished_already_is_reported_at_once(tmp_path):
    runs = list(write_runs(tmp_path, {("gdpo", 0): 10, ("gdpo", 1): 10}).values())
    left = []
    run_all(runs, tmp_path, parallel=1, refresh=left.append)
    assert left == [0]
