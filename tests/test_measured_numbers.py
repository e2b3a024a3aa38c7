"""The measured numbers in the README and in `docs/` are those of the committed results."""

import json
import re

import pandas as pd

from tests.markdown import PAGES, README, ROOT, squeezed
from train_scripts.benchmark.aggregation_cost import OWN, PEER
from train_scripts.benchmark.overhead_report import medians


RESULTS = ROOT / "train_scripts" / "benchmark" / "results"


def test_numbers_on_the_page_of_rules_are_those_of_the_results():
    page, results = PAGES["which_rule.md"], RESULTS / "small_batches.md"
    table, _ = results.read_text().split("\n\n", 1)
    assert table in page
    rows = [row for row in page.split("## Cost")[0].splitlines() if re.match(r"\| `\w+` \| \d", row)]
    assert len(rows) == 3 and all(row in README for row in rows)
    seeds = page[page.index("Over seeds 0, 1 and 2") :].split("(")[0]
    measured = re.findall(r"\d+\.\d+ (?:ms|%)", page) + re.findall(r"\d\d\.\d|0\.\d\d\d", seeds)
    assert len(measured) == 5 and all(number in README for number in measured)


def test_gains_of_the_window_are_those_of_the_results():
    results = pd.read_csv(RESULTS / "small_batches.csv")
    means = results.groupby(["variant", "B"])[["mean_format", "mean_correctness"]].mean()
    change = means.loc["dara_sym, window"] - means.loc["dara_sym, per batch"]
    small = [f"{abs(change.loc[size, column]):.3f}" for column in change for size in (1, 2, 4, 8, 16)]
    page = PAGES["which_rule.md"]
    section = squeezed(page)
    section = section[section.index("The smaller the batch") : section.index("that is more than the 0.05")]
    assert re.findall(r"0\.\d\d\d", section) == small
    wide = results.pivot(index=["B", "seed"], columns="variant", values="mean_format")
    higher = (wide["dara_sym, window"] > wide["dara_sym, per batch"]).groupby("B").sum()
    assert higher[[1, 2, 4, 8, 16]].tolist() == [5, 5, 5, 3, 5] and "on 5, 5, 5, 3 and 5 of five seeds" in squeezed(
        page
    )
    section = squeezed(README[README.index("### Small batches") : README.index("## Metrics")])
    pairs = re.findall(r"from (0\.\d\d\d) to (0\.\d\d\d)", section)
    variants = ("dara_sym, per batch", "dara_sym, window")
    assert pairs == [
        tuple(f"{means.loc[(variant, size), 'mean_format']:.3f}" for variant in variants) for size in (1, 2, 4)
    ]
    assert "by 0.017 with eight or 16" in section and small[3:5] == ["0.017", "0.017"]


def test_learning_speed_in_the_readme_is_that_of_the_results():
    results = (RESULTS / "learning.md").read_text()
    section = README[README.index("### Learning speed") : README.index("### Small batches")]
    for experiment in results.split("### ")[1:]:
        means, ratios = experiment.split("lowest to highest.")
        assert ratios[ratios.index("| |") :].strip() in section
        (row,) = [line for line in means.splitlines() if line.startswith("| mean correctness")]
        assert all(mean in section for mean in re.findall(r"\*\*([\d.]+)\*\*", row)[1:])  # grpo's is left out
    row, _ = [line for line in results.splitlines() if line.startswith("| stable at 99 %")]  # steps, and their ratio
    steps = re.findall(r"\(([\w ]+)\)", row)
    assert len(steps) == 3 and all(of_rule in " ".join(section.split()) for of_rule in steps)


def test_gpu_figures_in_the_readme_are_those_of_the_results():
    checks = json.loads((RESULTS / "gpu_check.json").read_text())["checks"]
    section = README[README.index("On one NVIDIA H200") : README.index("## Real rewards, a real model")]
    rows = re.findall(r"^\| (\w+), (all weights|LoRA) \| (\d+) \| ([\d.e-]+)(.*) \|$", section, re.MULTILINE)
    assert len(rows) == 4
    for precision, trained, passed, largest, failed in rows:
        kind = f"train {precision} {'lora' if trained == 'LoRA' else 'full'} "
        of_kind = [check for check in checks if check["check"].startswith(kind)]
        errors = [check["largest_advantage_error"] for check in of_kind if check["passed"]]
        assert (int(passed), largest) == (len(errors), f"{max(errors):.1e}")
        others = [(c["check"].split()[-1], c["largest_advantage_error"]) for c in of_kind if not c["passed"]]
        assert failed.strip("; ") == " ".join(f"`{rule}` {error:.2f}" for rule, error in others)
    section = squeezed(section)
    (step,) = [check for check in checks if check["check"].startswith("step_time")]
    assert f"{step['ours_ms']:.1f} ms, of which our own code {step['own_code_ms']:.2f} ms" in section
    assert f"({step['own_code_ms'] / step['ours_ms']:.1%})".replace("%", " %") in section
    assert f"{step['trl_ms']:.1f} ms with TRL's" in section
    assert f"paired difference was {step['paired_difference_ms']:.1f} ms" in section


def test_tables_over_experiments_are_those_of_the_results():
    for name, text in [("learning_settings.md", README), ("search.md", PAGES["which_rule.md"])]:
        overview, _ = (RESULTS / name).read_text().split("\n\n", 1)
        assert len(overview.splitlines()) >= 7 and overview in text
    settings = pd.read_csv(RESULTS / "learning_settings.csv").query("measure == 'steps to 0.8' and rule == 'dara_sym'")
    steps = [f"{settings.query('experiment == @key')['value'].mean():.1f}" for key in ("A", "G8", "G16", "G32")]
    assert f"{', '.join(steps[:3])} and {steps[3]} steps with G = 4, 8, 16 and 32" in squeezed(README)
    wide = pd.read_csv(RESULTS / "learning_settings.csv").pivot_table("value", ["experiment", "measure"], "rule")
    costs = wide["dara_sym"] - wide["dara_asym"]
    of_large_groups = [costs[key, "mean correctness"] for key in ("G8", "G16", "G32")]
    page = squeezed(PAGES["which_rule.md"])
    assert f"it costs {min(of_large_groups):.3f} to {max(of_large_groups):.3f} more than `dara_sym`" in page
    assert all(costs[key, "mean correctness"] < 0 for key in ("A", "A3"))
    # None reaches either aim on either task
    verdicts = (RESULTS / "search.md").read_text()
    assert verdicts.rstrip().endswith("In A and B: no rule is free, none is fast.")
    assert len(re.findall(r"\| no \| no \|$", verdicts, re.MULTILINE)) == 2 * 9 and "| yes |" not in verdicts


def test_growth_and_peers_in_the_readme_are_those_of_the_results():
    report = (RESULTS / "overhead.md").read_text()
    section = squeezed(README[README.index("## Speed") : README.index("## Can I use it with")])
    for row in re.findall(r"^\| (?:completions|channels), from [\d,]+ \| (.*) \|$", report, re.MULTILINE):
        own = sorted(row.split(" | ")[:3], key=float)
        assert f"{own[0]} to {own[-1]}" in section
    # Who is faster where
    costs = pd.read_csv(RESULTS / "overhead.csv")
    for varied, values in [("completions", (256, 1024, 4096)), ("channels", (1, 16))]:
        rows = medians(costs, varied).set_index([varied, "method"])["milliseconds"]
        assert all(rows[value, PEER] < rows[value, rule] for value in values for rule in OWN)
    assert report.rstrip().endswith("`gdpo`, which computes the same, yes; our slowest rule, yes.")
