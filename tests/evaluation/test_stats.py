"""Crossings, intervals, comparisons and tables, on worked numbers and on the paper's own training logs."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trl_dara.aggregation.dara import density_weights
from trl_dara.evaluation.comparison import compare_questions, compare_seeds
from trl_dara.evaluation.stats import (
    StableCrossing,
    bootstrap_interval,
    first_crossing,
    interquartile_mean,
    stable_crossing,
)
from trl_dara.evaluation.tables import markdown_table, seed_table


LOGS = Path(__file__).parents[3] / "shared" / "data" / "dara-reference-logs"


def reference_log(rule: str) -> list[dict[str, float]]:
    path = LOGS / f"{rule}_qwen2.5-1.5b_seed0.csv"
    if not path.exists():
        pytest.skip("the paper's training logs are not there")
    with open(path, newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("rule", "first", "stable"), [("dara_asym", 15, {0.8: 21, 0.9: 31}), ("grpo", 37, {0.8: 44, 0.9: None})]
)
def test_crossings_of_the_paper_s_runs(rule, first, stable):
    series = {int(row["step"]): row["train_format"] for row in reference_log(rule)}
    assert len(series) == 100
    assert first_crossing(series, 0.8) == first
    assert {threshold: stable_crossing(series, threshold).step for threshold in stable} == stable


def test_equation_6_gives_the_weights_that_the_paper_s_run_logged():
    rows = reference_log("dara_asym")
    assert len(rows) == 100
    for row in rows:
        density = torch.tensor([row["pi_correctness"], row["pi_format"]], dtype=torch.float64)
        weights = density_weights(density, torch.tensor([True, True]), w_max=5.0)
        assert weights.tolist() == pytest.approx([row["w_correctness"], row["w_format"]], rel=0, abs=1e-8)


# Crossings


def test_first_crossing():
    assert first_crossing([0.1, 0.8, 0.2, 0.9], 0.8) == 2
    assert first_crossing({2: 0.9, 1: 0.1}, 0.8) == 2
    assert first_crossing([0.1, 0.2], 0.8) is None
    assert first_crossing([-3.0, 2.5], 2) == 2


def test_first_crossing_of_a_trailing_mean_needs_a_whole_window():
    assert first_crossing([0.9, 0.0, 0.0, 0.9, 0.9, 0.6], 0.3, window=3) == 3
    assert first_crossing([0.0, 0.0, 0.0, 1.0, 1.0, 0.5], 0.8, window=3) == 6
    assert first_crossing([0.0, 0.5, 0.0], 0.5, window=3) is None
    assert first_crossing([1.0, 1.0], 0.5, window=3) is None


def test_stable_crossing_needs_the_trailing_mean_and_all_steps_after_it():
    series = [0.0] * 10 + [1.0] * 30
    # The mean of ten steps is 0.8 at step 18; the last step that can be confirmed is 40 - 20
    assert stable_crossing(series, 0.8) == StableCrossing(18)
    assert stable_crossing(series[:38], 0.8) == StableCrossing(18)
    assert stable_crossing(series[:37], 0.8) == StableCrossing(None, pending=18)
    assert stable_crossing([0.8] * 30, 0.8) == StableCrossing(10)  # exactly at the threshold
    assert stable_crossing([0.8] * 29, 0.8) == StableCrossing(None, pending=10)
    assert stable_crossing([0.8] * 9, 0.8) == StableCrossing(None)  # not one mean


def test_stable_crossing_starts_anew_after_a_fall():
    series = [1.0] * 25 + [0.0] * 3 + [1.0] * 40
    # Means fall to 0.7 at steps 28 to 35: what began at step 10 held for 17 steps only
    assert stable_crossing(series, 0.8, hold=16) == StableCrossing(10)
    assert stable_crossing(series, 0.8, hold=20) == StableCrossing(36)
    assert stable_crossing([1.0] * 60 + [0.0] * 10, 0.8) == StableCrossing(10)  # a fall after the confirmation
    assert stable_crossing([1.0] * 20 + [0.0] * 10, 0.8) == StableCrossing(None)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=40), st.integers(1, 4), st.integers(0, 6))
def test_stable_crossing_is_its_definition(series, window, hold):
    total = len(series)
    above = {t: sum(series[t - window : t]) >= 0.5 * window for t in range(window, total + 1)}
    confirmed = [t for t in above if t <= total - hold and all(above[u] for u in range(t, t + hold + 1))]
    crossing = stable_crossing(series, 0.5, window, hold)
    assert crossing.step == (confirmed[0] if confirmed else None)
    lasting = [t for t in above if all(above[u] for u in range(t, total + 1))]
    assert crossing.pending == (lasting[0] if lasting and not confirmed else None)


def test_a_crossing_says_what_it_is():
    assert str(StableCrossing(21)) == "21"
    assert str(StableCrossing(None)) == "not confirmed"
    assert str(StableCrossing(None, pending=95)) == "not confirmed (pending since 95)"


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({1: 0.5, 3: 0.5}, "not step 2"),
        ({0: 0.5, 1: 0.5}, "not step 2"),
        ([0.5, math.nan], "nan at step 2"),
        ([math.inf], "inf at step 1"),
        ([0.5, 1.5], r"1.5 at step 2, but shares lie in \[0, 1\]"),
        ([-0.1], r"-0.1 at step 1, but shares lie in \[0, 1\]"),
    ],
)
def test_stable_crossing_refuses(series, message):
    with pytest.raises(ValueError, match=message):
        stable_crossing(series, 0.8)


@pytest.mark.parametrize("threshold", [80, -0.1, math.nan])
def test_stable_crossing_refuses_a_threshold_that_no_share_has(threshold):
    with pytest.raises(ValueError, match=rf"`threshold` is {threshold}, but shares"):
        stable_crossing([0.9] * 40, threshold)


def test_crossings_refuse_windows_without_a_step():
    with pytest.raises(ValueError, match="`window` is 0"):
        first_crossing([0.5], 0.8, window=0)
    with pytest.raises(ValueError, match="`hold` is -1"):
        stable_crossing([0.5], 0.8, hold=-1)


# Intervals


def test_the_interval_of_two_questions_is_known():
    # The mean of a resample is 0, 0.5 or 1 with probabilities 1/4, 1/2 and 1/4
    assert bootstrap_interval([0, 1]) == (0, 1)
    assert bootstrap_interval([0, 1], confidence=0.4) == (0.5, 0.5)


def test_the_interval_is_that_of_the_normal_distribution_for_many_questions():
    values = np.random.default_rng(0).normal(0.4, 0.2, size=2000)
    low, high = bootstrap_interval(values)
    error = values.std(ddof=1) / math.sqrt(len(values))
    # The 2.5 % quantile of 2,000 resamples has a standard error of 0.06 of theirs
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.25 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.25 * error)


def test_the_interval_depends_on_the_seed_alone():
    values = np.linspace(0, 1, 30) ** 2
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values)
    low, high = bootstrap_interval(values)
    assert low < values.mean() < high


def test_intervals_at_the_edge():
    assert bootstrap_interval([0.25]) == (0.25, 0.25)
    assert bootstrap_interval([0.5] * 8) == (0.5, 0.5)
    assert all(map(math.isnan, bootstrap_interval([0.5, math.nan])))
    assert all(map(math.isnan, bootstrap_interval([0.5, math.inf])))
    for setting, value in (("confidence", 95), ("confidence", 0), ("num_resamples", 0)):
        with pytest.raises(ValueError, match=f"`{setting}` is {value}. Pass"):
            bootstrap_interval([0.5, 0.6], **{setting: value})
    for wrong in ([], [[0.1, 0.2]], 0.5):
        with pytest.raises(ValueError, match="one number per question"):
            bootstrap_interval(wrong)


def test_interquartile_mean_is_that_of_the_middle_half():
    assert interquartile_mean([100, 1, 2, 3, 4, 5, 6, -100]) == (2 + 3 + 4 + 5) / 4
    assert interquartile_mean([[100, 1, 2, 3], [4, 5, 6, -100]]) == 3.5


# Comparisons


def test_seeds_are_compared_in_pairs():
    first, second = {0: 0.5, 1: 0.7, 2: 0.9}, {2: 0.6, 0: 0.4, 1: 0.5}
    comparison = compare_seeds(first, second)
    assert comparison.pairs == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3})
    assert comparison.mean == pytest.approx(0.2)
    assert comparison.std == pytest.approx(0.1)  # divisor n - 1
    assert comparison.interval == pytest.approx((0.1, 0.3))  # 1 in 27 resamples has the lowest mean, more than 2.5 %
    ratios = compare_seeds({0: 30, 1: 10}, {0: 10, 1: 10}, ratio=True)
    assert ratios.pairs == {0: 3, 1: 1} and ratios.mean == 2


def test_no_seed_is_left_out_of_a_comparison():
    with pytest.raises(ValueError, match=r"seeds \[0, 1\] and `second` \[0\]"):
        compare_seeds({0: 0.5, 1: 0.7}, {0: 0.4})
    with pytest.raises(ValueError, match=r"no value \(`None`\) for the seeds \[1\]"):
        compare_seeds({0: 20, 1: None}, {0: 30, 1: 40})
    with pytest.raises(ValueError, match=r"`second` is 0 for the seeds \[1\]"):
        compare_seeds({0: 1.0, 1: 2.0}, {0: 1.0, 1: 0.0}, ratio=True)
    assert compare_seeds({0: 1.0}, {0: 0.0}).mean == 1
    diverged = compare_seeds({0: 0.5, 1: math.nan}, {0: 0.4, 1: 0.4})
    assert all(map(math.isnan, (diverged.mean, diverged.std, *diverged.interval, diverged.pairs[1])))
    single = compare_seeds({0: 0.5}, {0: 0.25})
    assert single.mean == 0.25 and math.isnan(single.std)


def test_evaluations_are_compared_on_the_same_questions():
    generator = np.random.default_rng(0)
    second = {"aime": generator.random(30), "math": generator.random(500)}
    first = {"aime": second["aime"] + 0.2, "math": second["math"] + 0.1}
    comparison = compare_questions(first, second)
    # The same difference on every question: pairing leaves nothing uncertain, however far the questions are apart
    assert comparison.pairs == pytest.approx({"aime": 0.2, "math": 0.1})
    assert (comparison.mean, *comparison.interval) == pytest.approx((0.15, 0.15, 0.15))


def test_the_macro_mean_weighs_benchmarks_alike_and_resamples_each_by_itself():
    # Resampled within the benchmarks, the macro mean is 0.5 * mean of the resampled `small`, never anything of `large`
    comparison = compare_questions(
        {"small": [0, 1], "large": [0.0] * 50, "one": [0.5]}, {"small": [0, 0], "large": [0.0] * 50, "one": [0.5]}
    )
    assert comparison.mean == pytest.approx(0.5 / 3)
    assert comparison.interval == pytest.approx((0, 1 / 3))
    with pytest.raises(ValueError, match="'a' has 2 questions in `first` and 1 in `second`"):
        compare_questions({"a": [0, 1]}, {"a": [0]})
    with pytest.raises(ValueError, match="benchmarks"):
        compare_questions({"a": [0, 1]}, {"b": [0, 1]})


# Tables


def test_tables_show_every_seed():
    rows = seed_table({"dara": {0: 0.5, 1: 0.25, 2: 0.75}, "gdpo": {2: math.nan, 0: 0.5}, "grpo": {1: 0.5}}, [0, 1, 2])
    assert rows[0] == {
        "method": "dara",
        "seed 0": 0.5,
        "seed 1": 0.25,
        "seed 2": 0.75,
        "mean": 0.5,
        "std": 0.25,
        "runs": "3 of 3",
    }
    assert markdown_table(rows, decimals=2).splitlines() == [
        "| method | seed 0 | seed 1 | seed 2 | mean | std | runs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| dara | 0.50 | 0.25 | 0.75 | 0.50 | 0.25 | 3 of 3 |",
        "| gdpo | 0.50 | missing | NaN | NaN | NaN | 2 of 3 |",
        "| grpo | missing | 0.50 | missing | 0.50 | NaN | 1 of 3 |",
    ]


def test_a_method_without_any_run_has_its_row():
    (row,) = seed_table({"grpo": {}}, [0, 1])
    assert row["mean"] is None and row["runs"] == "0 of 2"


def test_a_seed_that_was_not_planned_is_not_dropped():
    with pytest.raises(ValueError, match=r"'dara' has seeds \[7\]"):
        seed_table({"dara": {0: 0.5, 7: 0.9}}, [0, 1])
    with pytest.raises(ValueError, match=r"`seeds` is \[0, 0\]. Pass each seed once"):
        seed_table({"dara": {0: 0.5}}, [0, 0])
