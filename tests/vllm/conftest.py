import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..tiny import save_tiny_model
from .servers import ROOT, Server, vllm_environment, write_metadata


TRAINING_TIMEOUT = 240  # seconds; a hang is a failure
SERVERS: list[Server] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.sections += [(f"vLLM server {server.url}", server.log_tail()) for server in SERVERS]
    return report


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    """A tiny model with a head size that vLLM supports on a CPU."""
    return save_tiny_model(tmp_path_factory.mktemp("model"), hidden_size=64)


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    metadata = tmp_path_factory.mktemp("metadata")
    write_metadata(metadata)
    return vllm_environment(metadata)


@pytest.fixture(scope="session")
def start_server(environment, tmp_path_factory):
    """Start a server by a command, with the flags that all share; it ends with the session."""

    def start(*command: str) -> Server:
        SERVERS.append(Server(list(command), tmp_path_factory.mktemp("server") / "server.log", environment))
        return SERVERS[-1]

    yield start
    for server in SERVERS:
        server.end()


@pytest.fixture(scope="session")
def serve(model) -> list[str]:
    """Our own command, with a transport that needs no GPU."""
    trl_dara = str(Path(sys.executable).with_name("trl-dara"))
    return [trl_dara, "vllm-serve", "--model", model, "--weight-transfer-config", '{"backend": "gloo"}']


@pytest.fixture(scope="session")
def server(start_server, serve) -> Server:
    """The server for all tests that leave it intact."""
    server = start_server(*serve)
    server.wait_until_ready()
    return server


@pytest.fixture(scope="session")
def launch(model, environment, tmp_path_factory):
    """Run the child script on some cases and return how it ended, and the folder of its results."""

    def run(cases: list[dict], *launcher: str) -> tuple[subprocess.CompletedProcess, Path]:
        folder = tmp_path_factory.mktemp("runs")
        (folder / "cases.json").write_text(json.dumps(cases))
        command = [sys.executable, *launcher, "-m", "tests.vllm.train", model, str(folder)]
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TRAINING_TIMEOUT
        )
        return result, folder

    return run


@pytest.fixture(scope="session")
def train(launch):
    """Run the child script and return, for each case by name, the records of its processes."""

    def run(cases: list[dict], *launcher: str) -> dict[str, list[dict]]:
        result, folder = launch(cases, *launcher)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
        return {case["name"]: read_records(folder / case["name"]) for case in cases}

    return run


def read_records(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank_*.json"))]
