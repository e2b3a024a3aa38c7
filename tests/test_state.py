import logging

import pytest
import torch

from trl_dara import compute_advantages
from trl_dara.calibration import CalibrationWindow
from trl_dara.state import last_complete_checkpoint, load_state, save_state


def make_checkpoint(output_dir, step, trainer_state):
    folder = output_dir / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    if trainer_state is not None:
        (folder / "trainer_state.json").write_text(trainer_state)
    return str(folder)


@pytest.mark.parametrize("broken", [None, "", '{"global_step": 1'])
def test_an_incomplete_checkpoint_is_passed_over_with_a_notice(tmp_path, caplog, broken):
    complete = make_checkpoint(tmp_path, 8, "{}")
    incomplete = make_checkpoint(tmp_path, 16, broken)
    with caplog.at_level(logging.WARNING):
        assert last_complete_checkpoint(tmp_path) == complete
    assert incomplete in caplog.text


def test_the_highest_step_counts_and_not_the_name_order(tmp_path):
    make_checkpoint(tmp_path, 9, "{}")
    last = make_checkpoint(tmp_path, 10, "{}")
    (tmp_path / "checkpoint-best").mkdir()
    assert last_complete_checkpoint(tmp_path) == last


def test_nothing_to_resume_from(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    assert last_complete_checkpoint(tmp_path / "not there") is None


def test_state_of_other_channels_is_refused(tmp_path):
    save_state(tmp_path, ["correct", "short"], CalibrationWindow(8))
    with pytest.raises(ValueError, match=r"\['correct', 'short'\].*\['short', 'correct'\]"):
        load_state(tmp_path, ["short", "correct"], CalibrationWindow(8), num_generations=4)


def test_saving_again_makes_the_folder_incomplete_until_the_end(tmp_path):
    folder = make_checkpoint(tmp_path, 4, "{}")
    save_state(tmp_path / "checkpoint-4", ["correct"], None)
    assert last_complete_checkpoint(tmp_path) is None
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text("{}")
    assert last_complete_checkpoint(tmp_path) == folder


@pytest.mark.parametrize(
    ("saved", "num_generations", "notice"),
    [(None, 4, "saved without a calibration window"), (2, 4, "num_generations=2"), (4, 4, "")],
)
def test_a_window_that_does_not_fit_starts_empty_with_a_notice(tmp_path, caplog, saved, num_generations, notice):
    window = None
    if saved is not None:
        window = CalibrationWindow(8)
        compute_advantages(torch.rand(saved * 3, 1), saved, window=window)
    save_state(tmp_path, ["correct"], window)
    resumed = CalibrationWindow(8)
    with caplog.at_level(logging.WARNING):
        load_state(tmp_path, ["correct"], resumed, num_generations)
    assert notice in caplog.text
    assert len(resumed) == (0 if notice else 3)
