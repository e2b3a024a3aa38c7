"""The command, its stages and its folder."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trl_dara.cli.main import main
from trl_dara.evaluation.records import append_records, read_records

from .truthful_run import CATEGORIES, LIMIT


REPOSITORY = Path(__file__).parents[3]


def generate(folder: Path, *calls_before_kill: int) -> int:
    command = [sys.executable, "-m", "tests.evaluation.bfcl.truthful_run", str(folder), *map(str, calls_before_kill)]
    return subprocess.run(command, cwd=REPOSITORY, timeout=100).returncode


def records(folder: Path) -> dict[str, list[dict]]:
    return {category: read_records(folder / f"{category}.jsonl") for category in CATEGORIES}


@pytest.fixture(scope="module")
def answered(bfcl_python, tmp_path_factory) -> Path:
    """A folder with the true answers of some cases."""
    folder = tmp_path_factory.mktemp("answered")
    assert generate(folder) == 0
    return folder


@pytest.fixture
def folder(answered, tmp_path) -> Path:
    """A copy of it."""
    for file in answered.rglob("*.json*"):
        copy = tmp_path / file.relative_to(answered)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def evaluate(folder, bfcl_python):
    return lambda *options: main(["eval", "bfcl", "--output_dir", str(folder), "--bfcl_python", bfcl_python, *options])


@pytest.mark.bfcl
def test_a_killed_generation_goes_on_where_it_was(answered, tmp_path):
    assert generate(tmp_path, 6) == -9
    before = {category: (tmp_path / "raw" / f"{category}.jsonl") for category in CATEGORIES}
    before = {category: file.read_bytes() if file.exists() else b"" for category, file in before.items()}
    done = sum(text.count(b"\n") for text in before.values())
    assert 0 < done < LIMIT * len(CATEGORIES)
    assert generate(tmp_path) == 0
    for category in CATEGORIES:
        assert (tmp_path / "raw" / f"{category}.jsonl").read_bytes().startswith(before[category])
    by_id = [
        {category: sorted(rows, key=lambda row: row["id"]) for category, rows in records(run / "raw").items()}
        for run in (tmp_path, answered)
    ]
    assert by_id[0] == by_id[1]


@pytest.mark.bfcl
def test_score_and_aggregate_need_no_model(folder, evaluate, capsys):
    assert evaluate("--stage", "score") == 0
    assert evaluate("--stage", "aggregate") == 1
    assert "live_simple (0 of 258)" in capsys.readouterr().out
    assert not (folder / "summary.json").exists()
    assert evaluate("--stage", "aggregate", "--partial", "true") == 0
    assert "partial: cases are missing" in capsys.readouterr().out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["partial"] is True
    assert summary["settings"]["bfcl_eval"] == "2026.3.23" and summary["settings"]["prompt"] == "ToolRL"
    assert summary["categories"] == {
        category: {"cases": LIMIT, "accuracy": 1.0, "format": 1.0, "length": 1.0} for category in CATEGORIES
    }
    assert summary["groups"]["multi_turn"]["accuracy"] is None
    with (folder / "cases.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == LIMIT * len(CATEGORIES)
    assert {row["accuracy"] for row in rows} == {"1.0"} and {row["category"] for row in rows} == set(CATEGORIES)


@pytest.mark.bfcl
def test_a_stopped_scoring_goes_on_where_it_was(folder, evaluate):
    evaluate("--stage", "score")
    complete = records(folder / "scores")
    file = folder / "scores" / f"{CATEGORIES[0]}.jsonl"
    file.write_bytes(file.read_bytes()[:-200])  # one line less, and another one torn
    (folder / "scores" / f"{CATEGORIES[1]}.jsonl").unlink()
    assert evaluate("--stage", "score") == 0
    assert records(folder / "scores") == complete


@pytest.mark.bfcl
def test_answers_that_have_changed_are_scored_again(folder, evaluate):
    evaluate("--stage", "score")
    file = folder / "raw" / f"{CATEGORIES[0]}.jsonl"
    first, *others = read_records(file)
    rows = [first | {"result": "No."}, *others]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluate("--stage", "score")
    assert evaluate("--stage", "aggregate", "--partial", "true") == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["categories"][CATEGORIES[0]]["accuracy"] == 1 - 1 / LIMIT


@pytest.mark.bfcl
def test_all_stages_with_a_model(tiny_model, bfcl_python, tmp_path, capsys):
    """A random model with room for the prompt of one case, and not for that of the other."""
    model = tmp_path / "model"
    model.mkdir()
    for file in Path(tiny_model).iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 6000}))
    command = [
        "eval",
        "bfcl",
        "--output_dir",
        str(tmp_path / "out"),
        "--bfcl_python",
        bfcl_python,
        "--partial",
        "true",
    ]
    command += ["--model_name_or_path", str(model), "--dtype", "float32", "--max_tokens", "5", "--limit", "1"]
    command += ["--categories", "simple_python", "multi_turn_base"]
    assert main(command) == 0
    [short] = read_records(tmp_path / "out" / "raw" / "simple_python.jsonl")
    [long] = read_records(tmp_path / "out" / "raw" / "multi_turn_base.jsonl")
    assert short["result"] and 1 <= short["num_tokens"][0] <= 5 and short["error"] is None
    assert long["error"] == "The prompt leaves no room in the context."
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert settings["context_length"] == 32768 and settings["sampling"]["temperature"] == 0.6
    capsys.readouterr()

    assert main(command) == 0
    assert "All answers are there." in capsys.readouterr().out
    assert main([*command, "--temperature", "1"]) == 1
    assert "`sampling.temperature` was 0.6 and is now 1.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "3"], "Pass `--partial`"),
        (["--categories", "live_simple"], "Pass `--partial`"),
        (["--categories", "irrelevance"], "`categories` has ['irrelevance']"),
        (["--stage", "generate", "--limit", "0"], "`limit` is 0"),
    ],
)
def test_impossible_options(options, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["eval", "bfcl", *options])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_nothing_to_score(tmp_path, capsys):
    assert main(["eval", "bfcl", "--stage", "score", "--output_dir", str(tmp_path)]) == 1
    assert f"{tmp_path / 'raw'} has no answers." in capsys.readouterr().out


@pytest.mark.parametrize(
    "record",
    [
        {"id": "parallel_0", "result": "Hi."},
        {"id": "multiple_0", "result": "Hi.", "num_tokens": [2], "error": None},
        {"id": "parallel_0", "result": [["Hi."]], "num_tokens": [2], "error": None},
        {"id": "multi_turn_base_0", "result": "Hi.", "num_tokens": [2], "error": None},
        {"id": "multi_turn_base_0", "result": [[None]], "num_tokens": [2], "error": None},
    ],
)
def test_records_that_are_no_answers_are_named(record, tmp_path, capsys):
    category = "multi_turn_base" if record["id"].startswith("multi_turn") else "parallel"
    append_records(tmp_path / "raw" / f"{category}.jsonl", [record])
    assert main(["eval", "bfcl", "--stage", "score", "--output_dir", str(tmp_path)]) == 1
    assert f"{category}.jsonl, line 1 is no answer to a case of '{category}'." in capsys.readouterr().out


def test_a_program_that_is_no_interpreter_is_named(tmp_path, capsys):
    answer = {"id": "parallel_0", "result": "Hi.", "num_tokens": [2], "error": None}
    append_records(tmp_path / "raw" / "parallel.jsonl", [answer])
    command = ["eval", "bfcl", "--stage", "score", "--output_dir", str(tmp_path), "--bfcl_python"]
    program = shutil.which("true")
    assert main([*command, program]) == 1
    assert f"{program} could not run worker.py (exit code 0)" in capsys.readouterr().out
    assert main([*command, sys.executable]) == 1
    printed = capsys.readouterr().out
    # Each command in one line, and the page of evaluation has the same
    commands = [line.strip() for line in printed.splitlines() if line.startswith("  ")]
    page = (Path(__file__).parents[3] / "docs/evaluation.md").read_text()
    assert commands[1] == "bfcl-env/bin/pip install --no-deps bfcl-eval==2026.3.23 filelock mpmath==1.3.0"
    assert len(commands) == 2 and all(command in page for command in commands)
    assert "`--bfcl_python bfcl-env/bin/python`" in printed


@pytest.mark.parametrize("options", [[], ["--partial"]])
def test_nothing_to_aggregate(options, tmp_path, capsys):
    assert main(["eval", "bfcl", "--stage", "aggregate", "--output_dir", str(tmp_path), *options]) == 1
    assert "There are no scores." in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
