import json
import signal
import subprocess
import sys
import time

import psutil
import pytest
from rich.console import Console

from trl_dara.cli.demo import DemoArguments, make_runs
from trl_dara.demo.progress import progress_line, progress_table
from trl_dara.demo.report import save_figure, summary_table, trailing_mean
from trl_dara.demo.runs import Run, run_all


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
DEMO = [sys.executable, "-m", "trl_dara.cli.main", "demo"]
SMALL = ["--rules", "dara_sym", "gdpo", "--steps", "2", "--prompts", "4"]


def entry(format_reward, correctness, density=0.5, weight=1.0):
    metrics = {"rewards/format_reward/mean": format_reward, "rewards/correctness_reward/mean": correctness}
    for channel in ("format", "correctness"):
        metrics |= {f"channels/{channel}_reward/{name}": density for name in ("density", "energy")}
        metrics[f"channels/{channel}_reward/weight"] = weight
    return metrics


def rendered(renderable, width=80) -> str:
    console = Console(width=width, record=True, force_terminal=False)
    console.print(renderable)
    return console.export_text()


def run_demo(*options):
    return subprocess.run([*DEMO, *options], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("demo")
    return output_dir, run_demo(*SMALL, "--output_dir", str(output_dir))


def test_demo_trains_and_reports(demo):
    output_dir, result = demo
    assert result.returncode == 0, result.stdout + result.stderr
    assert "dara_sym-seed0 step 2/2: format " in result.stdout
    assert "correctness" in result.stdout
    assert (output_dir / "demo.png").read_bytes()[:8] == PNG_SIGNATURE
    for name in ("dara_sym-seed0", "gdpo-seed0"):
        settings, *history = [json.loads(line) for line in (output_dir / f"{name}.jsonl").read_text().splitlines()]
        assert settings["name"] == name
        assert settings["reward_bounds"] == {"format_reward": [0, 1], "correctness_reward": [-3, 3]}
        assert [step["step"] for step in history] == [1, 2]
        assert all(0 <= step["channels/correctness_reward/saturation"] <= 1 for step in history)


def test_rules_start_from_the_same_completions(demo):
    output_dir, _ = demo
    runs = make_runs(DemoArguments(rules=["dara_sym", "gdpo"], steps=2, prompts=4))
    first = [run.history(output_dir)[0] for run in runs]
    for key in ("completions/mean_length", "rewards/correctness_reward/mean", "channels/correctness_reward/density"):
        assert first[0][key] == first[1][key]


def test_finished_runs_are_not_run_again(demo):
    output_dir, _ = demo
    logs = {path: path.stat().st_mtime_ns for path in output_dir.glob("*.jsonl")}
    result = run_demo(*SMALL, "--output_dir", str(output_dir))
    assert result.returncode == 0
    assert "Finished before and not run again: dara_sym-seed0, gdpo-seed0" in result.stdout.replace("\n", " ")
    assert len(logs) == 2
    assert {path: path.stat().st_mtime_ns for path in output_dir.glob("*.jsonl")} == logs


def test_logs_of_other_settings_are_not_replaced(demo):
    output_dir, _ = demo
    files = {path: path.read_bytes() for path in output_dir.iterdir()}
    result = run_demo("--rules", "gdpo", "dvao", "--steps", "3", "--prompts", "4", "--output_dir", str(output_dir))
    assert result.returncode == 2
    assert "made with other settings (steps): gdpo-seed0. They are not replaced: pass another `--output_dir`" in (
        " ".join(result.stderr.split())
    )
    assert {path: path.read_bytes() for path in output_dir.iterdir()} == files


def test_report_knows_the_bounds_of_the_demo(demo):
    output_dir, _ = demo
    command = [*DEMO[:-1], "report", *map(str, sorted(output_dir.glob("*.jsonl")))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "correctness_reward" in result.stdout
    assert "No thresholds for" not in result.stdout


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_the_children(tmp_path, signal_number):
    command = [*DEMO, "--steps", "1000", "--output_dir", str(tmp_path)]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("*.jsonl"))) < 2:
        assert demo.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    children = psutil.Process(demo.pid).children()
    demo.send_signal(signal_number)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "Stopped. Finished runs are kept" in output
    assert len(children) == 2
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rules", "dara_sim"], "Did you mean 'dara_sym'?"),
        (["--steps", "0"], "`steps` is 0. Pass an integer of at least 1."),
        (["--num_generations", "1"], "`num_generations` is 1. Pass an integer of at least 2."),
    ],
)
def test_impossible_options(options, message):
    result = run_demo(*options)
    assert result.returncode == 2
    assert message in result.stderr


def test_failed_run_shows_why(tmp_path):
    with pytest.raises(RuntimeError, match=r"The run broken ended with exit code 1[\s\S]*ValueError"):
        run_all(
            [Run("broken", "gdpo", aggregation_kwargs={"w_max": 2})], tmp_path, parallel=1, refresh=lambda left: None
        )


def test_history_ignores_other_settings_and_half_a_line(tmp_path):
    run = Run("name", "gdpo", steps=2)
    assert run.history(tmp_path) == [] and not run.is_finished(tmp_path)
    settings = json.dumps(vars(run))
    run.log_file(tmp_path).write_text(f'{settings}\n{{"step": 1}}\n{{"st')
    assert run.history(tmp_path) == [{"step": 1}] and not run.is_finished(tmp_path)
    run.log_file(tmp_path).write_text(f'{settings}\n{{"step": 1}}\n{{"step": 2}}\n')
    assert run.is_finished(tmp_path)
    assert Run("name", "gdpo", steps=2, learning_rate=1e-3).history(tmp_path) == []


def test_trailing_mean():
    assert trailing_mean([3, 1, 2, 6], window=3).tolist() == [3, 2, 2, 3]


def test_summary_table():
    runs = [Run("fast", "dara_sym", seed=3, steps=5), Run("slow", "gdpo", seed=3, steps=5)]
    histories = {
        "fast": [entry(reward, 1.5) for reward in (0.1, 0.3, 0.5, 1.0, 1.0)],
        "slow": [entry(reward, 2.0) for reward in (0.0, 0.0, 0.0, 0.3, 0.6)],
    }
    lines = rendered(summary_table(runs, histories)).splitlines()
    assert not any("…" in line for line in lines)  # fits on 80 columns
    rows = [line.replace("│", " ").split() for line in lines if "dara_sym" in line or "gdpo" in line]
    # Trailing means from step 3 on: 0.3, 0.6, 0.83 and 0, 0.1, 0.3
    assert rows == [
        ["dara_sym", "3", "3", "4", "5", "0.580", "1.500"],
        ["gdpo", "3", "5", ">", "5", ">", "5", "0.180", "2.000"],
    ]


def test_progress_fits_on_eighty_columns():
    runs = [Run("dara_asym-seed0", "dara_asym"), Run("gdpo-seed0", "gdpo")]
    histories = {"dara_asym-seed0": [entry(0.25, 1.5, density=0.125, weight=2.5)], "gdpo-seed0": []}
    lines = [line.split() for line in rendered(progress_table(runs, histories)).splitlines()]
    assert lines[1][:2] == ["dara_asym-seed0", "1/60"] and lines[1][-4:] == ["format", "0.25", "0.12", "2.50"]
    assert lines[2] == ["correctness", "1.50", "0.12", "2.50"]
    assert progress_line(runs[0], histories["dara_asym-seed0"]) == (
        "dara_asym-seed0 step 1/60: format 0.25 (density 0.12, weight 2.50), "
        "correctness 1.50 (density 0.12, weight 2.50)"
    )


def test_figure_of_several_seeds(tmp_path):
    runs = [Run(f"{rule}{seed}", rule, seed=seed, steps=4) for rule in ("dara_sym", "gdpo") for seed in (0, 1)]
    histories = {run.name: [entry(0.1 * step, 1.0) for step in range(4)] for run in runs}
    save_figure(runs, histories, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:8] == PNG_SIGNATURE
