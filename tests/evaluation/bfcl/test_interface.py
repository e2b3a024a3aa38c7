import json
import re
from pathlib import Path

import pytest
from datasets import Dataset

from trl_dara.evaluation.bfcl.benchmark import LIVE, category_of, is_multi_turn
from trl_dara.evaluation.bfcl.dialogue import Dialogue
from trl_dara.evaluation.bfcl.interface import (
    CONTINUATION,
    MULTI_TURN_SUFFIX,
    SINGLE_TURN_SUFFIX,
    SYSTEM_PROMPT,
    build_prompt,
    multi_turn_calls,
    single_turn_calls,
)

from .answers import questions


TOOLRL = Path(__file__).parents[4] / "shared" / "data" / "tool-calling" / "rlla_4k_test.parquet"
TOOL = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "dict", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {"type": "é"}}},
}
ADD = '{"name": "add", "parameters": {"a": 1}}'
ADD_CALL = {"name": "add", "parameters": {"a": 1}}


def block(*lines: str) -> str:
    return "\n".join(["<think> Hm. </think>", "<tool_call>", *lines, "</tool_call>"])


def user_message(prompt: str) -> str:
    [message] = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>\n<\|im_start\|>assistant\n$", prompt, re.DOTALL)
    return message


def test_single_turn_prompt():
    messages = [{"role": "system", "content": "You are rude."}, {"role": "user", "content": " What is 1 + 1?\n"}]
    prompt = build_prompt(messages, [TOOL, {**TOOL, "name": "sub", "parameters": {"type": "dict"}}], multi_turn=False)
    assert prompt.startswith("<|im_start|>system\nYou are a helpful multi-turn dialogue assistant")
    assert (
        "use the following tools:\n"
        "1. Name: add\nDescription: Add two numbers.\n"
        'Parameters: {"a": {"type": "integer"}, "b": {"type": "\\u00e9"}}\n'
        "2. Name: sub\nDescription: Add two numbers.\nParameters: {}\n\n**Steps"
    ) in prompt
    assert "required" not in prompt.partition("**Steps")[0]
    assert prompt.count("<|im_start|>") == 3 and "noted as `<obs>` (if exists).\n<|im_end|>\n" in prompt
    expected = f"**Dialogue Records History**\n<user> What is 1 + 1?\n{SINGLE_TURN_SUFFIX} </user>"
    assert user_message(prompt) == expected
    assert "rude" not in prompt


def test_multi_turn_prompt_is_one_message_with_the_whole_history():
    messages = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": f" {block(ADD)} "},
        {"role": "tool", "call": "add(a=1)", "content": ' {"result": 2} '},
        {"role": "tool", "call": "add(a=2)", "content": ""},
    ]
    history = (
        f"**Dialogue Records History**\n<user> Add.\n{MULTI_TURN_SUFFIX} </user>\n"
        f"\n{block(ADD)}\n"
        '<obs> You have made the tool call add(a=1). Execution returns: {"result": 2} </obs>\n'
        "<obs> You have made the tool call add(a=2). Execution returns:  </obs>\n"
    )
    assert user_message(build_prompt(messages, [TOOL], True)) == f"{history}\n<user> {CONTINUATION} </user>"
    messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Again."}]
    expected = f"{history}\nDone.\n<user> Again.\n{MULTI_TURN_SUFFIX} </user>"
    assert user_message(build_prompt(messages, [TOOL], True)) == expected


def test_system_prompt_is_that_of_the_training_data():
    if not TOOLRL.exists():
        pytest.skip(f"no {TOOLRL}")
    for row in Dataset.from_parquet(str(TOOLRL)):
        text = row["prompt"][0]["content"]
        tools = text.partition("use the following tools:\n")[2].partition("\n\n**Steps for Each Turn**")[0]
        assert SYSTEM_PROMPT.format(tools=tools).strip() == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (block(ADD), [ADD_CALL]),
        (block(ADD, ADD), [ADD_CALL, ADD_CALL]),
        (f"<tool_call>{ADD}</tool_call>", [ADD_CALL]),
        (f"<tool_call>\n{ADD}", [ADD_CALL]),
        (f"{block('nothing')}\n{block(ADD)}", [ADD_CALL]),
        (f"{block(ADD)}\n{block('nothing')}", []),
        (block("Let me see", ADD, "", '{"name": "sub", "parameters": {}', "3", "[1]"), [ADD_CALL]),
        (block(ADD, '{"name": " NONE ", "parameters": {}}'), [ADD_CALL]),
        (ADD, []),
        ("", []),
        (block(json.dumps(ADD_CALL, indent=1)), []),
        (block("[" * 100_000), []),
    ],
)
def test_calls_that_both_decoders_read_alike(text, expected):
    assert single_turn_calls(text) == expected
    assert multi_turn_calls(text) == expected


@pytest.mark.parametrize(
    ("line", "single", "multi"),
    [
        ('{"name": "f", "arguments": {"a": 1}}', [], [{"name": "f", "parameters": {}}]),
        ('{"name": "f", "parameters": [1]}', [{"name": "f", "parameters": [1]}], None),
        ('{"name": 1, "parameters": {}}', [], None),
        ('{"name": null, "parameters": {}}', [], None),
        ('{"parameters": {"a": 1}}', [], [{"name": "", "parameters": {"a": 1}}]),
    ],
)
def test_malformed_calls(line, single, multi):
    """One of them leaves the rest of a single-turn answer as it is, but may take a step of a dialogue with it."""
    assert single_turn_calls(block(ADD, line)) == [ADD_CALL, *single]
    assert multi_turn_calls(block(ADD, line)) == ([] if multi is None else [ADD_CALL, *multi])


def test_category_of_a_case():
    assert category_of("live_simple_0-0-0") == "live_simple"
    assert category_of("multi_turn_base_12") == "multi_turn_base"
    assert is_multi_turn("multi_turn_base_12") and not is_multi_turn("multiple_12")


@pytest.mark.bfcl
def test_prompt_of_a_real_case(bfcl):
    case = bfcl.cases("simple_python")[0]
    properties = questions("simple_python")[0]["function"][0]["parameters"]["properties"]
    assert (
        "1. Name: calculate_triangle_area\n"
        "Description: Calculate the area of a triangle given its base and height. "
        "Note that the provided function is in Python 3 syntax.\n"
        f"Parameters: {json.dumps(properties)}\n"
    ) in Dialogue(case).prompt()


@pytest.mark.bfcl
def test_parameters_of_java_are_described_as_texts(bfcl):
    case, question = bfcl.cases("simple_java")[0], questions("simple_java")[0]
    [tool] = case["function"]
    assert {schema["type"] for schema in tool["parameters"]["properties"].values()} == {"string"}
    assert any(s["type"] != "string" for s in question["function"][0]["parameters"]["properties"].values())
    assert "in Java 8 SDK syntax" in Dialogue(case).prompt()


@pytest.mark.bfcl
def test_system_messages_of_live_cases_are_left_out(bfcl):
    cases = [case for category in LIVE for case in bfcl.cases(category)]
    with_system = [case for case in cases if case["question"][0][0]["role"] == "system"]
    assert len(with_system) == 49
    for case in with_system:
        system, user = case["question"][0][:2]
        prompt = Dialogue(case).prompt()
        assert f"<user> {user['content'].strip()}\n" in prompt
        assert system["content"].strip() not in prompt
