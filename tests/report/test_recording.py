"""What is read from tables, and what is said about tables that are damaged."""

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

from trl_dara.report.reading import find_runs
from trl_dara.report.recording import read_recording

from .tables import trl_table, write_run


REWARDS = {"accuracy": [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0], "format": [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]}


def read(*paths, **given):
    ((name, files),) = find_runs([str(path) for path in paths]).items()
    return read_recording(name, files, **given)


def stacked(recording) -> list:
    return [batch.rewards.tolist() for batch in recording.batches]


def write(path, rows: dict):
    table = pd.DataFrame(rows)
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_dict("records")))
    else:
        table.to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_any_table_with_a_prompt_and_one_column_per_reward(tmp_path, suffix):
    table = write(tmp_path / f"rollouts{suffix}", {"prompt": ["a"] * 4 + ["b"] * 4, "note": "x", **REWARDS})
    recording = read(table)
    assert recording.name == "rollouts" and recording.channels == ["accuracy", "format"]
    expected = torch.tensor([REWARDS["accuracy"], REWARDS["format"]]).T.view(1, 2, 4, 2)
    assert stacked(recording) == expected.tolist()
    assert recording.notes[0].startswith("Taken as rewards, being numeric: accuracy, format.")
    assert recording.notes[1] == "Groups of 4 completions: consecutive rows with the same prompt."
    assert recording.left_out == []


@pytest.mark.parametrize("separator", [";", "\t"])
def test_columns_of_a_csv_file_are_separated_by_what_its_header_has(tmp_path, separator):
    rows = pd.DataFrame({"prompt": ["a, b"] * 4 + ["c"] * 4, **REWARDS})
    rows.to_csv(tmp_path / "t.csv", sep=separator, index=False, encoding="utf-8-sig")
    assert read(tmp_path / "t.csv").channels == ["accuracy", "format"]


def test_decimal_numbers_of_a_database_are_rewards(tmp_path):
    rewards = {name: [Decimal(str(value)) for value in values] for name, values in REWARDS.items()}
    recording = read(write(tmp_path / "t.parquet", {"prompt": ["a"] * 4 + ["b"] * 4, **rewards}))
    assert recording.channels == ["accuracy", "format"]
    assert recording.batches[0].rewards[..., 0].flatten().tolist() == REWARDS["accuracy"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_truth_values_are_rewards(tmp_path, suffix):
    correct, well_formed = [True, False, None, True], [True, False, False, True]
    rows = {"prompt": ["a"] * 4, "correct": correct, "well_formed": well_formed}
    recording = read(write(tmp_path / f"t{suffix}", rows))
    assert recording.channels == ["correct", "well_formed"]
    np.testing.assert_array_equal(recording.batches[0].rewards[0, :, 0].numpy(), [1, 0, np.nan, 1])


def test_rewards_that_half_of_the_files_lack_are_named(tmp_path):
    halves = [REWARDS] * 2 + [{"accuracy": REWARDS["accuracy"], "form": REWARDS["format"]}] * 2
    recording = read(write_run(tmp_path, [trl_table(step, half, 4) for step, half in enumerate(halves)]))
    assert recording.channels == ["accuracy"] and len(recording.batches) == 4
    assert "Not taken as rewards, being in too few of the files: format, form." in recording.notes


def test_conversations_are_told_apart(tmp_path):
    table = trl_table(1, REWARDS, 4)
    prompts = [[{"role": "user", "content": f"{'x' * 2000} {index // 4}"}] for index in range(8)]
    recording = read(write_run(tmp_path, [table.assign(prompt=prompts)]))
    assert recording.batches[0].rewards.shape == (2, 4, 2)


def test_the_same_prompt_twice_in_a_row_is_two_groups(tmp_path):
    prompts = ["a", "b", "b", "c"]
    rewards = {"accuracy": np.arange(16.0)}
    recording = read(write_run(tmp_path, [trl_table(1, rewards, 4, prompts)]))
    assert recording.batches[0].rewards.shape == (4, 4, 1)
    assert recording.batches[0].rewards.flatten().tolist() == list(range(16))


def test_one_prompt_at_two_steps_is_two_batches(tmp_path):
    recording = read(write_run(tmp_path, [trl_table(step, {"a": [0.0, 1, 0, 1]}, 4) for step in (3, 12)]))
    assert [batch.step for batch in recording.batches] == [3, 12]
    assert stacked(recording) == [[[[0.0], [1.0], [0.0], [1.0]]]] * 2


def test_rows_of_a_group_may_be_anywhere_with_a_group_column(tmp_path):
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    rows = pd.DataFrame({"prompt_id": [7] * 4 + [9] * 4, **REWARDS}).iloc[order]
    table = write(tmp_path / "t.csv", rows)
    recording = read(table)
    assert recording.channels == ["accuracy", "format"]
    in_order = torch.tensor([REWARDS["accuracy"], REWARDS["format"]]).T.view(2, 4, 2)
    assert recording.batches[0].rewards.tolist() == in_order.tolist()
    renamed = write(tmp_path / "u.csv", rows.rename(columns={"prompt_id": "question"}))
    assert stacked(read(renamed, group_column="question")) == stacked(recording)


def test_num_generations_groups_rows_without_any_prompt(tmp_path):
    table = write(tmp_path / "t.csv", REWARDS)
    assert read(table, num_generations=2).batches[0].rewards.shape == (4, 2, 2)
    with pytest.raises(ValueError, match="no column `prompt` or `group`.*--group-column.*--num-generations"):
        read(table)


def test_steps_in_one_file_are_sorted(tmp_path):
    rows = {"step": [10] * 4 + [2] * 4, "prompt": ["a"] * 4 + ["b"] * 4, **REWARDS}
    recording = read(write(tmp_path / "t.csv", rows))
    assert [batch.step for batch in recording.batches] == [2, 10]
    assert recording.batches[0].rewards[..., 0].tolist() == [REWARDS["accuracy"][4:]]


def test_columns_of_this_library_say_what_a_channel_is(tmp_path):
    table = trl_table(1, {**REWARDS, "length": np.arange(8.0)}, 4)
    table["advantage/accuracy"] = table["advantage/format"] = 0.0
    assert read(write_run(tmp_path, [table])).channels == ["accuracy", "format"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_row_numbers_are_no_reward(tmp_path, suffix):
    table = trl_table(1, REWARDS, 4).sample(frac=1, random_state=0).sort_values("prompt")
    path = tmp_path / f"t{suffix}"
    table.to_csv(path) if suffix == ".csv" else table.to_parquet(path)
    assert read(path).channels == ["accuracy", "format"]


def test_reward_columns_are_chosen(tmp_path):
    folder = write_run(tmp_path, [trl_table(1, {**REWARDS, "length": np.arange(8.0)}, 4)])
    assert read(folder).channels == ["accuracy", "format", "length"]
    assert read(folder, reward_columns=["format"]).channels == ["format"]
    with pytest.raises(ValueError, match=r"names \['fromat'\].*'accuracy', 'format', 'length'"):
        read(folder, reward_columns=["fromat"])


def test_several_runs_have_names_that_tell_them_apart(tmp_path):
    for name in ("one/seed0", "two/seed0"):
        write_run(tmp_path / name, [trl_table(1, REWARDS, 4)])
    assert list(find_runs([str(tmp_path / "one"), str(tmp_path / "two/seed0/completions")])) != ["seed0"]
    files = find_runs([str(tmp_path)])
    assert len(files) == 2 and all(name.endswith("seed0") for name in files)
    single = find_runs([str(tmp_path / "one/seed0/completions/completions_00001.parquet")])
    assert list(single) == ["seed0"]


def test_a_run_that_is_given_twice_counts_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_run(tmp_path / "one", [trl_table(1, REWARDS, 4)])
    files = find_runs(["one", str(folder), "one/../one/completions"])
    assert files == {"one": [folder / "completions" / "completions_00001.parquet"]}


def test_tables_of_evaluation_are_another_run_s(tmp_path):
    write_run(tmp_path, [trl_table(1, REWARDS, 4)])
    trl_table(1, REWARDS, 2).to_parquet(tmp_path / "completions" / "eval_completions_00001.parquet")
    assert len(read(tmp_path).batches) == 1 and read(tmp_path).num_generations == 4


# Damaged input


def damaged_run(folder):
    """Three good tables, and a fourth to be spoilt."""
    write_run(folder, [trl_table(step, REWARDS, 4) for step in (1, 2, 3, 4)])
    return folder / "completions" / "completions_00004.parquet"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def spoil(change):
    def spoiled(path):
        change(pd.read_parquet(path)).to_parquet(path)

    return spoiled


@pytest.mark.parametrize(
    "damage, reason",
    [
        (truncate, "cannot be read"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (spoil(lambda table: table[:0]), "has no rows"),
        (spoil(lambda table: table.drop(columns="format")), "has no column format"),
        (spoil(lambda table: table.drop(columns="prompt")), "has no column prompt"),
        (spoil(lambda table: table.rename(columns={"accuracy": "acc"})), "has no column accuracy"),
        (spoil(lambda table: table.assign(format="good")), "has no numbers in format"),
    ],
)
def test_one_bad_file_is_left_out_and_named(tmp_path, damage, reason):
    damage(damaged_run(tmp_path))
    recording = read(tmp_path)
    assert [batch.step for batch in recording.batches] == [1, 2, 3]
    assert recording.channels == ["accuracy", "format"]
    (left_out,) = recording.left_out
    assert left_out.startswith(f"completions_00004.parquet {reason}")


def test_no_file_can_be_read(tmp_path):
    path = damaged_run(tmp_path)
    truncate(path)
    with pytest.raises(ValueError, match="No table can be read. completions_00004.parquet cannot be read"):
        read_recording("run", [path])


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"prompt": list("aabb"), "text": list("wxyz")}, "No column holds rewards.*--reward-columns"),
        ({"prompt": list("abcd"), "a": [1.0, 0, 1, 0]}, "have one row.*--group-column.*--num-generations"),
        ({"prompt": list("aabb"), "step": list("wxyz"), "a": [1.0, 0, 1, 0]}, "`step` holds no whole numbers"),
    ],
)
def test_a_table_that_says_too_little(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / "t.csv", columns))


def test_rewards_that_are_not_numbers_are_not_scored(tmp_path):
    rewards = {"accuracy": [1.0, None, np.inf, 0.0, 1.0, -np.inf, np.nan, 0.0], "format": REWARDS["format"]}
    recording = read(write_run(tmp_path, [trl_table(1, rewards, 4)]))
    nan = np.nan
    expected = np.array([[1, nan, nan, 0], [1, nan, nan, 0]])
    np.testing.assert_array_equal(recording.batches[0].rewards[..., 0].numpy(), expected)
    assert "accuracy: 2 infinite rewards count as not scored." in recording.notes
    assert "accuracy: 4 of 8 completions are not scored." in recording.notes


def test_rewards_beyond_float32_are_not_scored(tmp_path):
    recording = read(write_run(tmp_path, [trl_table(1, {"a": [1e300, 1.0, -1e39, 0.0]}, 4)]))
    assert recording.batches[0].rewards.isnan().flatten().tolist() == [True, False, True, False]
    assert "a: 2 infinite rewards count as not scored." in recording.notes


def test_a_reward_that_scored_nothing_at_one_step_is_still_a_channel(tmp_path):
    silent = {"accuracy": [None] * 8, "format": REWARDS["format"]}
    recording = read(write_run(tmp_path, [trl_table(1, silent, 4), trl_table(2, REWARDS, 4)]))
    assert recording.channels == ["accuracy", "format"] and recording.left_out == []
    assert recording.batches[0].rewards[..., 0].isnan().all()


def test_groups_of_another_size_are_left_out_and_counted(tmp_path):
    table = trl_table(1, {"accuracy": np.arange(16.0)}, 4).drop(index=[5])
    recording = read(write_run(tmp_path, [table]))
    assert recording.batches[0].rewards.flatten().tolist() == [0, 1, 2, 3, *range(8, 16)]
    assert recording.left_out == ["1 of 4 groups, which have 3 completions, not 4."]
    with pytest.raises(ValueError, match="no group of 5 completions: the groups .* have 3, 4"):
        read(tmp_path, num_generations=5)


@pytest.mark.parametrize(
    "name, message",
    [
        ("nowhere", "does not exist"),
        ("empty", "holds no tables.*log_completions"),
        ("notes.txt", "is no table of completions"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
)
def test_paths_that_are_no_tables(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=message):
        find_runs([str(tmp_path / name)])
