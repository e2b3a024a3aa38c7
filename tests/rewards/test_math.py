import importlib.util
import json
import logging
import threading

import pytest

from trl_dara.rewards import boxed_correctness_reward, math, math_verify_reward, token_length_reward

from .test_math_answers import DATA


def box(answer):
    return f"So it is $\\boxed{{{answer}}}$."


def conversational(text):
    return [{"role": "assistant", "content": text}]


def test_boxed_correctness():
    texts = [box(r"\dfrac12"), box("0.5"), box("0.50"), "0.5"]
    arguments = {"answer": [r"\frac{1}{2}"] * 4, "prompts": ["?"] * 4, "completion_ids": [[1]] * 4}
    assert boxed_correctness_reward(completions=texts, **arguments) == [1.0, 1.0, 0.0, 0.0]
    assert boxed_correctness_reward(completions=list(map(conversational, texts)), **arguments) == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("reward_func", [boxed_correctness_reward, math_verify_reward])
@pytest.mark.parametrize("answer", [None, 25, ["25"]])
def test_true_answer_that_is_no_string_is_an_error(reward_func, answer):
    with pytest.raises(ValueError, match="`answer` is .* Pass the true answer as text"):
        reward_func(completions=[box("25")], answer=[answer])


def test_token_length():
    ids = [[7] * 3, [7] * 4, [7] * 5, []]
    assert token_length_reward(completion_ids=ids, max_tokens=4, completions=["a b c d e f"] * 4) == [
        1.0,
        1.0,
        0.0,
        1.0,
    ]
    assert token_length_reward(completion_ids=[[7] * 4000, [7] * 4001]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        (box("0.5"), r"\frac{1}{2}", 1.0),
        (box("1,000"), "1000", 1.0),
        (box("25"), "025", 1.0),
        (box("2x+2"), "2(x+1)", 1.0),
        (box("q - p"), "p - q", 0.0),
        (box("p - q"), "p - q", 1.0),  # read as a whole only because it is boxed
        (box(r"\left( 3, \frac{\pi}{2} \right)"), r"\left( 3, \frac{\pi}{2} \right)", 1.0),
        (box("3"), r"\left( 3, \frac{\pi}{2} \right)", 0.0),
        (box("4"), "5", 0.0),
        ("The answer is 5.", "5", 0.0),  # no box
        (box("5") + box("4"), "5", 0.0),
        (r"\boxed{5", "5", 0.0),
        (box("5" + "+0" * 1000), "5", 0.0),  # too long to be an answer
        (box("5"), "", None),  # not scored
        ("", " ", None),
    ],
)
def test_math_verify(text, answer, reward):
    assert math_verify_reward(completions=[text, conversational(text)], answer=[answer] * 2) == [reward] * 2


@pytest.mark.skipif(not DATA.exists(), reason="needs the 500 problems of MATH-500, math/math500.jsonl")
def test_math_verify_accepts_the_answers_of_math500():
    answers = [json.loads(line)["answer"] for line in DATA.open()]
    assert math_verify_reward(completions=list(map(box, answers)), answer=answers) == [1.0] * 500


def test_math_verify_works_in_any_thread():
    rewards = []
    thread = threading.Thread(target=lambda: rewards.extend(math_verify_reward([box("1/4")], answer=["0.25"])))
    thread.start()
    thread.join(timeout=60)
    assert rewards == [1.0]


def test_comparison_without_an_end_is_wrong_and_the_next_one_is_made(monkeypatch, caplog):
    math_verify_reward([box("1")], answer=["7"])  # starts the process
    process = math._compare._process
    monkeypatch.setattr(math._compare, "timeout", 0.5)  # sooner than math-verify's own limit
    tower = box("8^{8^{8^{8}}}")
    with caplog.at_level(logging.WARNING):
        assert math_verify_reward([tower, tower], answer=["7"] * 2) == [0.0, 0.0]
    assert len(caplog.records) == 1  # compared once
    assert "could not compare '8^{8^{8^{8}}}' with '7'" in caplog.text
    assert not process.is_alive()
    monkeypatch.undo()
    assert math_verify_reward([box("14/2")], answer=["7"]) == [1.0]


def test_math_verify_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "trl\[math-verify\]"'):
        math_verify_reward([box("1")], answer=["1"])
