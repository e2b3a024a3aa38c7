"""Logs of runs that are whole, going on, damaged, or no logs at all."""

import json

import numpy as np
import pytest

from trl_dara.report.runs import name_runs, read_run

from .run_logs import RECORD, entry, log_of, write_checkpoint


LOG = log_of([1, 2, 3, 4], format=[0.0, 0.1, 0.2, 0.3], correct=[0.5, 0.5, 0.5, 0.75])


def test_the_last_whole_checkpoint_is_read(tmp_path):
    write_checkpoint(tmp_path, LOG[:2], RECORD)
    write_checkpoint(tmp_path, LOG, RECORD, max_steps=10)
    (tmp_path / "checkpoint-tmp").mkdir()
    run = read_run(tmp_path, "mine")
    assert (run.name, run.channels, run.last_step, run.max_steps) == ("mine", ["format", "correct"], 4, 10)
    assert run.record == RECORD and run.notes == []
    steps, values = run.series("mean", "correct")
    assert steps.tolist() == [1, 2, 3, 4] and values.tolist() == [0.5, 0.5, 0.5, 0.75]
    assert run.series("density", "correct")[0].size == run.series("mean", "other")[0].size == 0


@pytest.mark.parametrize("content", [b'{"global_step": 4', b"\xff\xfe", b"[]", b""])
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, content):
    write_checkpoint(tmp_path, LOG[:2], RECORD)
    damaged = write_checkpoint(tmp_path, LOG, RECORD) / "trainer_state.json"
    damaged.write_bytes(content)
    run = read_run(tmp_path, "run")
    assert run.last_step == 2
    assert run.notes[0].startswith(f"{damaged} is damaged: ") and run.notes[0].endswith("An older state was read.")
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_bytes(content)
    with pytest.raises(
        ValueError, match="checkpoint-4/trainer_state.json is damaged: .*checkpoint-2/trainer_state.json is"
    ):
        read_run(tmp_path, "run")


@pytest.mark.parametrize("own, expected", [(2, 4), (4, 4), (6, 6)])
def test_the_state_of_the_folder_itself_is_read_if_it_is_the_newest(tmp_path, own, expected):
    write_checkpoint(tmp_path, LOG, RECORD)
    summary = {"step": own, "train_runtime": 3.0, "rewards/format/mean": 9.0}
    state = {"global_step": own, "max_steps": 6, "log_history": [*LOG[:own], summary]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    run = read_run(tmp_path, "run")
    assert run.last_step == expected
    assert run.record["rule"] == "dara_asym"  # as its checkpoint says
    assert run.series("mean", "format")[1].max() == 0.3  # the summary is no step


def test_a_checkpoint_whose_channels_are_unreadable_still_has_its_rewards(tmp_path):
    (write_checkpoint(tmp_path, LOG, RECORD) / "trl_dara_state.json").write_text("{")
    run = read_run(tmp_path, "run")
    assert run.record == {} and set(run.channels) == {"format", "correct"}
    assert "trl_dara_state.json is damaged" in run.notes[0] and "Rule and seed are not known" in run.notes[0]


def test_what_is_no_step_and_what_is_no_number(tmp_path):
    log = [
        entry(1, {"format": {"mean": 0.5, "density": 0.25}, "correct": {"mean": 1.0}}),
        {"step": 2, "loss": 0.1},  # a second update on the same batch
        {"step": 2, "eval_loss": 0.0, "eval_rewards/format/mean": 7.0},
        entry(3, {"format": {"mean": None, "density": None}, "correct": {"mean": 2.0}}),
        "no entry",
        entry(5, {"format": {"mean": 0.25, "density": "0.5"}, "correct": {"mean": float("inf")}}),
    ]
    write_checkpoint(tmp_path, log, step=5)
    run = read_run(tmp_path, "run")
    assert run.steps.tolist() == [1, 3, 5] and run.interval == 2
    assert run.series("mean", "format")[1].tolist() == [0.5, 0.25]
    assert run.series("density", "format")[1].tolist() == [0.25]
    assert run.series("mean", "correct")[0].tolist() == [1, 3]


def test_a_log_of_the_demo_that_is_being_written(tmp_path):
    settings = {"name": "gdpo-seed3", "rule": "gdpo", "seed": 3, "steps": 60, "prompts": 64, "num_generations": 4}
    path = tmp_path / "gdpo-seed3.jsonl"
    path.write_text("\n".join(map(json.dumps, [settings, *LOG])) + '\n{"step": 5, "rewa')
    run = read_run(path, "run")
    assert run.steps.tolist() == [1, 2, 3, 4] and run.max_steps == 60
    assert (run.record["rule"], run.record["seed"]) == ("gdpo", 3)


def test_a_csv_log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,train_a,pi_a,w_a,other\n2,0.5,0.25,2.0,x\n1,,0.5,1.0,\n")
    run = read_run(path, "run")
    assert run.steps.tolist() == [1, 2] and run.channels == ["a"] and run.max_steps is None
    assert run.series("mean", "a")[1].tolist() == [0.5]
    assert run.series("density", "a")[1].tolist() == [0.5, 0.25] and run.series("weight", "a")[1].tolist() == [1, 2]
    assert np.isnan(run.values["energy"]).all()


def test_infinite_numbers_of_a_csv_file_are_left_out(tmp_path):
    (tmp_path / "log.csv").write_text("step,train_a\n1,inf\ninf,0.5\n2,0.25\n")
    run = read_run(tmp_path / "log.csv", "log")
    assert run.steps.tolist() == [1, 2] and run.series("mean", "a")[1].tolist() == [0.25]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("gone", None, "does not exist"),
        ("notes.txt", "text", "is no log of a run"),
        ("a.csv", "", "a.csv cannot be read"),
        ("b.csv", "step,train_a\n", "b.csv has no rows"),
        ("c.csv", "step,reward\n1,2\n", r"c.csv has the columns \['step', 'reward'\]: a log has `step`"),
        ("d.csv", "step,train_a\n1,much\n", "d.csv could not convert"),
        ("e.csv", "step,train_a\n,1\n", "e.csv has no step"),
        ("a.jsonl", "", "The first line of .*a.jsonl names no `rule`"),
        ("b.jsonl", '{"prompt": "x"}\n', "names no `rule`"),
        ("c.jsonl", "step\n", "c.jsonl, line 1 is no JSON"),
        ("d.jsonl", '{"rule": "gdpo"}\n', "has no `rewards/NAME/mean`"),
    ],
)
def test_what_is_no_log(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_run(tmp_path / name, "run")


def test_folders_that_are_no_run(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint with one: nothing was saved yet"):
        read_run(tmp_path, "run")
    write_checkpoint(tmp_path / "a", LOG)
    with pytest.raises(ValueError, match=f"is no run, but has some: pass {tmp_path}/a"):
        read_run(tmp_path, "run")
    write_checkpoint(tmp_path / "sft", [{"step": 1, "loss": 0.1}])
    with pytest.raises(ValueError, match="it is no run of a GRPO trainer"):
        read_run(tmp_path / "sft", "run")
    write_checkpoint(tmp_path / "odd", LOG, log_history=None)
    with pytest.raises(ValueError, match="has no list `log_history`"):
        read_run(tmp_path / "odd", "run")


def test_a_log_that_starts_late_says_so(tmp_path):
    write_checkpoint(tmp_path, log_of([41, 42, 43], format=[0.9, 0.9, 0.9]))
    assert read_run(tmp_path, "run").notes == ["The log starts at step 41: what was reached before is not known."]


def test_names_tell_runs_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert name_runs(["a/run", "logs/gdpo.csv", "a/run/"]) == {
        "run": tmp_path / "a" / "run",
        "gdpo": tmp_path / "logs" / "gdpo.csv",
    }
    assert list(name_runs(["a/run", "b/run", "c"])) == ["a/run", "b/run", "c"]
    assert name_runs(["a/run", "b/../a/run"]) == {"run": tmp_path / "a" / "run"}
    assert list(name_runs(["a/run/checkpoint-20"])) == ["run"]
