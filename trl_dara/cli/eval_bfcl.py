"""`trl-dara eval bfcl`: tool calling on BFCL-v4, by its official checkers and with ToolRL's prompts."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from trl import TrlParser

from trl_dara.cli.generation import GenerationArguments, load_backend
from trl_dara.cli.progress import progress
from trl_dara.evaluation.bfcl.aggregate import GROUPS
from trl_dara.evaluation.bfcl.benchmark import CASES
from trl_dara.evaluation.bfcl.client import BFCL
from trl_dara.evaluation.bfcl.folder import (
    PROTOCOL,
    answers_to_score,
    cases_to_generate,
    save_answer,
    save_score,
    summarize,
)
from trl_dara.evaluation.bfcl.generate import CONTEXT_LENGTH, generate_cases
from trl_dara.evaluation.bfcl.score import METRICS, score_case
from trl_dara.evaluation.records import check_settings, keep_settings, only_writer


HELP = "tool calling: accuracy, format and length on BFCL-v4"


@dataclass
class BFCLArguments:
    """
    Options of `trl-dara eval bfcl` beside those of generation.

    Args:
        stage (`str`, *optional*, defaults to `"all"`):
            `"generate"`, `"score"` (no model), `"aggregate"` (of scores), or `"all"`. What a folder has already is not
            done again.
        categories (`list[str]`, *optional*):
            Categories to generate. By default all 14.
        limit (`int`, *optional*):
            Only the first cases of each category.
        partial (`bool`, *optional*, defaults to `False`):
            Aggregate although cases are missing. The result is marked as partial.
        bfcl_python (`str`, *optional*):
            Python interpreter that has `bfcl_eval`, of an environment of its own. By default the one of this program.
        time_limit (`float`, *optional*, defaults to `10.0`):
            Seconds that executing or checking the calls of one case may take; beyond, the case is wrong.
        output_dir (`str`, *optional*, defaults to `"outputs/eval_bfcl"`):
            Folder of the results of one model.
    """

    stage: Literal["all", "generate", "score", "aggregate"] = field(
        default="all",
        metadata={
            "help": "generate, score (no model), aggregate (of scores), or all. What a folder has already is not done "
            "again."
        },
    )
    categories: list[str] | None = field(
        default=None, metadata={"help": f"Categories to generate, by default all: {', '.join(CASES)}."}
    )
    limit: int | None = field(default=None, metadata={"help": "Only the first cases of each category."})
    partial: bool = field(
        default=False,
        metadata={"help": "Aggregate although cases are missing. The result is marked as partial."},
    )
    bfcl_python: str | None = field(
        default=None,
        metadata={
            "help": "Python interpreter that has bfcl_eval, of an environment of its own. By default this program's."
        },
    )
    time_limit: float = field(
        default=10.0,
        metadata={"help": "Seconds that executing or checking the calls of one case may take; beyond, it is wrong."},
    )
    output_dir: str = field(default="outputs/eval_bfcl", metadata={"help": "Folder of the results of one model."})

    def __post_init__(self):
        unknown = sorted(set(self.categories or []) - set(CASES))
        if unknown:
            raise ValueError(f"`categories` has {unknown}. Pass some of {', '.join(CASES)}.")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"`limit` is {self.limit}. Pass an integer of at least 1.")
        if self.stage == "all" and not self.partial and (self.categories or self.limit):
            raise ValueError("`categories` and `limit` leave cases out. Pass `--partial` to aggregate without them.")


def run(argv: list[str]) -> int:
    """
    Run an evaluation, or one of its stages.

    Args:
        argv (`list[str]`):
            Options of [`BFCLArguments`] and of [`~trl_dara.cli.generation.GenerationArguments`].

    Returns:
        `int`: exit code: 0, 1 when something is missing or fails, or 130 if interrupted. Impossible options end the
        program with code 2.
    """
    parser = TrlParser((BFCLArguments, GenerationArguments), prog="trl-dara eval bfcl", description=__doc__)
    try:
        arguments, generation = parser.parse_args_and_config(argv)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    console = Console()
    folder = Path(arguments.output_dir)
    try:
        if arguments.stage in ("all", "generate"):
            with only_writer(folder):
                generate(arguments, generation, folder, console)
        if arguments.stage in ("all", "score"):
            score(arguments, folder, console)
        if arguments.stage in ("all", "aggregate"):
            aggregate(arguments, folder, console)
    except (ImportError, OSError, ValueError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)  # commands in it stay whole
        return 1
    except KeyboardInterrupt:
        console.print("Stopped. Every case that is over is kept: the same command goes on from there.")
        return 130
    return 0


def generate(arguments: BFCLArguments, generation: GenerationArguments, folder: Path, console: Console) -> None:
    """
    Generate the cases that the folder does not have.

    Args:
        arguments ([`BFCLArguments`]):
            Options.
        generation ([`~trl_dara.cli.generation.GenerationArguments`]):
            Options of generation.
        folder (`Path`):
            Folder of the results.
        console (`Console`):
            Where to show progress.
    """
    generation.context_length = generation.context_length or CONTEXT_LENGTH
    sampling = generation.sampling(n=1)
    settings = generation.settings() | {"sampling": vars(sampling)} | PROTOCOL
    check_settings(folder / "settings.json", settings)
    categories = arguments.categories or list(CASES)
    with BFCL(arguments.bfcl_python, arguments.time_limit) as bfcl:
        cases = cases_to_generate(folder, bfcl, categories, arguments.limit)
        if not cases:
            console.print("All answers are there.")
            return
        _, backend = load_backend(generation)
        keep_settings(folder / "settings.json", settings)  # not of a model that cannot be loaded
        total = sum(min(CASES[category], arguments.limit or CASES[category]) for category in categories)
        with progress(console, "cases", total - len(cases), total) as advance:
            for record in generate_cases(cases, bfcl, backend, sampling, generation.batch_size):
                save_answer(folder, record)
                advance(1)


def score(arguments: BFCLArguments, folder: Path, console: Console) -> None:
    """
    Score the answers that have no score.

    Args:
        arguments ([`BFCLArguments`]):
            Options.
        folder (`Path`):
            Folder of the results.
        console (`Console`):
            Where to show progress.
    """
    records = answers_to_score(folder)
    if not records:
        console.print("All answers have scores.")
        return
    with BFCL(arguments.bfcl_python, arguments.time_limit) as bfcl:
        with progress(console, "scores", 0, len(records)) as advance:
            for record in records:
                save_score(folder, score_case(record, bfcl))
                advance(1)


def aggregate(arguments: BFCLArguments, folder: Path, console: Console) -> None:
    """
    Turn scores into a summary, a table of all cases and one on the terminal.

    Args:
        arguments ([`BFCLArguments`]):
            Options.
        folder (`Path`):
            Folder of the results.
        console (`Console`):
            Where to print the table.
    """
    summary = summarize(folder, arguments.partial)
    console.print(_table(summary))
    files = f"Summary: {folder / 'summary.json'}   Cases: {folder / 'cases.csv'}"
    console.print(files, markup=False, soft_wrap=True)


def _table(summary: dict) -> Table:
    title = "BFCL-v4, in %"
    if summary["partial"]:
        title += " (partial: cases are missing)"
    table = Table("", "cases", *METRICS, title=title)
    for name, category in summary["categories"].items():
        table.add_row(name, str(category["cases"]), *(_percent(category[metric]) for metric in METRICS))
    table.add_section()
    for name in GROUPS:
        table.add_row(name, "", *(_percent(summary["groups"][name][metric]) for metric in METRICS), style="bold")
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"
