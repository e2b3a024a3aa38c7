"""The evaluation of mathematics on a stub model whose answers are known, with results worked out by hand."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_dara.data.math_problems import MATH_BENCHMARKS
from trl_dara.evaluation.generation import Generation, Sampling
from trl_dara.evaluation.math import (
    BENCHMARKS,
    PAPER_BENCHMARKS,
    generate_samples,
    score_samples,
    summarize,
    summarize_benchmark,
)
from trl_dara.evaluation.math.generate import keep_questions
from trl_dara.evaluation.math.summary import question_rows
from trl_dara.evaluation.records import read_records
from trl_dara.rewards.math_answers import is_correct


def boxed(answer: str, num_tokens: int = 10, finish_reason: str = "stop") -> Generation:
    return Generation(rf"So it is \boxed{{{answer}}}.", num_tokens, finish_reason)


# Question: its true answer, and two samples
FOUR = {
    "both right, one at the limit": ("5", [boxed("5"), boxed("5", 4000)]),
    "one rescued, one wrong and long": ("25", [boxed("025"), boxed("24", 4001, "length")]),
    "one right and long, one no spelling of it": (r"\frac{1}{2}", [boxed(r"\dfrac12", 5000), boxed(".50")]),
    "two answers are no number": ("1,3", [boxed("13"), Generation("1,3", 8192, "length")]),
}


def questions_of(cases: dict) -> list[dict]:
    return [
        {"id": name, "problem": name, "prompt": [{"role": "user", "content": name}], "answer": answer}
        for name, (answer, _) in cases.items()
    ]


class Stub:
    """Generates the samples of the cases: sample `i` has the seed `i`, as in vLLM."""

    def __init__(self, cases: dict, dies_at_call: int | None = None):
        self.cases = cases
        self.dies_at_call = dies_at_call
        self.calls = []

    def __call__(self, prompts: list[str], sampling: Sampling) -> list[list[Generation]]:
        self.calls.append((prompts, sampling.n, sampling.seed))
        if len(self.calls) == self.dies_at_call:
            raise KeyboardInterrupt
        return [self.cases[prompt][1][sampling.seed :][: sampling.n] for prompt in prompts]


def render(prompt: list[dict]) -> str:
    return prompt[0]["content"]


def scores_of(cases: dict, file, grader: str = "numeq") -> list[dict]:
    list(generate_samples(questions_of(cases), Sampling(n=2), Stub(cases), render, file))
    return score_samples(read_records(file), {name: answer for name, (answer, _) in cases.items()}, grader)


def test_numbers_by_hand(tmp_path):
    scores = scores_of(FOUR, tmp_path / "raw.jsonl")
    assert [(score["strict"], score["correct"], score["exceeds"], score["joint"]) for score in scores] == [
        (True, True, False, True),
        (True, True, False, True),
        (False, True, False, True),
        (False, False, True, False),
        (True, True, True, False),
        (False, False, False, False),
        (False, False, False, False),
        (False, False, True, False),
    ]
    summary = summarize_benchmark(scores, num_questions=4, num_samples=2)
    assert summary["strict_accuracy"]["mean"] == (1 + 0 + 0.5 + 0) / 4
    assert summary["accuracy"]["mean"] == (1 + 0.5 + 0.5 + 0) / 4
    assert summary["exceed"]["mean"] == (0 + 0.5 + 0.5 + 0.5) / 4
    assert summary["joint"]["mean"] == (1 + 0.5 + 0 + 0) / 4
    assert summary["mean_tokens"] == (10 + 4000 + 10 + 4001 + 5000 + 10 + 10 + 8192) / 8
    assert (summary["rescued"], summary["truncated"], summary["samples"]) == (1, 2, 8)
    assert not summary["partial"]


def test_intervals_by_hand(tmp_path):
    # 16 questions, half of them right in both samples: the number right in a resample of the questions is binomial, B(16,
    # 0.5), with the percentiles 4 and 12. If samples were resampled, it would be B(32, 0.5), with 10 and 22 of 32.
    cases = {f"question {n}": ("7", [boxed("7" if n % 2 else "8")] * 2) for n in range(16)}
    summary = summarize_benchmark(scores_of(cases, tmp_path / "raw.jsonl"), num_questions=16, num_samples=2)
    for metric in ("strict_accuracy", "accuracy", "joint"):
        assert summary[metric] == {"mean": 0.5, "low": 4 / 16, "high": 12 / 16}
    assert summary["exceed"] == {"mean": 0, "low": 0, "high": 0}


def test_questions_weigh_the_same_whatever_their_number_of_samples():
    scores = [
        {"id": "a", "sample": n, "text": r"\boxed{1}", "num_tokens": 10, "finish_reason": "stop"} for n in range(3)
    ]
    scores += [{"id": "b", "sample": 0, "text": "", "num_tokens": 0, "finish_reason": "overflow"}]
    scores = score_samples(scores, {"a": "1", "b": "1"})
    assert [row["samples"] for row in question_rows(scores)] == [3, 1]
    summary = summarize_benchmark(scores, num_questions=2, num_samples=3)
    assert summary["accuracy"]["mean"] == 0.5
    assert summary["partial"]  # two samples are missing
    assert summarize_benchmark(scores[:3], num_questions=2, num_samples=3)["partial"]  # a question is missing
    assert not summarize_benchmark(scores[:3], num_questions=1, num_samples=3)["partial"]


def test_macro_mean_is_over_benchmarks_and_says_what_is_missing():
    def numbers(accuracy: float, questions: int = 2) -> dict:
        texts = [r"\boxed{1}" if n < accuracy * questions else "" for n in range(questions)]
        samples = [
            {"id": n, "sample": 0, "text": text, "num_tokens": 1, "finish_reason": "stop"}
            for n, text in enumerate(texts)
        ]
        return summarize_benchmark(score_samples(samples, dict.fromkeys(range(questions), "1")), questions, 1)

    two = summarize({"math500": numbers(0.25, 100), "gsm8k": numbers(1), "aime24": numbers(0.5)}, PAPER_BENCHMARKS)
    assert two["macro"]["benchmarks"] == ["math500", "aime24"]  # and not GSM8K
    assert two["macro"]["accuracy"] == (0.25 + 0.5) / 2  # the larger one has no more weight
    assert two["macro"]["partial"]
    five = summarize({name: numbers(0.5) for name in BENCHMARKS}, PAPER_BENCHMARKS)
    assert not five["macro"]["partial"]
    assert summarize({"gsm8k": numbers(1), "math500": numbers(1)}, PAPER_BENCHMARKS)["macro"] is None


@pytest.mark.parametrize("per_call", [1, 3, 4])
def test_a_stopped_run_goes_on_with_what_is_missing(tmp_path, per_call):
    cases = {f"question {n}": ("7", [boxed("7"), boxed("8")]) for n in range(9)}
    questions, sampling = questions_of(cases), Sampling(n=2)
    whole, stopped = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    assert sum(generate_samples(questions, sampling, Stub(cases), render, whole, per_call)) == 18
    with pytest.raises(KeyboardInterrupt):
        list(generate_samples(questions, sampling, Stub(cases, dies_at_call=2), render, stopped, per_call))
    assert len(read_records(stopped)) == per_call * 2
    second = Stub(cases)
    list(generate_samples(questions, sampling, second, render, stopped, per_call))
    assert stopped.read_bytes() == whole.read_bytes()
    # What is paid for is not generated again
    assert [prompt for prompts, *_ in second.calls for prompt in prompts] == list(cases)[per_call:]
    third = Stub(cases)
    assert list(generate_samples(questions, sampling, third, render, stopped, per_call)) == []
    assert third.calls == []


def test_a_torn_batch_is_completed_sample_by_sample(tmp_path):
    cases = {f"question {n}": ("7", [boxed(str(n)), boxed("7"), boxed("8")]) for n in range(3)}
    questions, sampling, file = questions_of(cases), Sampling(n=3), tmp_path / "raw.jsonl"
    list(generate_samples(questions, sampling, Stub(cases), render, file, 3))
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    file.write_bytes(
        b"".join(lines[:4]) + lines[4][:20]
    )  # killed while writing the second sample of the second question
    stub = Stub(cases)
    list(generate_samples(questions, sampling, stub, render, file, 3))
    assert file.read_bytes() == whole
    assert stub.calls == [(["question 1"], 2, 1), (["question 2"], 3, 0)]


def test_samples_that_are_missing_here_and_there_are_no_copies_of_others(tmp_path):
    cases = {"question": ("7", [boxed(str(n)) for n in range(5)])}
    questions, sampling, file = questions_of(cases), Sampling(n=5), tmp_path / "raw.jsonl"
    list(generate_samples(questions, sampling, Stub(cases), render, file))
    whole = read_records(file)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[1] + lines[4])
    stub = Stub(cases)
    assert list(generate_samples(questions, sampling, stub, render, file)) == [1, 2]
    assert sorted(read_records(file), key=lambda record: record["sample"]) == whole
    assert stub.calls == [(["question"], 1, 0), (["question"], 2, 2)]


def test_a_sample_without_a_question_is_refused():
    sample = {"id": "a", "sample": 0, "text": r"\boxed{1}", "num_tokens": 10, "finish_reason": "stop"}
    with pytest.raises(ValueError, match="have no answer, b and 1 more"):
        score_samples([sample, sample | {"id": "c"}, sample | {"id": "b"}], {"a": "1"})


def test_a_sample_that_is_there_twice_counts_once():
    sample = {"id": "a", "sample": 0, "text": r"\boxed{1}", "num_tokens": 10, "finish_reason": "stop"}
    (score,) = score_samples([sample, sample | {"text": ""}], {"a": "1"})
    assert score["correct"]


def test_other_questions_than_before_are_refused(tmp_path):
    file = tmp_path / "questions.jsonl"
    questions = questions_of(FOUR)
    assert keep_questions(file, questions) == questions
    assert keep_questions(file, questions) == questions
    other = [*questions[:2], questions[2] | {"answer": "2"}, questions[3]]
    for changed, difference in ((other, questions[2]["id"]), (questions[:3], "their number")):
        with pytest.raises(ValueError, match=f"questions.jsonl has other questions .*: {difference}"):
            keep_questions(file, changed)


@given(st.text("0123456789.,/e-{}$ ", max_size=8), st.text("0123456789.,/e-{}$ ", max_size=8))
def test_the_fallback_never_reverses_a_strict_match(answer, truth):
    for pair in ((answer, truth), (answer, answer)):
        text = rf"\boxed{{{pair[0]}}}"
        sample = {"id": "a", "sample": 0, "text": text, "num_tokens": 1, "finish_reason": "stop"}
        (score,) = score_samples([sample], {"a": pair[1]})
        assert score["strict"] == is_correct(text, pair[1])
        assert score["correct"] >= score["strict"]


def test_math_verify_is_another_grader(tmp_path):
    cases = {
        "algebra": (r"\frac{1}{2}", [boxed(".50"), boxed("0.51")]),
        "a set": ("1,3", [boxed("3,1"), boxed("13")]),
        "nothing to read": ("", [boxed(""), boxed("5")]),  # left to the strict grader
    }
    scores = scores_of(cases, tmp_path / "raw.jsonl", grader="math_verify")
    assert [score["correct"] for score in scores] == [True, False, True, False, True, False]
    assert [score["strict"] for score in scores] == [False, False, False, False, True, False]
    with pytest.raises(ValueError, match="`grader` is 'exact'. Pass one of 'numeq', 'math_verify'"):
        score_samples([], {}, "exact")


def test_samples_of_everything_that_a_model_may_write_are_kept_and_graded(tmp_path):
    texts = ["", "\ud800", "\0", "\u2028\r\n", r"\boxed{" * 1000, r"\boxed{7}" + "x" * 100_000]
    cases = {f"question {n}": ("7", [Generation(text, 5, "stop")] * 2) for n, text in enumerate(texts)}
    scores = scores_of(cases, tmp_path / "raw.jsonl")
    assert [record["text"] for record in read_records(tmp_path / "raw.jsonl")][::2] == texts
    assert [score["correct"] for score in scores][::2] == [False] * 5 + [True]
    assert json.loads(json.dumps(summarize_benchmark(scores, 6, 2)))["accuracy"]["mean"] == pytest.approx(1 / 6)
    assert np.isfinite([row["accuracy"] for row in question_rows(scores)]).all()


def test_benchmarks_are_those_that_load():
    assert set(BENCHMARKS) == set(MATH_BENCHMARKS)
