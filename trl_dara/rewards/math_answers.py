r"""
The strict grader of final answers in mathematics: the last `\boxed{...}` of a text and the true answer are each brought
into one spelling and compared as strings.

The rules of the spelling are those of the MATH data set (Hendrycks et al., 2021,
https://huggingface.co/papers/2103.03874) as verl's `math_reward` applies them; results are comparable with papers that
use either. There is no algebra: `14/3` equals `\frac{14}{3}`, but `0.25` does not equal `\frac{1}{4}`. Everything here
takes linear time and never raises, whatever a text contains.
"""

import re


_BOX = r"\boxed"
_BRACES = re.compile(r"[{}]")
_UNIT = r"\text{ "

# In this order: the wrong spelling and the right one.
_SPELLING = [
    ("\n", ""),
    (r"\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    (r"\left", ""),
    (r"\right", ""),
    (r"^{\circ}", ""),
    (r"^\circ", ""),
    (r"\$", ""),
]
_INTEGER_RATIO = re.compile(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)")

_MATH_MARKS = [("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")]


def last_boxed_answer(text: str) -> str | None:
    r"""
    Find the final answer of a text: what is between the braces of its last `\boxed{`.

    If `\boxed` is followed by a space anywhere in the text, the last such place counts instead, and the answer goes on to
    the next `$` or to the end of the text.

    Args:
        text (`str`):
            A completion.

    Returns:
        `str` or `None`: the answer as it is written; `None` where there is no box, and where the last one has no brace
        or is not closed. `\fbox` is no box.

    Example:

    ```python
    >>> from trl_dara.rewards.math_answers import last_boxed_answer

    >>> last_boxed_answer(r"First \boxed{1}, then $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    ```
    """
    _, spaced_box, rest = text.rpartition(_BOX + " ")
    if spaced_box:
        return rest.split("$", 1)[0]
    start = text.rfind(_BOX) + len(_BOX)
    if _BOX not in text or text[start : start + 1] != "{":
        return None
    depth = 0
    for brace in _BRACES.finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start + 1 : brace.start()]
    return None


def normalize_answer(answer: str) -> str:
    r"""
    Bring an answer into the spelling that the grader compares.

    Line breaks, spaces, `\!`, `\left`, `\right`, degree marks, `\$`, `\%` and a unit in `\text{ ` (with the space) at the
    end are removed, and so is the left side of an equation when it has at most two characters. `\tfrac` and `\dfrac`
    become `\frac`, `.5` becomes `0.5`, `\sqrt3` and `\frac12` get their braces, and `0.5` and ratios of two integers
    become `\frac`.

    Args:
        answer (`str`):
            An answer without its box.

    Returns:
        `str`: the answer in that spelling. An answer for which the rules do not say one, with several units or a command
        without an argument, is returned as it is.

    Example:

    ```python
    >>> from trl_dara.rewards.math_answers import normalize_answer

    >>> [normalize_answer(answer) for answer in (r"x = \dfrac12", "14/3", r"90^\circ", r"10\text{ cm}", "1,000")]
    ['\\frac{1}{2}', '\\frac{14}{3}', '90', '10', '1,000']
    ```
    """
    try:
        return _normalize(answer)
    except (ValueError, IndexError):
        return answer


def is_correct(text: str, answer: str) -> bool:
    r"""
    Whether the last boxed answer of a text is the true one, up to the spelling of [`normalize_answer`].

    Args:
        text (`str`):
            A completion.
        answer (`str`):
            The true answer, without a box and without the `$` of [`unwrap_dollars`].

    Returns:
        `bool`

    Example:

    ```python
    >>> from trl_dara.rewards.math_answers import is_correct

    >>> is_correct(r"So it is \boxed{14/3}.", r"\frac{14}{3}"), is_correct("So it is 14/3.", r"\frac{14}{3}")
    (True, False)
    ```
    """
    boxed = last_boxed_answer(text)
    return boxed is not None and normalize_answer(boxed) == normalize_answer(answer)


def unwrap_dollars(answer: str) -> str:
    r"""
    Remove the math marks around an answer of a data set, since a boxed answer has none: `$$ $$`, `$ $`, `\( \)` or `\[ \]`.

    Args:
        answer (`str`):
            An answer of a data set.

    Returns:
        `str`: what is between the marks, or the answer as it is when the same marks occur inside as well, as in `$a$ or
        $b$`; in both cases without white space around it.

    Example:

    ```python
    >>> from trl_dara.rewards.math_answers import unwrap_dollars

    >>> unwrap_dollars("$2^{1009}$"), unwrap_dollars("$a$ or $b$")
    ('2^{1009}', '$a$ or $b$')
    ```
    """
    answer = answer.strip()
    for opening, closing in _MATH_MARKS:
        if answer.startswith(opening) and answer.endswith(closing) and len(answer) > len(opening) + len(closing):
            inside = answer[len(opening) : -len(closing)]
            if opening not in inside and closing not in inside:
                return inside.strip()
    return answer


def _normalize(answer: str) -> str:
    for wrong, right in _SPELLING:
        answer = answer.replace(wrong, right)
    answer = _without_unit(answer).replace(r"\\%", "").replace(r"\%", "")
    answer = answer.replace(" .", " 0.").replace("{.", "{0.")
    if answer.startswith("."):
        answer = "0" + answer
    if answer.count("=") == 1 and answer.index("=") <= 2:
        answer = answer.partition("=")[2]
    answer = _brace_roots(answer).replace(" ", "")
    answer = _brace_fractions(answer)
    if answer == "0.5":
        return r"\frac{1}{2}"
    ratio = _INTEGER_RATIO.fullmatch(answer)
    return r"\frac" + _group(ratio[1]) + _group(ratio[2]) if ratio else answer


def _without_unit(answer: str) -> str:
    number, *units = answer.split(_UNIT)
    if len(units) > 1:
        raise ValueError("several units")
    return number


def _brace_roots(answer: str) -> str:
    r"""`\sqrt3` becomes `\sqrt{3}`; an `IndexError` where nothing follows."""
    before, *after = answer.split(r"\sqrt")
    braced = [rest if rest[0] == "{" else _group(rest[0]) + rest[1:] for rest in after]
    return r"\sqrt".join([before, *braced])


def _brace_fractions(answer: str) -> str:
    r"""`\frac12` and `\frac1{2}` become `\frac{1}{2}`; an `IndexError` where nothing follows."""
    before, *after = answer.split(r"\frac")
    braced = [before]
    for rest in after:
        if rest[0] != "{":
            if len(rest) == 1:
                return answer
            denominator = "{" if rest[1] == "{" else _group(rest[1])
            rest = _group(rest[0]) + denominator + rest[2:]
        braced.append(rest)
    return r"\frac".join(braced)


def _group(text: str) -> str:
    return "{" + text + "}"
