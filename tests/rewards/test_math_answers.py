import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_dara.rewards.math_answers import is_correct, last_boxed_answer, normalize_answer, unwrap_dollars

from .test_tool_calling import PROPERTY


DATA = Path(__file__).parents[3] / "shared/data/math/math500.jsonl"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So $\boxed{5}$.", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{ {a}{b{c}} } {d}", " {a}{b{c}} "),
        (r"\boxed{1} or rather \boxed{2}", "2"),  # the last counts
        (r"\boxed{a \boxed{b}}", "b"),
        (r"\boxed{}", ""),
        (r"\boxed{1} and \boxed{2", None),  # unclosed, and no step back to an earlier one
        (r"\boxed{{1}", None),
        (r"\boxed{1} and \boxed", None),
        (r"\boxed5 {6}", None),
        (r"\boxed", None),
        (r"\fbox{7}", None),
        (r"\boxed{1} \fbox{7}", "1"),
        ("5", None),
        ("", None),
        (r"$\boxed 5$", "5"),
        (r"\boxed 5", "5"),
        (r"\boxed 5 it is", "5 it is"),
        (r"\boxed {9}", "{9}"),
        (r"\boxed 5$ and \boxed{6}", "5"),  # a space anywhere wins
        (r"\boxed 5$ and $\boxed 6$ and \boxed{7}", "6"),
    ],
)
def test_last_box(text, answer):
    assert last_boxed_answer(text) == answer


@pytest.mark.parametrize(
    ("boxed", "answer", "correct"),
    [
        ("25", "025", False),
        ("142", "142.0", False),
        ("1,000", "1000", False),
        ("Evelyn", r"\text{Evelyn}", False),
        (r"\text{Evelyn}", r"\text{Evelyn}", True),
        ("90", r"90^\circ", True),
        ("90", r"90^{\circ}", True),
        ("14/3", r"\frac{14}{3}", True),
        ("-14/3", r"\frac{-14}{3}", True),
        ("-14/3", r"-\frac{14}{3}", False),
        ("x/3", r"\frac{x}{3}", False),
        ("1/2/3", r"\frac{1}{2}/3", False),
        ("07/3", r"\frac{7}{3}", False),
        ("0.50", "0.5", False),
        ("0.5", r"\frac{1}{2}", True),
        (".5", r"\frac{1}{2}", True),
        ("0.25", r"\frac{1}{4}", False),
        (r"\frac{.5}{2}", r"\frac{0.5}{2}", True),
        ("2 .5", "20.5", True),
        ("x=5", "5", True),
        ("x = 5", "5", True),
        ("xy=5", "5", True),
        ("xyz=5", "5", False),
        ("x=y=5", "5", False),
        (r"10\text{ cm}", "10", True),
        (r"10\text{cm}", "10", False),
        (r"10 \text{ cm}^2", "10", True),
        (r"5\text{ m} 2\text{ cm}", "5", False),
        (r"50\%", "50", True),
        ("50%", "50", False),
        (r"\$50", "50", True),
        (r"2^{1009}", "$2^{1009}$", False),
        (r"\sqrt3", r"\sqrt{3}", True),
        (r"2\sqrt2+\sqrt{3}", r"2\sqrt{2}+\sqrt{3}", True),
        (r"\frac12", r"\frac{1}{2}", True),
        (r"\frac1{72}", r"\frac{1}{72}", True),
        (r"\frac{72}1", r"\frac{72}{1}", False),
        (r"\dfrac{1}{2}", r"\tfrac{1}{2}", True),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", True),
        (r"(3,\!5)", "(3, 5)", True),
        ("3\n5", "35", True),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\2\end{pmatrix}", True),
        ("p - q", "p-q", True),
        ("q - p", "p - q", False),
        ("", "5", False),
        (r"\frac", r"\frac{1}{2}", False),
        (r"\sqrt", r"\sqrt{3}", False),
    ],
)
def test_strict_grader(boxed, answer, correct):
    assert is_correct(f"So it is $\\boxed{{{boxed}}}$.", answer) == correct


@pytest.mark.parametrize(
    ("text", "correct"),
    [
        (r"\boxed{4} no, \boxed{5}", True),
        (r"\boxed{5} no, \boxed{4}", False),
        (r"\boxed{5", False),
        (r"\fbox{5}", False),
        (r"\boxed 5$", True),
        (r"\boxed {5}", False),
        ("5", False),
        ("", False),
    ],
)
def test_where_the_answer_is(text, correct):
    assert is_correct(text, "5") == correct


@pytest.mark.parametrize(
    "answer", [r"5\text{ m} 2\text{ cm}", r"\frac", r"1 + \sqrt", r"\frac\frac12", r"\sqrt\sqrt2"]
)
def test_answer_without_a_spelling_equals_itself_only(answer):
    assert normalize_answer(answer) == answer
    assert is_correct(r"\boxed{" + answer + "}", answer)
    assert not is_correct(r"\boxed{" + answer + "}", "5")


LATEX = st.lists(
    st.sampled_from(
        [
            *r"x1207=/.%$,-{} \ ".split(" "),
            " ",
            r"\frac",
            r"\sqrt",
            "{2}",
            r"\text{ ",
            r"\!",
            r"\left",
            "^\\circ",
            "\n",
        ]
    ),
    max_size=10,
).map("".join)


@PROPERTY
@given(LATEX | st.text(max_size=20))
def test_every_answer_equals_itself_with_or_without_spaces_for_the_eye(answer):
    if last_boxed_answer(r"\boxed{" + answer + "}") == answer:
        assert is_correct(r"\boxed{" + answer + "}", answer)
    assert normalize_answer(answer.replace("x", r"x\!")) in (normalize_answer(answer), answer.replace("x", r"x\!"))


@pytest.mark.skipif(not DATA.exists(), reason="needs the 500 problems of MATH-500, math/math500.jsonl")
def test_the_answers_of_math500():
    answers = [json.loads(line)["answer"] for line in DATA.open()]
    assert len(answers) == 500
    for answer in answers:
        assert is_correct(f"Thus $\\boxed{{{answer}}}$.", answer)
        assert is_correct(f"Thus $\\boxed{{{answer}}}$.", unwrap_dollars(f"$${answer}$$"))
        assert not is_correct(f"Thus ${answer}$.", answer)


@pytest.mark.parametrize(
    ("answer", "unwrapped"),
    [
        ("$2^{1009}$", "2^{1009}"),
        ("$$2$$", "2"),
        (r"\(2\)", "2"),
        (r"\[ 2 \]", "2"),
        (" $ 2 $\n", "2"),
        ("$a$ or $b$", "$a$ or $b$"),
        ("$$a$$ or $$b$$", "$$a$$ or $$b$$"),
        (r"\(a\) or \(b\)", r"\(a\) or \(b\)"),
        ("$5", "$5"),
        ("5$", "5$"),
        ("$", "$"),
        ("$$", "$$"),
        ("2\n", "2"),
        ("", ""),
    ],
)
def test_math_marks_of_the_data(answer, unwrapped):
    assert unwrap_dollars(answer) == unwrapped
