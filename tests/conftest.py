import os
import signal
from pathlib import Path


# Before anything imports transformers: tests may not reach a network, and one thread each is fastest on few cores.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", CI="true")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
import torch  # noqa: E402

from .tiny import save_tiny_model  # noqa: E402


torch.set_num_threads(1)
# A shell starts a background job with Ctrl-C ignored, which all processes that the tests start would inherit
signal.signal(signal.SIGINT, signal.default_int_handler)

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    """Folder of a saved tiny model with its tokenizer."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny_model"))


def pytest_runtest_logreport(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        allowed = [line.split("#")[0].strip() for line in ALLOWED_SKIPS.read_text().splitlines()]
        if not any(prefix and report.nodeid.startswith(prefix) for prefix in allowed):
            _UNEXPECTED_SKIPS.append(report.nodeid)


_UNEXPECTED_SKIPS: list[str] = []


def pytest_sessionfinish(session, exitstatus):
    if _UNEXPECTED_SKIPS and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    if _UNEXPECTED_SKIPS:
        terminalreporter.section("skipped, but not listed in tests/allowed_skips.txt", red=True)
        for nodeid in _UNEXPECTED_SKIPS:
            terminalreporter.write_line(nodeid)
