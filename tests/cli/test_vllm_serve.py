"""The command as a user starts it, with a stand-in for vLLM that says what it was started with."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trl_dara.cli.main import main


ROOT = Path(__file__).parents[2]

STAND_IN = """
import json
import os
import signal
import sys

if "--wait" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(json.dumps({"arguments": sys.argv[1:], "dev_mode": os.environ["VLLM_SERVER_DEV_MODE"]}), flush=True)
if "--wait" in sys.argv:
    signal.pause()
sys.exit(3)
"""

NEEDED = ["--weight-transfer-config", '{"backend": "nccl"}', "--logprobs-mode", "processed_logprobs"]
NEEDED += ["--max-logprobs", "-1"]


@pytest.fixture
def command(tmp_path):
    """Starts `trl-dara vllm-serve` where vLLM of some version is installed."""

    def start(*argv: str, version: str = "0.31.0", **environment: str) -> subprocess.Popen:
        package = tmp_path / "vllm" / "entrypoints" / "cli"
        package.mkdir(parents=True, exist_ok=True)
        for folder in (package, package.parent, package.parents[1]):
            (folder / "__init__.py").touch()
        (package / "main.py").write_text(STAND_IN)
        metadata = tmp_path / f"vllm-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        (metadata / "top_level.txt").write_text("vllm\n")
        inherited = {name: value for name, value in os.environ.items() if name != "VLLM_SERVER_DEV_MODE"}
        return subprocess.Popen(
            [sys.executable, "-m", "trl_dara.cli.main", "vllm-serve", *argv],
            cwd=tmp_path,
            env={**inherited, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def output_of(process: subprocess.Popen) -> tuple[str, dict]:
    """The printed command, and what the server was started with."""
    stdout, stderr = process.communicate(timeout=60)
    assert stdout.count("\n") == 2, stdout + stderr
    printed, received = stdout.splitlines()
    return printed, json.loads(received)


def test_server_gets_what_the_client_needs_and_its_exit_code_is_the_commands(command):
    process = command("--model", "my org/model", "--port", "8001", "--enforce-eager")
    printed, received = output_of(process)
    assert process.returncode == 3
    expected = ["serve", "my org/model", *NEEDED, "--enable-scale-out", "--port", "8001", "--enforce-eager"]
    assert received == {"arguments": expected, "dev_mode": "1"}
    assert shlex.split(printed) == ["VLLM_SERVER_DEV_MODE=1", "vllm", *expected]


def test_the_flag_for_images_is_left_out_where_vllm_does_not_have_it(command):
    _, received = output_of(command("--model=model", version="0.29.0"))
    assert received["arguments"] == ["serve", "model", *NEEDED]


def test_version_that_trl_does_not_know_is_warned_about(command):
    process = command("--model", "model", version="0.40.0")
    _, stderr = process.communicate(timeout=60)
    assert "from 0.22.0 to 0.31.0. You have version 0.40.0" in stderr


@pytest.mark.parametrize(
    ("own", "replaced"),
    [
        (["--weight_transfer_config", '{"backend": "gloo"}'], "--weight-transfer-config"),
        (["--weight-transfer-config.backend=gloo"], "--weight-transfer-config"),
        (["--logprobs-mode=raw_logprobs"], "--logprobs-mode"),
        (["--max-logprobs", "20"], "--max-logprobs"),
        (["--no-enable-scale-out"], "--enable-scale-out"),
    ],
)
def test_own_value_of_a_flag_wins(command, own, replaced):
    process = command("--model", "model", *own, VLLM_SERVER_DEV_MODE="0")
    printed, received = output_of(process)
    flags = [argument for argument in received["arguments"] if argument.startswith("--")]
    assert replaced not in flags or own[0] == replaced
    assert received["arguments"][-len(own) :] == own
    assert len(flags) == 4  # each of the four once
    assert received["dev_mode"] == "0" and printed.startswith("VLLM_SERVER_DEV_MODE=0 vllm serve model ")


def test_own_value_in_a_file_of_options_wins(command, tmp_path):
    (tmp_path / "server.yaml").write_text("max_logprobs: 20\nlogprobs-mode: raw_logprobs\nport: 8001\n")
    _, received = output_of(command("--model", "model", "--config=server.yaml"))
    # vLLM lets the command line win over the file, and takes the file in this form only
    assert received["arguments"] == ["serve", "model", "--config", "server.yaml", *NEEDED[:2], "--enable-scale-out"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("a: [", "is not valid YAML"), ("port", "holds no options")],
)
def test_file_of_options_that_cannot_be_read(command, tmp_path, content, message):
    if content is not None:
        (tmp_path / "server.yaml").write_text(content)
    process = command("--model", "model", "--config", "server.yaml")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert message in stderr.splitlines()[-1]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 7), (signal.SIGKILL, -signal.SIGKILL)])
def test_signals_reach_the_server(command, sent, code):
    process = command("--model", "model", "--wait")
    process.stdout.readline()
    assert json.loads(process.stdout.readline())["dev_mode"] == "1"  # the server runs
    process.send_signal(sent)
    process.communicate(timeout=60)
    assert process.returncode == code


def test_without_vllm_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vllm", None)  # what Python takes for a module that is not there
    with pytest.raises(SystemExit, match="2"):
        main(["vllm-serve", "--model", "model"])
    assert "vLLM is not installed. Install it with `pip install 'trl-dara[vllm]'`." in capsys.readouterr().err


def test_model_is_needed(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["vllm-serve", "--port", "8001"])
    assert "--model" in capsys.readouterr().err
