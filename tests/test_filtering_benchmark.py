"""The benchmarks of the group filter and of small batches: what is counted, on which footing, and how it is shown."""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest

from tests.markdown import PAGES, README, ROOT
from train_scripts.benchmark import filtering, small_batches
from train_scripts.benchmark.experiments import FilteredRun
from train_scripts.benchmark.filtering import generated_completions, make_runs, markdown_table, measure, measure_run
from train_scripts.benchmark.running import mean_and_seeds
from trl_dara.demo.runs import channel_series
from trl_dara.demo.training import TOOL_CALLING, TrainingTask, train_one


RESULTS = ROOT / "train_scripts/benchmark/results"


def history(format_rewards: list[float], rounds: list[int] | None = None) -> list[dict[str, float]]:
    entries = [
        {"rewards/format_reward/mean": value, "rewards/correctness_reward/mean": float(step)}
        for step, value in enumerate(format_rewards, 1)
    ]
    for entry, count in zip(entries, rounds or [], strict=False):
        entry |= {"group_filter/rounds": float(count), "group_filter/frac_filler": 0.5 if count == 3 else 0.0}
    return entries


def test_completions_of_all_rounds_are_counted_until_the_crossing():
    run = FilteredRun("run", "gdpo", prompts=16, num_generations=4, group_filter="any")
    measures = measure_run(run, history([0.0, 0.0, 0.8, 0.8, 0.8, 0.8, 1.0], [3, 3, 2, 2, 1, 1, 3]))
    assert measures == {
        "completions_to_0.8": (3 + 3 + 2 + 2 + 1 + 1) * 64,
        "steps_to_0.8": 6,
        "correctness_at_0.8": 4.5,  # of the steps 3 to 6
        "frac_filler": pytest.approx(1 / 6),
    }


def test_without_a_filter_every_step_is_one_round():
    run = FilteredRun("run", "gdpo", prompts=16, num_generations=4)
    measures = measure_run(run, history([0.0, 0.9, 0.9, 0.9, 0.9]))
    assert (measures["completions_to_0.8"], measures["steps_to_0.8"]) == (5 * 64, 5)
    assert np.isnan(measures["frac_filler"])
    assert measure_run(run, history([0.0] * 9))["completions_to_0.8"] is None


def test_table_shows_every_seed_and_no_mean_over_some(tmp_path):
    crossings = {"none": (20, 40), "any": (10, None)}
    runs = [run for run in make_runs([0, 1]) if run.rule == "gdpo" and run.group_filter in crossings]
    for run in runs:
        step = crossings[run.group_filter][run.seed]
        format_rewards = [float(step is not None and at > step - 4) for at in range(1, run.steps + 1)]
        lines = [
            dataclasses.asdict(run),
            *history(format_rewards, [2] * run.steps if run.group_filter == "any" else None),
        ]
        run.log_file(tmp_path).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    *_, unfiltered, filtered = markdown_table(measure(runs, tmp_path)).splitlines()
    assert (
        unfiltered == "| `gdpo` | `none` | **1920** (1280 2560) | 1 | **30.0** (20 40) | **28.50** (18.50 38.50) | – |"
    )
    assert filtered == "| `gdpo` | `any` | – (1280 never) | – | – (10 never) | – (8.50 never) | 0 % |"


def test_rewards_are_means_over_all_that_was_generated(tmp_path):
    scores = []

    def format_reward(completions, **kwargs):
        scores.append([float(len(completion[0]["content"]) % 2) for completion in completions])
        return scores[-1]

    task = TrainingTask(TOOL_CALLING.model, [format_reward], TOOL_CALLING.make_dataset, max_completion_length=8)
    run = FilteredRun("run", "gdpo", steps=4, prompts=4, num_generations=2, group_filter="any")
    log = train_one(run, tmp_path, task, group_filter=run.group_filter)
    rounds = [int(entry["group_filter/rounds"]) for entry in log]
    assert max(rounds) > 1
    assert generated_completions(run, log)[-1] == sum(map(len, scores))
    of_steps = np.split(np.array(scores), np.cumsum(rounds)[:-1])  # (rounds, N) each
    assert channel_series(log, "reward", "format") == pytest.approx([step.mean() for step in of_steps])


def test_a_mean_over_some_seeds_is_not_shown():
    assert mean_and_seeds(pd.Series([0.25, 0.75]), "{:.2f}", "{:.3f}") == "**0.500** (0.25 0.75)"
    assert mean_and_seeds(pd.Series([3, None], dtype="Int64"), "{:.0f}") == "– (3 never)"


def test_table_of_small_batches_is_that_of_the_results():
    results = pd.read_csv(RESULTS / "small_batches.csv")
    assert dict(zip(results["B"], results["learning_rate"], strict=True)) == small_batches.LEARNING_RATES
    report = f"{small_batches.markdown_table(results)}\n\n{small_batches.decide(results)}\n"
    assert report == (RESULTS / "small_batches.md").read_text()


def test_window_changes_nothing_with_as_many_prompts_as_it_holds():
    results = pd.read_csv(RESULTS / "small_batches.csv")
    measures = ["mean_format", "groups_to_0.8", "mean_correctness"]
    large = results[results["B"] == 64].set_index("seed").groupby("variant")
    pd.testing.assert_frame_equal(
        large.get_group("dara_sym, window")[measures], large.get_group("dara_sym, per batch")[measures]
    )


def test_table_of_filters_is_that_of_the_results():
    results = pd.read_csv(RESULTS / "filtering.csv")
    assert set(results["rule"]) == set(filtering.RULES) and set(results["group_filter"]) == set(
        filtering.GROUP_FILTERS
    )
    assert markdown_table(results) == (RESULTS / "filtering.md").read_text().strip()


def test_numbers_of_the_filter_on_the_pages_are_those_of_the_results():
    results = pd.read_csv(RESULTS / "filtering.csv")
    table = markdown_table(results)
    page = PAGES["which_rule.md"][PAGES["which_rule.md"].index("## Filtering groups") :]
    assert table in page
    gdpo, dara = (re.findall(r"\*\*(\d\.\d\d)\*\* \[", "\n".join(rows)) for rows in _rows_by_rule(table))
    in_readme = re.search(r"until format 0\.8, (.*?)\(", README, re.DOTALL).group(1)
    assert re.findall(r"\d\.\d\d", in_readme) == [ratio for pair in zip(gdpo, dara, strict=True) for ratio in pair]
    steps = results.groupby(["rule", "group_filter"])["steps_to_0.8"].mean()
    for rule in filtering.RULES:
        assert f"{steps[rule, 'format_reward']:.0f} instead of {steps[rule, 'none']:.0f} with `{rule}`" in page
    counts = results.pivot(index=["rule", "seed"], columns="group_filter", values="completions_to_0.8")
    assert (counts.drop(columns="none").min(axis=1) > counts["none"]).all()  # on every seed and with every criterion


def _rows_by_rule(table: str) -> list[list[str]]:
    return [[row for row in table.splitlines() if row.startswith(f"| `{rule}`")] for rule in filtering.RULES]
