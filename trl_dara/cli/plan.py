"""`trl-dara plan`: what a configuration will do, before anything is loaded."""

import inspect
import json
import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.table import Table


HELP = "show batches, steps and expected reward densities of a configuration, without a model"

GROUP_SIZES = (2, 4, 8, 16, 32)

# Settings that speak of channels; without them the reward functions need not be there for a plan.
BY_CHANNEL = ("reward_weights", "reward_bounds", "reward_gates", "reward_weight_schedules")


@dataclass
class PlanArguments:
    """
    Options of `trl-dara plan` beside those of `trl-dara grpo`.

    Args:
        num_prompts (`int`, *optional*):
            Number of prompts in the training data. By default read from the data set.
        num_processes (`int`, *optional*, defaults to `1`):
            Number of training processes.
        success_rate (`list[float]`, *optional*, defaults to `[0.01, 0.05, 0.1, 0.25, 0.5]`):
            Success probabilities of a reward with two values, for the table of densities.
    """

    num_prompts: int | None = field(
        default=None,
        metadata={"help": "Number of prompts in the training data. By default read from the data set."},
    )
    num_processes: int = field(default=1, metadata={"help": "Number of training processes."})
    success_rate: list[float] = field(
        default_factory=lambda: [0.01, 0.05, 0.1, 0.25, 0.5],
        metadata={"help": "Success probabilities of a reward with two values, for the table of densities."},
    )

    def __post_init__(self):
        if self.num_processes < 1:
            raise ValueError(f"`num_processes` is {self.num_processes}. Pass the number of training processes, >= 1.")
        if self.num_prompts is not None and self.num_prompts < 1:
            raise ValueError(f"`num_prompts` is {self.num_prompts}. Pass the number of prompts in the data, >= 1.")
        if not all(0 <= rate <= 1 for rate in self.success_rate):
            raise ValueError(f"`success_rate` is {self.success_rate}. Pass probabilities between 0 and 1.")


@dataclass
class BatchPlan:
    """
    Arithmetic of one training run.

    Args:
        prompts (`int`):
            Prompts (groups) per generation batch, over all processes.
        num_generations (`int`):
            Completions per prompt.
        updates_per_generation (`float`):
            Optimiser steps per generation batch; below 1 when a step accumulates several generation batches.
        total_steps (`int`, *optional*):
            Optimiser steps of the run; `None` when it depends on a number of prompts that is not known.
        steps_per_epoch (`int`, *optional*):
            Optimiser steps per epoch; `None` when the number of prompts is not known.
        unused_prompts (`int`, *optional*):
            Prompts left out of every epoch, because they do not fill a generation batch.
    """

    prompts: int
    num_generations: int
    updates_per_generation: float
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    unused_prompts: int | None = None

    @property
    def completions(self) -> int:
        return self.prompts * self.num_generations

    @property
    def generations(self) -> int | None:
        return None if self.total_steps is None else math.ceil(self.total_steps / self.updates_per_generation)

    @property
    def epochs(self) -> float | None:
        return None if self.steps_per_epoch is None else self.total_steps / self.steps_per_epoch


def plan_batches(options: Namespace, num_processes: int, num_prompts: int | None) -> BatchPlan:
    """
    Work out batches and steps as TRL's configuration, sampler and training loop do.

    Args:
        options (`argparse.Namespace`):
            Options of the training configuration.
        num_processes (`int`):
            Number of training processes.
        num_prompts (`int`, *optional*):
            Number of prompts in the training data.

    Returns:
        [`BatchPlan`]

    Raises:
        `ValueError`: when the batch sizes do not fit each other or the data.
    """
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations"):
        if vars(options)[name] < 1:
            raise ValueError(f"`{name}` is {vars(options)[name]}. Pass an integer of at least 1.")
    if options.num_generations < 2:
        raise ValueError(
            f"`num_generations` is {options.num_generations}. Pass at least 2: the completions of a group are compared "
            "with each other."
        )
    per_step = options.per_device_train_batch_size * num_processes
    num_generations, accumulation = options.num_generations, options.gradient_accumulation_steps
    if options.generation_batch_size is not None and options.steps_per_generation is not None:
        raise ValueError("Set one of `generation_batch_size` and `steps_per_generation`.")
    if options.generation_batch_size is not None:
        steps_per_generation, rest = divmod(options.generation_batch_size, per_step)
        if rest or not steps_per_generation:
            raise ValueError(
                f"`generation_batch_size` is {options.generation_batch_size}. Pass a multiple of "
                f"`per_device_train_batch_size` * `num_processes` = {per_step}."
            )
    else:
        steps_per_generation = options.steps_per_generation or accumulation
    completions = per_step * steps_per_generation
    if completions % num_generations:
        step = math.lcm(per_step, num_generations)
        below, above = completions // step * step, (completions // step + 1) * step
        raise ValueError(
            f"One generation batch has `per_device_train_batch_size` * `num_processes` * `steps_per_generation` = "
            f"{options.per_device_train_batch_size} * {num_processes} * {steps_per_generation} = {completions} completions, "
            f"which are not whole groups of `num_generations` = {num_generations}. The nearest "
            f"`generation_batch_size` that fits: {f'{below} or {above}' if below else above}."
        )
    prompts = completions // num_generations
    batches_per_generation = steps_per_generation * options.num_iterations
    plan = BatchPlan(prompts, num_generations, batches_per_generation / accumulation)
    if num_prompts is not None:
        generations, plan.unused_prompts = divmod(num_prompts, prompts)
        if not generations:
            raise ValueError(
                f"The data has {num_prompts} prompts, but one generation batch needs {prompts}. Use more data or a "
                "smaller `generation_batch_size`."
            )
        plan.steps_per_epoch = math.ceil(generations * batches_per_generation / accumulation)
    if options.max_steps > 0:
        plan.total_steps = options.max_steps
    elif plan.steps_per_epoch is not None:
        plan.total_steps = math.ceil(options.num_train_epochs * plan.steps_per_epoch)
    return plan


def expected_density(success_rate: float, num_generations: int) -> float:
    """
    Probability that a group has both a success and a failure, `1 - p^G - (1 - p)^G`: the density of a reward with two
    values and success probability p.

    Args:
        success_rate (`float`):
            Success probability p.
        num_generations (`int`):
            Completions per group, G.

    Returns:
        `float`
    """
    return 1 - success_rate**num_generations - (1 - success_rate) ** num_generations


def run(argv: list[str]) -> int:
    """
    Print the plan of a configuration.

    Args:
        argv (`list[str]`):
            Options of `trl-dara grpo` and of [`PlanArguments`].

    Returns:
        `int`: exit code 0. A configuration that cannot train ends the program with exit code 2 and a sentence.
    """
    from rich.console import Console

    from trl_dara.aggregation import get_aggregation
    from trl_dara.cli.options import build, check_channels, read_options, split_script_options
    from trl_dara.scripts.grpo import build_script_arguments, make_parser
    from trl_dara.validation import DEFAULT_AGGREGATION

    parser = make_parser("trl-dara plan", PlanArguments)
    options, launch_args = read_options(parser, argv, script_options=True)
    arguments = build(parser, options, PlanArguments)
    console = Console()
    script, _ = split_script_options(launch_args)
    if script:
        console.print(f"A recipe for {script}, whose data and rewards are not looked at.")
    try:
        kwargs = options.aggregation_kwargs or {}
        aggregation = options.aggregation or DEFAULT_AGGREGATION
        rule = get_aggregation(aggregation, json.loads(kwargs) if isinstance(kwargs, str) else kwargs)
        num_prompts = arguments.num_prompts or _count_prompts(parser, options, console)
        plan = plan_batches(options, arguments.num_processes, num_prompts)
    except ValueError as error:
        parser.error(str(error))
    if (options.reward_funcs or options.reward_model_name_or_path) and any(vars(options)[name] for name in BY_CHANNEL):
        script_args = build_script_arguments(parser, options)
        check_channels(parser, options, script_args)
    rows = _batch_rows(plan, num_prompts) + _density_rows(plan, rule, options.calibration_window)
    table = Table("", f"aggregation {aggregation}", title="Plan")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(_density_table(plan.num_generations, arguments.success_rate))
    if plan.prompts == 1:
        console.print(_one_prompt_warning(rule, options.calibration_window), style="bold yellow")
    return 0


def _count_prompts(parser, options: Namespace, console) -> int | None:
    from datasets.exceptions import DatasetsError
    from trl import DatasetMixtureConfig, ScriptArguments

    from trl_dara.cli.options import build
    from trl_dara.scripts.grpo import get_split, load_data

    if not (options.dataset_name or options.datasets):
        console.print("Without a data set, totals need `--num_prompts` (or `--max_steps`).")
        return None
    script_args = build(parser, options, ScriptArguments)
    try:
        dataset = load_data(script_args, build(parser, options, DatasetMixtureConfig))
    except (OSError, DatasetsError) as error:
        console.print(f"The data set cannot be loaded here, so totals need `--num_prompts`: {error}", markup=False)
        return None
    if options.streaming or options.dataset_streaming:
        console.print("A stream has no length: totals need `--num_prompts` (or `--max_steps`).")
        return None
    return len(get_split(dataset, script_args, "dataset_train_split"))


def _batch_rows(plan: BatchPlan, num_prompts: int | None) -> list[tuple[str, str]]:
    def shown(value):
        return "unknown" if value is None else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"

    return [
        ("prompts per generation batch (B)", shown(plan.prompts)),
        ("completions per generation batch", f"{plan.completions:,} ({plan.num_generations} per prompt)"),
        ("optimiser steps per generation batch", shown(plan.updates_per_generation)),
        ("optimiser steps", shown(plan.total_steps)),
        ("generation batches", shown(plan.generations)),
        ("epochs", shown(plan.epochs)),
        ("prompts in the data", shown(num_prompts)),
        ("prompts left out of an epoch", shown(plan.unused_prompts)),
    ]


def _density_rows(plan: BatchPlan, rule: Callable, calibration_window: int | None) -> list[tuple[str, str]]:
    rows = [("smallest step of a batch's density (1 / B)", f"{1 / plan.prompts:.4g}")]
    parameters = inspect.signature(rule).parameters
    if "w_max" not in parameters:
        return rows
    # A channel active in one of W groups beside one active in all: sqrt(pi_ref / pi_k) = sqrt(W)
    cap, window = parameters["w_max"].default, max(plan.prompts, calibration_window or 1)
    rows.append(("largest weight, this batch only: min(w_max, sqrt(B))", f"{min(cap, math.sqrt(plan.prompts)):.4g}"))
    if window > plan.prompts:
        rows.append((f"largest weight, window of {window} groups", f"{min(cap, math.sqrt(window)):.4g}"))
    return rows


def _density_table(num_generations: int, success_rates: list[float]) -> Table:
    sizes = sorted({*GROUP_SIZES, num_generations})
    table = Table("success rate p", title="Expected share of active groups, 1 - p^G - (1 - p)^G")
    for size in sizes:
        table.add_column(f"G = {size}", justify="right", style="bold" if size == num_generations else None)
    for rate in success_rates:
        table.add_row(f"{rate:g}", *(f"{expected_density(rate, size):.4f}" for size in sizes))
    return table


def _one_prompt_warning(rule: Callable, calibration_window: int | None) -> str:
    if "w_max" not in inspect.signature(rule).parameters:
        effect = "such a density says little about a reward"
    elif calibration_window:
        effect = f"only the window of the {calibration_window} most recent groups lets weights differ from 1"
    else:
        effect = "every weight is 1, so DARA is GDPO unless `calibration_window` is set"
    return (
        f"One prompt per generation batch: its density is 0 or 1, and {effect}. For more prompts raise "
        "`gradient_accumulation_steps`, `steps_per_generation` or `per_device_train_batch_size`, or lower "
        "`num_generations`."
    )
