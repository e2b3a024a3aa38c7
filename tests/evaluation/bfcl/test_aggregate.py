from fractions import Fraction

import pytest

from trl_dara.evaluation.bfcl.aggregate import aggregate, group_means
from trl_dara.evaluation.bfcl.benchmark import CASES


def scores(**right: int) -> dict[str, list[dict]]:
    """Complete scores, with so many right cases in these categories and none elsewhere."""
    return {
        category: [
            {
                "id": f"{category}_{index}",
                "accuracy": float(index < right.get(category, 0)),
                "format": 1.0,
                "length": 0.5,
            }
            for index in range(cases)
        ]
        for category, cases in CASES.items()
    }


def test_number_of_cases():
    assert len(CASES) == 14 and sum(CASES.values()) == 3301


@pytest.mark.parametrize(
    ("right", "group", "share", "as_published"),
    [
        ({"live_multiple": 3, "live_parallel": 2}, "live", Fraction(5, 1351), "0.37"),
        ({"live_simple": 200, "live_multiple": 542}, "live", Fraction(742, 1351), "54.92"),
        ({"simple_python": 6}, "non_live", Fraction(6, 4800), "0.12"),
        ({"multiple": 1}, "non_live", Fraction(6, 4800), "0.12"),
        ({"simple_java": 1, "simple_python": 2}, "non_live", Fraction(6, 4800), "0.12"),
        ({"multi_turn_base": 2, "multi_turn_miss_func": 1}, "multi_turn", Fraction(3, 800), "0.38"),
    ],
)
def test_numbers_of_the_paper(right, group, share, as_published):
    result = aggregate(scores(**right))
    accuracy = result["groups"][group]["accuracy"]
    assert accuracy == pytest.approx(float(share), rel=1e-12)
    assert f"{100 * accuracy:.2f}" == as_published
    assert result["groups"]["average"]["accuracy"] == pytest.approx(float(share / 3), rel=1e-12)


def test_weights_by_hand():
    means = dict.fromkeys(CASES, 0.0) | {"simple_javascript": 1.0, "parallel": 0.5, "multi_turn_miss_param": 0.2}
    groups = group_means(means | {"live_simple": 1.0})
    assert groups == pytest.approx(
        {"live": 258 / 1351, "non_live": 5 / 24, "multi_turn": 0.05, "average": (258 / 1351 + 5 / 24 + 0.05) / 3}
    )


def test_all_metrics_have_the_same_weights():
    records = scores()
    for record in records["live_simple"] + records["parallel"]:
        record.update(accuracy=1.0, format=0.0)
    result = aggregate(records)
    for group in result["groups"].values():
        assert group["accuracy"] == pytest.approx(1 - group["format"])
        assert group["length"] == pytest.approx(0.5)
    assert result["partial"] is False
    assert result["categories"]["parallel"] == {"cases": 200, "accuracy": 1.0, "format": 0.0, "length": 0.5}


def test_missing_cases_are_refused():
    records = scores()
    del records["live_parallel"][-1], records["multi_turn_base"]
    with pytest.raises(ValueError, match=r"live_parallel \(15 of 16\), multi_turn_base \(0 of 200\)\. .*`partial`"):
        aggregate(records)


def test_partial_results_are_marked():
    records = scores(live_parallel=15)
    del records["live_parallel"][-1], records["multi_turn_base"]
    result = aggregate(records, partial=True)
    assert result["partial"] is True
    assert result["groups"]["live"]["accuracy"] == pytest.approx(15 / 1350)
    assert result["groups"]["non_live"]["format"] == 1
    assert result["groups"]["multi_turn"]["accuracy"] is None
    assert result["groups"]["average"]["accuracy"] is None
    assert aggregate(scores(), partial=True)["partial"] is False


def test_cases_that_occur_twice_are_refused():
    records = scores()
    records["parallel"][-1] = records["parallel"][0]
    with pytest.raises(ValueError, match="'parallel' has 200 records of 199 different cases"):
        aggregate(records, partial=True)


def test_other_categories_are_refused():
    with pytest.raises(ValueError, match="irrelevance"):
        aggregate(scores() | {"irrelevance": []})
