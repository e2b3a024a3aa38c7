"""
Completions of the kind that a model in training writes sooner or later, scored by every reward function:

    python -m tests.rewards.hostile

prints one line per ground truth: the rewards of all completions by the name of the function, in JSON.
"""

import json
import random

from train_scripts.benchmark.rewards import CONTENTS, KINDS, REWARDS, TAGS, columns, make_text


THINK = "<think> Use a tool. </think>\n"
RESPONSE = "<response> Done. </response>"
F, G = '{"name": "f", "parameters": {"x": 1, "y": 2}}', '{"name": "g", "parameters": {}}'


def block(*lines):
    return "\n".join(["<tool_call>", *lines, "</tool_call>"])


TOOL_TRUTH = THINK + block(F, G)
RESPONSE_TRUTH = THINK + RESPONSE
BOTH_TRUTH = f"{TOOL_TRUTH}\n{RESPONSE}"
THINK_TRUTH = "<think> Nothing to do. </think>"
TRUTHS = [TOOL_TRUTH, RESPONSE_TRUTH, BOTH_TRUTH, THINK_TRUTH]

MEGABYTE = 1_000_000
_TAGS = [f"<{slash}{tag}>" for tag in ("think", "tool_call", "response", "answer") for slash in ("", "/")]
_PIECES = [*_TAGS, *CONTENTS.values(), *TAGS.values(), *TRUTHS, F, G]
_PIECES += [r"\frac{1}{2}", "1/2", r"\frac", r"\left", "NaN", "null", "1e999", "0.5", *'}]":,-.=^2½٣', "\n"]
_PLACES = ["...", "<think>...</think>", THINK + "<response>...</response>", THINK + "<answer>...</answer>"]
_PLACES += [
    THINK + block("..."),
    THINK + block(F, "..."),
    r"\boxed{...}",
    r"... \boxed{\frac{1}{2}} <answer>\frac{1}{2}</answer>",
]


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of a few tags, pieces of JSON and LaTeX, and characters of all kinds, half of them damaged."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        pieces = rng.choices(_PIECES, k=rng.randrange(12)) + [chr(rng.randrange(0x110000))] * rng.randrange(2)
        rng.shuffle(pieces)
        text = rng.choice(_PLACES).replace("...", "".join(pieces))
        if rng.random() < 0.5:
            start = rng.randrange(len(text) + 1)
            end = start + rng.randrange(9)
            text = text[:start] + rng.choice(["", "\n", chr(rng.randrange(0x110000))]) + text[end:]
        texts.append(text)
    return texts


def large_texts() -> list[str]:
    """A megabyte each of what makes parsers recurse, overflow or go quadratic, and a few short ones."""
    calls = [
        '{"name": "f", "parameters": ' * 30_000,
        "[" * 900 + "]" * 900,
        '{"a":' * 900 + "1" + "}" * 900,
        "-" + "9" * 4_000,
        "1." + "1" * MEGABYTE,
        "1e" + "9" * MEGABYTE,
        '{"name": "f", "parameters": {"x": 1e400, "y": NaN}}',
        '{"name": "f", "parameters": {"x": -Infinity, "y": ' + "9" * 4_000 + "}}",
        '"' + "\\" * MEGABYTE,
        '"' + "\\ud800" * (MEGABYTE // 6) + '"',
        "\n" * MEGABYTE + "x",
        (G + "\n") * (MEGABYTE // len(G)),
        "\n".join(f'{{"name": {index * (2**61 - 1)}, "parameters": {{}}}}' for index in range(20_000)),
        '{"name": "f", "parameters": {' + ", ".join(f'"k{index}": {index}' for index in range(60_000)) + "}}",
    ]
    whole = [
        "<think>" * (MEGABYTE // 14) + "</think>\n" * (MEGABYTE // 18),
        "<think>" + "</think>\n" * (MEGABYTE // 9) + "<tool_call>\n" + "\n" * MEGABYTE + "</tool_call>",
        "<think>" + "</think>\n<response>" * (MEGABYTE // 20) + "</response>",
        "<think>" + "</think>\n<answer>" * (MEGABYTE // 18) + "</answer>",
        "\n" * MEGABYTE + "<think>",
        r"\boxed{" * (MEGABYTE // 8) + "}" * (MEGABYTE // 8),
        r"\boxed{1}" + "}" * MEGABYTE,
        r"\boxed{" + "9" * 400_000 + "/" + "9" * 400_000 + "}",
        r"\boxed{" + r"\frac" * (MEGABYTE // 5) + "}",
        r"\boxed{" + "=" * MEGABYTE + "}",
        r"\boxed{9^{9^{9^9}}}",  # for math-verify
        r"\boxed{" + "(" * 900 + "}",
    ]
    calls = [THINK + block(text) for text in calls] + [block(text) + "\n" + RESPONSE for text in calls]
    return [*calls, *whole, *(make_text(kind, MEGABYTE) for kind in KINDS)]


if __name__ == "__main__":  # not in the process of a reward, which imports this file too
    texts = large_texts() + random_texts(5_000)
    for truth in TRUTHS:
        print(json.dumps({name: reward_func(**columns(texts, truth)) for name, reward_func in REWARDS.items()}))
