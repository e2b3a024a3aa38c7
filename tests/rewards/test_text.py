import pytest

from trl_dara.rewards import think_length_reward
from trl_dara.rewards.text import completion_text


def think(words: int) -> str:
    return f"<think> {' word' * words} </think>\n<response> Done. </response>"


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (think(16), 1.0),
        (think(17), 0.0),
        (think(0), 1.0),
        ("<think></think>", 1.0),
        ("<think>\n\tone\ntwo\n</think>", 1.0),
        ("<think> no end", 0.0),
        ("no start </think>", 0.0),
        ("</think> wrong order <think>", 0.0),
        ("no tags", 0.0),
        ("", 0.0),
        (think(17) + think(3), 1.0),  # the last block counts
        (think(3) + think(17), 0.0),
        ("<think>" + " word" * 30 + "<think> a second start </think>", 1.0),
        ("<think> short </think>" + " word" * 30 + "</think>", 1.0),  # up to the next end tag
    ],
)
def test_think_length(text, reward):
    assert think_length_reward([text]) == [reward]
    assert think_length_reward(completions=[[{"role": "assistant", "content": text}]], prompts=["?"]) == [reward]


def test_think_length_limit_is_an_argument():
    assert think_length_reward([think(4), think(5)], max_words=4) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("plain", "plain"),
        (
            [
                {"role": "assistant", "content": "first"},
                {"role": "tool", "content": "7"},
                {"role": "assistant", "content": "last"},
            ],
            "last",
        ),
        ([{"role": "assistant", "content": None}], ""),
        ([{"role": "assistant", "tool_calls": []}], ""),
        ([], ""),
    ],
)
def test_completion_text(completion, text):
    assert completion_text(completion) == text
