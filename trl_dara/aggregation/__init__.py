"""
Aggregation rules: rewards of several channels in, one advantage per completion out.

Each rule is one function, `rule(rewards (B, G, K), reward_weights (K,), *, eps, **own) -> AdvantageResult`, and contains
its whole pipeline. To add one, write such a function in a module of its own and add it to `AGGREGATIONS`; a rule of your
own needs neither: pass the function as `aggregation`. Nothing here imports TRL.
"""

import difflib
import functools
import inspect
import math
import warnings
from collections.abc import Callable

import torch

from ..calibration import CalibrationWindow
from .corr_grpo import corr_grpo
from .dara import dara_asym, dara_sym, static_asym, static_sym
from .dvao import dvao
from .gd2po import gd2po_hard, gd2po_snr
from .gdpo import gdpo
from .grpo import grpo
from .mo_grpo import mo_grpo
from .ops import AdvantageResult
from .rvpo import rvpo
from .sa_mrpo import sa_mrpo
from .saw import saw


__all__ = ["AGGREGATIONS", "AdvantageResult", "check_aggregation_name", "compute_advantages", "get_aggregation"]

AGGREGATIONS = {
    "corr_grpo": corr_grpo,
    "dara_asym": dara_asym,
    "dara_sym": dara_sym,
    "dvao": dvao,
    "gd2po_hard": gd2po_hard,
    "gd2po_snr": gd2po_snr,
    "gdpo": gdpo,
    "grpo": grpo,
    "mo_grpo": mo_grpo,
    "rvpo": rvpo,
    "sa_mrpo": sa_mrpo,
    "saw": saw,
    "static_asym": static_asym,
    "static_sym": static_sym,
}

# Given by the caller of a rule for each batch, so not options of `aggregation_kwargs`.
_PER_BATCH = ("window", "completion_lengths")


@torch.no_grad()
def compute_advantages(
    rewards: torch.Tensor,
    num_generations: int,
    aggregation: str | Callable = "dara_asym",
    reward_weights: torch.Tensor | list[float] | None = None,
    *,
    eps: float | None = None,
    window: CalibrationWindow | None = None,
    completion_lengths: torch.Tensor | None = None,
    **aggregation_kwargs,
) -> AdvantageResult:
    r"""
    Turn the rewards of several channels into one advantage per completion.

    Args:
        rewards (`torch.Tensor` of shape `(N, K)` or `(B, G, K)`):
            Rewards of `N = B * G` completions, group by group, on `K` channels. NaN means not scored; so does an
            infinite reward, with a warning. float64 stays float64, anything else is computed in float32.
        num_generations (`int`):
            Completions per group, `G`.
        aggregation (`str` or `Callable`, *optional*, defaults to `"dara_asym"`):
            Name of a rule in `AGGREGATIONS`, or a function with a rule's signature.
        reward_weights (`torch.Tensor` or `list[float]` of `K` numbers, *optional*):
            The user's weights, by default 1. A channel with weight 0 steers nothing.
        eps (`float`, *optional*):
            Added to the standard deviation in every normalisation. By default the rule's own, 1e-4 as in TRL.
        window ([`CalibrationWindow`], *optional*):
            Recent groups that `dara_*` and `static_*` calibrate on, extended by this batch; by default this batch only.
        completion_lengths (`torch.Tensor` of shape `(N,)`, *optional*):
            Tokens per completion, for `batch_norm="token"`.
        aggregation_kwargs:
            The rule's own keyword arguments.

    Returns:
        [`AdvantageResult`]

    Raises:
        `ValueError`: for an unknown rule, an unknown keyword, or rewards or weights that do not fit.

    Example, a dense and a sparse reward for two groups of four completions:

    ```python
    >>> import torch
    >>> from trl_dara import compute_advantages

    >>> accuracy = [1, 0, 1, 0] + [1, 1, 0, 0]
    >>> fmt = [1, 1, 0, 1] + [0, 0, 0, 0]
    >>> result = compute_advantages(torch.tensor([accuracy, fmt]).T, num_generations=4, aggregation="dara_sym")
    >>> result.density, result.weights
    (tensor([1.0000, 0.5000]), tensor([1.0000, 1.4142]))
    ```
    """
    groups = _to_groups(rewards, num_generations)  # (B, G, K)
    weights = _to_weights(reward_weights, groups)  # (K,)
    if eps is not None:
        if not (isinstance(eps, (int, float)) and math.isfinite(eps) and eps >= 0):
            raise ValueError(f"`eps` is {eps!r}. Pass a finite number >= 0.")
        aggregation_kwargs["eps"] = eps
    rule = get_aggregation(aggregation, aggregation_kwargs)
    per_batch = {"window": window, "completion_lengths": completion_lengths}
    parameters = inspect.signature(rule.func).parameters  # the function's: reading a partial's takes longer
    result = rule(groups, weights, **{name: value for name, value in per_batch.items() if name in parameters})
    _check_result(result, aggregation, num_completions=groups.shape[0] * groups.shape[1])
    return result


def get_aggregation(aggregation: str | Callable, aggregation_kwargs: dict | None = None) -> functools.partial:
    """
    Look up a rule and bind its keyword arguments.

    Args:
        aggregation (`str` or `Callable`):
            Name of a rule in `AGGREGATIONS`, or a function with a rule's signature.
        aggregation_kwargs (`dict`, *optional*):
            Keyword arguments of the rule.

    Returns:
        `functools.partial`: `rule(rewards, reward_weights)`, which still takes `window` and `completion_lengths` if the
        rule does.

    Raises:
        `ValueError`: for an unknown rule or keyword; the message lists what exists.
    """
    if isinstance(aggregation, str):
        check_aggregation_name(aggregation)
        rule, name = AGGREGATIONS[aggregation], aggregation
    elif callable(aggregation):
        rule, name = aggregation, repr(aggregation)
    else:
        raise ValueError(
            f"`aggregation` is {aggregation!r}. Pass one of {sorted(AGGREGATIONS)}, or a function with a rule's signature."
        )
    aggregation_kwargs = dict(aggregation_kwargs or {})
    legal = {
        parameter.name: parameter
        for parameter in inspect.signature(rule).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in _PER_BATCH
    }
    unknown = sorted(set(aggregation_kwargs) - set(legal))
    missing = [
        name for name, option in legal.items() if option.default is option.empty and name not in aggregation_kwargs
    ]
    if unknown or missing:
        problem = f"does not take {unknown}" if unknown else f"needs {missing}"
        options = ", ".join(str(option.replace(annotation=option.empty)) for option in legal.values())
        raise ValueError(f"The aggregation rule {name} {problem}. Its keyword arguments: {options}.")
    return functools.partial(rule, **aggregation_kwargs)


def check_aggregation_name(name: str) -> None:
    """
    Refuse a name that is no rule, with a `ValueError` that lists the rules.
    """
    if name not in AGGREGATIONS:
        close = difflib.get_close_matches(name, AGGREGATIONS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"Unknown `aggregation` {name!r}.{hint} Pass one of {sorted(AGGREGATIONS)}, or a function with a rule's "
            "signature."
        )


def _check_result(result: AdvantageResult, aggregation: str | Callable, num_completions: int) -> None:
    if not isinstance(result, AdvantageResult):
        raise TypeError(
            f"The aggregation rule {aggregation!r} returned a {type(result).__name__}. Return an AdvantageResult, e.g. from "
            "`trl_dara.aggregation.ops.build_result`."
        )
    shape = tuple(result.advantages.shape)
    if shape != (num_completions,) or not _is_finite(result.advantages):
        problem = f"of shape {shape}" if shape != (num_completions,) else "that are not finite"
        raise ValueError(
            f"The aggregation rule {aggregation!r} returned advantages {problem}. Return one finite advantage for each of "
            f"the {num_completions} completions, shape ({num_completions},)."
        )


def _is_finite(values: torch.Tensor) -> bool:
    """Whether all values are finite, in one pass that needs no memory."""
    return all(map(math.isfinite, torch.stack(values.aminmax()).tolist()))


def _to_groups(rewards: torch.Tensor, num_generations: int) -> torch.Tensor:
    rewards = torch.as_tensor(rewards)
    if not isinstance(num_generations, int) or num_generations < 1:
        raise ValueError(f"`num_generations` is {num_generations!r}. Pass the number of completions per group, >= 1.")
    if rewards.dtype != torch.float64:
        rewards = rewards.to(torch.float32)
    if rewards.ndim == 2 and rewards.numel() > 0 and len(rewards) % num_generations == 0:
        rewards = rewards.unflatten(0, (-1, num_generations))  # (B, G, K)
    if rewards.ndim != 3 or rewards.shape[1] != num_generations or rewards.numel() == 0:
        raise ValueError(
            f"`rewards` has shape {tuple(rewards.shape)} with `num_generations={num_generations}`. Pass a tensor of shape "
            "(N, K), with the N completions in whole groups of `num_generations` and K channels, or (B, "
            "num_generations, K)."
        )
    if not _is_finite(rewards):
        rewards = _without_infinite(rewards)
    return rewards


def _without_infinite(rewards: torch.Tensor) -> torch.Tensor:
    infinite = rewards.isinf()
    if not infinite.any():
        return rewards
    counts = infinite.sum(dim=(0, 1)).tolist()  # (K,)
    found = ", ".join(f"{count} in channel {index}" for index, count in enumerate(counts) if count)
    warnings.warn(f"Infinite rewards are treated as not scored: {found}.", stacklevel=4)
    return rewards.masked_fill(infinite, torch.nan)


def _to_weights(reward_weights: torch.Tensor | list[float] | None, groups: torch.Tensor) -> torch.Tensor:
    num_channels = groups.shape[-1]
    if reward_weights is None:
        return groups.new_ones(num_channels)  # (K,)
    weights = torch.as_tensor(reward_weights).to(groups)
    if weights.shape != (num_channels,) or not weights.isfinite().all():
        raise ValueError(
            f"`reward_weights` is {weights.tolist()}, but `rewards` has {num_channels} channels. Pass {num_channels} finite "
            "weights, in channel order."
        )
    return weights
