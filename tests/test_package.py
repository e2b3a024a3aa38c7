"""What importing the package costs, and what it offers."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import trl_dara


ROOT = Path(__file__).parents[1]
HEAVY = ["trl", "transformers", "accelerate", "datasets", "peft", "matplotlib"]


def child(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


def test_the_core_imports_neither_trl_nor_transformers():
    code = (
        "import sys, torch, trl_dara\n"
        "result = trl_dara.compute_advantages(torch.tensor([[1., 0.], [0., 0.]]), num_generations=2)\n"
        "assert result.advantages[0] > 0, result\n"
        "assert 'dara_asym' in trl_dara.AGGREGATIONS and len(trl_dara.CalibrationWindow(4)) == 0\n"
        f"print(sorted(set({HEAVY}) & set(sys.modules)))"
    )
    assert child(code).strip() == "[]"


def test_importing_the_package_does_not_even_import_torch():
    assert child("import sys, trl_dara; print('torch' in sys.modules, trl_dara.__version__)").split() == [
        "False",
        trl_dara.__version__,
    ]


def test_public_names_are_those_of_their_modules():
    assert trl_dara.__all__ == sorted(trl_dara.__all__)
    assert set(trl_dara.__all__) <= set(dir(trl_dara))
    for name in trl_dara.__all__:
        module = importlib.import_module(trl_dara._MODULE_OF[name], "trl_dara")
        assert getattr(trl_dara, name) is getattr(module, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'trl_dara' has no attribute 'GRPOTrainer'"):
        trl_dara.GRPOTrainer  # noqa: B018
    with pytest.raises(ImportError):
        from trl_dara import GRPOTrainer  # noqa: F401


def test_star_import_gives_the_public_names():
    names = {}
    exec("from trl_dara import *", names)
    assert set(trl_dara.__all__) <= set(names)


def test_the_package_is_typed():
    assert Path(trl_dara.__file__).with_name("py.typed").exists()
