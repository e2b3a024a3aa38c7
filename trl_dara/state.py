"""
What a checkpoint holds beside TRL's own files: the calibration window, the position of the group filter, the names of the
channels, and what the run was made with.
"""

import json
import logging
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .calibration import CalibrationWindow
from .group_filter import GroupFilter


logger = logging.getLogger(__name__)

STATE_FILE = "trl_dara_state.json"


def save_state(
    checkpoint: Path,
    channel_names: list[str],
    window: CalibrationWindow | None,
    group_filter: GroupFilter | None = None,
    run: dict | None = None,
) -> None:
    """
    Write the state into a checkpoint folder, which is created if need be; `run` is what [`run_record`] returns.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    # A folder that is written a second time is incomplete until its last file is written again
    (checkpoint / TRAINER_STATE_NAME).unlink(missing_ok=True)
    state = {
        "channels": channel_names,
        "run": run or {},
        "calibration_window": None if window is None else window.state_dict(),
        "refill": None if group_filter is None else group_filter.refill.state_dict(),
    }
    (checkpoint / STATE_FILE).write_text(json.dumps(state, allow_nan=False))


def load_state(
    checkpoint: Path,
    channel_names: list[str],
    window: CalibrationWindow | None,
    num_generations: int,
    group_filter: GroupFilter | None = None,
) -> list[int]:
    """
    Continue from the state in a checkpoint folder.

    A checkpoint without it, made by plain TRL, starts with an empty window and a notice; one with other channels is
    refused.

    Returns:
        `list[int]`: the steps at which the run had been resumed before.
    """
    path = checkpoint / STATE_FILE
    if not path.exists():
        logger.warning(f"The checkpoint {checkpoint} has no {STATE_FILE}: the calibration window starts empty.")
        return []
    state = json.loads(path.read_text())
    if state["channels"] != channel_names:
        raise ValueError(
            f"The checkpoint {checkpoint} was trained on the channels {state['channels']}, but this trainer has "
            f"{channel_names}. Resume with the same reward functions in the same order."
        )
    _load_window(checkpoint, state["calibration_window"], window, num_generations)
    if group_filter is not None and state["refill"] is not None:
        group_filter.refill.load_state_dict(state["refill"])
    return state.get("run", {}).get("resumed_at", [])  # older checkpoints do not describe their run


def _load_window(checkpoint: Path, state: dict | None, window: CalibrationWindow | None, num_generations: int) -> None:
    if window is None:
        return
    if state is None:
        logger.warning(f"The checkpoint {checkpoint} was saved without a calibration window, which now starts empty.")
    elif state["scores"] is not None and len(state["scores"][0]) != num_generations:
        logger.warning(
            f"The checkpoint {checkpoint} was trained with `num_generations={len(state['scores'][0])}`, not {num_generations}: "
            "the calibration window starts empty."
        )
    else:
        window.load_state_dict(state)


def last_complete_checkpoint(output_dir: str) -> str | None:
    """
    The checkpoint to resume from after a run was killed, perhaps while it saved.

    Args:
        output_dir (`str`):
            Folder of the run.

    Returns:
        `str` or `None`: the folder with the highest step whose `trainer_state.json`, the last file to be written, is
        whole; folders without one are named in a notice.
    """
    steps = {
        int(step): folder
        for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (step := folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")).isdigit()
    }
    for step in sorted(steps, reverse=True):
        try:
            json.loads((steps[step] / TRAINER_STATE_NAME).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            logger.warning(f"The checkpoint {steps[step]} is incomplete and is not resumed from.")
            continue
        return str(steps[step])
    return None
