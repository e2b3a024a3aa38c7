"""What the trainer will send to a vLLM server, measured beforehand."""

from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig, is_conversational


_PROBE = "Grüße, 数学! 3,141 + 27.5 = ?\n\n\t<think> naïve \\frac{1}{2} </think> 🙂"

# Added tokens, the newest, that are probed: a trainer that has more than the server has added them last
_PROBED_TOKENS = 16

# Prompts that are measured for the length of the context
_MEASURED_PROMPTS = 1000


def probe_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """A text whose tokens differ between tokenizers, with the tokens that were added last."""
    added = tokenizer.get_added_vocab()
    return _PROBE + "".join(sorted(added, key=added.get)[-_PROBED_TOKENS:])


def longest_prompt(train_dataset, tokenizer: PreTrainedTokenizerBase, args: GRPOConfig, tools) -> int:
    """
    Length in tokens of the longest of the first 1,000 prompts; 0 where they cannot be measured beforehand: in a streamed
    data set, with images, where an environment supplies them, or where only a processor has the chat template.
    """
    if not isinstance(train_dataset, Dataset) or "prompt" not in train_dataset.column_names:
        return 0
    if {"image", "images"} & set(train_dataset.column_names):
        return 0
    rows = train_dataset.select(range(min(_MEASURED_PROMPTS, len(train_dataset))))
    prompts = rows["prompt"][:]
    if not is_conversational({"prompt": prompts[0]}):  # whatever other columns hold
        return max(map(len, tokenizer(prompts)["input_ids"]))
    if tokenizer.chat_template is None or any(
        isinstance(message.get("content"), list) for prompt in prompts for message in prompt
    ):
        return 0
    encoded = tokenizer.apply_chat_template(
        prompts,
        tools=tools or None,  # as TRL
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **(args.chat_template_kwargs or {}),
    )
    return max(map(len, encoded["input_ids"]))
