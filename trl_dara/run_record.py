"""What a run was made with, written into its checkpoints so that a report can put it beside other runs."""

import math
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from .trainer import MultiRewardGRPOTrainer


def run_record(trainer: "MultiRewardGRPOTrainer") -> dict:
    """
    Describe a run.

    Args:
        trainer ([`MultiRewardGRPOTrainer`]):
            Its trainer.

    Returns:
        `dict`: of JSON values. `resumed_at` has the steps at which the run was resumed, `updates_per_batch` is the number
        of optimiser steps on each generation batch.
    """
    args, channels = trainer.args, trainer.channels
    window = trainer.calibration_window
    micro_steps = args.steps_per_generation * args.num_iterations
    record = {
        "rule": trainer.rule_name,
        "aggregation_kwargs": trainer.aggregation_kwargs,
        "calibration_window": None if window is None else window.size,
        "group_filter": trainer.group_filter is not None,
        "reward_weights": {
            name: float(f"{weight:.6g}")  # as it was given: 0.3, not float32's 0.30000001
            for name, weight in zip(channels.names, channels.base_weights.tolist(), strict=True)
        },
        "reward_bounds": {
            name: bounds for name, bounds in zip(channels.names, channels.bounds, strict=True) if bounds is not None
        },
        "seed": args.seed,
        "model": trainer.model.config._name_or_path,
        "learning_rate": args.learning_rate,
        "num_generations": args.num_generations,
        "prompts": args.generation_batch_size // args.num_generations,
        "updates_per_batch": micro_steps / args.gradient_accumulation_steps,
        "resumed_at": trainer.resumed_at,
    }
    return _as_json(record)


def _as_json(value):
    """Nothing that a user may pass, such as `w_max=math.inf` or a tensor, may keep a checkpoint from being saved."""
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
