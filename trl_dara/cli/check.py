"""`trl-dara check`: run the configured rewards on a few rows of data and some completions, without a model."""

import asyncio
import itertools
import json
import math
import textwrap
import time
import traceback
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text


HELP = "run the configured rewards on a few rows and completions, without a model"

COMPLETIONS = (
    "",
    "The answer is 42.",
    "<think>\nSix times seven is forty-two.\n</think>\n<answer>42</answer>",
)


@dataclass
class CheckArguments:
    """
    Options of `trl-dara check` beside those of `trl-dara grpo`.

    Args:
        completions (`list[str]`, *optional*):
            Completions to score, beside an empty one, a plain sentence and one with think and answer tags.
        completions_file (`str`, *optional*):
            File with more completions: one per line, or, when its name ends in `.jsonl`, one JSON string or one object
            with a key `completion` per line.
        num_rows (`int`, *optional*, defaults to `3`):
            Number of rows of the data set; each is paired with every completion.
    """

    completions: list[str] | None = field(
        default=None,
        metadata={
            "help": "Completions to score, beside an empty one, a plain sentence and one with think and answer tags."
        },
    )
    completions_file: str | None = field(
        default=None,
        metadata={
            "help": "File with more completions: one per line, or, when its name ends in `.jsonl`, one JSON string or one "
            "object with a key `completion` per line."
        },
    )
    num_rows: int = field(
        default=3,
        metadata={"help": "Number of rows of the data set; each is paired with every completion."},
    )

    def __post_init__(self):
        if self.num_rows < 1:
            raise ValueError(f"`num_rows` is {self.num_rows}. Pass the number of rows to score, at least 1.")
        self.completions = [*COMPLETIONS, *(self.completions or []), *_read_completions(self.completions_file)]


@dataclass
class Outcome:
    """
    What one reward function made of the batch.

    Args:
        channel (`str`):
            Name of the channel.
        rewards (`list[float | None]`, *optional*):
            One reward per completion; empty when there is a problem.
        seconds (`float`, *optional*):
            Time of the call.
        problem (`str`, *optional*):
            A sentence on what is wrong with the function.
    """

    channel: str
    rewards: list[float | None] = field(default_factory=list)
    seconds: float = math.nan
    problem: str | None = None


def run(argv: list[str]) -> int:
    """
    Print the reward of every channel for every pair of a row and a completion.

    Args:
        argv (`list[str]`):
            Options of `trl-dara grpo` and of [`CheckArguments`].

    Returns:
        `int`: exit code; 1 when a reward function cannot be called, raises or returns something else than one number (or
        `None`) per completion.
    """
    from trl import DatasetMixtureConfig
    from trl.trainer.utils import get_callable_name

    from trl_dara.cli.options import build, check_channels, read_options
    from trl_dara.rewards.channel import unique_names
    from trl_dara.scripts.grpo import build_script_arguments, get_split, load_data, make_parser

    parser = make_parser("trl-dara check", CheckArguments)
    options, _ = read_options(parser, argv)
    arguments = build(parser, options, CheckArguments)
    script_args = build_script_arguments(parser, options)
    check_channels(parser, options, script_args)
    try:
        dataset = load_data(script_args, build(parser, options, DatasetMixtureConfig))
        split = get_split(dataset, script_args, "dataset_train_split")
    except ValueError as error:
        parser.error(str(error))
    rows = list(itertools.islice(split, arguments.num_rows))
    if not rows:
        parser.error("The data set has no rows.")

    console = Console()
    if script_args.reward_model_name_or_path:
        console.print(f"The reward model {script_args.reward_model_name_or_path} is not run.", markup=False)
    batch = make_batch(rows, arguments.completions, _encoder(options, console))
    names = unique_names([get_callable_name(function) for function in script_args.functions])
    outcomes = [call(function, name, batch) for function, name in zip(script_args.functions, names, strict=True)]
    console.print(_rewards_table(len(rows), arguments.completions, outcomes))
    console.print(_summary_table(outcomes))
    problems = [outcome.problem for outcome in outcomes if outcome.problem]
    for problem in problems:
        console.print(problem, style="red", markup=False)
    return 1 if problems else 0


def make_batch(rows: list[dict], completions: list[str], encode: Callable[[str], list[int]]) -> dict:
    """
    Keyword arguments of a reward function as TRL's trainer passes them, with every row paired with every completion.

    Args:
        rows (`list[dict]`):
            Rows of the data set.
        completions (`list[str]`):
            Texts of the completions.
        encode (`Callable[[str], list[int]]`):
            Tokenises a text.

    Returns:
        `dict`
    """
    from transformers import TrainerState

    pairs = list(itertools.product(rows, completions))
    conversational = isinstance(rows[0]["prompt"], list)
    columns = [column for column in rows[0] if column not in ("prompt", "completion", "completion_ids")]
    return {
        "prompts": [row["prompt"] for row, _ in pairs],
        "completions": [[{"role": "assistant", "content": text}] if conversational else text for _, text in pairs],
        "completion_ids": [encode(text) for _, text in pairs],
        **{column: [row[column] for row, _ in pairs] for column in columns},
        "trainer_state": TrainerState(),
        "log_extra": lambda column, values: None,
        "log_metric": lambda name, value: None,
    }


def call(function: Callable, channel: str, batch: dict) -> Outcome:
    """
    Call one reward function, sync or async, and check what it returns.

    Args:
        function (`Callable`):
            The reward function.
        channel (`str`):
            Name of its channel.
        batch (`dict`):
            Keyword arguments as made by [`make_batch`].

    Returns:
        [`Outcome`]
    """
    from trl.trainer.utils import is_async_callable

    from trl_dara.rewards.channel import checked_rewards, run_through, strings_hint
    from trl_dara.rewards.contract import TRAINER_ARGUMENTS, contract_problem

    columns = [name for name in batch if name not in TRAINER_ARGUMENTS]
    problem = contract_problem(function, channel, columns)
    if problem:
        return Outcome(channel, problem=problem)
    start = time.perf_counter()
    try:
        output = run_through(asyncio.run(function(**batch)) if is_async_callable(function) else function(**batch))
        seconds = time.perf_counter() - start
    except Exception as error:  # whatever the user's function raises is reported, and the other channels still run
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = (
            f"The reward function of channel '{channel}' raised {type(error).__name__}: {error} ({where.filename}, line "
            f"{where.lineno}).{strings_hint(error, batch['completions'])}"
        )
        return Outcome(channel, problem=problem)
    try:
        return Outcome(channel, checked_rewards(output, channel, len(batch["completions"])), seconds)
    except (TypeError, ValueError) as error:
        return Outcome(channel, problem=str(error))


def _encoder(options: Namespace, console: Console) -> Callable[[str], list[int]]:
    from transformers import AutoTokenizer

    vocabulary = {}

    def encode_words(text: str) -> list[int]:
        return [vocabulary.setdefault(word, len(vocabulary)) for word in text.split()]

    if options.model_name_or_path is None:
        console.print("`completion_ids` has one id per word; set `model_name_or_path` to use its tokenizer.")
        return encode_words
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path, revision=options.model_revision)
    except OSError as error:
        console.print(f"`completion_ids` has one id per word, since there is no tokenizer: {error}", markup=False)
        return encode_words
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def _rewards_table(num_rows: int, completions: list[str], outcomes: list[Outcome]) -> Table:
    table = Table("row", "completion", title="Rewards")
    for outcome in outcomes:
        table.add_column(Text(outcome.channel), justify="right")
    for index, (row, text) in enumerate(itertools.product(range(num_rows), completions)):
        cells = [_shown(outcome.rewards[index]) if outcome.rewards else "error" for outcome in outcomes]
        table.add_row(str(row), Text(json.dumps(textwrap.shorten(text, 60), ensure_ascii=False)), *cells)
    return table


def _summary_table(outcomes: list[Outcome]) -> Table:
    table = Table("channel", "time", "lowest", "highest", "None", "NaN", "infinite", title="Channels")
    for outcome in outcomes:
        scored = [reward for reward in outcome.rewards if reward is not None and math.isfinite(reward)]
        numbers = [reward for reward in outcome.rewards if reward is not None]
        table.add_row(
            Text(outcome.channel),
            "" if outcome.problem else f"{outcome.seconds * 1e3:.3g} ms",
            _shown(min(scored)) if scored else "",
            _shown(max(scored)) if scored else "",
            str(outcome.rewards.count(None)),
            str(sum(map(math.isnan, numbers))),
            str(sum(map(math.isinf, numbers))),
        )
    return table


def _shown(reward: float | None) -> str:
    return "None" if reward is None else f"{reward:.4g}"


def _read_completions(file: str | None) -> list[str]:
    if file is None:
        return []
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"`completions_file`: there is no file {file!r}.")
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix != ".jsonl":
        return lines
    completions = []
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            value = None
        text = value.get("completion") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise ValueError(
                f"`completions_file`: line {number} of {file!r} is {line}. Write a JSON string, or an object with a string "
                "under `completion`."
            )
        completions.append(text)
    return completions
