"""
A tool-calling task small enough for a 91k-parameter model.

The user names three tools and asks for something; the answer has to think and then call the right tool:

    tools: play_song(artist, volume) get_weather(city, day) send_mail(person, topic) query: weather in "oslo" on "friday"

    <think> the user wants get_weather </think>
    <tool_call>
    {"name": "get_weather", "parameters": {"city": "oslo", "day": "friday"}}
    </tool_call>

It has two rewards of different density. Correctness, graded in [-3, 3] with the shape of ToolRL's reward
(https://huggingface.co/papers/2504.13958), differs within almost every group from the start; the strict format, 0 or 1,
succeeds in 1 to 2 % of the completions of the warm-started model (`trl_dara.data.warm_start`) and so is sparse.
"""

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset


TINY_TOOL_CALLER = Path(__file__).parent / "tiny_tool_caller"  # made by `python -m trl_dara.data.warm_start`

VALUES = {
    "city": ("paris", "rome", "oslo", "cairo", "lima", "tokyo", "delhi", "quito"),
    "day": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday"),
    "number": ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    "artist": ("abba", "queen", "blur", "muse", "bach", "chopin"),
    "person": ("anna", "bob", "carol", "dave", "erin", "frank"),
    "topic": ("budget", "party", "report", "travel", "lunch"),
    "currency": ("euro", "dollar", "yen", "pound", "peso"),
}


@dataclass(frozen=True)
class Tool:
    """
    A function that the model may call.

    Args:
        name (`str`):
            Name of the tool.
        parameters (`dict[str, str]`):
            Name of each parameter and the key of [`VALUES`] that its value is drawn from.
        request (`str`):
            What the user says, with one `{}` for each parameter.
    """

    name: str
    parameters: dict[str, str]
    request: str

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"


TOOLS = (
    Tool("get_weather", {"city": "city", "day": "day"}, "weather in {} on {}"),
    Tool("book_hotel", {"city": "city", "nights": "number"}, "a room in {} for {} nights"),
    Tool("find_flight", {"origin": "city", "target": "city"}, "fly from {} to {}"),
    Tool("play_song", {"artist": "artist", "volume": "number"}, "play {} at volume {}"),
    Tool("set_alarm", {"hour": "number", "day": "day"}, "wake me at {} on {}"),
    Tool("send_mail", {"person": "person", "topic": "topic"}, "write {} about {}"),
    Tool("swap_money", {"source": "currency", "target": "currency"}, "change {} into {}"),
    Tool("call_person", {"person": "person", "hour": "number"}, "phone {} at {}"),
)


@dataclass(frozen=True)
class Task:
    """One prompt: the tools on offer, the tool that is wanted, and its arguments."""

    offered: list[Tool]
    tool: Tool
    arguments: dict[str, str]

    @property
    def prompt(self) -> list[dict[str, str]]:
        tools = " ".join(tool.signature for tool in self.offered)
        request = self.tool.request.format(*(f'"{value}"' for value in self.arguments.values()))
        return [{"role": "user", "content": f"tools: {tools} query: {request}"}]

    @property
    def call(self) -> dict:
        return {"name": self.tool.name, "parameters": self.arguments}


def sample_task(rng: random.Random) -> Task:
    """Draws a tool, values for its parameters (never the same value twice), and two other tools on offer."""
    offered = rng.sample(TOOLS, 3)
    tool = rng.choice(offered)
    arguments = {}
    for parameter, kind in tool.parameters.items():
        arguments[parameter] = rng.choice([value for value in VALUES[kind] if value not in arguments.values()])
    return Task(offered, tool, arguments)


def make_dataset(size: int = 4096, seed: int = 0) -> Dataset:
    """
    Prompts for training with rewards.

    Args:
        size (`int`, *optional*, defaults to `4096`):
            Number of prompts.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the prompts.

    Returns:
        `Dataset`: With the columns `prompt` (conversational) and `answer` (the expected call, as JSON).
    """
    rng = random.Random(f"prompts {seed}")
    tasks = [sample_task(rng) for _ in range(size)]
    return Dataset.from_list([{"prompt": task.prompt, "answer": json.dumps(task.call)} for task in tasks])


WELL_FORMED = re.compile(r"<think>[^<>]*</think>\n<tool_call>\n[^<>]*\n</tool_call>")
TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def format_reward(completions, **kwargs) -> list[float]:
    """1 if the completion is one think block, a newline and one tool-call block, each of them once; else 0."""
    return [float(bool(WELL_FORMED.fullmatch(completion[0]["content"]))) for completion in completions]


def correctness_reward(completions, answer, **kwargs) -> list[float]:
    """How much of the expected call is there, in [-3, 3], whatever the format around it; see [`score_call`]."""
    return [
        score_call(completion[0]["content"], json.loads(expected))
        for completion, expected in zip(completions, answer, strict=True)
    ]


def score_call(text: str, expected: dict) -> float:
    """
    Compares the first tool call of a text with the expected one.

    One point for the tool's name, one for the overlap (Jaccard) of the parameters' names and one for each right value,
    stretched from [0, 2 + number of parameters] to [-3, 3]. A text without a readable call gets -3.

    Args:
        text (`str`):
            The completion.
        expected (`dict`):
            The expected call: `{"name": ..., "parameters": {...}}`.

    Returns:
        `float`: The score.
    """
    block = TOOL_CALL.search(text)
    if block is None:
        return -3.0
    try:
        call = json.loads(block[1])
    except json.JSONDecodeError:
        return -3.0
    if not (isinstance(call, dict) and isinstance(call.get("parameters"), dict)):
        return -3.0
    given, wanted = call["parameters"], expected["parameters"]
    name = call.get("name") == expected["name"]
    overlap = len(given.keys() & wanted.keys()) / len(given.keys() | wanted.keys())
    values = sum(given.get(parameter) == value for parameter, value in wanted.items())
    return 6.0 * (name + overlap + values) / (2 + len(wanted)) - 3.0
