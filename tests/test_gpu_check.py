"""The script for a machine with a GPU, tried on the CPU: what it runs there is the same, in float32."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from train_scripts.gpu_check import Check, list_checks, main, run_check


ROOT = Path(__file__).parents[1]
OPTIONS = argparse.Namespace(device="cpu", rules=["dara_asym"], steps=1, pairs=1)


def test_checks_of_a_gpu():
    names = [str(check) for check in list_checks("cuda", with_vllm=True)]
    kinds = [f"{precision} {weights}" for precision in ("bf16", "fp16") for weights in ("full", "lora")]
    assert names == [
        "device",
        *(f"train {kind}" for kind in kinds),
        "step_time bf16 full",
        *(f"colocate {kind}" for kind in kinds),
    ]
    assert [str(check) for check in list_checks("cuda", with_vllm=False)] == names[:6]


@pytest.mark.slow
def test_short_run_on_the_cpu_goes_on_past_what_fails():
    argv = "--device cpu --rules no_rule dara_asym gd2po_hard --steps 1 --pairs 1".split()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "train_scripts.gpu_check", *argv]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    report = json.loads(result.stdout)  # nothing else is on the standard output
    checks = {check["check"]: check for check in report["checks"]}
    runs = [f"train float32 {weights} {rule}" for weights in ("full", "lora") for rule in argv[3:6]]
    assert [name for name in checks if not name.startswith("colocate")] == ["device", *runs, "step_time float32 full"]
    for name, check in checks.items():
        assert f"{name}: " in result.stderr  # the progress
        if name.startswith("colocate"):  # where vLLM is installed
            continue
        assert check["passed"] == ("no_rule" not in name), check
        if "no_rule" in name:
            assert "Unknown `aggregation` 'no_rule'" in check["error"] and check["traceback"]
        elif name.startswith("train"):
            assert 0 < check["largest_advantage_error"] < 1e-5  # float32 is not float64
            assert len(check["losses"]) == 1 and check["weight_change"] > 0
            assert max(check["density"]["calls_a_tool"]) > 0
    step_time = checks["step_time float32 full"]
    assert min(step_time["ours_ms"], step_time["trl_ms"]) > step_time["own_code_ms"] > 0
    assert report["device"] == "cpu" and report["versions"]["trl"] and report["seconds"] > 0
    assert result.returncode == 1 and not report["passed"]


@pytest.mark.slow
def test_exit_code_is_0_when_all_passed(monkeypatch, capsys):
    monkeypatch.setattr("train_scripts.gpu_check.list_checks", lambda *_: [Check("device")])
    assert main(["--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]


@pytest.mark.slow
def test_without_a_gpu_nothing_else_is_tried(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["--device", "cuda"]) == 1
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert check["check"] == "device" and "there is no GPU here" in check["error"] and "traceback" not in check


@pytest.mark.slow
def test_process_that_ends_by_itself_is_a_failure():
    (result,) = run_check(Check("no_kind"), OPTIONS, deadline=time.monotonic() + 100)
    assert result == {"check": "no_kind float32 full", "passed": False, "error": "the process ended with exit code 1"}


def test_process_that_does_not_end_in_time_is_killed():
    (result,) = run_check(Check("train"), OPTIONS, deadline=time.monotonic())
    assert not result["passed"]
    assert result["error"].startswith("did not end within")


@pytest.mark.slow
def test_ctrl_c_keeps_what_has_run():
    command = [sys.executable, "-W", "ignore", "-m", "train_scripts.gpu_check", "--device", "cpu"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("train float32 full corr_grpo: "):
            break
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=100)
    checks = [(check["check"], check["passed"]) for check in json.loads(stdout)["checks"]]
    assert checks[:2] == [("device", True), ("train float32 full corr_grpo", True)]
    assert checks[-1] == ("train float32 full", False)
    assert process.returncode == 1
