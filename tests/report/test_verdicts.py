"""Verdicts on channels that are known beforehand."""

import numpy as np
import pytest

from trl_dara.report.verdicts import ChannelHistory, fair_shares, judge, percent


STEPS = 20
SHARES = {"grpo": 0.5, "gdpo": 0.5, "dara_asym": 0.5}


def history(**given) -> ChannelHistory:
    """A healthy channel over 20 steps, with what is given in place of its values."""
    values = {"mean": 0.5, "constant": False, "density": 0.8, "dead_low": 0.1, "dead_high": 0.1}
    arrays = {name: np.broadcast_to(given.pop(name, value), STEPS) for name, value in values.items()}
    return ChannelHistory("c", np.arange(STEPS), **arrays, **{"shares": SHARES, "fair_share": 0.5, **given})


def late(before, after, start):
    return np.where(np.arange(STEPS) < start, before, after)


@pytest.mark.parametrize(
    "given, kind, text",
    [
        ({}, "active", "active in 80 % of groups, carries 50 % of the signal under grpo, 50 % under gdpo"),
        ({"mean": np.nan}, "silent", "never scored"),
        ({"mean": 0.0, "constant": True}, "silent", "always 0 since step 0"),
        ({"mean": late(np.nan, 1.0, 4), "constant": True}, "silent", "always 1 since step 4"),
        ({"density": 0.0}, "silent", "never between the completions of one prompt"),
        (
            {"mean": late(0.5, 1.0, 10), "constant": late(False, True, 10)},
            "saturated",
            "saturated: always 1 since step 10; over the run active in 80 %",
        ),
        ({"mean": late(0.5, 0.0, 10), "constant": late(False, True, 10)}, "silent", "always 0 since step 10; over"),
        ({"mean": late(0.5, 1.0, 19), "constant": late(False, True, 19)}, "active", "active in 80 %"),
        ({"dead_high": late(0.1, 0.95, 12)}, "saturated", "saturated: at the top in 95 % of groups lately"),
        ({"shares": SHARES | {"gdpo": 0.1}}, "starved", "starved: active in 80 % of groups"),
        ({"density": 0.05, "dead_low": 0.95}, "active", "; too hard in 95 % of groups (all completions low)"),
        ({"shares": SHARES | {"grpo": 0.1}}, "drowned", "drowned under grpo by the larger values of other rewards"),
        ({"weight": -1.0, "dead_low": late(0.1, 0.95, 12)}, "saturated", "at the bottom in 95 % of groups lately"),
        (
            {"weight": -1.0, "dead_high": 0.95, "dead_low": 0.0},
            "active",
            "; too hard in 95 % of groups (all completions high)",
        ),
        ({"weight": -1.0, "mean": late(0.5, 1.0, 10), "constant": late(False, True, 10)}, "silent", "always 1 since"),
        ({"weight": 0.0}, "monitor", "weight 0, steers nothing; active in 80 % of groups"),
        ({"shares": {"dvao": 0.4}}, "active", "active in 80 % of groups, carries 40 % of the signal under dvao"),
        ({"shares": {}}, "active", "active in 80 % of groups"),
        (
            {"mean": 0.0, "constant": True, "sampled": True},
            "silent",
            "always 0 in the 20 recorded steps since step 0: no signal",
        ),
        (
            {"mean": late(0.5, 1.0, 10), "constant": late(False, True, 10), "sampled": True},
            "saturated",
            "saturated: always 1 in the 10 recorded steps since step 10; over the recorded steps active in 80 %",
        ),
    ],
)
def test_verdicts(given, kind, text):
    verdict = judge(history(**given))
    assert verdict.kind == kind and text in verdict.text


def test_fair_shares_count_living_channels_with_a_weight():
    assert fair_shares([1.0, -3.0, 0.0, 2.0], [True, True, True, False]) == [0.25, 0.75, 0.0, 0.0]
    assert fair_shares([1.0], [False]) == [0.0]


@pytest.mark.parametrize(
    "share, text",
    [
        (0.0, "0 %"),
        (1e-5, "< 0.1 %"),
        (0.004, "0.4 %"),
        (0.00996, "1 %"),
        (0.04, "4 %"),
        (0.99004, "99 %"),
        (0.996, "99.6 %"),
        (0.99999, "> 99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_shares_as_texts(share, text):
    assert percent(share) == text
