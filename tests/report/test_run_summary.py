"""Verdicts, tables and findings on runs with known numbers, and on the paper's own logs."""

from pathlib import Path

import numpy as np
import pytest

from trl_dara.report.run_groups import group_runs
from trl_dara.report.run_summary import summarize_runs
from trl_dara.report.run_tables import markdown
from trl_dara.report.runs import read_run

from .run_logs import RECORD, run_of


PAPER_LOGS = Path(__file__).parents[2].parent / "shared" / "data" / "dara-reference-logs"


def summary_of(*runs, bounds=None, **labels):
    return summarize_runs(group_runs(runs, labels), bounds or {})


def verdicts(summary: dict) -> dict[str, str]:
    (group,) = summary["groups"]
    return {channel["name"]: channel["verdict"] for channel in group["channels"]}


def cells(summary: dict, measure: str, channel: int = 0) -> list[str]:
    (row,) = [row for row in summary["tables"][channel]["rows"] if row["measure"] == measure]
    return [f"{cell['text']} {cell['each']}".strip() for cell in row["cells"]]


def two_channels(rule: str, share: float, seed: int = 0, **record):
    """A dense channel and one that has `share` of the signal."""
    return run_of(
        f"{rule}-{seed}",
        record=RECORD | {"rule": rule, "seed": seed} | record,
        channels=("format", "correct"),
        mean=np.tile([0.1, 0.5], (8, 1)) + np.arange(8)[:, None] / 100,
        std=np.full((8, 2), 0.3),
        density=np.tile([0.04, 0.9], (8, 1)),
        share=np.tile([share, 1 - share], (8, 1)),
    )


@pytest.mark.parametrize(
    "rule, share, verdict, sentence",
    [
        ("dara_asym", 0.4, "active", "active in 4 % of groups, carries 40 % of the signal under dara_asym"),
        ("dara_asym", 0.2, "starved", "starved: active in 4 % of groups, carries 20 % of the signal under dara_asym"),
        ("gdpo", 0.1, "starved", "starved: active in 4 % of groups, carries 10 % of the signal under gdpo"),
        ("grpo", 0.1, "drowned", "drowned under grpo by the larger values"),
    ],
)
def test_a_channel_is_judged_by_its_share_under_the_rule_of_the_run(rule, share, verdict, sentence):
    summary = summary_of(two_channels(rule, share))
    assert verdicts(summary) == {"format": verdict, "correct": "active"}
    assert summary["groups"][0]["channels"][0]["sentence"].startswith(sentence)


def test_a_monitor_is_no_starved_channel():
    run = two_channels("gdpo", 0.0, reward_weights={"format": 0.0, "correct": 1.0})
    assert verdicts(summary_of(run)) == {"format": "monitor", "correct": "active"}


def test_a_verdict_is_on_the_mean_of_the_runs_and_names_those_it_does_not_fit():
    shares = {0: 0.4, 1: 0.4, 2: 0.2}
    summary = summary_of(*(two_channels("gdpo", share, seed) for seed, share in shares.items()))
    starved = "starved: active in 4 % of groups, carries 20 % of the signal under gdpo"
    (group,) = summary["groups"]
    assert group["channels"][0]["sentence"] == "active in 4 % of groups, carries 33 % of the signal under gdpo"
    assert group["channels"][0]["others"] == [f"seed 2: {starved}"]
    assert group["channels"][1]["others"] == []


def test_a_silent_channel_with_the_residue_of_float32():
    mean = np.float32([0.1, 0.1, 0.1]) + np.float32([0, 7e-9, 0])
    run = run_of(record=RECORD, mean=mean, std=[1e-8, 0, 1e-8], density=[0.0, 0.0, 0.0])
    (group,) = summary_of(run)["groups"]
    assert group["channels"][0]["verdict"] == "silent"
    assert group["channels"][0]["sentence"] == "always 0.1 since step 1: no signal under any rule"


def test_a_log_without_density_has_no_verdict_that_needs_one():
    (group,) = summary_of(run_of(mean=[0.0, 0.25]))["groups"]
    assert group["channels"][0]["verdict"] == "not known"
    assert "mean reward 0 → 0.25; no density was logged" in group["channels"][0]["sentence"]


def test_means_have_intervals_and_every_run_is_shown():
    runs = [
        run_of(f"s{seed}", record=RECORD | {"seed": seed}, mean=np.repeat([0.0, 1.0], [at - 1, 61 - at]))
        for seed, at in enumerate([10, 20, 60])
    ]
    summary = summary_of(*runs)
    assert cells(summary, "first at 80 %") == ["30.0 [10.0, 60.0] 10 20 60"]
    # The mean of 10 steps reaches 0.8 with the eighth 1, at 17 and 27, and needs 20 more steps
    assert cells(summary, "stable at 80 %") == ["2 of 3 runs 17 27 >60"]
    assert cells(summary, "mean reward") == ["0.517 [0.017, 0.850] 0.850 0.683 0.017"]
    single = summary_of(runs[0])
    assert cells(single, "stable at 80 %") == ["17"]


def test_a_crossing_that_the_run_is_too_short_to_confirm_is_marked():
    summary = summary_of(run_of(record=RECORD | {"seed": 1}, mean=np.repeat([0.0, 1.0], [20, 20])))
    assert cells(summary, "stable at 80 %") == ["28?"]
    (table,) = summary["tables"]
    assert "A step with a question mark: reached, and the run is too short to confirm it." in table["notes"]
    never = summary_of(run_of(record=RECORD, mean=np.full(40, 0.4)))["tables"][0]["notes"]
    assert never == ["No run gets there: first at 50 % and above, stable at 50 % and above."]
    almost = summary_of(run_of(record=RECORD, mean=np.full(40, 0.98)))["tables"][0]["notes"]
    assert almost == ["No run gets there: stable at 99 %."]


def test_what_a_density_peak_is_the_mean_of():
    values = {"mean": np.full(8, 0.5), "density": [0.0, 1.0, 0.5, 0.75, 0.75, 0.0, 0.0, 0.0]}
    small = summary_of(run_of(record=RECORD | {"prompts": 16}, **values))
    assert cells(small, "density peak") == ["75 %"] and cells(small, "density peak at step") == ["3"]
    (note,) = [note for note in small["tables"][0]["notes"] if "density peak" in note]
    assert note.startswith(
        "The density peak is that of the mean of 2 logged values, which has at least 32 groups; its"
    )
    smaller = run_of("smaller", record=RECORD | {"prompts": 8}, **values)
    both = summary_of(run_of(record=RECORD | {"prompts": 16}, **values), smaller)
    assert "mean of 2 to 4 logged values" in " ".join(both["tables"][0]["notes"])
    assert "density peak" not in str(summary_of(run_of(record=RECORD, **values))["tables"][0]["notes"])


def test_why_there_is_no_threshold_or_no_stable_crossing():
    wide, uneven = run_of("wide", mean=[-1.0, 2.0]), run_of("uneven", steps=[1, 2, 5, 6], mean=[0.1, 0.2, 0.3, 0.9])
    notes = " ".join(summary_of(wide, uneven)["tables"][0]["notes"])
    assert "No thresholds for wide: the reward leaves [0, 1]" in notes
    assert """--reward-bounds '{"format": [LOW, HIGH]}'""" in notes
    assert "No stable crossings for uneven: they need a value of every step" in notes
    assert "No thresholds" not in str(summary_of(wide, bounds={"format": [-2, 2]})["tables"])


def test_runs_of_different_lengths_are_averaged_over_what_all_have():
    long = run_of("long", record=RECORD | {"rule": "gdpo", "learning_rate": 1e-5}, mean=[0.0] * 10 + [1.0] * 10)
    short = run_of("short", record=RECORD, mean=[0.5] * 10)
    short.max_steps, short.record["resumed_at"] = 20, [4, 8]
    summary = summary_of(long, short)
    assert cells(summary, "mean reward") == ["0.000", "0.500"]
    assert summary["scope"].startswith(
        "Mean reward, density, weight and share are means over steps 1 to 10, which all runs have. First: a single "
    )
    assert "The runs differ in learning_rate: 1e-05, 1e-06." in summary["findings"]
    assert summary["groups"][1]["runs"][0]["notes"] == [
        "Going on, or stopped, at step 10 of 20.",
        "Resumed at step 4, 8.",
    ]
    twice = summary_of(short, run_of("again", record=short.record, mean=[0.5] * 10))
    assert "dara_asym has 2 runs of seed 0; each counts." in twice["findings"]


def test_channels_that_not_all_runs_have():
    both, one = two_channels("gdpo", 0.4), run_of("one", record=RECORD, mean=[0.5, 0.6])
    tables = summary_of(both, one)["tables"]
    assert [[group["label"] for group in table["groups"]] for table in tables] == [["gdpo", "dara_asym"], ["gdpo"]]


def weighed(rule: str | None, **record):
    """Weights by Equation 6, of which the second step's is at the cap; the third step has no active group."""
    record = {} if rule is None else RECORD | {"rule": rule} | record
    density = [[0.25, 1.0], [0.01, 1.0], [0.0, 0.0]]
    weight = [[2.0, 1.0], [5.0, 1.0], [1.0, 1.0]]
    return run_of(record=record, channels=("format", "correct"), mean=density, density=density, weight=weight)


@pytest.mark.parametrize("rule", ["dara_sym", "dara_asym", None])
def test_weights_of_equation_6_are_recognised(rule):
    (group,) = summary_of(weighed(rule))["groups"]
    assert group["findings"] == ["The weights are those of DARA's Equation 6 (largest difference 0)."]


def test_other_weights_are_not_those_of_equation_6():
    (group,) = summary_of(weighed("dara_sym", aggregation_kwargs={"w_max": 3.0}))["groups"]
    assert group["findings"] == ["The weights differ from DARA's Equation 6 by up to 2."]
    assert summary_of(weighed("saw"))["groups"][0]["findings"] == []
    averaged = weighed("dara_sym")
    averaged.steps = np.array([5, 10, 15])  # a mean of weights is no weight
    assert summary_of(averaged)["groups"][0]["findings"] == []
    calibrated = weighed("dara_sym")
    calibrated.values["calibrated_density"], calibrated.values["density"] = (
        calibrated.values["density"],
        np.ones((3, 2)),
    )
    assert "are those of" in summary_of(calibrated)["groups"][0]["findings"][0]
    monitored = weighed("dara_sym", reward_weights={"format": 1.0, "correct": 0.0})
    assert summary_of(monitored)["groups"][0]["findings"] == ["The weights differ from DARA's Equation 6 by up to 4."]


def test_markdown_can_be_pasted():
    text = markdown(summary_of(run_of("a", mean=[0.5, 0.5]), run_of("b", mean=[0.25, 0.75]), b="x|y"))
    lines = text.splitlines()
    assert lines[:3] == ["### format", "", r"|  | a (1 run) | x\|y (1 run) |"]
    assert "| mean reward | 0.500 | 0.500 |" in lines and "| first at 30 % | 1 | 2 |" in lines


def test_the_paper_s_runs():
    if not PAPER_LOGS.is_dir():
        pytest.skip("the training logs of the paper are not there")
    dara, grpo = (read_run(path, path.stem) for path in sorted(PAPER_LOGS.glob("*.csv")))
    summary = summary_of(dara, grpo, bounds={"correctness": [-3, 3]})
    assert summary["groups"][0]["findings"] == [
        "The weights are those of DARA's Equation 6 (largest difference 5e-10)."
    ]
    assert cells(summary, "density peak") == ["56 %", "–"] and cells(summary, "density peak at step") == ["10", "–"]
    assert cells(summary, "largest weight") == ["5.00", "–"]
    assert cells(summary, "first at 80 %") == ["15", "37"]
    assert cells(summary, "stable at 80 %") == ["21", "44"] and cells(summary, "stable at 90 %") == ["31", "99?"]
    assert cells(summary, "density peak at step", channel=1) == ["5"]
    assert [channel["verdict"] for channel in summary["groups"][0]["channels"]] == ["active", "active"]
