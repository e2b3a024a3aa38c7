"""`trl-dara report` as a user calls it, on runs of the real trainer."""

import json
import shutil
import subprocess
import sys

import pytest

from trl_dara.cli.main import main

from ..trainer.support import has_a, has_q, run
from .run_logs import RECORD, log_of, write_checkpoint


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """Folder of four runs: one whole, one resumed, one that logs every second step, one stopped half way."""
    folder = tmp_path_factory.mktemp("trained")
    given = dict(max_steps=4, save_strategy="steps", save_steps=2, reward_bounds={"has_a": [0, 1]})

    def train(name, **changes):
        return run(tiny_model, folder / name, [has_a, has_q], **(given | changes))

    train("gdpo", aggregation="gdpo")
    train("resumed", aggregation="dara_sym", seed=0, max_steps=2)
    train("resumed", aggregation="dara_sym", seed=0, resume_from_checkpoint=str(folder / "resumed" / "checkpoint-2"))
    train("seldom", aggregation="dara_sym", seed=1, logging_steps=2)
    train("stopped", aggregation="gdpo", seed=1)
    shutil.rmtree(folder / "stopped" / "checkpoint-4")
    return folder


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_runs_of_the_trainer_side_by_side(trained, tmp_path, capsys):
    runs = [str(path) for path in sorted(trained.iterdir())]
    assert main(["report", *runs, "--output-dir", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "gdpo seed 42: 4 of 4 steps, seed 1: 2 of 4 steps" in printed
    assert "dara_sym seed 0, seed 1: 4 of 4 steps" in printed
    assert "stopped: Going on, or stopped, at step 2 of 4." in printed
    assert "resumed: Resumed at step 2." in printed
    assert "means over steps 1 to 2, which all runs have" in printed
    assert "carries" in printed and "of the signal under dara_sym" in printed
    page = (tmp_path / "report.html").read_text()
    assert "every 2 steps" in page and "Resumed at step 2." in page
    assert {"density.png", "reward.png", "report.html"} <= set(names(tmp_path))
    for figure in tmp_path.glob("*.png"):
        assert figure.read_bytes().startswith(b"\x89PNG") and figure.stat().st_size > 5000


def test_markdown_and_nothing_else(trained, capsys):
    labels = ["--label", "seldom=mine", "--label", f"{trained}/resumed=mine"]
    runs = [str(trained / name) for name in ("gdpo", "resumed", "seldom")]
    assert main(["report", *runs, *labels, "--format", "md"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("### has_a\n\n|  | gdpo (1 run) | mine (2 runs) |\n| --- |")
    assert captured.err == ""


def test_many_rules_fit_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for rate in range(12):
        log = log_of([1, 2], format=[rate / 100, rate / 100])
        write_checkpoint(tmp_path / str(rate), log, RECORD | {"learning_rate": rate / 100})
    assert main(["report", *(str(tmp_path / str(rate)) for rate in range(12))]) == 0
    lines = capsys.readouterr().out.splitlines()
    means = [cell.strip() for line in lines if line.startswith("│ mean reward") for cell in line.split("│")[2:-1]]
    assert means == [f"{rate / 100:.3f}" for rate in range(12)]


def test_runs_that_are_too_short_to_confirm_a_crossing_are_shown(tmp_path, capsys):
    for seed in (0, 1):
        log = log_of(range(1, 21), format=[0.0] * 5 + [1.0] * 15)
        write_checkpoint(tmp_path / str(seed), log, RECORD | {"seed": seed})
    assert main(["report", str(tmp_path / "0"), str(tmp_path / "1")]) == 0
    printed = capsys.readouterr().out
    assert "0 of 2 runs" in printed and "10? 10?" in printed and "A step with a question mark" in printed


def test_what_cannot_be_read_is_left_out(tmp_path, capsys):
    log = log_of([1, 2], format=[0.0, 0.5], correct=[1.0, 1.0])
    write_checkpoint(tmp_path / "good", log, RECORD)
    write_checkpoint(tmp_path / "bad", log, RECORD)
    (tmp_path / "bad" / "checkpoint-2" / "trainer_state.json").write_text('{"log_history": [')
    (tmp_path / "new").mkdir()
    runs = [str(tmp_path / name) for name in ("good", "bad", "new", "gone")]
    assert main(["report", *runs, "--output-dir", str(tmp_path / "out")]) == 0
    errors = capsys.readouterr().err
    for reason in ("trainer_state.json is damaged", "new has no trainer_state.json", "gone does not exist"):
        assert reason in errors and reason in (tmp_path / "out" / "report.html").read_text()
    assert main(["report", *runs[1:]]) == 1
    (tmp_path / "file").touch()
    assert main(["report", runs[0], "--output_dir", str(tmp_path / "file")]) == 1
    assert "Cannot write the report" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, message",
    [
        (["--label", "nobody=mine"], "Pass RUN=NAME, where RUN is one of ['good']"),
        (["--label", "good="], "`--label` got 'good='"),
        (["--reward-bounds", '{"other": [0, 1]}'], "names ['other'], but the channels are"),
        (["--reward-bounds", '{"format": [1, 0]}'], "the bounds [1, 0]"),
        (["--format", "csv"], "invalid choice"),
    ],
)
def test_impossible_options(tmp_path, capsys, options, message):
    write_checkpoint(tmp_path / "good", log_of([1, 2], format=[0.0, 0.5], correct=[1.0, 1.0]), RECORD)
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(tmp_path / "good"), *options])
    assert message in " ".join(capsys.readouterr().err.split())


def study(folder):
    """Logs of two rules, two seeds and three group sizes, with everything that the paper's figures show."""
    for rule in ("gdpo", "dara_asym"):
        for size in (4, 8, 16):
            for seed in (0, 1):
                log = []
                for step in range(1, 61):
                    mean = min(1.0, step / (40 - 10 * (rule == "dara_asym") - size + seed))
                    density = {"format": 0.02 + mean * (1 - mean), "correct": 0.9}
                    weight = {"format": 2.0 if rule == "dara_asym" else 1.0, "correct": 1.0}
                    log.append({"step": step, "rewards/format/mean": mean, "rewards/correct/mean": 2 * mean})
                    for channel, value in density.items():
                        log[-1] |= {
                            f"channels/{channel}/density": value,
                            f"channels/{channel}/energy": value * (size - 1) / size,
                            f"channels/{channel}/weight": weight[channel],
                            f"channels/{channel}/share": 0.5,
                        }
                settings = {"rule": rule, "seed": seed, "num_generations": size, "prompts": 256 // size, "steps": 60}
                path = folder / f"{rule}-{size}-{seed}.jsonl"
                path.write_text("\n".join(map(json.dumps, [settings, *log])) + "\n")
    return [str(path) for path in sorted(folder.iterdir())]


def test_every_figure_of_the_paper(tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    logs = study(tmp_path / "logs")
    bounds = ["--reward-bounds", '{"correct": [0, 2]}']
    assert main(["report", *logs, "--output-dir", str(tmp_path / "out"), *bounds]) == 0
    assert names(tmp_path / "out") == [
        "density.png",
        "energy.png",
        "energy_ratio.png",
        "group_size.png",
        "report.html",
        "reward.png",
        "stable_crossings.png",
        "weight.png",
    ]
    page = (tmp_path / "out" / "report.html").read_text()
    for figure in ("1(b)", "3.", "4 of", "5.", "7.", "8."):
        assert f"Figure {figure}" in page or f"and {figure}" in page
    assert "dara_asym, num_generations=16" in page


def test_neither_pytorch_nor_trl_is_imported(tmp_path):
    write_checkpoint(tmp_path / "run", log_of([1, 2], format=[0.0, 0.5], correct=[1.0, 1.0]), RECORD)
    code = (
        "import sys\n"
        "from trl_dara.cli.main import main\n"
        f"assert main(['report', {str(tmp_path / 'run')!r}, '--output-dir', {str(tmp_path / 'out')!r}]) == 0\n"
        "assert not {'torch', 'trl', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
