"""
What our own code costs: per generation batch in a training step, and `compute_advantages` alone.

    python -m train_scripts.benchmark.overhead

Trains the demo's tiny model with `dara_asym` and with TRL's own trainer in turns, on the same prompts, with one thread.
The time in our own code (statistics, rule, metrics) is measured inside the run; the difference between the paired runs is
noise of the machine plus what we add.
"""

import argparse
import statistics
import tempfile
import time

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, ProgressCallback
from trl import GRPOConfig, GRPOTrainer

from trl_dara import AGGREGATIONS, MultiRewardGRPOConfig, MultiRewardGRPOTrainer, compute_advantages
from trl_dara.data.synthetic import TINY_TOOL_CALLER, correctness_reward, format_reward, make_dataset


console = Console(width=119)


class TRLTimer(GRPOTrainer):
    """TRL's trainer, with the time that its two methods take on record. Stands between our trainer and TRL's."""

    seconds_generating = 0.0
    seconds_rewarding = 0.0

    def _generate_and_score_completions(self, inputs):
        start = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        self.seconds_generating += time.perf_counter() - start
        return output

    def _calculate_rewards(self, *args):
        start = time.perf_counter()
        rewards = super()._calculate_rewards(*args)
        self.seconds_rewarding += time.perf_counter() - start
        return rewards


class TimedTrainer(MultiRewardGRPOTrainer, TRLTimer):
    """Our trainer on top of the timed one: what it takes longer than TRL's methods is our own code."""

    own_seconds: list[float]

    def _generate_and_score_completions(self, inputs):
        self.seconds_generating = self.seconds_rewarding = self.seconds_settling = 0.0
        start = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        total = time.perf_counter() - start
        self.own_seconds.append(total - self.seconds_generating + self.seconds_settling - self.seconds_rewarding)
        return output

    def _calculate_rewards(self, *args):
        start = time.perf_counter()
        rewards = super()._calculate_rewards(*args)
        self.seconds_settling += time.perf_counter() - start
        return rewards


def train(ours: bool, prompts: int, num_generations: int, steps: int, seed: int) -> tuple[list[float], list[float]]:
    """
    Train the demo's model.

    Returns:
        `tuple[list[float], list[float]]`: seconds per step (TRL's `step_time`), and seconds per generation batch in our
        own code (empty for TRL's trainer).
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
    return steps_logged[1:], trainer.own_seconds[1:]  # the first step warms up


def show_training(prompts: int, num_generations: int, steps: int, pairs: int) -> None:
    """Print the paired comparison of a training step."""
    ours, trl, own = [], [], []
    for pair in range(pairs):
        for is_ours in (True, False) if pair % 2 == 0 else (False, True):
            step_seconds, own_seconds = train(is_ours, prompts, num_generations, steps, seed=pair)
            (ours if is_ours else trl).extend(step_seconds)
            own.extend(own_seconds)
    table = Table(title=f"One training step, B = {prompts}, G = {num_generations}, {pairs} pairs of {steps} steps")
    for column in ("", "median", "interquartile range"):
        table.add_column(column, justify="right" if column else "left")
    for name, seconds in (("MultiRewardGRPOTrainer, dara_asym", ours), ("TRL's GRPOTrainer", trl)):
        table.add_row(name, f"{statistics.median(seconds) * 1e3:.0f} ms", _quartiles(seconds))
    table.add_row("our own code", f"{statistics.median(own) * 1e3:.2f} ms", _quartiles(own))
    console.print(table)
    share = statistics.median(own) / statistics.median(ours)
    console.print(f"Our own code takes {share:.2%} of a step.\n")


def _quartiles(seconds: list[float]) -> str:
    low, _, high = statistics.quantiles(seconds, n=4)
    return f"{low * 1e3:.2f} to {high * 1e3:.2f} ms"


def show_rules(num_groups: int, num_generations: int, num_channels: int, repeats: int) -> None:
    """Print the time of `compute_advantages` for every rule."""
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 5, (num_groups * num_generations, num_channels), generator=generator).float()
    table = Table(title=f"compute_advantages, B = {num_groups}, G = {num_generations}, K = {num_channels}, one thread")
    table.add_column("rule")
    table.add_column("median", justify="right")
    table.add_column("interquartile range", justify="right")
    options = {
        "static_sym": {"static_weights": [1.0] * num_channels},
        "static_asym": {"static_weights": [1.0] * num_channels},
        "saw": {"reward_bounds": [(0.0, 4.0)] * num_channels},
        "sa_mrpo": {"reward_bounds": [(0.0, 4.0)] * num_channels},
    }
    for rule in AGGREGATIONS:
        seconds = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            compute_advantages(rewards, num_generations, rule, **options.get(rule, {}))
            seconds.append(time.perf_counter() - start)
        table.add_row(rule, f"{statistics.median(seconds[1:]) * 1e3:.2f} ms", _quartiles(seconds[1:]))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="optimiser steps of each run")
    parser.add_argument("--pairs", type=int, default=2, help="pairs of runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    show_rules(num_groups=512, num_generations=16, num_channels=8, repeats=50)
    show_rules(num_groups=62_500, num_generations=16, num_channels=4, repeats=3)
    show_training(prompts=64, num_generations=4, steps=args.steps, pairs=args.pairs)


if __name__ == "__main__":
    main()
