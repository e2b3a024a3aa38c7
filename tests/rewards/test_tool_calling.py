import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_dara.rewards import think_length_reward, tool_correctness_reward, tool_format_reward
from trl_dara.rewards.tool_calling import parse_ground_truth

from .hostile import BOTH_TRUTH, RESPONSE, RESPONSE_TRUTH, THINK, THINK_TRUTH, TOOL_TRUTH, TRUTHS, F, G, block


PROPERTY = settings(deadline=None, derandomize=True)

DATA = Path(__file__).parents[3] / "shared/data/tool-calling/rlla_4k_test.parquet"


def call(name, /, **parameters):
    return json.dumps({"name": name, "parameters": parameters})


def correctness(text, truth=TOOL_TRUTH):
    (reward,) = tool_correctness_reward(completions=[text], ground_truth=[truth])
    (conversational,) = tool_correctness_reward(
        prompts=[[{"role": "user", "content": "?"}]],
        completions=[[{"role": "assistant", "content": text}]],
        ground_truth=[truth],
        trainer_state=None,
    )
    assert reward == conversational
    return reward


def has_format(text, truth=TOOL_TRUTH):
    (reward,) = tool_format_reward(completions=[text], ground_truth=[truth])
    (conversational,) = tool_format_reward(
        prompts=[[{"role": "user", "content": "?"}]],
        completions=[[{"role": "assistant", "content": text}]],
        ground_truth=[truth],
        trainer_state=None,
    )
    assert reward == conversational
    return reward


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (TOOL_TRUTH, 3.0),
        (block(G, F), 3.0),  # order does not matter
        (block(F), 1.2),
        (block(F, G, G), 2.6),  # an extra call costs through the Jaccard index of the names only
        (block(call("f", x=3, y=2), G), 1.8),
        (block(call("f", x=True, y=2), G), 3.0),  # Python equality
        (block(call("f", x=1.0, y=2), G), 3.0),
        (block(call("f", x="1", y=2), G), 1.8),
        (block(F, G) + "\n<tool_call>\n", 3.0),  # the first block counts
        (block(F, G) + "\n" + block("nonsense"), 3.0),
        (block("", F, G, "  "), 3.0),  # the block is stripped
        (f"<tool_call>{F}\n{G}</tool_call>", 3.0),
        (block('{"name": "f", "parameters": {"y": 2, "x": 1}}', G), 3.0),
        (block(F, G).replace("</tool_call>", ""), -3.0),
        (block(F, G).replace("<tool_call>", ""), -3.0),
        (block(F, G[:-1]), -3.0),  # broken JSON
        (block(F, "", G), -3.0),  # an empty line inside the block
        (block('{"name": "f"}', G), -3.0),  # no parameters
        (block('{"name": "f", "parameters": [1]}', G), -3.0),
        (block('{"name": "f", "parameters": null}', G), -3.0),
        (block(F, '{"parameters": {}}'), -3.0),  # no name
        (block(F, G, '{"name": ["f"], "parameters": {}}'), -3.0),
        (block(F, G, "7"), -3.0),
        (block(call("h"), call("i", x=1)), -3.0),  # wrong names only
        (block(), -3.0),
        ("", -3.0),
        (RESPONSE_TRUTH, -3.0),
    ],
)
def test_correctness(text, reward):
    assert correctness(text) == pytest.approx(reward, abs=1e-12)


def test_correctness_needs_no_parameters_of_a_call_that_nothing_is_compared_with():
    # J = 2/3, f 1 + 2, g 1 of at most 1 + 3 + 1 = 5
    assert correctness(block(F, G, '{"name": "h"}')) == pytest.approx(6 * (2 / 3 + 4) / 5 - 3)


def test_correctness_takes_the_best_unused_call_of_the_same_name():
    truth = block(call("f", x=1), call("f", x=2))
    assert correctness(block(call("f", x=2), call("f", x=1)), truth) == 3.0
    # The first true call takes the first of two equally good ones, which the second then lacks: 1 + 1 + 2 of 5.
    assert correctness(block(call("f", x=2), call("f", x=3)), truth) == pytest.approx(6 * 3 / 5 - 3)
    # A call without a common parameter scores 0, so it is not used up and the second true call still finds it.
    truth = block(call("f", x=1), call("f", z=2))
    assert correctness(block(call("f", z=2)), truth) == pytest.approx(6 * (0.5 + 0 + 2) / 5 - 3)


def test_correctness_compares_nested_values_and_extra_keys():
    truth = block(call("f", where={"city": "Oslo", "days": [1, 2]}))
    assert correctness(block(call("f", where={"days": [1, 2], "city": "Oslo"})), truth) == 3.0
    assert correctness(block(call("f", where={"days": [2, 1], "city": "Oslo"})), truth) == pytest.approx(1.0)
    # keys 1/2, value 1, name 1 of 3
    assert correctness(block(call("f", where={"city": "Oslo", "days": [1, 2]}, z=0)), truth) == pytest.approx(2.0)


@pytest.mark.parametrize("truth", [RESPONSE_TRUTH, THINK_TRUTH])
@pytest.mark.parametrize("text", ["", RESPONSE_TRUTH, TOOL_TRUTH, block("nonsense")])
def test_correctness_is_constant_without_a_true_call(truth, text):
    assert correctness(text, truth) == 0.0


@pytest.mark.parametrize("truth", TRUTHS)
def test_format_of_the_ground_truth_fits_only_its_own_kind(truth):
    assert [has_format(text, truth) for text in TRUTHS] == [float(text == truth) for text in TRUTHS]


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (TOOL_TRUTH, 1.0),
        (f"\n {TOOL_TRUTH}\n\n", 1.0),  # stripped
        (THINK + block("no JSON at all"), 1.0),  # the contents are not checked
        (THINK + block("", ""), 1.0),
        (THINK + "<tool_call>\n\n</tool_call>", 1.0),
        (THINK + "<tool_call>\n</tool_call>", 0.0),  # two line breaks
        (THINK + f"<tool_call>{F}\n</tool_call>", 0.0),
        (THINK + f"<tool_call>\n{F}</tool_call>", 0.0),
        (THINK.replace("\n", "") + block(F), 0.0),
        (THINK.replace("\n", "\n\n") + block(F), 0.0),
        (THINK.replace("\n", " ") + block(F), 0.0),
        ("<think></think>\n" + block(F), 1.0),
        ("<think> a </think> b <think> c </think>\n" + block(F), 1.0),  # the number of think tags is not checked
        ("<think> a <response> b </think>\n" + block(F), 1.0),  # nor are tags that are not required
        (THINK + block(F) + "\n<tool_call>", 0.0),
        (THINK + block("<tool_call>"), 0.0),
        (THINK + block(F) + "\n" + block(G), 0.0),
        ("Sure! " + TOOL_TRUTH, 0.0),
        (TOOL_TRUTH + "!", 0.0),
        (block(F), 0.0),
        ("<think>" + block(F), 0.0),
        (BOTH_TRUTH, 0.0),
        ("", 0.0),
    ],
)
def test_tool_call_format(text, reward):
    assert has_format(text) == reward


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (THINK + "<response></response>", 1.0),
        (THINK + "<response>\n\n</response>", 1.0),
        (THINK + "<response> <tool_call> </response>", 1.0),
        (THINK + "<response> a </response> b </response>", 0.0),
        (THINK + "<response> a <response> b </response>", 0.0),
        ("<response> a </response>", 0.0),
        (THINK + " " + RESPONSE, 0.0),
    ],
)
def test_response_format(text, reward):
    assert has_format(text, RESPONSE_TRUTH) == reward


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (THINK + block("x") + "\n" + RESPONSE, 1.0),
        (THINK + block("x") + RESPONSE, 0.0),
        (THINK + RESPONSE + "\n" + block("x"), 0.0),
        (THINK + "<tool_call>\n<response>\n</tool_call>\n</response>", 0.0),
    ],
)
def test_both_format(text, reward):
    assert has_format(text, BOTH_TRUTH) == reward


PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<response>", "</response>", "\n", " ", "a"]
PATTERNS = {
    TOOL_TRUTH: r"<think>.*?</think>\n<tool_call>\n.*?\n</tool_call>",
    RESPONSE_TRUTH: r"<think>.*?</think>\n<response>.*?</response>",
    BOTH_TRUTH: r"<think>.*?</think>\n<tool_call>\n.*?\n</tool_call>\n<response>.*?</response>",
    THINK_TRUTH: r"<think>.*?</think>",
}


@PROPERTY
@given(
    truth=st.sampled_from(TRUTHS),
    pieces=st.one_of(
        st.lists(st.sampled_from(PIECES), max_size=14),
        # close to the real thing: one insertion and one deletion
        st.tuples(st.sampled_from(TRUTHS), st.sampled_from(PIECES), st.integers(0, 60), st.integers(0, 60)).map(
            lambda t: [t[0][: t[2]], t[1], t[0][t[2] + t[3] % 8 :]]
        ),
    ),
)
def test_format_equals_the_pattern_of_the_rule(truth, pieces):
    text = "".join(pieces)
    tags = [tag for tag in ("tool_call", "response") if f"<{tag}>" in truth]
    once = all(text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1 for tag in tags)
    matches = re.fullmatch(PATTERNS[truth], text.strip(), re.DOTALL) is not None
    assert has_format(text, truth) == float(matches and once)


NAMES = st.sampled_from(["f", "g", "h"])
PARAMETERS = st.dictionaries(st.sampled_from("xyz"), st.sampled_from([0, 1, True, "1", None, [1]]), max_size=3)
CALLS = st.lists(
    st.builds(lambda name, parameters: call(name, **parameters), NAMES, PARAMETERS), min_size=1, max_size=4
)


@PROPERTY
@given(true=CALLS, predicted=CALLS, data=st.data())
def test_correctness_properties(true, predicted, data):
    truth = block(*true)
    assert -3.0 <= correctness(block(*predicted), truth) <= 3.0
    assert correctness(block(*data.draw(st.permutations(true))), truth) == pytest.approx(3.0, abs=1e-12)
    assert correctness(block(*true, *predicted), truth) < 3.0


@pytest.mark.parametrize(
    "truth",
    [
        None,
        {"ground_truth": TOOL_TRUTH},
        THINK + "<tool_call>\n" + F,  # never closed
        THINK + block("{'name': 'f'}"),
        THINK + block(),
        THINK + block(F, "", G),
        THINK + block('{"name": "f"}'),
        THINK + block('{"name": 1, "parameters": {}}'),
        THINK + block('{"name": "f", "parameters": []}'),
        THINK + block('["f", {}]'),
        THINK + block("[" * 100_000),
    ],
)
@pytest.mark.parametrize("reward", [tool_format_reward, tool_correctness_reward])
def test_a_malformed_ground_truth_is_an_error(truth, reward):
    with pytest.raises(ValueError, match="`ground_truth`"):
        reward(completions=[TOOL_TRUTH], ground_truth=[truth])


needs_data = pytest.mark.skipif(
    not DATA.exists(), reason="needs the 80 held-out rows of ToolRL, tool-calling/rlla_4k_test.parquet"
)


def real_truths() -> list[str]:
    import pandas as pd

    return [row["ground_truth"] for row in pd.read_parquet(DATA)["reward_model"]]


@needs_data
def test_each_real_ground_truth_earns_the_highest_rewards():
    truths = real_truths()
    calls = ["<tool_call>" in truth for truth in truths]
    assert (len(truths), sum(calls)) == (80, 71)
    assert tool_format_reward(completions=truths, ground_truth=truths) == [1.0] * 80
    assert tool_correctness_reward(completions=truths, ground_truth=truths) == [3.0 if call else 0.0 for call in calls]
    assert think_length_reward(completions=truths) == [1.0] * 80


@needs_data
def test_real_calls_may_come_in_any_order_and_none_may_be_missing():
    several = [truth for truth in real_truths() if len(parse_ground_truth(truth)) > 1]
    assert len(several) > 10
    for truth in several:
        before, *calls, after = re.split(r"(?<=<tool_call>)\n|\n(?=</tool_call>)|\n(?=\{)", truth)
        reordered, fewer = ("\n".join([before, *lines, after]) for lines in (calls[::-1], calls[1:]))
        assert correctness(reordered, truth) == pytest.approx(3.0, abs=1e-12)
        assert has_format(reordered, truth) == has_format(fewer, truth) == 1.0
        assert -3.0 < correctness(fewer, truth) < 3.0
