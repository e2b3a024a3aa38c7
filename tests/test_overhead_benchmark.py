"""The benchmark of what our own code costs: what it measures, what it compares with, how it shows it."""

import json
import subprocess
import sys
from dataclasses import asdict

import pandas as pd
import pytest
import torch

from tests.markdown import PAGES, README, ROOT
from train_scripts.benchmark.aggregation_cost import OWN, PEER, TRL, Case, make_cases, trl_advantages
from train_scripts.benchmark.overhead import RESULTS, compare_training
from train_scripts.benchmark.overhead_report import growth, markdown, save_figure, share_of_step
from trl_dara import AGGREGATIONS, compute_advantages


def test_formula_of_trl_is_gdpo_where_no_group_is_constant():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(60, 3, generator=generator)  # (N, K)
    rewards[::7, 1] = torch.nan
    rewards[::11] = torch.nan  # unscorable
    weights = torch.tensor([1.0, 2.0, -0.5])  # (K,)
    expected = compute_advantages(rewards, 6, "gdpo", weights).advantages
    torch.testing.assert_close(trl_advantages(rewards, 6, weights), expected, rtol=0, atol=1e-5)


def test_cases_cover_what_is_promised():
    cases = make_cases(peer=True)
    assert {case.method for case in cases if case.varied == "completions"} == {*OWN, TRL, PEER}
    assert max(case.completions for case in cases) == 1_000_000 and max(case.channels for case in cases) == 16
    assert {case.method for case in cases if case.varied == "rule"} == set(AGGREGATIONS)
    assert all(case.completions % case.group_size == 0 for case in cases)
    assert PEER not in {case.method for case in make_cases(peer=False)}


# In a program of its own, as the benchmark is: the measuring processes are forked from one that it starts
MEASURE = """
import json, sys
from train_scripts.benchmark.aggregation_cost import Case, measure_all

if __name__ == "__main__":
    cases = [Case(**case) for case in json.loads(sys.argv[1])]
    print(json.dumps(list(measure_all(cases, rounds=1))))
"""


@pytest.mark.slow
def test_peak_memory_and_report_of_small_sizes(tmp_path):
    sizes = [
        Case("completions", method, n, repeat_seconds=0) for method in (*OWN, TRL) for n in (160, 131_072, 262_144)
    ]
    cases = sizes + [
        Case("group_size", "gdpo", 160, group_size=4, repeat_seconds=0),
        *(Case("channels", method, 160, channels=k, repeat_seconds=0) for method in (*OWN, TRL) for k in (4, 8)),
        Case("missing", "gdpo", 160, missing=0.05, repeat_seconds=0),
        *(Case("rule", rule, 160, channels=3, repeat_seconds=0) for rule in ("saw", "static_sym")),
    ]
    script = tmp_path / "measuring.py"
    script.write_text(MEASURE)
    command = [sys.executable, str(script), json.dumps([asdict(case) for case in cases])]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    costs = pd.DataFrame(json.loads(done.stdout))
    assert len(costs) == len(cases) and (costs["milliseconds"] > 0).all()
    of_large = costs[(costs["varied"] == "completions") & (costs["completions"] == 262_144)]
    # A result holds at least the normalised rewards of each channel, 4 MB; a peak in the megabytes of all that is loaded
    # or of the parent would be in the hundreds
    assert of_large.loc[of_large["method"] != TRL, "peak_mb"].between(4, 60).all()

    steps = pd.DataFrame(
        [{"pair": 0, "step": s, "ours_ms": 500.0, "trl_ms": 510.0, "own_code_ms": 1.5} for s in (2, 3)]
    )
    report = markdown(steps, costs)
    assert "Our own code takes 0.30% of a step (limit 0.5%: holds)" in report
    assert f"`{PEER}` was not installed." in report
    save_figure(costs, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_growth_is_the_power():
    rows = [
        {"varied": "completions", "method": "gdpo", "completions": n, "group_size": 16, "channels": 4, "missing": 0.0}
        | {"round": r, "milliseconds": 1e-9 * n**1.5 + 1e6 * (r == 2), "peak_mb": 0.0}
        for n in (256, 131_072, 262_144, 1_000_000)
        for r in range(3)
    ]
    rows[0]["milliseconds"] = rows[1]["milliseconds"] = 99.0  # small sizes do not count
    assert growth(pd.DataFrame(rows), "completions", "gdpo") == pytest.approx(1.5)


@pytest.mark.slow
def test_steps_of_both_trainers_are_paired():
    finished = []
    steps = compare_training(prompts=2, num_generations=2, steps=3, pairs=2, advance=lambda: finished.append(1))
    assert len(finished) == 4
    assert steps[["pair", "step"]].values.tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]
    assert (steps["own_code_ms"] > 0).all() and (steps["own_code_ms"] < steps["ours_ms"]).all()


def test_numbers_of_the_texts_are_those_of_the_results():
    report = (RESULTS / "overhead.md").read_text()
    assert markdown_without_source(report) == markdown_without_source(
        markdown(pd.read_csv(RESULTS / "overhead_step.csv"), pd.read_csv(RESULTS / "overhead.csv"))
    )
    section = README[README.index("## Speed") : README.index("## Can I use it with")]
    rows = [
        line for line in section.splitlines() if line.startswith("| ") and any(digit in line for digit in "0123456789")
    ]
    assert len(rows) == 10 and all(row in report for row in rows)
    share = f"{share_of_step(pd.read_csv(RESULTS / 'overhead_step.csv')):.2%}".replace("%", " %")
    cost = PAGES["which_rule.md"].split("## Cost")[1].split("\n## ")[0]
    assert share in section and share in cost
    of_rules = report.split("### Every rule")[1]
    for row in [line for line in cost.splitlines() if line.startswith("| `")]:
        assert row in of_rules


def markdown_without_source(report: str) -> str:
    """Without the first line, which names machine and date."""
    return report.split("\n", 1)[1]
