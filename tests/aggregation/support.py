"""Inputs that the tests of the pure core share."""

import random

import torch

from trl_dara import AGGREGATIONS, compute_advantages


RULES = sorted(AGGREGATIONS)
BOUNDED = ("saw", "sa_mrpo")
WINDOWED = ("dara_sym", "dara_asym", "static_sym", "static_asym")
# Rules without a normalisation over the batch: a group in which nothing varies keeps exact zeros whatever the others do.
PER_GROUP = ("grpo", "mo_grpo", "dvao", "corr_grpo")


def channels(*columns, dtype=torch.float64):
    """One string per channel, `"1 0 - 1 | 0 0 1 1"`: groups between bars, `-` for not scored; to `(B, G, K)`."""
    values = [[[float(x) if x != "-" else float("nan") for x in g.split()] for g in c.split("|")] for c in columns]
    return torch.tensor(values, dtype=dtype).permute(1, 2, 0).contiguous()  # (B, G, K)


def required(rule, rewards):
    """The keyword arguments without which `rule` does not run, for rewards `(B, G, K)`."""
    flat = rewards.flatten(0, -2)  # (N, K)
    if rule.startswith("static"):
        return {"static_weights": [1.0 + 0.5 * k for k in range(flat.shape[1])]}
    if rule not in BOUNDED:
        return {}
    bounds = []
    for column in flat.unbind(dim=1):
        finite = column[column.isfinite()]
        low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 1.0)
        bounds.append((low, high) if high > low else (low - abs(low) - 1.0, high + abs(high) + 1.0))
    return {"reward_bounds": bounds}


def compute(rule, rewards, weights=None, **options):
    """`compute_advantages` of rewards `(B, G, K)`, with what the rule requires filled in."""
    return compute_advantages(rewards, rewards.shape[1], rule, weights, **{**required(rule, rewards), **options})


def random_rewards(seed, shape=(6, 4, 3), missing=0.0, dtype=torch.float64):
    """Rewards `(B, G, K)` as they come: channel 0 binary and rare, 1 graded in thirds, the others real-valued."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(shape, generator=generator, dtype=torch.float64)
    rewards[..., 0] = (rewards[..., 0] > 0.8).double()
    if shape[2] > 1:
        rewards[..., 1] = (2 * rewards[..., 1]).round() / 3 - 1
    rewards[torch.rand(shape, generator=generator) < missing] = torch.nan
    return rewards.to(dtype)


def random_batch(seed):
    """A reward tensor `(B, G, K)` in float64 and weights, as unpleasant as they can be: for the fuzz tests."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    num_groups, num_generations, num_channels = rng.randint(1, 6), rng.randint(1, 32), rng.randint(1, 6)
    if rng.random() < 0.5:
        num_generations = rng.randint(1, 6)
    shape = (num_groups, num_generations)
    columns = []
    for _ in range(num_channels):
        kind = rng.choice(["binary", "rare", "thirds", "real", "group constant", "constant"])
        values = torch.rand(shape, generator=generator, dtype=torch.float64)
        column = {
            "binary": (values < 0.5).double(),
            "rare": (values < 0.05).double(),
            "thirds": (6 * values).round() / 3 - 1,
            "real": torch.randn(shape, generator=generator, dtype=torch.float64),
            "group constant": values[:, :1].expand(shape),
            "constant": values[:1, :1].expand(shape),
        }[kind]
        column = column * rng.choice([1, 1, 1, 1, 1e-30, 1e-6, 1e-3, 1e3, 1e6, 1e30]) + rng.choice([0, 0, 0, -3, 1e3])
        column = column.masked_fill(
            torch.rand(shape, generator=generator) < rng.choice([0, 0, 0, 0.2, 0.9, 1]), torch.nan
        )
        if rng.random() < 0.1:
            column = column.masked_fill(torch.rand(shape, generator=generator) < 0.1, rng.choice([1, -1]) * torch.inf)
        columns.append(column)
    rewards = torch.stack(columns, dim=-1)  # (B, G, K)
    if rng.random() < 0.2:
        rewards[torch.rand(shape, generator=generator) < 0.3] = torch.nan
    weights = [rng.choice([1.0, 1.0, 1.0, 0.5, 0.1, 3.0, -1.0, -0.3, 0.0]) for _ in range(num_channels)]
    return rewards, rng.choice([None, weights, weights])
