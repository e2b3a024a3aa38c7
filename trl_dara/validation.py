"""Checks and look-ups at the trainer's construction, each with a sentence that says what came and what is allowed."""

import inspect
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import datasets
import torch
from trl import GRPOConfig

from .aggregation import compute_advantages, get_aggregation
from .by_name import by_channel


if TYPE_CHECKING:
    from .channels import Channels


logger = logging.getLogger(__name__)

DEFAULT_AGGREGATION = "dara_asym"

# Columns that TRL itself writes into the completions table.
_TABLE_COLUMNS = {"step", "prompt", "completion", "advantage"}


def choose_aggregation(
    argument: str | Callable | None, configured: str | None, multi_objective_aggregation: str
) -> str | Callable:
    """
    The trainer's argument, else the configuration's, else the default; two different ones are an error.
    """
    if argument is not None and configured is not None and argument != configured:
        raise ValueError(
            f"`aggregation` is {argument!r} as the trainer's argument and {configured!r} in the config. Give it in one "
            "place."
        )
    given = argument if argument is not None else configured
    if multi_objective_aggregation != GRPOConfig.multi_objective_aggregation:
        if given is not None:
            raise ValueError(
                f"`multi_objective_aggregation={multi_objective_aggregation!r}` and `aggregation={given!r}` both choose "
                "how rewards are combined. Remove `multi_objective_aggregation`; its two values are the rules 'grpo' and "
                "'gdpo'."
            )
        logger.warning(
            f"`multi_objective_aggregation={multi_objective_aggregation!r}` has no effect here: rewards are combined by "
            f"`aggregation='{DEFAULT_AGGREGATION}'`. Pass `aggregation='gdpo'` for TRL's 'normalize_then_sum'."
        )
    return DEFAULT_AGGREGATION if given is None else given


def choose_aggregation_kwargs(
    argument: dict | None, configured: dict | None, aggregation: str | Callable, scale_rewards: str
) -> dict:
    """
    The rule's keyword arguments: the trainer's argument, else the configuration's. `grpo` also takes TRL's
    `scale_rewards`, which has no meaning for the other rules.
    """
    if argument is not None and configured is not None and argument != configured:
        raise ValueError(
            f"`aggregation_kwargs` is {argument!r} as the trainer's argument and {configured!r} in the config. Give it in "
            "one place."
        )
    kwargs = dict(argument if argument is not None else configured or {})
    if aggregation == "grpo":
        if scale_rewards not in (GRPOConfig.scale_rewards, kwargs.setdefault("scale", scale_rewards)):
            raise ValueError(
                f"`scale_rewards` is {scale_rewards!r}, but `aggregation_kwargs` has `scale={kwargs['scale']!r}`. Give one."
            )
    elif scale_rewards != GRPOConfig.scale_rewards:
        logger.warning(
            f"`scale_rewards={scale_rewards!r}` has no effect with `aggregation={aggregation!r}`; only 'grpo' uses it."
        )
    return kwargs


def complete_aggregation_kwargs(
    kwargs: dict, aggregation: str | Callable, channels: "Channels", num_generations: int
) -> dict:
    """
    Turn mappings by channel name into lists in channel order, hand the declared bounds to a rule that needs them, and
    call the rule once on an empty batch, so that a wrong value of a keyword argument shows before the first generation.
    """
    kwargs = dict(kwargs)
    static_weights = kwargs.get("static_weights")
    if isinstance(static_weights, dict):
        kwargs["static_weights"] = by_channel(static_weights, channels.names, None, "static_weights")
        if None in kwargs["static_weights"]:
            raise ValueError(f"`static_weights` is {static_weights!r}. Name every channel of {channels.names}.")
    if "reward_bounds" in inspect.signature(get_aggregation(aggregation, kwargs)).parameters:
        if "reward_bounds" in kwargs:
            raise ValueError(
                "Give the bounds in the setting `reward_bounds`, by channel name, not in `aggregation_kwargs`."
            )
        missing = [
            name
            for name, pair, steers in zip(channels.names, channels.bounds, channels.steers, strict=True)
            if pair is None and steers
        ]
        if missing:
            raise ValueError(
                f"This aggregation rule needs the bounds of every channel, and `reward_bounds` has none for {missing}. Add "
                f"e.g. `reward_bounds={{'{missing[0]}': [0, 1]}}`, the lowest and the highest possible reward."
            )
        kwargs["reward_bounds"] = channels.bounds
    empty = torch.zeros(num_generations, len(channels.names))  # (N, K)
    lengths = torch.ones(num_generations)  # (N,)
    weights = channels.weights(step=0)  # (K,)
    try:
        compute_advantages(empty, num_generations, aggregation, weights, completion_lengths=lengths, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"The rule {aggregation!r} does not work with `aggregation_kwargs={kwargs!r}`: {error}. A number in YAML has a dot: "
            "`1.0e-6`."
        ) from error
    return kwargs


def check_channel_names(channel_names: list[str]) -> None:
    """
    Refuse a channel that would overwrite a column of the completions table.
    """
    clashes = sorted(set(channel_names) & _TABLE_COLUMNS)
    if clashes:
        raise ValueError(
            f"The reward functions {clashes} have the names of columns of the completions table. Rename them; reserved "
            f"are {sorted(_TABLE_COLUMNS)}."
        )


def check_reward_funcs(reward_funcs) -> list | None:
    """
    A list of the reward functions of its own, because environments append to it. A path is for the command line.
    """
    if reward_funcs is None:
        return None
    reward_funcs = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
    for func in reward_funcs:
        if isinstance(func, str) and ".py" in func:
            raise ValueError(
                f"`reward_funcs` has {func!r}. Paths of functions are for YAML and the command line; here pass the function, "
                "or `trl_dara.rewards.loading.load_rewards`'s. A string names a reward model."
            )
    return reward_funcs


def check_prompt_column(dataset, name: str) -> None:
    """
    Refuse a data set without prompts, `name` in the sentence. Some streams do not tell their columns.
    """
    columns = dataset.column_names if isinstance(dataset, (datasets.Dataset, datasets.IterableDataset)) else None
    if columns is not None and "prompt" not in columns:
        raise ValueError(f"{name} has no column `prompt`, only {columns}. Rename the column that holds the prompts.")


def check_dataset_size(train_dataset, args: GRPOConfig) -> None:
    """
    Refuse a data set that does not fill one generation batch: TRL's sampler would be empty, and the error about
    `max_steps`.
    """
    prompts_per_batch = args.generation_batch_size // args.num_generations
    if isinstance(train_dataset, datasets.Dataset) and len(train_dataset) < prompts_per_batch:
        raise ValueError(
            f"`train_dataset` has {_count(len(train_dataset), 'prompt')}, but one generation batch takes {prompts_per_batch} "
            f"(`generation_batch_size={args.generation_batch_size}` completions / `num_generations="
            f"{args.num_generations}`). Add prompts, or lower `per_device_train_batch_size`, "
            "`gradient_accumulation_steps` or `steps_per_generation`."
        )


def announce(args: GRPOConfig, rule_name: str, rule: Callable, window: int | None, channels: "Channels") -> None:
    """
    Say what a generation batch is and how rewards are combined, and what of the settings will not work as one may expect.
    """
    uses_window = "window" in inspect.signature(rule).parameters
    if window is not None and not uses_window:
        logger.warning(
            f"`calibration_window={window}` has no effect with the rule `{rule_name}`; `dara_*` and `static_*` use it."
        )
        window = None
    print(batch_plan(args, rule_name, window, channels))  # noqa: T201
    warn_about_one_prompt(args, rule_name, uses_window, window)


def batch_plan(args: GRPOConfig, rule_name: str, window: int | None, channels: "Channels") -> str:
    """
    One line that says what a generation batch is and how rewards are combined.
    """
    prompts = args.generation_batch_size // args.num_generations
    updates = args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps
    weights = [
        f"{name} {weight:g}{' (scheduled)' if name in channels.schedules else ''}"
        for name, weight in zip(channels.names, channels.base_weights.tolist(), strict=True)
    ]
    calibration = f" (calibrated on a window of {window} groups)" if window else ""
    return (
        f"Generation batch: {_count(prompts, 'prompt')} x {args.num_generations} completions = "
        f"{args.generation_batch_size} completions, {_count(updates, 'optimiser step')} each; density in steps of "
        f"1/{prompts}. Rewards combined by "
        f"{rule_name}{calibration}, reward weights: {', '.join(weights)}."
    )


def warn_about_one_prompt(args: GRPOConfig, rule_name: str, uses_window: bool, window: int | None) -> None:
    """
    Say what one prompt per generation batch means, and what raises the number.
    """
    if args.generation_batch_size > args.num_generations:
        return
    effect = "the density within the batch is 0 or 1, and a batch normalisation sees one group"
    remedy = ""
    if uses_window and window:
        effect += f"; `{rule_name}` calibrates on the last {window} groups instead"
    elif uses_window:
        effect += f", so `{rule_name}` weighs all channels alike"
        remedy = "Set `calibration_window=64` to calibrate on recent groups. "
    logger.warning(
        f"One prompt per generation batch: {effect}. {remedy}For more prompts raise `gradient_accumulation_steps`, "
        "`steps_per_generation`, `generation_batch_size` or `per_device_train_batch_size`."
    )


def check_resume_step(step: int, args: GRPOConfig) -> None:
    """
    Say so when a run continues within a generation batch, which TRL does not save: it is generated anew, and the steps up
    to the next one differ from the uninterrupted run.
    """
    every = args.steps_per_generation * args.num_iterations
    if step * args.gradient_accumulation_steps % every:
        logger.warning(
            f"Step {step} lies within a generation batch, which a checkpoint does not hold: it is generated anew. Save at "
            f"multiples of {math.lcm(every, args.gradient_accumulation_steps) // args.gradient_accumulation_steps} steps "
            "(`save_steps`) to continue exactly."
        )


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"
