r"""
How long each reward function takes on one completion, by its size and by what it contains: text that makes parsers
recurse, backtrack or count for ever, as a model in training writes it sooner or later.

    python -m train_scripts.benchmark.rewards

The aim is 50 ms on 10 kB and 2 s on 1 MB. The time of `math_verify_reward` depends on the meaning of a short answer as
well: `9^{9^{9^9}}` takes its limit of 2 seconds, once for each such answer.
"""

import argparse
import time

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from trl_dara import rewards


console = Console(width=119)

AIMS = {10_000: 0.05, 1_000_000: 2.0}  # characters: seconds

REWARDS = {name: vars(rewards)[name] for name in rewards.__all__ if name.endswith("_reward")}

GROUND_TRUTH = (
    '<think> Call both. </think>\n<tool_call>\n{"name": "f", "parameters": {"x": 1, "y": 2}}\n'
    '{"name": "g", "parameters": {}}\n</tool_call>'
)

# Repeated to fill all places that a reward looks into: think block, tool call, box and answer.
CONTENTS = {
    "words": "word ",
    "digits": "9",
    "tool calls": '{"name": "f", "parameters": {"x": 1, "y": 3}}\n',
    "integer names": '{"name": 2305843009213693951, "parameters": {}}\n',
    "open lists": "[",
    "open objects": '{"a":',
    "open braces": "{",
    "closed braces": "{}",
    "backslashes": "\\",
    "surrogate escapes": "\\ud800",
    "fractions": r"\frac1",
    "roots": r"\sqrt3",
    "units": r"\text{ cm}",
    "slashes": "1/",
    "dollars": "$",
    "spaces": " ",
    "line breaks": "\n",
    "NUL": "\x00",
    "lone surrogates": "\ud800\udfff",
}
# Repeated as they are.
TAGS = {
    "open thoughts": "<think>",
    "thoughts": "<think></think>\n",
    "closed thoughts": "</think>\n<response>",
    "tool-call tags": "<tool_call>",
    "tool-call blocks": "<tool_call>\n\n</tool_call>\n",
    "answer tags": "<answer>",
    "closed answers": "</think>\n<answer></answer>",
    "boxes": r"\boxed{1}",
    "open boxes": r"\boxed{",
    "boxes with a space": r"\boxed 1",
}


def make_text(kind: str, size: int) -> str:
    """
    Make a hostile completion.

    Args:
        kind (`str`):
            A key of `CONTENTS` or `TAGS`, or `"one long call"`: a tool call with many parameters.
        size (`int`):
            Number of characters, roughly.

    Returns:
        `str`
    """
    if kind in TAGS:
        return _filled(TAGS[kind], size)
    if kind == "one long call":
        parameters = ", ".join(f'"x{index}": {index}' for index in range(size // 50))
        content = f'{{"name": "f", "parameters": {{{parameters}}}}}'
    else:
        content = _filled(CONTENTS[kind], size // 4)
    return (
        f"<think>{content}</think>\n<tool_call>\n{content}\n</tool_call>\n"
        f"\\boxed{{{content}}}\n<answer>{content}</answer>"
    )


KINDS = (*CONTENTS, "one long call", *TAGS)


def columns(texts: list[str], ground_truth: str = GROUND_TRUTH) -> dict[str, list]:
    """What the trainer passes for completions of these texts: all rewards find what they need in it."""
    return {
        "prompts": ["?"] * len(texts),
        "completions": texts,
        "completion_ids": [range(len(text) // 4) for text in texts],
        "ground_truth": [ground_truth] * len(texts),
        "answer": [r"\frac{1}{2}"] * len(texts),
    }


def _filled(unit: str, size: int) -> str:
    return unit * (size // len(unit))


def show(size: int, aim: float) -> bool:
    """Print the times at one size and return whether all are within the aim."""
    table = Table(
        box=SIMPLE,
        pad_edge=False,
        title=f"milliseconds for one completion of {size:,} characters (aim: {aim * 1e3:,.0f})",
    )
    table.add_column("completion full of", no_wrap=True)
    for name in REWARDS:
        table.add_column(name.removesuffix("_reward").replace("_", "\n"), justify="right")
    slowest = dict.fromkeys(REWARDS, 0.0)
    for kind in KINDS:
        arguments = columns([make_text(kind, size)])
        times = []
        for name, reward_func in REWARDS.items():
            start = time.perf_counter()
            reward_func(**arguments)
            times.append(time.perf_counter() - start)
            slowest[name] = max(slowest[name], times[-1])
        table.add_row(kind, *(f"{seconds * 1e3:,.2f}" for seconds in times))
    table.add_section()
    table.add_row("slowest", *(f"{seconds * 1e3:,.2f}" for seconds in slowest.values()))
    console.print(table)
    return max(slowest.values()) <= aim


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for reward_func in REWARDS.values():
        reward_func(**columns([r"\boxed{2}"]))  # imports, and starts the process of `math_verify_reward`
    within = [show(size, aim) for size, aim in AIMS.items()]
    console.print("All are within the aim." if all(within) else "Not all are within the aim.")


if __name__ == "__main__":
    main()
