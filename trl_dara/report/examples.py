"""Groups worth a look: their prompt and completions beside the rewards and what some rules make of them."""

import json
from collections.abc import Callable

import numpy as np
import torch

from ..aggregation import AdvantageResult, compute_advantages
from ..rewards.text import completion_text
from .recording import Batch
from .replay import Replay, collides, number_vectors
from .verdicts import QUOTED_RULES


MAX_CHARACTERS = 280
MAX_COMPLETIONS = 8


def example_groups(replay: Replay) -> list[dict]:
    """
    Find the most telling groups of the latest steps.

    Args:
        replay ([`Replay`]):
            A replayed recording.

    Returns:
        `list[dict]`: at most one of each kind, with `title`, `step`, `prompt`, `completions` and `more`, the number of
        completions that are not shown.
    """
    weights = torch.tensor(replay.weights, dtype=torch.float32)  # (K,)
    wanted: dict[str, Callable] = {
        "Different rewards, the same advantage under grpo": _collisions,
        "One reward pushes up what another pushes down": _conflicts,
    }
    found = {}
    for batch in reversed(replay.recording.batches):
        result = compute_advantages(batch.rewards, replay.recording.num_generations, "grpo", weights)
        for title, counts_in in wanted.items():
            counts = counts_in(batch, result, weights)  # (B,)
            if title not in found and counts.max() > 0:
                found[title] = _example(title, replay, batch, int(counts.argmax()), weights)
        if len(found) == len(wanted):
            break
    return [found[title] for title in wanted if title in found]


def _collisions(batch: Batch, result: AdvantageResult, weights: torch.Tensor) -> np.ndarray:
    """Number of completions of each group that collide, shape `(B,)`."""
    num_groups, num_generations, _ = batch.rewards.shape
    scored = result.scored.numpy()  # (N,)
    counts = np.zeros(num_groups, dtype=int)  # (B,)
    if scored.any():
        groups = (np.arange(len(scored)) // num_generations)[scored]
        hits = collides(result.advantages.numpy()[scored], groups, number_vectors(batch.rewards, weights != 0)[scored])
        np.add.at(counts, groups[hits], 1)
    return counts


def _conflicts(batch: Batch, result: AdvantageResult, weights: torch.Tensor) -> np.ndarray:
    """Number of completions of each group that are in conflict, shape `(B,)`."""
    contributions = (weights * result.channel_advantages).view(batch.rewards.shape)  # (B, G, K)
    return ((contributions > 0).any(dim=-1) & (contributions < 0).any(dim=-1)).sum(dim=1).numpy()  # (B,)


def _example(title: str, replay: Replay, batch: Batch, group: int, weights: torch.Tensor) -> dict:
    num_generations = replay.recording.num_generations
    members = slice(group * num_generations, (group + 1) * num_generations)
    rules = [rule for rule in QUOTED_RULES if rule in replay.rules]
    advantages = [
        compute_advantages(batch.rewards, num_generations, rule, weights).advantages[members].tolist()
        for rule in rules
    ]
    table = replay.recording.table.iloc[batch.rows[members]]
    texts = map(shorten, table["completion"]) if "completion" in table else map(str, range(1, num_generations + 1))
    completions = [
        {
            "text": text,
            "rewards": dict(zip(replay.channels, rewards, strict=True)),
            "advantages": dict(zip(rules, values, strict=True)),
        }
        for text, rewards, values in zip(
            texts, batch.rewards[group].tolist(), zip(*advantages, strict=True), strict=True
        )
    ]
    return {
        "title": title,
        "step": batch.step,
        "prompt": shorten(table["prompt"].iloc[0]) if "prompt" in table else "",
        "completions": completions[:MAX_COMPLETIONS],
        "more": max(0, len(completions) - MAX_COMPLETIONS),
    }


def shorten(value) -> str:
    """
    The beginning of a prompt or completion: plain text, or the last message of a conversation.
    """
    value = value.tolist() if isinstance(value, np.ndarray) else value
    conversation = isinstance(value, list) and value and isinstance(value[-1], dict)
    text = completion_text(value) if conversation or isinstance(value, str) else ""
    text = text or json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + " …"
