r"""
NumEq, the numeric fallback of the strict grader: two plain numbers that are written differently.

It is asked only where the strict grader says no, and it compares exactly, so it can neither reverse a match nor take
near misses for one. What is no plain number (a fraction, a root, an interval, a list of answers) is never rescued.
"""

import re
from decimal import Decimal, InvalidOperation

from trl_dara.rewards.math_answers import last_boxed_answer


# What a number may be written with that does not change it
_SPELLING = [
    (r"\!", ""),
    (r"\$", ""),
    ("{,}", ","),
    ("−", "-"),
    ("~", " "),
    *((command, " ") for command in (r"\,", r"\;", r"\:", r"\ ", r"\quad")),
]
_UNIT = r"\\(?:text|textrm|textbf|mathrm|mbox|operatorname)\s*\{[^{}0-9]*\}(?:\s*\^\s*(?:\{\s*-?[0-9]+\s*\}|[0-9]))?"
# Possessive quantifiers: nothing here is tried twice, so that time is linear
_NUMBER = re.compile(
    rf"""
    (?P<sign>[+-]?)\s*+
    (?P<mantissa>
        (?:[1-9][0-9]{{0,2}}(?P<separator>[,\ ])[0-9]{{3}}(?:(?P=separator)[0-9]{{3}})*+ | [0-9]++)(?:\.[0-9]*+)?+
        | \.[0-9]++
    )
    (?:
        [eE](?P<e>[+-]?[0-9]++)
        | \s*+\\(?:times|cdot)\s*+10\s*+\^\s*+(?:\{{\s*+(?P<braced>[+-]?[0-9]++)\s*+\}}|(?P<bare>[+-]?[0-9]++))
    )?+
    \s*+(?:\\?% | ° | \^\s*+(?:\\circ|\{{\s*+\\circ\s*+\}}) | \\degree)?+
    (?:\s*+(?:(?:\\cdot|/)\s*+)?+{_UNIT})*+
    """,
    re.VERBOSE,
)


def parse_number(answer: str) -> Decimal | None:
    r"""
    Read a plain number, exactly.

    Units (`\text{ cm}`, `\mathrm{kg}\cdot\mathrm{m}^2`), spacing commands, `$`, `%`, degree marks and the separators of
    thousands are left out; `\times 10^{n}` and `\cdot 10^{n}` are exponents. Commas and spaces separate thousands only in
    groups of three digits: `1,000` is a number, `1,3` is none.

    Args:
        answer (`str`):
            An answer without its box.

    Returns:
        `Decimal` or `None`: the number; `None` for everything else, fractions and expressions among it.

    Example:

    ```python
    >>> from trl_dara.evaluation.math.numeric import parse_number

    >>> parse_number(r"7 \times 10^{37} \text{ erg}"), parse_number("025"), parse_number("1,3")
    (Decimal('7E+37'), Decimal('25'), None)
    ```
    """
    for spelling, meaning in _SPELLING:
        answer = answer.replace(spelling, meaning)
    match = _NUMBER.fullmatch(answer.strip().strip("$").strip())
    if match is None:
        return None
    mantissa = match["mantissa"].replace(match["separator"] or ",", "")
    try:
        return Decimal(f"{match['sign']}{mantissa}E{match['e'] or match['braced'] or match['bare'] or 0}")
    except InvalidOperation:  # an exponent of more than 18 digits
        return None


def is_numerically_equal(text: str, answer: str) -> bool:
    """
    Whether the last boxed answer of a text and the true answer are the same plain number.

    Args:
        text (`str`):
            A completion.
        answer (`str`):
            The true answer, without a box.

    Returns:
        `bool`: `False` also where one of them is no plain number.
    """
    boxed = last_boxed_answer(text)
    number = None if boxed is None else parse_number(boxed)
    return number is not None and number == parse_number(answer)
