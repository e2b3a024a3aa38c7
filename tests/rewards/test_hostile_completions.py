"""A model in training writes everything sooner or later: no completion may crash a reward or make it hang."""

import json
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from trl_dara.rewards import tool_correctness_reward, tool_format_reward

from .test_tool_calling import PROPERTY, RESPONSE, THINK, TOOL_TRUTH, TRUTHS, F, block


@PROPERTY
@given(
    text=st.text(st.characters(), max_size=60),
    wrap=st.sampled_from(["{}", block("{}"), block(F, "{}"), THINK + block("{}")]),
)
def test_no_completion_raises(text, wrap):
    text = wrap.replace("{}", text)
    assert tool_format_reward([text], [TOOL_TRUTH])[0] in (0.0, 1.0)
    assert -3.0 <= tool_correctness_reward([text], [TOOL_TRUTH])[0] <= 3.0


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=3), st.just("f")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["name", "parameters", "x"]), inner, max_size=3),
    ),
)


@PROPERTY
@given(st.lists(JSON, max_size=4))
def test_no_json_raises(values):
    text = block(*map(json.dumps, values))
    assert -3.0 <= tool_correctness_reward([text], [TOOL_TRUTH])[0] <= 3.0


def hostile_completions():
    """A megabyte each of what makes parsers recurse, overflow or go quadratic, and a few short ones."""
    big = 1_000_000
    inner = [
        "[" * big,
        '{"a":' * (big // 5),
        '{"name": "f", "parameters": ' * 30_000,
        "[" * 900 + "]" * 900,
        "9" * big,
        "-" + "9" * 4_000,
        "1." + "1" * big,
        "1e" + "9" * big,
        '{"name": "f", "parameters": {"x": 1e400, "y": NaN}}',
        '{"name": "f", "parameters": {"x": -Infinity, "y": ' + "9" * 4_000 + "}}",
        '"' + "\\" * big,
        '"' + "\\ud800" * (big // 6) + '"',
        "\n" * big + "x",
        (F + "\n") * (big // len(F)),
        "\n".join(f'{{"name": {index * (2**61 - 1)}, "parameters": {{}}}}' for index in range(20_000)),
        '{"name": "f", "parameters": {' + ", ".join(f'"k{index}": {index}' for index in range(60_000)) + "}}",
        "\x00" * big,
        "\ud800\udfff" * 1_000,
    ]
    whole = [
        "<think>" * (big // 7),
        "<think>" * (big // 14) + "</think>\n" * (big // 18),
        "<think>" + "</think>\n" * (big // 9) + "<tool_call>\n" + "\n" * big + "</tool_call>",
        "<tool_call>" * (big // 11),
        "<tool_call></tool_call>" * (big // 22),
        "<think>" + "</think>\n<response>" * (big // 20) + "</response>",
        " " * big,
        "\n" * big + "<think>",
    ]
    return [THINK + block(text) for text in inner] + [block(text) + "\n" + RESPONSE for text in inner] + whole


def test_hostile_completions_are_scored_without_a_crash_or_a_hang():
    child = (
        "import json, sys\n"
        "from trl_dara.rewards import *\n"
        "completions, truths = json.load(sys.stdin)\n"
        "for truth in truths:\n"
        "    truth = [truth] * len(completions)\n"
        "    print(json.dumps([tool_format_reward(completions, truth), tool_correctness_reward(completions, truth),\n"
        "                      think_length_reward(completions)]))\n"
    )
    completions = hostile_completions()
    # The time limit catches a hang: each of these takes milliseconds, or hours where something is quadratic.
    result = subprocess.run(
        [sys.executable, "-c", child],
        input=json.dumps([completions, TRUTHS]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    for line in result.stdout.splitlines():
        formats, grades, lengths = json.loads(line)
        assert len(formats) == len(grades) == len(lengths) == len(completions)
        assert set(formats) | set(lengths) <= {0.0, 1.0}
        assert all(-3.0 <= grade <= 3.0 for grade in grades)
    assert len(result.stdout.splitlines()) == len(TRUTHS)
