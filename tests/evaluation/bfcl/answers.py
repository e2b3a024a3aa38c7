"""Model answers made of BFCL's ground truths, which are read from the files of the package itself."""

import ast
import json
import os
import subprocess
from functools import cache
from pathlib import Path

from trl_dara.evaluation.bfcl.benchmark import category_of, is_multi_turn
from trl_dara.evaluation.bfcl.dialogue import Dialogue
from trl_dara.evaluation.bfcl.interface import CONTINUATION, MULTI_TURN_SUFFIX
from trl_dara.evaluation.generation import Generation


THOUGHT = "<think> Call the tools. </think>"
NO_CALL = f"{THOUGHT}\n<response> Done. </response>"


@cache
def data_folder() -> Path:
    """Data of `bfcl_eval` in the environment of `make test-bfcl`."""
    command = [os.environ["BFCL_PYTHON"], "-c", "import bfcl_eval; print(bfcl_eval.__path__[0])"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()) / "data"


def read_lines(file: str) -> list[dict]:
    return [json.loads(line) for line in (data_folder() / file).read_text(encoding="utf-8").splitlines()]


def questions(category: str) -> list[dict]:
    return read_lines(f"BFCL_v4_{category}.json")


@cache
def truths(category: str) -> dict[str, list]:
    """Ground truth by case, aligned by position as in the official runner."""
    answers = read_lines(f"possible_answer/BFCL_v4_{category}.json")
    pairs = zip(questions(category), answers, strict=True)
    return {question["id"]: answer["ground_truth"] for question, answer in pairs}


def answer(*calls: dict) -> str:
    """What a model writes to make these calls, each with `name` and `parameters`."""
    return "\n".join([THOUGHT, "<tool_call>", *map(json.dumps, calls), "</tool_call>"]) if calls else NO_CALL


def call(name: str, /, **parameters) -> dict:
    return {"name": name, "parameters": parameters}


def single_turn_answer(case: dict, truth: list[dict]) -> str:
    """The calls with the first accepted value of each argument that the tool has and requires."""
    schemas = {tool["name"]: tool["parameters"] for tool in case["function"]}
    calls = []
    for [(name, arguments)] in map(dict.items, truth):
        schema = schemas[name]
        values = {
            key: first_option(options)
            for key, options in arguments.items()
            if key in schema["properties"] and (key in schema["required"] or "" not in options)
        }
        if category_of(case["id"]) in ("simple_java", "simple_javascript"):  # there every value is asked for as a text
            values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        calls.append(call(name, **values))
    return answer(*calls)


def first_option(options: list):
    """The first value that is accepted, "" being the mark of what may be left out; so also within nested objects."""
    value = next((option for option in options if option != ""), "")
    if isinstance(value, list):
        return [first_option([item]) for item in value]
    if isinstance(value, dict) and all(isinstance(nested, list) for nested in value.values()):
        return {key: first_option(nested) for key, nested in value.items()}
    return value


def parse_call(text: str, parameter_names: dict[str, list[str]]) -> dict:
    """A Python call, such as `mv('a', destination='b')`, with its arguments by name."""
    node = ast.parse(text, mode="eval").body
    names = parameter_names[node.func.id]
    positional = {name: ast.literal_eval(value) for name, value in zip(names, node.args, strict=False)}
    return call(node.func.id, **positional, **{item.arg: ast.literal_eval(item.value) for item in node.keywords})


def multi_turn_answers(case: dict, truth: list[list[str]]) -> list[str]:
    """For each turn, an answer with all its calls."""
    tools = [*case["function"], *(tool for held in case.get("missed_function", {}).values() for tool in held)]
    parameter_names = {tool["name"]: list(tool["parameters"]["properties"]) for tool in tools}
    return [answer(*(parse_call(text, parameter_names) for text in turn)) for turn in truth]


class TruthfulModel:
    """
    Answers cases with their ground truth: in a dialogue, all calls of a turn in one step, and no call once they have
    been made. It recognises a case by its tools and its user messages so far.
    """

    def __init__(self, cases: list[dict]):
        self.known = {}
        self.batches = []  # sizes
        for case in cases:
            truth = truths(category_of(case["id"]))[case["id"]]
            multi_turn = is_multi_turn(case["id"])
            texts = multi_turn_answers(case, truth) if multi_turn else [single_turn_answer(case, truth)]
            messages = [f"<user> {message['content'].strip()}\n" for turn in case["question"] for message in turn]
            self.known.setdefault(_first_request(Dialogue(case).prompt()), []).append((messages, texts))

    def __call__(self, prompts, sampling):
        self.batches.append(len(prompts))
        return [[Generation(text, len(text.split()), "stop")] for text in map(self.answer, prompts)]

    def answer(self, prompt: str) -> str:
        if CONTINUATION in prompt.rpartition("<user>")[2]:
            return NO_CALL
        candidates = self.known[_first_request(prompt)]
        _, texts = max(candidates, key=lambda candidate: sum(message in prompt for message in candidate[0]))
        return texts[prompt.count(MULTI_TURN_SUFFIX) - 1 if len(texts) > 1 else 0]


def _first_request(prompt: str) -> str:
    return prompt.partition("</user>")[0]
