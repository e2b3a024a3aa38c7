"""
Time and memory of `compute_advantages`, and of what others compute the same with, on one thread.

Every case runs in a new process. Time is the median over repeated calls. Memory is what one call adds to the process's
peak (`ru_maxrss`) after the rewards existed and a tiny call had loaded what any call needs; it includes what is returned.
"""

import importlib.util
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from trl.trainer.utils import nanstd

from trl_dara import AGGREGATIONS, compute_advantages


OWN = ("gdpo", "dara_sym", "dara_asym")
TRL = "TRL's formula"
PEER = "multireward-grpo"

# One of the three is varied at a time, from these
COMPLETIONS = (256, 1024, 4096, 8192, 16_384, 65_536, 131_072, 262_144, 524_288, 1_000_000)
GROUP_SIZES = (2, 4, 8, 16, 32, 64)
CHANNELS = (1, 2, 4, 8, 16)

LOWEST, HIGHEST = 0, 4  # of a reward; whole numbers, as of many rewards
SHARE_MISSING = 0.05


@dataclass(frozen=True)
class Case:
    """One method on rewards of one size. `varied` names the table that it belongs to."""

    varied: str
    method: str
    completions: int
    group_size: int = 16
    channels: int = 4
    missing: float = 0.0  # share of rewards that were not scored
    repeat_seconds: float = 0.3  # time to spend on repeated calls, of which there are at least 5


def make_cases(peer: bool) -> list[Case]:
    """
    All cases.

    Args:
        peer (`bool`):
            Whether `multireward-grpo` is there.

    Returns:
        `list[Case]`
    """
    methods = [*OWN, TRL, *([PEER] if peer else [])]
    sizes = [Case("completions", "", completions) for completions in COMPLETIONS]
    sizes += [Case("group_size", "", 65_536, group_size=group_size) for group_size in GROUP_SIZES]
    sizes += [Case("channels", "", 262_144, channels=channels) for channels in CHANNELS]
    cases = [replace(size, method=method) for size in sizes for method in methods]
    cases += [Case("missing", method, COMPLETIONS[-1], missing=SHARE_MISSING) for method in (*OWN, TRL)]
    return cases + [Case("rule", rule, 8192, channels=8) for rule in AGGREGATIONS]


def trl_advantages(rewards: torch.Tensor, num_generations: int, reward_weights: torch.Tensor) -> torch.Tensor:
    """
    What TRL 1.16's `GRPOTrainer` computes inside a training step for `multi_objective_aggregation="normalize_then_sum"`.

    Args:
        rewards (`torch.Tensor` of shape `(N, K)`):
            Rewards, NaN where not scored.
        num_generations (`int`):
            Completions per group, `G`.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            Weights.

    Returns:
        `torch.Tensor` of shape `(N,)`: Advantages.
    """
    unscorable = rewards.isnan().all(dim=1)  # (N,)
    groups = rewards.view(-1, num_generations, rewards.shape[1])  # (B, G, K)
    deviation = groups - groups.nanmean(dim=1, keepdim=True)  # (B, G, K)
    normalized = deviation / (nanstd(groups, dim=1, keepdim=True) + 1e-4)  # (B, G, K)
    total = (normalized.view_as(rewards) * reward_weights).nansum(dim=1)  # (N,)
    total[unscorable] = torch.nan
    advantages = (total - total.nanmean()) / (nanstd(total) + 1e-4)  # (N,)
    return advantages.nan_to_num(nan=0.0)


def make_call(case: Case) -> Callable[[], object]:
    """What is measured, with its rewards made: nothing that is left behind for a later peak to hide in."""
    dtype = torch.float64 if case.method == PEER else torch.float32  # what the peer converts anything else to
    rewards = torch.empty(case.completions, case.channels, dtype=dtype)  # (N, K)
    rewards.random_(LOWEST, HIGHEST + 1, generator=torch.Generator().manual_seed(0))
    if case.missing:
        period = round(1 / case.missing)
        rewards.view(-1)[::period] = torch.nan
    weights = torch.ones(case.channels, dtype=dtype)  # (K,)
    if case.method == PEER:
        from multireward_grpo import compute_advantage_batch  # an optional peer, in this process only

        groups = rewards.view(-1, case.group_size, case.channels).numpy()  # (B, G, K)
        return lambda: compute_advantage_batch(groups, weights.numpy())
    if case.method == TRL:
        return lambda: trl_advantages(rewards, case.group_size, weights)
    options = {}
    if case.method.startswith("static"):
        options = {"static_weights": [1.0] * case.channels}
    elif case.method in ("saw", "sa_mrpo"):
        options = {"reward_bounds": [(LOWEST, HIGHEST)] * case.channels}
    return lambda: compute_advantages(rewards, case.group_size, case.method, weights, **options)


def measure(case: Case, peer_path: str | None = None) -> dict:
    """
    Measure one case, in a process of its own.

    Args:
        case (`Case`):
            What to run.
        peer_path (`str`, *optional*):
            Folder that `multireward_grpo` is in.

    Returns:
        `dict`: The case's fields, `milliseconds` (median over calls) and `peak_mb` (10^6 bytes).
    """
    if peer_path is not None:
        sys.path.append(peer_path)
    torch.set_num_threads(1)
    call = make_call(case)
    make_call(replace(case, completions=4 * case.group_size))()
    before = _peak_bytes()
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    peak = _peak_bytes() - before
    seconds = []
    for _ in range(max(5, min(300, int(case.repeat_seconds / first)))):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    row = {name: value for name, value in asdict(case).items() if name != "repeat_seconds"}
    return row | {"milliseconds": statistics.median(seconds) * 1e3, "peak_mb": peak / 1e6}


def _peak_bytes() -> int:
    in_units = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return in_units if sys.platform == "darwin" else in_units * 1024


def measure_all(cases: list[Case], rounds: int, peer_path: Path | None = None) -> Iterator[dict]:
    """
    Measure all cases one after another, several times over, each time in a new process.

    Args:
        cases (`list[Case]`):
            What to run.
        rounds (`int`):
            How often.
        peer_path (`Path`, *optional*):
            Folder that `multireward_grpo` is in.

    Yields:
        `dict`: As returned by [`measure`], with the `round`.
    """
    # Forked from a process that has imported everything: a peak is not inherited, as it is when a program is started
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["train_scripts.benchmark.overhead"])
    for round_ in range(rounds):
        for case in cases:
            with ProcessPoolExecutor(max_workers=1, mp_context=context) as executor:
                row = executor.submit(measure, case, peer_path and str(peer_path)).result()
            yield row | {"round": round_}


def peer_is_installed(peer_path: Path | None) -> bool:
    """Whether `multireward_grpo` can be imported, from that folder or at all."""
    if peer_path is not None:
        sys.path.append(str(peer_path))
    return importlib.util.find_spec("multireward_grpo") is not None
