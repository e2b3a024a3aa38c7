"""
Train language models with several rewards at once, and see what each reward does.

The names below are loaded on first use, so that `from trl_dara import compute_advantages` needs PyTorch alone and does
not import TRL.
"""

import importlib
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from .aggregation import AGGREGATIONS, AdvantageResult, compute_advantages
    from .calibration import CalibrationWindow
    from .config import MultiRewardGRPOConfig
    from .trainer import MultiRewardGRPOTrainer

__version__ = "0.1.0"

_MODULE_OF = {
    "AGGREGATIONS": ".aggregation",
    "AdvantageResult": ".aggregation",
    "CalibrationWindow": ".calibration",
    "MultiRewardGRPOConfig": ".config",
    "MultiRewardGRPOTrainer": ".trainer",
    "compute_advantages": ".aggregation",
}

__all__ = [
    "AGGREGATIONS",
    "AdvantageResult",
    "CalibrationWindow",
    "MultiRewardGRPOConfig",
    "MultiRewardGRPOTrainer",
    "compute_advantages",
]


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'trl_dara' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name], __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
