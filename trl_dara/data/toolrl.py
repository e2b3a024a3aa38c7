"""The tool-calling data of ToolRL (https://huggingface.co/papers/2504.13958) in TRL's prompt format."""

from datasets import Dataset

from ..rewards.tool_calling import parse_ground_truth
from .loading import load_rows


def load_toolrl(path: str, split: str = "train") -> Dataset:
    """
    Load prompts and ground truths for the rewards of `trl_dara.rewards.tool_calling`.

    The files `dataset/rlla_4k/train.parquet` (3,920 rows) and `test.parquet` (80 rows) of
    https://github.com/qiancheng0/ToolRL load as they are, and so does any data set with their columns: `prompt`, a
    list of messages, and `ground_truth`, a model answer (or `reward_model`, a mapping that holds it).

    Args:
        path (`str`):
            A parquet, jsonl or json file, a folder of data files, or the id of a data set on the Hub.
        split (`str`, *optional*, defaults to `"train"`):
            Split of a folder or Hub data set; a single file is loaded whole.

    Returns:
        [`~datasets.Dataset`] with the columns `prompt` (conversational) and `ground_truth`.

    Raises:
        `OSError`: when there is no such file or data set, or the Hub cannot be reached.
        `ValueError`: when a column is missing, or when the prompt or the ground truth of a row is malformed.
    """
    dataset = load_rows(path, split)
    columns = dataset.column_names
    if "prompt" not in columns or not {"ground_truth", "reward_model"} & set(columns):
        raise ValueError(
            f"{path!r} has the columns {columns}. It needs `prompt`, and `ground_truth` or `reward_model`; rename "
            "yours with `Dataset.rename_column`."
        )
    return Dataset.from_list([_to_example(row, f"Row {index} of {path!r}") for index, row in enumerate(dataset)])


def _to_example(row: dict, name: str) -> dict:
    ground_truth = row["ground_truth"] if "ground_truth" in row else _ground_truth(row["reward_model"])
    try:
        parse_ground_truth(ground_truth)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    messages = row["prompt"]
    if not (isinstance(messages, list) and messages and all(_is_message(message) for message in messages)):
        raise ValueError(
            f"{name}: `prompt` is {messages!r}. It must be a list of messages, each with a `role` and a `content` of "
            "text."
        )
    prompt = [{"role": message["role"], "content": message["content"]} for message in messages]
    return {"prompt": prompt, "ground_truth": ground_truth}


def _ground_truth(reward_model) -> str | None:
    return reward_model.get("ground_truth") if isinstance(reward_model, dict) else None


def _is_message(message) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
