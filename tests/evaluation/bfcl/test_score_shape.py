import pytest

from trl_dara.evaluation.bfcl.score import score_shape


THINK = "<think> Hm. </think>"
CALL = "<tool_call>\n{}\n</tool_call>"
RESPONSE = "<response> Hi. </response>"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (f"{THINK}\n{RESPONSE}", 1),
        (f"{THINK}\n{CALL}", 1),
        (f"{THINK}\n{CALL}\n{RESPONSE}", 1),
        (f" {THINK}\n{CALL}\n", 1),
        (f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{THINK}\n{CALL}<|im_end|>\n", 1),
        (f"<think>{THINK}\n{RESPONSE}", 1),
        (THINK, 0),
        (RESPONSE, 0),
        (CALL, 0),
        ("", 0),
        (f"{THINK}{RESPONSE}", 0),
        (f"{THINK}\n{RESPONSE}\n{CALL}", 0),
        (f"{THINK}\n{RESPONSE} and more", 0),
        (f"{THINK}\n<tool_call>{{}}</tool_call>", 0),
        (f"{THINK}\n{CALL}\n{CALL}", 0),
        (f"{THINK}\n{RESPONSE}{RESPONSE}", 0),
    ],
)
def test_format(answer, expected):
    assert score_shape([answer])["format"] == expected


@pytest.mark.parametrize(
    ("thought", "expected"), [("word " * 16, 1), ("word " * 17, 0), ("", 1), ("a\nb\tc " * 5, 1), ("a\nb\tc " * 6, 0)]
)
def test_length(thought, expected):
    assert score_shape([f"<think>{thought}</think>\n{RESPONSE}"])["length"] == expected


@pytest.mark.parametrize("answer", ["", RESPONSE, f"<think> Hm.\n{RESPONSE}", f"Hm. </think>\n{RESPONSE}"])
def test_length_needs_both_tags(answer):
    assert score_shape([answer])["length"] == 0


def test_the_answers_of_a_case_count_alike():
    answers = [f"{THINK}\n{CALL}", f"{THINK}\n{CALL}", f"<think>{'word ' * 17}</think>\n{RESPONSE}", "Done."]
    assert score_shape(answers) == {"format": 0.75, "length": 0.5}


def test_a_case_without_answers_scores_0():
    assert score_shape([]) == {"format": 0.0, "length": 0.0}
