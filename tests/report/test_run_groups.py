"""Which runs belong together, their curves, and when they reach a threshold."""

import numpy as np
import pytest

from trl_dara.evaluation.stats import StableCrossing, stable_crossing
from trl_dara.report.run_groups import curve, density_peak, first_at, group_runs, shares_of_range, stable_at

from .run_logs import RECORD, run_of


def made(name: str, **record):
    return run_of(name, record=RECORD | record, mean=[0.0, 1.0])


def labels(*runs, given=()) -> dict[str, list[str]]:
    return {group.label: [run.name for run in group.runs] for group in group_runs(runs, dict(given))}


def test_seeds_go_together_and_rules_do_not():
    runs = [made("a"), made("b", rule="gdpo"), made("c", seed=1), made("d", resumed_at=[3])]
    assert labels(*runs) == {"dara_asym": ["a", "c", "d"], "gdpo": ["b"]}


def test_a_label_says_as_much_as_tells_groups_of_a_rule_apart():
    runs = [
        made("a"),
        made("b", num_generations=8, prompts=32, learning_rate=1e-5),
        made("c", aggregation_kwargs={"w_max": 3.0}),
        made("d", rule="gdpo", num_generations=8, prompts=32, model="/models/large"),
    ]
    assert labels(*runs) == {
        "dara_asym, num_generations=4": ["a"],
        "dara_asym, num_generations=8": ["b"],
        "dara_asym, w_max=3, num_generations=4": ["c"],
        "gdpo": ["d"],
    }
    assert {group.family for group in group_runs(runs[:2], {})} == {"dara_asym"}


def test_numbers_in_labels_are_short():
    runs = [made(str(rate), learning_rate=rate) for rate in (0.1 + 0.2, 10**-5.5)]
    assert list(labels(*runs)) == ["dara_asym, learning_rate=0.3", "dara_asym, learning_rate=3.16228e-06"]


def test_labels_of_the_user_and_runs_without_a_rule():
    runs = [made("a"), run_of("b", mean=[0.0]), run_of("c", mean=[0.0]), made("d", num_generations=8)]
    assert labels(*runs, given={"a": "mine", "c": "mine"}.items()) == {
        "mine": ["a", "c"],
        "b": ["b"],
        "dara_asym": ["d"],
    }


def test_median_and_quartiles_over_the_steps_that_all_have():
    steps = np.arange(1, 5)
    drawn = curve([(steps, np.array(values)) for values in ([0.0, 0, 0, 0], [1.0, 1, 1, 1], [4.0, 4, 4, 8])])
    assert drawn.steps.tolist() == [1, 2, 3, 4] and drawn.rest == []
    assert drawn.median.tolist() == [1, 1, 1, 1]
    assert drawn.low.tolist() == [0.5] * 4 and drawn.high.tolist() == [2.5, 2.5, 2.5, 4.5]


def test_runs_of_different_length_and_logging_steps():
    short, long = (np.array([2, 4]), np.array([0.0, 1.0])), (np.arange(1, 7), np.arange(1.0, 7.0))
    drawn = curve([short, long, (np.empty(0, dtype=int), np.empty(0))])
    assert drawn.steps.tolist() == [2, 4] and drawn.median.tolist() == [1.0, 2.5]
    ((steps, values),) = drawn.rest
    assert steps.tolist() == [4, 5, 6] and values.tolist() == [4.0, 5.0, 6.0]
    apart = curve([(np.array([1, 3]), np.array([0.0, 1.0])), (np.array([2, 4]), np.array([2.0, 3.0]))])
    assert apart.steps.size == 0 and [values.tolist() for _, values in apart.rest] == [[0.0, 1.0], [2.0, 3.0]]
    assert curve([(np.empty(0, dtype=int), np.empty(0))]) is None


def test_long_curves_are_trailing_means():
    drawn = curve([(np.arange(1, 61), np.tile([0.0, 3.0, 6.0], 20))])
    assert drawn.median[2:].tolist() == [3.0] * 58


def test_shares_of_the_range():
    run = run_of(mean=[-3.0, 0.0, 3.0])
    assert shares_of_range(run, "format", {})[0].size == 0  # outside [0, 1], and nobody gave bounds
    assert shares_of_range(run, "format", {"format": [-3, 3]})[1].tolist() == [0.0, 0.5, 1.0]
    assert shares_of_range(run, "format", {"format": [-3, 1]})[0].size == 0  # wrong bounds
    run.record = {"reward_bounds": {"format": [-3, 3]}}
    assert shares_of_range(run, "format", {})[1].tolist() == [0.0, 0.5, 1.0]
    assert shares_of_range(run, "other", {})[0].size == 0
    rounded = run_of(mean=[1.0000001, 0.5])
    assert shares_of_range(rounded, "format", {})[1].tolist() == [1.0, 0.5]


def rising(length: int, at: int) -> np.ndarray:
    """0 for `at` values, then 1."""
    return np.where(np.arange(length) < at, 0.0, 1.0)


def crossing(run, threshold=0.8):
    return stable_at(run, *shares_of_range(run, "format", {}), threshold)


@pytest.mark.parametrize("values", [rising(60, 20), rising(45, 20), rising(30, 20), np.linspace(0, 1, 100)])
def test_with_a_value_for_every_step_it_is_the_stable_crossing_of_the_paper(values):
    run = run_of(mean=values)
    for threshold in (0.5, 0.8, 0.9):
        assert crossing(run, threshold) == stable_crossing(values.tolist(), threshold)


def test_steps_of_a_run_with_several_updates_per_batch():
    run = run_of(steps=np.arange(1, 241, 4), record=RECORD | {"updates_per_batch": 4.0}, mean=rising(60, 20))
    assert crossing(run).step == 4 * stable_crossing(rising(60, 20).tolist(), 0.8).step - 3
    run.record, run.logging_steps = {}, 1  # not written down, but every step was logged: a value is a batch
    assert crossing(run).step == 4 * stable_crossing(rising(60, 20).tolist(), 0.8).step - 3


def test_steps_of_a_run_that_logs_every_fifth():
    run = run_of(steps=np.arange(5, 101, 5), mean=rising(20, 4))
    assert crossing(run) == StableCrossing(30)  # the means of 2 values; first at 1: values 5 and 6, steps 25 and 30
    first = run_of(steps=[1, *range(5, 101, 5)], mean=[0.9, *rising(20, 4)])  # `logging_first_step`
    assert crossing(first) == StableCrossing(30)
    assert crossing(run_of(steps=np.arange(5, 36, 5), mean=rising(7, 4))) == StableCrossing(None, pending=30)


def test_logs_that_do_not_tell_have_no_stable_crossing():
    assert crossing(run_of(steps=[1, 2, 3, 5, 6, 7], mean=rising(6, 3))) is None  # step 4 is missing
    assert crossing(run_of(steps=np.arange(20, 401, 20), mean=rising(20, 3))) is None  # a value is 20 batches
    assert crossing(run_of(mean=[0.5, 0.5, np.nan, 0.9, 0.9])) is None


def test_first_step_at_a_threshold():
    run = run_of(steps=[5, 10, 15], mean=[0.1, 0.8, 0.2])
    assert first_at(*shares_of_range(run, "format", {}), 0.8) == 10
    assert first_at(*shares_of_range(run, "format", {}), 0.81) is None


def test_density_peak_of_small_batches_is_that_of_a_mean_over_enough_groups():
    density = [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert density_peak(run_of(record=RECORD, density=density, mean=density), "format", groups=32) == (2, 1.0)
    small = run_of(record=RECORD | {"prompts": 8}, density=density, mean=density)
    assert density_peak(small, "format", groups=32) == (5, 0.75)  # the mean of 4 batches
    assert density_peak(run_of(mean=density), "format", groups=32) is None
