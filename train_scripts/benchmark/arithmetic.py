"""
Sums with thinking of variable length, small enough for a 48k-parameter model: the benchmark's second task.

    3 + 4        ->        hm hm hm hm hm hm so = 7

Two rewards that both start dense and are in conflict: the sum is right (0 or 1), and the completion is short (at most 12
tokens). In the demonstrations harder sums have longer thinking, and short thinking is wrong more often. So prompts differ
in how often the short answer succeeds, and near saturation the length reward is active in the hard ones only.

`python -m train_scripts.benchmark.arithmetic OUTPUT_DIR` makes the warm-started model, less than a minute on one CPU thread;
the result, 0.2 MB, is kept in `train_scripts/benchmark/tiny_adder`.
"""

import argparse
import random
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, set_seed

from trl_dara.data.warm_start import SPECIAL_TOKENS, chat_tokenizer, fine_tune, make_model


TINY_ADDER = Path(__file__).parent / "tiny_adder"

MOST_TOKENS = 12  # of a short completion, the end token included
LARGEST_NUMBER = 9
STEPS, BATCH_SIZE = 500, 128

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|> ' + message.content + ' <|end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_dataset(size: int = 4096, seed: int = 0) -> Dataset:
    """
    Sums to train on with rewards.

    Args:
        size (`int`, *optional*, defaults to `4096`):
            Number of prompts.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the prompts.

    Returns:
        `Dataset`: With the columns `prompt` (conversational) and `answer` (the sum).
    """
    rng = random.Random(f"sums {seed}")
    sums = [(rng.randint(0, LARGEST_NUMBER), rng.randint(0, LARGEST_NUMBER)) for _ in range(size)]
    return Dataset.from_list([{"prompt": _prompt(a, b), "answer": a + b} for a, b in sums])


def correctness_reward(completions, answer, **kwargs) -> list[float]:
    """1 if the completion ends with the right sum, else 0."""
    rewards = []
    for completion, expected in zip(completions, answer, strict=True):
        text = completion[0]["content"]
        _, equals, rest = text.rpartition("= ")
        rewards.append(float(equals != "" and rest.strip() == str(expected)))
    return rewards


def length_reward(completion_ids, **kwargs) -> list[float]:
    """1 if the completion has at most 12 tokens, the end token included, else 0."""
    return [float(len(ids) <= MOST_TOKENS) for ids in completion_ids]


def make_demonstrations(size: int, seed: int = 0) -> Dataset:
    """
    Answers to learn from: the mean length of the thinking grows with the sum, and the answer is wrong with a probability
    that falls from 0.67 at one word of thinking to 0.35 at twelve and more.

    Args:
        size (`int`):
            Number of demonstrations.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the demonstrations.

    Returns:
        `Dataset`: With the conversational columns `prompt` and `completion`.
    """
    rng = random.Random(f"demonstrations {seed}")
    rows = []
    for _ in range(size):
        a, b = rng.randint(0, LARGEST_NUMBER), rng.randint(0, LARGEST_NUMBER)
        words = min(max(round(rng.gauss(1 + 1.1 * (a + b), 2)), 1), 20)
        is_wrong = rng.random() < 0.35 + 0.35 * (1 - min(words, 12) / 12)
        answer = rng.randint(0, 2 * LARGEST_NUMBER) if is_wrong else a + b
        content = "hm " * words + f"so = {answer}"
        rows.append({"prompt": _prompt(a, b), "completion": [{"role": "assistant", "content": content}]})
    return Dataset.from_list(rows)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each of the 28 words."""
    words = [*SPECIAL_TOKENS, "+", "hm", "so", "=", *map(str, range(2 * LARGEST_NUMBER + 1))]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return chat_tokenizer(backend, CHAT_TEMPLATE)


def _prompt(a: int, b: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{a} + {b}"}]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", help="folder to save the model and the tokenizer to")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights and the demonstrations")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the same sums in the same order on every machine
    set_seed(arguments.seed)
    tokenizer = make_tokenizer()
    demonstrations = make_demonstrations(STEPS * BATCH_SIZE, seed=arguments.seed)
    model = make_model(tokenizer, hidden_size=48)
    fine_tune(model, tokenizer, demonstrations, BATCH_SIZE, arguments.output_dir, arguments.seed)
