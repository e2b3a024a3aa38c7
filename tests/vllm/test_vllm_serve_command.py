"""`trl-dara vllm-serve` with the real vLLM; all other tests here use the server that it starts."""

import shlex
import subprocess

import pytest
import requests


pytestmark = pytest.mark.vllm


def test_server_has_what_the_client_needs(server, model):
    printed = shlex.split(server.log.read_text().splitlines()[0])
    assert printed[:4] == ["VLLM_SERVER_DEV_MODE=1", "vllm", "serve", model]
    info = requests.get(f"{server.url}/server_info", params={"config_format": "json"}, timeout=30)
    config = info.json()["vllm_config"]
    assert config["weight_transfer_config"]["backend"] == "gloo"  # our own value, not TRL's
    assert config["model_config"]["logprobs_mode"] == "processed_logprobs"
    assert config["model_config"]["max_logprobs"] == -1
    messages = [{"role": "user", "content": "the cat"}]
    render = requests.post(f"{server.url}/v1/chat/completions/render", json={"messages": messages}, timeout=30)
    assert render.status_code == 200  # what `--enable-scale-out` opens


def test_printed_command_and_exit_code_are_those_of_vllm(serve, environment):
    result = subprocess.run([*serve, "--no-such-flag"], env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "unrecognized arguments: --no-such-flag" in result.stderr
    assert result.stdout.startswith("VLLM_SERVER_DEV_MODE=1 vllm serve ")
