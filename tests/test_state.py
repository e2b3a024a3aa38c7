import logging

import pytest

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
        load_state(tmp_path, ["short", "correct"], CalibrationWindow(8))
