import os

import pytest

from trl_dara.evaluation.bfcl.client import BFCL


@pytest.fixture(scope="session")
def bfcl_python() -> str:
    """Interpreter of the environment with `bfcl_eval`."""
    if "BFCL_PYTHON" not in os.environ:
        pytest.fail("These tests need an environment with `bfcl_eval`: run them by `make test-bfcl`.")
    return os.environ["BFCL_PYTHON"]


@pytest.fixture(scope="session")
def bfcl(bfcl_python):
    with BFCL(bfcl_python) as bfcl:
        yield bfcl
