import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_dara.rewards import gsm8k_correctness_reward, gsm8k_format_reward, gsm8k_integer_reward
from trl_dara.rewards.gsm8k import gsm8k_gold

from .test_tool_calling import PROPERTY


DATA = Path(__file__).parents[3] / "shared/data/gsm8k/test.jsonl"
RIGHT = "<think>16 - 3 - 4 = 9</think>\n<answer>18</answer>"


def rewards(text, gold="18"):
    """Correctness, integer and format of a text, as a plain completion and as a message."""
    completions = [text, [{"role": "assistant", "content": text}]]
    arguments = {"prompts": ["?"] * 2, "completions": completions, "completion_ids": [[1]] * 2, "answer": [gold] * 2}
    pairs = [
        reward_func(**arguments)
        for reward_func in (gsm8k_correctness_reward, gsm8k_integer_reward, gsm8k_format_reward)
    ]
    assert all(plain == message for plain, message in pairs)
    return [plain for plain, _ in pairs]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RIGHT, [1, 1, 1]),
        (RIGHT + "\n", [1, 1, 1]),  # one line break is tolerated
        (RIGHT + "\n\n", [1, 1, 0]),
        (RIGHT + " ", [1, 1, 0]),
        ("\n" + RIGHT, [1, 1, 0]),  # not stripped
        ("Sure! " + RIGHT, [1, 1, 0]),
        (RIGHT.replace("\n", ""), [1, 1, 0]),
        (RIGHT.replace("\n", "\n\n"), [1, 1, 0]),
        (RIGHT.replace("18", " 18\n"), [1, 1, 1]),  # the answer is stripped
        (RIGHT.replace("18", "19"), [0, 1, 1]),
        (RIGHT.replace("18", "18.0"), [0, 0, 1]),
        (RIGHT.replace("18", "$18"), [0, 0, 1]),
        (RIGHT.replace("18", ""), [0, 0, 1]),
        ("18", [1, 1, 0]),  # without tags, all of it is the answer
        (" 18\n", [1, 1, 0]),
        ("The answer is 18", [0, 0, 0]),
        ("<answer>18", [1, 1, 0]),
        ("18</answer>", [1, 1, 0]),
        ("</answer>18", [0, 0, 0]),
        ("<answer>17</answer> <answer>18</answer>", [1, 1, 0]),  # the last opening tag
        ("<answer>18</answer> 17</answer>", [1, 1, 0]),  # and the next closing one
        (RIGHT + "<answer>", [0, 0, 0]),
        ("<think>a</think> b <think>c</think>\n<answer>18</answer>", [1, 1, 1]),  # think tags are not counted
        ("<think></think>\n<answer></answer>", [0, 0, 1]),
        ("<think><answer>18</answer>\n</think>", [1, 1, 0]),
        ("", [0, 0, 0]),
    ],
)
def test_three_rewards(text, expected):
    assert rewards(text) == expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("1,000", "1,000", [1, 0, 1]),  # with a comma, correct and integer exclude each other
        ("1000", "1,000", [0, 1, 1]),
        ("-5", "-5", [1, 0, 1]),
        ("2.5", "2.5", [1, 0, 1]),
    ],
)
def test_answers_that_are_no_plain_integers(answer, gold, expected):
    assert rewards(RIGHT.replace("18", answer), gold) == expected


TAGS = ["<think>", "</think>", "<answer>", "</answer>", "</think>\n<answer>", "\n", " ", "18", "a"]


@PROPERTY
@given(st.lists(st.sampled_from(TAGS), max_size=9).map("".join) | st.sampled_from(TAGS).map(lambda tag: RIGHT + tag))
def test_format_equals_the_pattern_of_the_rule(text):
    matches = re.match(r"^<think>.*?</think>\n<answer>.*?</answer>$", text, re.DOTALL) is not None
    once = text.count("<answer>") == text.count("</answer>") == 1
    assert gsm8k_format_reward([text]) == [float(matches and once)]


def test_true_answer_of_the_data():
    assert gsm8k_gold("He has 3 * 2 = <<3*2=6>>6.\n#### 1,006 ") == "1,006"
    for answer in ("1,006", "", None):
        with pytest.raises(ValueError, match="`answer` is .* no '####'"):
            gsm8k_gold(answer)


@pytest.mark.skipif(not DATA.exists(), reason="needs the 1,319 test problems of GSM8K, gsm8k/test.jsonl")
def test_true_answers_of_gsm8k_earn_all_three_rewards_but_for_their_commas():
    golds = [gsm8k_gold(json.loads(line)["answer"]) for line in DATA.open()]
    assert len(golds) == 1319
    completions = [RIGHT.replace("18", gold) for gold in golds]
    assert gsm8k_correctness_reward(completions, golds) == [1.0] * 1319
    assert gsm8k_format_reward(completions) == [1.0] * 1319
    no_digits = {gold for gold, reward in zip(golds, gsm8k_integer_reward(completions), strict=True) if not reward}
    assert all("," in gold or "-" in gold or "." in gold for gold in no_digits)
