"""
ToolRL's interface to BFCL: the prompt, and the calls in a model's answer.

The texts are those of ToolRL (`benchmarks/BFCL/rlla_qwen.py` of https://github.com/qiancheng0/ToolRL, Apache-2.0),
mistakes in spelling included, since results compare only with the same prompt.
"""

import json


SYSTEM_PROMPT = """\
You are a helpful multi-turn dialogue assistant capable of leveraging tool calls to solve user tasks and provide structured chat responses.

**Available Tools**
In your response, you can use the following tools:
{tools}

**Steps for Each Turn**
1. **Think:** Recall relevant context and analyze the current user goal.
2. **Decide on Tool Usage:** If a tool is needed, specify the tool and its parameters.
3. **Respond Appropriately:** If a response is needed, generate one while maintaining consistency across user queries.

**Output Format**
```plaintext
<think> Your thoughts and reasoning </think>
<tool_call>
{{"name": "Tool name", "parameters": {{"Parameter name": "Parameter content", "... ...": "... ..."}}}}
{{"name": "... ...", "parameters": {{"... ...": "... ...", "... ...": "... ..."}}}}
...
</tool_call>
<response> AI's final response </response>
```

**Important Notes**
1. You must always include the `<think>` field to outline your reasoning. Provide at least one of `<tool_call>` or `<response>`. Decide whether to use `<tool_call>` (possibly multiple times), `<response>`, or both.
2. You can invoke multiple tool calls simultaneously in the `<tool_call>` fields. Each tool call should be a JSON object with a "name" field and an "parameters" field containing a dictionary of parameters. If no parameters are needed, leave the "parameters" field an empty dictionary.
3. Refer to the previous dialogue records in the history, including the user's queries, previous `<tool_call>`, `<response>`, and any tool feedback noted as `<obs>` (if exists).
"""

SINGLE_TURN_SUFFIX = (
    "If there's no appropriate tools to apply or required parameters are missing, please directly inform me in "
    "your response without any tool call, or call the tool with the name as 'None'. Otherwise, you should use one "
    "or more necessary tool calls to complete the given task in this turn."
)
MULTI_TURN_SUFFIX = (
    "Use the one or more necessary tool calls to complete the task. You could perform tool calls for multiple "
    "rounds so you can try and error. Please make a comprehensive plan about how to achieve the goal step by "
    "step, and begin to call the tool step by step. If no tools apply or required parameters are missing, please "
    "also directly state this in your response without tool calls."
)
CONTINUATION = (
    "If you think you have completed the current task, or the task cannot be finished, please respond directly "
    "without additional tool calls. If you encounter an error during tool execution or the task remains "
    "unfinished, retry with the one or more necessary tool calls according to your thought and plan until "
    "completion. Based on the tool execution feedback, reflect on if understanding or selectioin of tool is "
    "wrong, what tool calling step is missing, and how to achieve the task goal from now on."
)


def build_prompt(messages: list[dict], tools: list[dict], multi_turn: bool) -> str:
    """
    The prompt of one generation, in Qwen's chat format: the whole dialogue so far is one user message.

    Args:
        messages (`list[dict]`):
            The dialogue, each message with `role` and `content`; a `tool` message also has the `call` that it answers.
            System messages are left out, as ToolRL does.
        tools (`list[dict]`):
            Descriptions of the tools, each with `name`, `description` and the JSON schema of its `parameters`.
        multi_turn (`bool`):
            Which of ToolRL's two requests follows each user message.

    Returns:
        `str`
    """
    suffix = MULTI_TURN_SUFFIX if multi_turn else SINGLE_TURN_SUFFIX
    dialogue = "**Dialogue Records History**\n"
    for message in messages:
        content = message["content"].strip()
        if message["role"] == "user":
            dialogue += f"<user> {content}\n{suffix} </user>\n"
        elif message["role"] == "assistant":
            dialogue += f"\n{content}\n"
        elif message["role"] == "tool":
            call = message["call"].strip()
            dialogue += f"<obs> You have made the tool call {call}. Execution returns: {content} </obs>\n"
    if messages[-1]["role"] == "tool":
        dialogue += f"\n<user> {CONTINUATION} </user>\n"
    system = SYSTEM_PROMPT.format(
        tools="\n".join(_describe(number, tool) for number, tool in enumerate(tools, start=1))
    )
    user = dialogue.strip()
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def single_turn_calls(text: str) -> list[dict]:
    """
    The calls in a model's answer to a single-turn case: those of the last `<tool_call>` block that have a name and
    parameters, one JSON object a line. What cannot be read, or is named "None", is no call.

    Args:
        text (`str`):
            Answer of the model.

    Returns:
        `list[dict]`: the calls, each with `name` (a text) and `parameters` (of any type).
    """
    calls = [value for value in _last_block(text) if isinstance(value.get("name"), str) and "parameters" in value]
    return [_call(call["name"], call["parameters"]) for call in calls if not _is_none(call["name"])]


def multi_turn_calls(text: str) -> list[dict]:
    """
    The calls in one step of a multi-turn case. Unlike in a single-turn case, a call without parameters counts, and a
    malformed one takes the whole step with it.

    Args:
        text (`str`):
            Answer of the model.

    Returns:
        `list[dict]`: the calls, each with `name` (a text) and `parameters` (a mapping).
    """
    calls = [_call(value.get("name", ""), value.get("parameters", {})) for value in _last_block(text)]
    if not all(isinstance(call["name"], str) for call in calls):
        return []
    calls = [call for call in calls if not _is_none(call["name"])]
    return calls if all(isinstance(call["parameters"], dict) for call in calls) else []


def _describe(number: int, tool: dict) -> str:
    parameters = json.dumps(tool["parameters"].get("properties", {}))
    return f"{number}. Name: {tool['name']}\nDescription: {tool['description']}\nParameters: {parameters}"


def _last_block(text: str) -> list[dict]:
    """JSON objects, one per line, between the last opening tag and the next closing one, or the end."""
    _, opening, rest = text.rpartition("<tool_call>")
    if not opening:
        return []
    values = []
    for line in rest.partition("</tool_call>")[0].strip().split("\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            values.append(value)
    return values


def _call(name: str, parameters: dict) -> dict:
    return {"name": name, "parameters": parameters}


def _is_none(name: str) -> bool:
    return name.strip().lower() == "none"
