"""
What our own code costs: per generation batch in a training step, and `compute_advantages` alone.

    python -m train_scripts.benchmark.overhead

Trains the demo's tiny model with `dara_asym` and with TRL's own trainer in turns, on the same prompts, with one thread.
The time in our own code (statistics, rule, metrics) is measured inside the run; the difference between the paired runs is
noise of the machine plus what we add. Then times `compute_advantages` over the number of completions, the group size and
the number of channels, beside what others compute the same with (`train_scripts.benchmark.aggregation_cost`). About six
minutes. The peer `multireward-grpo` is measured where it is installed:

    pip install --no-deps --target peers multireward-grpo
    python -m train_scripts.benchmark.overhead --peer_path peers
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, ProgressCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

from train_scripts.benchmark.aggregation_cost import make_cases, measure_all, peer_is_installed
from train_scripts.benchmark.overhead_report import markdown, save_figure
from train_scripts.benchmark.running import RESULTS
from train_scripts.benchmark.timed_trainer import TimedTrainer
from trl_dara import MultiRewardGRPOConfig
from trl_dara.data.synthetic import TINY_TOOL_CALLER, correctness_reward, format_reward, make_dataset


def train(ours: bool, prompts: int, num_generations: int, steps: int, seed: int) -> tuple[list[float], list[float]]:
    """
    Train the demo's model.

    Returns:
        `tuple[list[float], list[float]]`: seconds per step (TRL's `step_time`), and seconds per generation batch in our
        own code (empty for TRL's trainer), both without the first step, which warms up.
    """
    settings = dict(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=prompts * num_generations,
        num_generations=num_generations,
        max_completion_length=40,
        max_steps=steps,
        learning_rate=1.5e-4,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        seed=seed,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer_class = TimedTrainer if ours else GRPOTrainer
    config = (
        MultiRewardGRPOConfig(**settings, aggregation="dara_asym")
        if ours
        else GRPOConfig(**settings, multi_objective_aggregation="normalize_then_sum")
    )
    trainer = trainer_class(
        model=AutoModelForCausalLM.from_pretrained(TINY_TOOL_CALLER, dtype=torch.float32),
        reward_funcs=[correctness_reward, format_reward],
        args=config,
        train_dataset=make_dataset(seed=seed),
        processing_class=AutoTokenizer.from_pretrained(TINY_TOOL_CALLER),
    )
    trainer.own_seconds = []
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.train()
    steps_logged = [entry["step_time"] for entry in trainer.state.log_history if "step_time" in entry]
    return steps_logged[1:], trainer.own_seconds[1:]


def compare_training(
    prompts: int, num_generations: int, steps: int, pairs: int, advance: Callable[[], None]
) -> pd.DataFrame:
    """
    Train with both trainers in turns; which goes first alternates.

    Args:
        prompts (`int`):
            Prompts per step.
        num_generations (`int`):
            Completions per prompt.
        steps (`int`):
            Optimiser steps of a run.
        pairs (`int`):
            Pairs of runs, each with a seed of its own.
        advance (`Callable`):
            Called after each run.

    Returns:
        `pd.DataFrame`: One row for each pair and step: `pair`, `step`, `ours_ms`, `trl_ms`, `own_code_ms`.
    """
    rows = []
    for pair in range(pairs):
        seconds = {}
        for is_ours in (True, False) if pair % 2 == 0 else (False, True):
            seconds[is_ours] = train(is_ours, prompts, num_generations, steps, seed=pair)
            advance()
        (ours, own), (trl, _) = seconds[True], seconds[False]
        rows += [
            {"pair": pair, "step": step, "ours_ms": a * 1e3, "trl_ms": b * 1e3, "own_code_ms": c * 1e3}
            for step, (a, b, c) in enumerate(zip(ours, trl, own, strict=True), start=2)
        ]
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="optimiser steps of each run")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs")
    parser.add_argument("--rounds", type=int, default=2, help="processes per case of compute_advantages")
    parser.add_argument("--peer_path", type=Path, help="folder that multireward_grpo is in")
    parser.add_argument("--results_dir", type=Path, default=RESULTS, help="folder of the tables and the figure")
    arguments = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = "1"  # of the measuring processes
    torch.set_num_threads(1)
    disable_progress_bar()  # of each loaded model, across ours
    console = Console()
    cases = make_cases(peer_is_installed(arguments.peer_path))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        training = progress.add_task("training runs", total=2 * arguments.pairs)
        aggregation = progress.add_task("compute_advantages", total=len(cases) * arguments.rounds)
        steps = compare_training(64, 4, arguments.steps, arguments.pairs, lambda: progress.advance(training))
        rows = []
        for row in measure_all(cases, arguments.rounds, arguments.peer_path):
            rows.append(row)
            progress.advance(aggregation)
    arguments.results_dir.mkdir(parents=True, exist_ok=True)
    stem = arguments.results_dir / "overhead"
    steps.to_csv(f"{stem}_step.csv", index=False, float_format="%.6g")
    pd.DataFrame(rows).to_csv(f"{stem}.csv", index=False, float_format="%.6g")
    costs = pd.read_csv(f"{stem}.csv")  # the table shows what the files hold
    report = markdown(pd.read_csv(f"{stem}_step.csv"), costs)
    Path(f"{stem}.md").write_text(report)
    save_figure(costs, Path(f"{stem}.png"))
    console.print(Markdown(report))


if __name__ == "__main__":
    main()
