"""Reading and preparing rows for training and evaluation, from the Hub or from a local file."""

import logging
from pathlib import Path

from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetsError
from transformers import PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

_READERS = {".parquet": Dataset.from_parquet, ".jsonl": Dataset.from_json, ".json": Dataset.from_json}


def load_rows(path: str | Path, split: str = "train", config: str | None = None) -> Dataset:
    """
    Load one split of a data set.

    Args:
        path (`str` or `Path`):
            A parquet, jsonl or json file, a folder of data files, or the id of a data set on the Hub.
        split (`str`, *optional*, defaults to `"train"`):
            Split of a folder or Hub data set; a single file is loaded whole.
        config (`str`, *optional*):
            Configuration of a Hub data set.

    Returns:
        [`~datasets.Dataset`]

    Raises:
        `FileNotFoundError`: when the file does not exist.
        `OSError`: when there is no such data set, or the Hub cannot be reached.
        `ValueError`: when it cannot be read, or has no such split.
    """
    path = str(path)
    read = _READERS.get(Path(path).suffix)
    if read is not None and not Path(path).is_file():
        raise FileNotFoundError(
            f"`path` is {path!r}, but there is no such file. Pass a parquet, jsonl or json file, a folder or a Hub id."
        )
    if read is None and Path(path).is_file():
        raise ValueError(f"`path` is {path!r}, a file of another kind. Pass one that ends in {', '.join(_READERS)}.")
    if read is not None and Path(path).stat().st_size == 0:
        raise ValueError(f"`path` is {path!r}, an empty file. Pass one with a row or more.")
    try:
        return load_dataset(path, config, split=split) if read is None else read(path)
    except OSError as error:
        raise OSError(
            f"The data set {path!r} cannot be loaded: {error}. Without a network, pass a parquet, jsonl or json file as "
            "`path`."
        ) from error
    except (DatasetsError, ValueError) as error:
        cause = error.__cause__ or error  # of a damaged file, `error` says only that something went wrong
        raise ValueError(f"{path!r} cannot be read as the split {split!r} of a data set: {cause}") from error


def filter_long_prompts(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    chat_template_kwargs: dict | None = None,
) -> Dataset:
    """
    Leave out the prompts that are too long; nothing is truncated.

    Args:
        dataset ([`~datasets.Dataset`]):
            Rows with a conversational `prompt`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer with the chat template of the model.
        max_length (`int`):
            Longest prompt that is kept, in tokens after the chat template with its generation prompt.
        chat_template_kwargs (`dict`, *optional*):
            Arguments of the chat template, as in [`~trl.GRPOConfig`].

    Returns:
        [`~datasets.Dataset`]: the other rows, in their order.

    Raises:
        `ValueError`: when no row is left.
    """
    texts = (
        tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **chat_template_kwargs or {})
        for prompt in dataset["prompt"]
    )
    lengths = [len(tokenizer(text, add_special_tokens=False).input_ids) for text in texts]
    kept = [index for index, length in enumerate(lengths) if length <= max_length]
    if not kept:
        raise ValueError(
            f"`max_prompt_length` is {max_length}, but the shortest of the {len(dataset)} prompts has "
            f"{min(lengths, default=0)} tokens after the chat template. Raise `max_prompt_length`."
        )
    logger.info(f"{len(dataset) - len(kept)} of {len(dataset)} prompts have more than {max_length} tokens: left out.")
    return dataset.select(kept)


def hold_out(dataset: Dataset, size: int, seed: int = 0) -> tuple[Dataset, Dataset]:
    """
    Set rows aside to monitor the training with; the same ones for the same seed.

    Args:
        dataset ([`~datasets.Dataset`]):
            All rows.
        size (`int`):
            Number of rows to set aside.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the choice.

    Returns:
        `tuple` of two [`~datasets.Dataset`]: the rows to train on, and the rows set aside.

    Raises:
        `ValueError`: when `size` is not between 1 and the number of rows less one.
    """
    if not 1 <= size < len(dataset):
        raise ValueError(
            f"`size` is {size}. Pass a number of rows from 1 to {len(dataset) - 1}, one less than there are."
        )
    splits = dataset.train_test_split(test_size=size, seed=seed)
    return splits["train"], splits["test"]
