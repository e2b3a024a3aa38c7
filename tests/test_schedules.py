import pytest

from trl_dara.schedules import check_schedules, scheduled_factor


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"type": "constant", "value": 0.5}, {0: 0.5, 1000: 0.5}),
        ({"type": "linear", "start": 0.0, "end": 1.0, "steps": 200}, {0: 0.0, 50: 0.25, 200: 1.0, 500: 1.0}),
        ({"type": "linear", "start": 2.0, "end": 1.0, "steps": 4}, {0: 2.0, 1: 1.75, 4: 1.0}),
        ({"type": "step", "start": 0.0, "end": 1.0, "at": 10}, {0: 0.0, 9: 0.0, 10: 1.0, 99: 1.0}),
    ],
)
def test_factor_is_a_function_of_the_step(schedule, expected):
    check_schedules({"short": schedule}, ["short"])
    assert {step: scheduled_factor(schedule, step) for step in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedules", "message"),
    [
        ({"shrt": {"type": "constant", "value": 1}}, r"'shrt'.*\['short'\]"),
        ({"short": {"type": "cosine", "start": 0, "end": 1, "steps": 5}}, "'cosine'"),
        ({"short": {"type": "linear", "start": 0, "end": 1}}, "'steps'"),
        ({"short": {"type": "linear", "start": 0, "end": 1, "steps": 0}}, "steps > 0"),
        ({"short": {"type": "constant", "value": float("nan")}}, "finite"),
        ({"short": {"type": "constant", "value": "high"}}, "finite"),
        ({"short": {"value": 1}}, "short"),
        ({"short": 0.5}, "0.5"),
        ({"short": {"type": ["linear"]}}, "linear"),
    ],
)
def test_bad_schedules_are_refused(schedules, message):
    with pytest.raises(ValueError, match=message):
        check_schedules(schedules, ["short"])
