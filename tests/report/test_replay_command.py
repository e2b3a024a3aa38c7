"""`trl-dara replay` as a user calls it."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from trl_dara.cli.main import main

from .tables import starved_run, trl_table, write_run


def test_terminal_json_and_page(tmp_path, capsys):
    run = starved_run(tmp_path / "my_run")
    (run / "completions" / "completions_00099.parquet").write_bytes(b"PAR1")
    json_file, page = tmp_path / "out" / "replay.json", tmp_path / "out" / "replay.html"
    assert main(["replay", str(run), "--json", str(json_file), "--html", str(page)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "my_run 768 completions, 192 groups of 4, 12 steps" in printed
    assert "tool_call always 0 since step 0: no signal under any rule" in printed
    assert "Left out: completions_00099.parquet cannot be read" in printed
    (written,) = json.loads(json_file.read_text())["runs"]
    assert [channel["verdict"] for channel in written["channels"]] == [
        "drowned",
        "starved",
        "active",
        "saturated",
        "silent",
    ]
    assert written["steps"]["step"] == list(range(12))
    assert len(written["steps"]["rules"]["dara_asym"]["weight"]["format"]) == 12
    for channel in written["channels"]:
        assert channel["sentence"].replace(" %", "\N{NO-BREAK SPACE}%") in page.read_text()


def test_steps_without_a_table_are_said_and_no_verdict_speaks_of_them(tmp_path, capsys):
    run = write_run(
        tmp_path / "run", [trl_table(step, {"a": [1.0, 0.0] * 4, "b": [0.0] * 8}, 4) for step in (10, 20, 30)]
    )
    json_file, page = tmp_path / "replay.json", tmp_path / "replay.html"
    assert main(["replay", str(run), "--json", str(json_file), "--html", str(page)]) == 0
    note = "The tables hold 3 of the 30 steps: nothing is known of the others. Train with `logging_steps=1`"
    verdict = "always 0 in the 3 recorded steps since step 10: no signal under any rule"
    printed = " ".join(capsys.readouterr().out.split())
    assert note in printed and verdict in printed
    (written,) = json.loads(json_file.read_text())["runs"]
    assert written["findings"][0].startswith(note) and written["channels"][1]["sentence"] == verdict
    assert "The tables hold 3 of the 30 steps" in page.read_text() and verdict in page.read_text()


@pytest.mark.parametrize("steps, prefix", [((1, 2, 3), ""), ((10, 20, 30), "eval_")])
def test_tables_of_every_step_and_of_evaluation_miss_none(tmp_path, steps, prefix):
    run = write_run(tmp_path / "run", [trl_table(step, {"a": [1.0, 0.0] * 4}, 4) for step in steps])
    for table in (run / "completions").iterdir():
        table.rename(table.with_name(prefix + table.name))
    assert main(["replay", str(run), "--json", str(tmp_path / "replay.json")]) == 0
    assert "The tables hold" not in (tmp_path / "replay.json").read_text()


def test_many_channels_fit_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rewards = {f"reward_number_{index}": np.random.default_rng(index).random(16) for index in range(16)}
    assert main(["replay", str(write_run(tmp_path, [trl_table(0, rewards, 4)]))]) == 0
    lines = capsys.readouterr().out.splitlines()
    of_gdpo = [line for line in lines if line.startswith("│ gdpo ")]
    assert sum(line.count("%") for line in of_gdpo) == 16 + len(of_gdpo)  # and the collisions
    assert not any("…" in line for line in lines)


def test_weights_and_bounds_of_the_user(tmp_path, capsys):
    run = write_run(tmp_path, [trl_table(0, {"a": [1.0, 0, 0, 1], "b": [3.0, 0, 1, 1]}, 4)])
    json_file = tmp_path / "replay.json"
    bounds = '{"a": [0, 1], "b": [0, 3]}'
    for weights in (["2", "0"], ['{"a": 2, "b": 0}']):
        options = ["--reward-weights", *weights, "--reward_bounds", bounds, "--num-generations", "2"]
        assert main(["replay", str(run), *options, "--json", str(json_file)]) == 0
        (written,) = json.loads(json_file.read_text())["runs"]
        assert written["num_generations"] == 2
        assert [channel["reward_weight"] for channel in written["channels"]] == [2.0, 0.0]
        assert [channel["reward_bounds"] for channel in written["channels"]] == [[0, 1], [0, 3]]
        assert {"saw", "sa_mrpo"} < {rule["rule"] for rule in written["rules"]}
        assert written["channels"][1]["verdict"] == "monitor"


@pytest.mark.parametrize(
    "options, message",
    [
        (["nowhere"], "'nowhere' does not exist"),
        (["{run}", "--reward-bounds", "[0, 1]"], "is no mapping by name"),
        (["{run}", "--reward-bounds", "{"], "is no JSON"),
        (["{run}", "--reward-weights", "heavy"], "invalid weight value: 'heavy'"),
        (["{run}", "--num-generations", "1"], "Pass at least 2"),
    ],
)
def test_impossible_options(tmp_path, capsys, options, message):
    run = write_run(tmp_path / "run", [trl_table(0, {"a": [1.0, 0, 0, 1]}, 4)])
    with pytest.raises(SystemExit) as end:
        main(["replay", *(option.replace("{run}", str(run)) for option in options)])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, message",
    [
        (["--reward-weights", "1", "2"], "`--reward-weights` has 2 numbers, but the rewards are ['a']"),
        (["--reward-weights", '{"b": 1}'], "`--reward-weights` names ['b'], but the channels are ['a']"),
        (["--reward-weights", "0"], "is 0 for every channel"),
        (["--reward-weights", '{"a": 1}', "2"], "`--reward-weights` has more than one mapping by name"),
        (["--reward-bounds", '{"a": [1, 0]}'], "`reward_bounds` gives channel 'a' the bounds [1, 0]"),
        (["--group-column", "question"], "`--group-column` is 'question'"),
        (["--num-generations", "3"], "no group of 3 completions"),
    ],
)
def test_a_run_that_does_not_fit_the_options(tmp_path, capsys, options, message):
    run = write_run(tmp_path / "run", [trl_table(0, {"a": [1.0, 0, 0, 1]}, 4)])
    assert main(["replay", str(run), *options]) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_one_of_two_runs_cannot_be_read(tmp_path, capsys):
    good = write_run(tmp_path / "good", [trl_table(0, {"a": [1.0, 0, 0, 1]}, 4)])
    bad = tmp_path / "bad.csv"
    bad.write_text("")
    page = tmp_path / "page.html"
    assert main(["replay", str(good), str(bad), "--html", str(page)]) == 0
    captured = capsys.readouterr()
    assert "bad: No table can be read" in captured.err and "good" in captured.out
    assert "bad: No table can be read" in page.read_text()


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys):
    run = write_run(tmp_path / "run", [trl_table(0, {"a": [1.0, 0, 0, 1]}, 4)])
    assert main(["replay", str(run), "--json", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "Cannot write" in captured.err and "4 completions, 1 group of 4" in captured.out


def test_no_part_of_trl_is_imported_and_100_000_rows_pass(tmp_path):
    generator = np.random.default_rng(0)
    size = 100_000
    rows = pd.DataFrame(
        {
            "step": np.repeat(np.arange(100), size // 100),
            "prompt": np.repeat([f"question {index}" for index in range(size // 8)], 8),
            "accuracy": generator.integers(2, size=size).astype(float),
            "length": generator.normal(size=size),
        }
    )
    rows.to_parquet(tmp_path / "rollouts.parquet")
    program = (
        "import sys\n"
        "from trl_dara.cli.main import main\n"
        f"assert main(['replay', {str(tmp_path / 'rollouts.parquet')!r}, '--html', {str(tmp_path / 'a.html')!r}]) == 0\n"
        "assert not {'trl', 'transformers', 'accelerate', 'datasets'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "100,000 completions, 12,500 groups of 8, 100 steps" in result.stdout


def test_a_log_of_metrics_is_sent_to_report(tmp_path, capsys):
    log = tmp_path / "gdpo-seed0.jsonl"
    lines = [{"name": "gdpo-seed0", "rule": "gdpo"}, {"step": 1, "loss": 0.0, "rewards/format_reward/mean": 0.5}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["replay", str(tmp_path)]) == 1
    message = "This is a log of metrics, not a table of completions. Pass it to `trl-dara report`."
    assert message in capsys.readouterr().err


def test_of_many_columns_a_message_names_ten(tmp_path, capsys):
    columns = {f"column_{index}": [0.0, 1.0] for index in range(54)}
    pd.DataFrame({"step": 1} | columns).to_csv(tmp_path / "t.csv")
    assert main(["replay", str(tmp_path / "t.csv")]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "'column_8', … (55 in all)" in message and "column_9" not in message
