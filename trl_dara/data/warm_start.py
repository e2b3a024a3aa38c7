"""
Makes the warm-started model of the synthetic tool-calling task: `python -m trl_dara.data.warm_start OUTPUT_DIR`.

A 91k-parameter Llama is taught by a minute of supervised fine-tuning on one CPU thread. More than half of the calls
it sees are damaged and fewer than 2 % of the answers are well-formed, so that it starts with a correctness of about 0.7 in
[-3, 3] and a format reward of 0.01 to 0.02: one reward dense, the other sparse. The result, 0.4 MB, is kept in
`trl_dara/data/tiny_tool_caller` so that the demo can start at once and everyone starts from the same weights.
"""

import argparse
import json
import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

from trl_dara.data.synthetic import VALUES, Task, sample_task


STEPS, BATCH_SIZE = 400, 64
# Seeds differ in what the model has learned by then; of the first three, this one starts closest to the above.
SEED = 2

THOUGHTS = ("the user wants {}", "i should use {}", "need {} here", "call {} with the query values")
# `think` and `call` come without tags
WELL_FORMED = "<think> {think} </think>\n<tool_call>\n{call}\n</tool_call>"
MALFORMED = (
    "<tool_call>\n{call}\n</tool_call>",  # no thinking
    "<think> {think}\n<tool_call>\n{call}\n</tool_call>",  # thinking not closed
    "<think> {think} </think><tool_call>{call}</tool_call>",  # newlines missing
    "<think> {think} </think>\n<tool_call>\n{call}\n</tool_call>\n done",  # trailing text
    "<tool_call>\n{call}\n</tool_call>\n<think> {think} </think>",  # wrong order
)

SPECIAL_TOKENS = ["<pad>", "<unk>", "<|end|>", "<|user|>", "<|assistant|>"]
# Tags and pieces of JSON punctuation are one token each, words take the space before them along.
TOKENS = r'</?\w+>|<\|\w+\|>|\{"|"\}+|": \{"|": "|", "| ?\w+|\n|[^\w\s]| '
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def damage_call(task: Task, rng: random.Random) -> dict:
    """The call of a task with another tool, another value, or one parameter missing (odds 2 : 2 : 1)."""
    arguments = dict(task.arguments)
    damage = rng.choices(("tool", "value", "missing"), weights=(2, 2, 1))[0]
    if damage == "tool":
        tool = rng.choice(task.offered)
        return {"name": tool.name, "parameters": {p: rng.choice(VALUES[kind]) for p, kind in tool.parameters.items()}}
    parameter = rng.choice(list(arguments))
    if damage == "value":
        arguments[parameter] = rng.choice(VALUES[task.tool.parameters[parameter]])
    else:
        del arguments[parameter]
    return {"name": task.tool.name, "parameters": arguments}


def make_demonstrations(size: int, seed: int = 0, well_formed: float = 0.0175, damaged: float = 0.55) -> Dataset:
    """
    Answers to learn from, few of them well-formed.

    Args:
        size (`int`):
            Number of demonstrations.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the demonstrations.
        well_formed (`float`, *optional*, defaults to `0.0175`):
            Share of answers in the right format.
        damaged (`float`, *optional*, defaults to `0.55`):
            Share of calls that are damaged.

    Returns:
        `Dataset`: With the conversational columns `prompt` and `completion`.
    """
    rng = random.Random(f"demonstrations {seed}")
    rows = []
    for _ in range(size):
        task = sample_task(rng)
        call = damage_call(task, rng) if rng.random() < damaged else task.call
        layout = WELL_FORMED if rng.random() < well_formed else rng.choice(MALFORMED)
        answer = layout.format(think=rng.choice(THOUGHTS).format(call["name"]), call=json.dumps(call))
        rows.append({"prompt": task.prompt, "completion": [{"role": "assistant", "content": answer}]})
    return Dataset.from_list(rows)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer whose vocabulary is every token of the task, and which decodes to the exact text."""
    rows = make_demonstrations(size=5000, well_formed=0.5)
    texts = [message["content"] for row in rows for message in row["prompt"] + row["completion"]]
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(TOKENS), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=SPECIAL_TOKENS, show_progress=False))
    return chat_tokenizer(backend, CHAT_TEMPLATE)


def chat_tokenizer(backend: Tokenizer, chat_template: str) -> PreTrainedTokenizerFast:
    """A tokenizer with [`SPECIAL_TOKENS`] and a chat template, as transformers wants it."""
    pad, unknown, end, *roles = SPECIAL_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        unk_token=unknown,
        eos_token=end,
        additional_special_tokens=roles,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, hidden_size: int = 64) -> LlamaForCausalLM:
    """An untrained Llama with two layers."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        # The default, 0.02, is made for wide models: with it this one does not learn to copy.
        initializer_range=hidden_size**-0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def fine_tune(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    demonstrations: Dataset,
    batch_size: int,
    output_dir: str,
    seed: int,
) -> None:
    """
    Trains a model once through all demonstrations and saves it with its tokenizer.

    Args:
        model (`LlamaForCausalLM`):
            The model.
        tokenizer (`PreTrainedTokenizerFast`):
            Its tokenizer.
        demonstrations (`Dataset`):
            With the conversational columns `prompt` and `completion`.
        batch_size (`int`):
            Demonstrations per optimiser step.
        output_dir (`str`):
            Folder to save to.
        seed (`int`):
            Seed of the order of the demonstrations.
    """
    with tempfile.TemporaryDirectory() as scratch:
        args = SFTConfig(
            output_dir=scratch,
            max_steps=len(demonstrations) // batch_size,
            per_device_train_batch_size=batch_size,
            learning_rate=4e-3,
            lr_scheduler_type="cosine",
            warmup_steps=30,
            logging_steps=50,
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
            seed=seed,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
        )
        trainer = SFTTrainer(model=model, args=args, train_dataset=demonstrations, processing_class=tokenizer)
        trainer.train()
    trainer.model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)


def warm_start(output_dir: str, steps: int = STEPS, seed: int = SEED) -> None:
    """
    Trains the model and saves it with its tokenizer.

    Args:
        output_dir (`str`):
            Folder to save to.
        steps (`int`, *optional*, defaults to `400`):
            Number of optimiser steps.
        seed (`int`, *optional*, defaults to `2`):
            Seed of the initial weights and of the demonstrations.
    """
    set_seed(seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    fine_tune(model, tokenizer, make_demonstrations(steps * BATCH_SIZE, seed=seed), BATCH_SIZE, output_dir, seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("output_dir", help="folder to save the model and the tokenizer to")
    parser.add_argument("--steps", type=int, default=STEPS, help="number of optimiser steps")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the initial weights and the demonstrations")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the same sums in the same order on every machine
    warm_start(arguments.output_dir, arguments.steps, arguments.seed)
