"""The course of a case, with the real tools."""

import pytest

from trl_dara.evaluation.bfcl.dialogue import Dialogue
from trl_dara.evaluation.bfcl.generate import SAMPLING, generate_cases
from trl_dara.evaluation.bfcl.interface import CONTINUATION, MULTI_TURN_SUFFIX
from trl_dara.evaluation.bfcl.score import score_case
from trl_dara.evaluation.generation import Generation, Sampling

from .answers import NO_CALL, TruthfulModel, answer, call


pytestmark = pytest.mark.bfcl


def generation(text: str, finish_reason: str = "stop") -> Generation:
    return Generation(text, len(text.split()), finish_reason)


def case_of(bfcl, case_id: str) -> dict:
    return next(case for case in bfcl.cases(case_id.rpartition("_")[0]) if case["id"] == case_id)


def test_a_single_turn_case_is_one_answer(bfcl):
    running = Dialogue(case_of(bfcl, "parallel_0"))
    text = answer(call("spotify.play", artist="Taylor Swift"))
    running.receive(generation(text), bfcl)
    assert running.finished
    assert running.record() == {"id": "parallel_0", "result": text, "num_tokens": [len(text.split())], "error": None}


def test_steps_and_turns(bfcl):
    case = case_of(bfcl, "multi_turn_base_0")
    running = Dialogue(case)
    messages = [turn[0]["content"] for turn in case["question"]]
    assert messages[0] in running.prompt() and messages[1] not in running.prompt()

    step = answer(call("cd", folder="document"), call("pwd"))
    running.receive(generation(step), bfcl)
    history = running.prompt().partition("**Dialogue Records History**")[2]
    assert (
        history.index(messages[0]) < history.index(step) < history.index("tool call cd(folder='document'). Execution")
    )
    assert (
        history.index("cd(folder='document')")
        < history.index("tool call pwd(). Execution returns")
        < history.index(CONTINUATION)
    )
    assert messages[1] not in history

    running.receive(generation(NO_CALL), bfcl)
    history = running.prompt().partition("**Dialogue Records History**")[2]
    assert history.index(NO_CALL) < history.index(messages[1]) and CONTINUATION not in history
    assert history.count(MULTI_TURN_SUFFIX) == 2
    for _ in messages[1:]:
        assert not running.finished
        running.receive(generation(NO_CALL), bfcl)
    assert running.finished
    assert running.record()["result"] == [[step, NO_CALL], [NO_CALL], [NO_CALL], [NO_CALL]]


def test_tools_that_are_held_out_come_in_their_turn(bfcl):
    case = case_of(bfcl, "multi_turn_miss_func_0")
    [(turn, [tool])] = case["missed_function"].items()
    running = Dialogue(case)
    for _ in range(int(turn)):
        assert tool["description"] not in running.prompt()
        running.receive(generation(NO_CALL), bfcl)
    request = f"<user> {[tool]}\nI have updated some more functions you can choose from. What about now?\n"
    assert request in running.prompt()
    assert tool["description"] not in running.prompt().partition("**Steps for Each Turn**")[0]


def test_more_than_20_steps_in_a_turn_end_the_case(bfcl):
    running = Dialogue(case_of(bfcl, "multi_turn_base_0"))
    for _ in range(20):
        running.receive(generation(answer(call("pwd"))), bfcl)
    assert not running.finished
    running.receive(generation(answer(call("pwd"))), bfcl)
    assert running.finished
    assert [len(turn) for turn in running.record()["result"]] == [21]
    assert score_case(running.record(), bfcl)["error_type"] == "multi_turn:force_terminated"


def test_an_overflow_of_the_context_ends_the_case(bfcl):
    running = Dialogue(case_of(bfcl, "multi_turn_base_0"))
    running.receive(generation(NO_CALL), bfcl)
    running.receive(generation("", "overflow"), bfcl)
    assert running.finished
    assert running.record()["error"] == "The prompt leaves no room in the context."
    assert score_case(running.record(), bfcl)["format"] == 0


def test_cases_run_in_batches_that_are_filled_up(bfcl):
    cases = bfcl.cases("parallel")[:6] + bfcl.cases("multi_turn_base")[:3]
    model = TruthfulModel(cases)
    records = list(generate_cases(iter(cases), bfcl, model, batch_size=4))
    assert sorted(record["id"] for record in records) == sorted(case["id"] for case in cases)
    assert model.batches[:2] == [4, 4] and max(model.batches) == 4
    assert sum(model.batches) == sum(len(record["num_tokens"]) for record in records)
    assert all(score_case(record, bfcl)["accuracy"] for record in records)


def test_decoding_is_that_of_the_paper(bfcl):
    seen = []

    def generate(prompts, sampling):
        seen.append(sampling)
        return [[generation(NO_CALL)] for _ in prompts]

    list(generate_cases(bfcl.cases("parallel")[:1], bfcl, generate))
    expected = Sampling(n=1, temperature=0.6, top_p=0.95, top_k=-1, repetition_penalty=1.0, max_tokens=8192, seed=0)
    assert seen == [SAMPLING] == [expected]
