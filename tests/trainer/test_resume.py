"""A run that is interrupted between two generation batches continues as if it had not been."""

import json
import math
import shutil

import pytest

from .support import digest, has_a, has_q, run, scripted, train_logs


@pytest.fixture(scope="module", params=[1, 2], ids=["one_step", "two_steps"])
def uninterrupted(request, tiny_model, tmp_path_factory):
    """Settings, folder and trainer of a run with two generation batches before its checkpoint and two after it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    steps = request.param
    given = dict(
        per_device_train_batch_size=8,
        steps_per_generation=steps,
        max_steps=4 * steps,
        save_strategy="steps",
        save_steps=2 * steps,
        aggregation="dara_sym",
    )
    return given, folder, run(tiny_model, folder, [digest, has_q, has_a], **given)


def numbers(logs: dict) -> dict:
    """Logged values to compare with, to a relative 1e-6; a value that does not exist is None in both runs."""
    return {key: value if value is None else pytest.approx(value, rel=1e-6) for key, value in logs.items()}


def logged(trainer) -> list[dict]:
    """All values of each step that are not times."""
    return [
        {name: value for name, value in entry.items() if not name.endswith("time")} for entry in train_logs(trainer)
    ]


def test_resuming_equals_the_uninterrupted_run(tiny_model, tmp_path, uninterrupted):
    given, folder, whole = uninterrupted
    middle = given["save_steps"]
    resumed = run(
        tiny_model,
        tmp_path,
        [digest, has_q, has_a],
        **given,
        resume_from_checkpoint=str(folder / f"checkpoint-{middle}"),
    )
    assert len(logged(resumed)) == 2 * middle  # the first half comes from the checkpoint
    assert any("channels/has_q/weight" in entry for entry in logged(resumed)[middle:])
    for ours, expected in zip(logged(resumed), logged(whole), strict=True):
        assert ours == numbers(expected)
    assert resumed.calibration_window.state_dict() == whole.calibration_window.state_dict()
    described = json.loads((tmp_path / f"checkpoint-{2 * middle}" / "trl_dara_state.json").read_text())["run"]
    assert described["resumed_at"] == [middle]


def test_the_window_of_the_checkpoint_is_used(tiny_model, tmp_path, uninterrupted):
    given, folder, whole = uninterrupted
    checkpoint = tmp_path / "without"
    shutil.copytree(folder / f"checkpoint-{given['save_steps']}", checkpoint)
    (checkpoint / "trl_dara_state.json").unlink()
    fresh = run(tiny_model, tmp_path, [digest, has_q, has_a], **given, resume_from_checkpoint=str(checkpoint))
    assert len(fresh.calibration_window) < len(whole.calibration_window)


def test_a_checkpoint_of_plain_trl_starts_with_an_empty_window(tiny_model, tmp_path, uninterrupted, caplog):
    given, folder, _ = uninterrupted
    checkpoint = tmp_path / "plain"
    shutil.copytree(folder / f"checkpoint-{given['save_steps']}", checkpoint)
    (checkpoint / "trl_dara_state.json").unlink()
    run(tiny_model, tmp_path, [digest, has_q, has_a], **given, resume_from_checkpoint=str(checkpoint))
    assert "has no trl_dara_state.json: the calibration window starts empty" in caplog.text


@pytest.mark.parametrize(
    "reward_funcs", [[digest, has_q], [has_q, digest, has_a], [digest, has_q, scripted("b", [0] * 8)]]
)
def test_other_channels_are_refused(tiny_model, tmp_path, uninterrupted, reward_funcs):
    given, folder, _ = uninterrupted
    with pytest.raises(
        ValueError, match=r"trained on the channels \['digest', 'has_q', 'has_a'\], but this trainer has"
    ):
        run(
            tiny_model,
            tmp_path,
            reward_funcs,
            **given,
            resume_from_checkpoint=str(folder / f"checkpoint-{given['save_steps']}"),
        )


def test_the_state_is_json_beside_the_files_of_trl(uninterrupted):
    given, folder, _ = uninterrupted
    checkpoint = folder / f"checkpoint-{given['save_steps']}"
    state = json.loads((checkpoint / "trl_dara_state.json").read_text())
    assert state["channels"] == ["digest", "has_q", "has_a"]
    assert len(state["calibration_window"]["active"]) == 4 * given["steps_per_generation"]  # two batches
    assert (checkpoint / "trainer_state.json").exists()


def test_the_state_says_what_the_run_was_made_with(tiny_model, uninterrupted):
    given, folder, _ = uninterrupted
    described = json.loads((folder / f"checkpoint-{given['save_steps']}" / "trl_dara_state.json").read_text())["run"]
    assert described == {
        "rule": "dara_sym",
        "aggregation_kwargs": {},
        "calibration_window": 64,
        "group_filter": False,
        "reward_weights": {"digest": 1.0, "has_q": 1.0, "has_a": 1.0},
        "reward_bounds": {},
        "seed": 42,
        "model": tiny_model,
        "learning_rate": 1e-2,
        "num_generations": 4,
        "prompts": 2 * given["steps_per_generation"],
        "updates_per_batch": given["steps_per_generation"],
        "resumed_at": [],
    }


def test_settings_that_json_does_not_know_do_not_keep_a_checkpoint_from_being_saved(tiny_model, tmp_path):
    given = dict(
        max_steps=1,
        save_strategy="steps",
        save_steps=1,
        aggregation="dara_asym",
        aggregation_kwargs={"w_max": math.inf},
        reward_weights={"has_a": 0.3},
        reward_bounds={"has_a": (0, 1)},
    )
    run(tiny_model, tmp_path, [digest, has_a], **given)
    described = json.loads((tmp_path / "checkpoint-1" / "trl_dara_state.json").read_text())["run"]
    assert described["aggregation_kwargs"] == {"w_max": "inf"}
    assert described["reward_weights"] == {"digest": 1.0, "has_a": 0.3}
    assert described["reward_bounds"] == {"has_a": [0, 1]}


def test_a_run_without_window_is_saved_and_resumed(tiny_model, tmp_path):
    given = dict(calibration_window=None, max_steps=2, save_strategy="steps", save_steps=1)
    whole = run(tiny_model, tmp_path / "whole", [digest, has_a], **given)
    resumed = run(
        tiny_model,
        tmp_path / "resumed",
        [digest, has_a],
        **given,
        resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"),
    )
    assert logged(resumed)[1] == numbers(logged(whole)[1])


def test_resuming_within_a_generation_batch_says_that_it_is_generated_anew(tiny_model, tmp_path, caplog):
    given = dict(
        per_device_train_batch_size=8, steps_per_generation=2, max_steps=4, save_strategy="steps", save_steps=1
    )
    run(tiny_model, tmp_path, [digest], **given)
    for step, within in ((2, False), (3, True)):
        caplog.clear()
        run(tiny_model, tmp_path, [digest], **given, resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert ("generated anew" in caplog.text) is within
