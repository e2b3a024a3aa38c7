"""Answers that are right or wrong in a known way, through parser, process and official checkers."""

import pytest

from trl_dara.evaluation.bfcl.benchmark import CASES, LIVE, MULTI_TURN, NON_LIVE
from trl_dara.evaluation.bfcl.generate import generate_cases
from trl_dara.evaluation.bfcl.score import score_case

from .answers import NO_CALL, TruthfulModel, answer, call


pytestmark = pytest.mark.bfcl
AREA = "calculate_triangle_area"
PLAY = call("spotify.play", artist="Taylor Swift", duration=20)
PLAY_LATER = call("spotify.play", artist="Maroon 5", duration=15)
# multi_turn_base_0, turn by turn
TURNS = [
    [
        call("cd", folder="document"),
        call("mkdir", dir_name="temp"),
        call("mv", source="final_report.pdf", destination="temp"),
    ],
    [call("cd", folder="temp"), call("grep", file_name="final_report.pdf", pattern="budget analysis")],
    [call("sort", file_name="final_report.pdf")],
    [call("cd", folder=".."), call("mv", source="previous_report.pdf", destination="temp"), call("cd", folder="temp")]
    + [call("diff", file_name1="final_report.pdf", file_name2="previous_report.pdf")],
]


def score(bfcl, case_id: str, result) -> dict:
    return score_case({"id": case_id, "result": result, "num_tokens": [], "error": None}, bfcl)


def dialogue(turns: list[list[dict]]) -> list[list[str]]:
    """All calls of a turn in one step, then a step without calls."""
    return [[answer(*calls), NO_CALL] if calls else [NO_CALL] for calls in turns]


@pytest.mark.parametrize("category", MULTI_TURN)
def test_ground_truth_of_dialogues_is_right(bfcl, category):
    """Through the whole pipeline: prompt, answer, parser, execution, next prompt, and the checker in the end."""
    cases = bfcl.cases(category)
    model = TruthfulModel(cases)
    records = list(generate_cases(cases, bfcl, model))
    scores = [score_case(record, bfcl) for record in records]
    assert len({score["id"] for score in scores}) == CASES[category]
    assert [score for score in scores if score["accuracy"] != 1] == []
    assert all(score["format"] == score["length"] == 1 for score in scores)


@pytest.mark.parametrize("category", [*LIVE, *NON_LIVE])
def test_ground_truth_of_single_turn_cases_is_right(bfcl, category):
    """
    But for four live cases, whose truth does not fit the schema of their tool, and for Java's lists and maps, which
    have to be written in Java.
    """
    cases = bfcl.cases(category)
    records = list(generate_cases(cases, bfcl, TruthfulModel(cases)))
    wrong = {"live_simple": 2, "live_multiple": 2, "simple_java": 23}.get(category, 0)
    assert sum(score_case(record, bfcl)["accuracy"] for record in records) == CASES[category] - wrong


@pytest.mark.parametrize("category", CASES)
def test_no_answer_is_wrong(bfcl, category):
    for case in bfcl.cases(category):
        result = [[NO_CALL] for _ in case["question"]] if category in MULTI_TURN else NO_CALL
        assert score(bfcl, case["id"], result)["accuracy"] == 0


@pytest.mark.parametrize(
    ("calls", "error_type"),
    [
        ([call(AREA, base=10, height=5)], None),
        ([call(AREA, base=10, height=5, unit="units")], None),
        ([call(AREA, base=10, height=5, unit="miles")], "value_error"),
        ([call(AREA, base="10", height=5)], "type_error:simple"),
        ([call(AREA, base=10.0, height=5)], "type_error:simple"),
        ([call(AREA, base=10)], "missing_required"),
        ([call(AREA, base=10, height=6)], "value_error"),
        ([call(AREA, base=10, height=5, colour="red")], "unexpected_param"),
        ([], "wrong_count"),
        ([call(AREA, base=10, height=5)] * 2, "wrong_count"),
        ([call("triangle_area", base=10, height=5)], "wrong_func_name"),
        ([{"name": AREA, "parameters": [10, 5]}], "wrong_output_format"),
    ],
)
def test_a_simple_call(bfcl, calls, error_type):
    result = score(bfcl, "simple_python_0", answer(*calls))
    assert result["accuracy"] == (error_type is None)
    assert error_type is None or error_type in result["error_type"]


@pytest.mark.parametrize(("amount", "accuracy"), [(200.0, 1), (200, 1), ("200", 0)])
def test_an_integer_is_accepted_for_a_float(bfcl, amount, accuracy):
    calls = [call("currency_converter", base_currency="USD", target_currency="GBP", amount=amount)]
    assert score(bfcl, "simple_python_389", answer(*calls))["accuracy"] == accuracy


@pytest.mark.parametrize(
    ("calls", "error_type"),
    [
        ([PLAY, PLAY_LATER], None),
        ([PLAY_LATER, PLAY], None),
        ([PLAY], "wrong_count"),
        ([PLAY, PLAY], "cannot_find_match"),
        ([PLAY, PLAY_LATER, PLAY], "wrong_count"),
    ],
)
def test_parallel_calls(bfcl, calls, error_type):
    result = score(bfcl, "parallel_0", answer(*calls))
    assert result["accuracy"] == (error_type is None)
    assert error_type is None or error_type in result["error_type"]


def with_turn(turn: int, calls: list[dict]) -> list[list[dict]]:
    return [calls if index == turn else TURNS[index] for index in range(len(TURNS))]


@pytest.mark.parametrize(
    ("turns", "error_type"),
    [
        (TURNS, None),
        (with_turn(2, [call("pwd"), *TURNS[2]]), None),
        (
            with_turn(0, [TURNS[0][0], call("mkdir", dir_name="tmp"), TURNS[0][2]]),
            "multi_turn:instance_state_mismatch",
        ),
        (with_turn(3, []), "multi_turn:empty_turn_model_response"),
        (with_turn(1, TURNS[1][:1]), "multi_turn:execution_response_mismatch"),
        (TURNS[:3], "multi_turn:force_terminated"),
    ],
)
def test_dialogues(bfcl, turns, error_type):
    result = score(bfcl, "multi_turn_base_0", dialogue(turns))
    assert (result["accuracy"], result["error_type"]) == (error_type is None, error_type)


def test_calls_may_come_in_several_steps(bfcl):
    steps = [[answer(one) for one in calls] + [NO_CALL] for calls in TURNS]
    assert score(bfcl, "multi_turn_base_0", steps)["accuracy"] == 1


def test_a_case_that_was_cut_off_scores_0(bfcl):
    record = {"id": "multi_turn_base_0", "result": dialogue(TURNS), "num_tokens": [], "error": "no room"}
    result = score_case(record, bfcl)
    assert (result["accuracy"], result["format"], result["length"]) == (0, 0, 0)
    assert (result["error_type"], result["error"]) == ("cut_off", "no room")
