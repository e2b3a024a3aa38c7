import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_dara.evaluation.math.numeric import is_numerically_equal, parse_number
from trl_dara.rewards.math_answers import is_correct


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("025", "25"),
        ("142.0", "142"),
        ("0.10", "0.1"),
        (".5", "0.5"),
        ("5.", "5"),
        ("+5", "5"),
        ("-5", "-5"),
        ("−5", "-5"),
        ("- 5", "-5"),
        ("4.5e33", "4.5e33"),
        (r"4.5 \times 10^{33}", "4.5e33"),
        (r"7 \cdot 10^{-4}", "0.0007"),
        (r"2\times10^5", "200000"),
        ("1,000", "1000"),
        ("12,345,678.9", "12345678.9"),
        ("1{,}000", "1000"),
        (r"1,\!000", "1000"),
        (r"10\,000", "10000"),
        ("$50$", "50"),
        (r"\$50", "50"),
        ("50%", "50"),
        (r"50\%", "50"),
        (r"90^\circ", "90"),
        (r"90^{\circ}", "90"),
        ("90°", "90"),
        (r"10\text{cm}", "10"),
        (r"10 \text{ m/s}^2", "10"),
        (r"9.8\,\mathrm{m}\cdot\mathrm{s}^{-2}", "9.8"),
        (r"3 \times 10^{8} \mathrm{~m} / \mathrm{s}", "3e8"),
        ("9007199254740993", "9007199254740993"),
    ],
)
def test_plain_numbers(answer, number):
    assert parse_number(answer) == Decimal(number)


@pytest.mark.parametrize(
    "answer",
    ["", ".", "e5", "1,3", "10,00", "0,001", "1,000,00", "1,000 000", "1 3", "1/2", r"\frac{1}{2}", r"\sqrt{2}", "[0,1]"]
    + ["(1,2)", "2^{10}", "10^{5}", "x=5", "2+3", "1.5.2", "1_000", "٣", "inf", "nan", "5 or 6", r"3\text{ or }5"]
    + ["$1$$3$", "5x", "10 cm", r"\text{Evelyn}", r"1\text{ and 2}", "1e" + "9" * 30, "0x10"],
)  # fmt: skip
def test_what_is_no_plain_number(answer):
    assert parse_number(answer) is None


@pytest.mark.parametrize(
    ("boxed", "truth"),
    [("25", "025"), (r"4.5 \times 10^{33}", "4.5e33"), ("0.1", "0.10"), ("1000", "1,000"), (r"\$1,\!000", "1000")],
)
def test_rescues(boxed, truth):
    text = rf"\boxed{{{boxed}}}"
    assert not is_correct(text, truth)
    assert is_numerically_equal(text, truth)


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        (r"\boxed{13}", "1,3"),  # two answers
        (r"\boxed{9007199254740992}", "9007199254740993"),  # equal as floats
        (r"\boxed{0.3333333333333333}", r"\frac{1}{3}"),
        (r"\boxed{1e999999999}", "1e999999998"),
        (r"\boxed{25} or \boxed{\frac{\sqrt{\frac{1}{2}}}{2}}", "025"),  # the last box counts, however deep
        (r"\boxed{25", "025"),
        ("25", "025"),
        (r"\boxed{x}", "x"),  # no number: left to the strict grader
    ],
)
def test_no_rescue(text, truth):
    assert not is_numerically_equal(text, truth)


@given(st.integers(), st.integers(-30, 30), st.sampled_from([r"\times", r"\cdot"]), st.text("0", max_size=3))
def test_every_spelling_of_a_number_is_that_number_exactly(digits, exponent, times, zeros):
    number = digits * Fraction(10) ** exponent
    for spelling in (
        f"{digits}e{exponent}",
        rf"{digits} {times} 10^{{{exponent}}}",
        f"{digits:,}.{zeros}e{exponent}",
        f"{digits:,}".replace(",", r"\,") + rf"\text{{ cm}}^2{'' if exponent else ' '}",
    ):
        expected = digits if "cm" in spelling else number
        assert Fraction(parse_number(spelling)) == expected, spelling
    assert is_numerically_equal(rf"\boxed{{{digits:,}}}", f"{digits}.0")
    assert not is_numerically_equal(rf"\boxed{{{digits}}}", str(digits + 1))


@given(st.text(r"0123456789,.eE+- \{}^$%°textimescdotmrh!;", max_size=40))
def test_anything_is_a_number_or_none(answer):
    number = parse_number(answer)
    assert number is None or number.is_finite()


@pytest.mark.parametrize(
    "answer",
    [
        "1" * 10**6,
        "1" + ",000" * 250_000 + "x",
        "1" + r"\text{a}" * 125_000 + "x",
        "1" + " " * 10**6 + "x",
        "1e" + "9" * 10**6,
        r"1.5\times 10^{" + " " * 10**6,
        "$" * 10**6,
    ],
    ids=lambda answer: answer[:8],
)
def test_a_megabyte_takes_no_time(answer):
    start = time.process_time()
    is_numerically_equal(rf"\boxed{{{answer}}}", "1e999999999")
    assert time.process_time() - start < 10  # a guard against hanging: quadratic time would be hours
