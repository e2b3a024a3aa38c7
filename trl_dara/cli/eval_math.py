"""`trl-dara eval math`: accuracy and length on mathematics benchmarks, several samples per question."""

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import requests
from rich.console import Console
from trl import TrlParser

from trl_dara.cli.generation import GenerationArguments, load_backend
from trl_dara.cli.progress import progress
from trl_dara.evaluation.math import (
    BENCHMARKS,
    PAPER_BENCHMARKS,
    generate_samples,
    score_samples,
    summarize,
    summarize_benchmark,
)
from trl_dara.evaluation.math.generate import keep_questions
from trl_dara.evaluation.math.score import GRADERS, LENGTH_LIMIT
from trl_dara.evaluation.math.summary import question_rows, summary_table
from trl_dara.evaluation.records import (
    check_settings,
    iterate_records,
    keep_settings,
    only_writer,
    read_records,
    read_settings,
    replace_file,
)


KEPT = "What is generated is kept: the same command goes on from there."
HELP = "mathematics: accuracy and length on six benchmarks, several samples per question"


@dataclass
class MathArguments:
    """
    Options of `trl-dara eval math` beside those of generation.

    Args:
        stage (`str`, *optional*, defaults to `"all"`):
            `"generate"`, `"score"` (no model), `"aggregate"` (of scores), or `"all"`. What a folder has already is not
            generated again.
        benchmarks (`list[str]`, *optional*):
            Of `math500`, `aime24`, `amc23`, `minerva`, `olympiadbench`, the five of the DARA paper and the default to
            generate, and `gsm8k`. Scored and aggregated are by default those that the folder has.
        data (`list[str]`, *optional*):
            Local files of benchmarks, as `name=path`. The others come from the Hub.
        num_samples (`int`, *optional*, defaults to `16`):
            Samples per question.
        limit (`int`, *optional*):
            Only the first questions of each benchmark. Results are marked as partial.
        grader (`str`, *optional*, defaults to `"numeq"`):
            `"numeq"`, the strict grader with its numeric fallback, or `"math_verify"`. Their results do not compare.
        output_dir (`str`, *optional*, defaults to `"outputs/eval_math"`):
            Folder of the results of one model.
    """

    stage: Literal["all", "generate", "score", "aggregate"] = field(
        default="all",
        metadata={
            "help": "generate, score (no model), aggregate (of scores), or all. What a folder has already is not generated "
            "again."
        },
    )
    benchmarks: list[str] | None = field(
        default=None,
        metadata={
            "help": f"Of {', '.join(BENCHMARKS)}. Generated are by default the first five, those of the DARA paper; scored "
            "and aggregated those that the folder has."
        },
    )
    data: list[str] | None = field(
        default=None,
        metadata={"help": "Local files of benchmarks, as name=path. The others come from the Hub."},
    )
    num_samples: int = field(default=16, metadata={"help": "Samples per question."})
    limit: int | None = field(
        default=None,
        metadata={"help": "Only the first questions of each benchmark. Results are marked as partial."},
    )
    grader: Literal["numeq", "math_verify"] = field(
        default="numeq",
        metadata={
            "help": "numeq, the strict grader with its numeric fallback, or math_verify. Their results do not compare."
        },
    )
    output_dir: str = field(default="outputs/eval_math", metadata={"help": "Folder of the results of one model."})

    def __post_init__(self):
        paths = [entry.partition("=")[::2] for entry in self.data or []]
        for name in [*(self.benchmarks or []), *(name for name, _ in paths)]:
            if name not in BENCHMARKS:
                option = "benchmarks" if name in (self.benchmarks or []) else "data"
                raise ValueError(f"`{option}` has {name!r}, which is none of {', '.join(BENCHMARKS)}.")
        self.data = dict(paths)
        for name, path in self.data.items():
            if not Path(path).is_file():
                raise ValueError(f"`data` has {name}={path}, where there is no file. Pass `{name}=PATH`.")
        for name, value in (("num_samples", self.num_samples), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ValueError(f"`{name}` is {value}. Pass an integer of at least 1.")


def run(argv: list[str]) -> int:
    """
    Run an evaluation, or one of its stages.

    Args:
        argv (`list[str]`):
            Options of [`MathArguments`] and of [`~trl_dara.cli.generation.GenerationArguments`].

    Returns:
        `int`: exit code: 0, 1 when something is missing or fails, or 130 if interrupted. Impossible options end the
        program with code 2.
    """
    parser = TrlParser((MathArguments, GenerationArguments), prog="trl-dara eval math", description=__doc__)
    try:
        arguments, generation = parser.parse_args_and_config(argv)
        generation.sampling(arguments.num_samples)
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
    except requests.RequestException as error:
        console.print(f"The vLLM server failed: {error}", style="red", markup=False)
        console.print(KEPT)
        return 1
    except (ImportError, OSError, ValueError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print(f"Stopped. {KEPT}")
        return 130
    return 0


def generate(arguments: MathArguments, generation: GenerationArguments, folder: Path, console: Console) -> None:
    """
    Generate the samples that the folder does not have.

    Args:
        arguments ([`MathArguments`]):
            Options.
        generation ([`~trl_dara.cli.generation.GenerationArguments`]):
            Options of generation.
        folder (`Path`):
            Folder of the results.
        console (`Console`):
            Where to show progress.
    """
    from trl_dara.data.math_problems import load_math_benchmark

    sampling = generation.sampling(arguments.num_samples)
    settings = generation.settings() | {"sampling": vars(sampling)}
    check_settings(folder / "settings.json", settings)
    work = {}
    for name in arguments.benchmarks or PAPER_BENCHMARKS:
        try:
            questions = load_math_benchmark(name, arguments.data.get(name))
        except OSError as error:
            raise OSError(f"{error} Here: `--data {name}=PATH`.") from error
        questions = keep_questions(folder / "questions" / f"{name}.jsonl", questions)[: arguments.limit]
        work[name] = questions, _count(questions, folder / "raw" / f"{name}.jsonl")
    if all(done == len(questions) * sampling.n for questions, done in work.values()):
        console.print("All samples are there.")
        return
    tokenizer, backend = load_backend(generation)
    keep_settings(folder / "settings.json", settings)  # not of a model that cannot be loaded

    def render(prompt: list[dict]) -> str:
        return tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)

    per_call = max(1, generation.batch_size // sampling.n)
    for name, (questions, done) in work.items():
        file = folder / "raw" / f"{name}.jsonl"
        with progress(console, f"{name}: samples", done, len(questions) * sampling.n) as advance:
            for added in generate_samples(questions, sampling, backend, render, file, per_call):
                advance(added)


def score(arguments: MathArguments, folder: Path, console: Console) -> None:
    """
    Grade all samples of the folder.

    Args:
        arguments ([`MathArguments`]):
            Options.
        folder (`Path`):
            Folder of the results.
        console (`Console`):
            Where to show progress.
    """
    for name in _benchmarks(arguments, folder / "raw"):
        answers = {row["id"]: row["answer"] for row in read_records(folder / "questions" / f"{name}.jsonl")}
        samples = read_records(folder / "raw" / f"{name}.jsonl")
        console.print(f"{name}: grading {len(samples):,} samples")
        scores = score_samples(samples, answers, arguments.grader)
        lines = "".join(json.dumps(score) + "\n" for score in scores)
        replace_file(folder / arguments.grader / f"{name}.jsonl", lines)


def aggregate(arguments: MathArguments, folder: Path, console: Console) -> None:
    """
    Turn scores into tables: a CSV file of the questions per benchmark, a summary of everything, and the terminal.

    Args:
        arguments ([`MathArguments`]):
            Options.
        folder (`Path`):
            Folder of the results.
        console (`Console`):
            Where to print the table.
    """
    of_grader = folder / arguments.grader
    names = _benchmarks(arguments, of_grader)
    settings = read_settings(folder / "settings.json")
    benchmarks = {}
    for name in names:
        scores = read_records(of_grader / f"{name}.jsonl")
        num_questions = len(read_records(folder / "questions" / f"{name}.jsonl"))
        benchmarks[name] = summarize_benchmark(scores, num_questions, settings["sampling"]["n"])
        table = io.StringIO()
        rows = question_rows(scores)
        writer = csv.DictWriter(table, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        replace_file(of_grader / f"{name}.csv", table.getvalue())
    summary = {
        "grader": GRADERS[arguments.grader],
        "length_limit": LENGTH_LIMIT,
        "interval": "percentiles 2.5 and 97.5 of 2,000 resamples of the questions",
        "settings": settings,
        **summarize(benchmarks, PAPER_BENCHMARKS),
    }
    replace_file(of_grader / "summary.json", json.dumps(summary, indent=2) + "\n")
    console.print(summary_table(summary))
    files = f"Summary: {of_grader / 'summary.json'}   Questions: {of_grader}/*.csv"
    console.print(files, markup=False, soft_wrap=True)


def _count(questions: list[dict], samples_file: Path) -> int:
    ids = {question["id"] for question in questions}
    return len({(record["id"], record["sample"]) for record in iterate_records(samples_file) if record["id"] in ids})


def _benchmarks(arguments: MathArguments, folder: Path) -> list[str]:
    """The benchmarks to work on, each of which must have something in the folder."""
    there = [name for name in BENCHMARKS if next(iterate_records(folder / f"{name}.jsonl"), None)]
    missing = [name for name in arguments.benchmarks or [] if name not in there]
    if missing or not there:
        raise ValueError(
            f"{folder} has nothing of {', '.join(missing) or 'any benchmark'}. Run the stages before with this "
            "`output_dir`: generate, score, aggregate."
        )
    return arguments.benchmarks or there
