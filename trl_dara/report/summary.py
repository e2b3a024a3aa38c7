"""A replay as plain data: what the terminal and the page show, and what `--json` writes."""

import math

import numpy as np

from .recording import Recording
from .replay import Replay
from .verdicts import ChannelHistory, fair_shares, judge, known_mean, percent, quoted_first


LOGGED_BY = 1e-3  # closer than this to all advantages of the table, a rule is the one that made them


def summarize(replay: Replay) -> dict:
    """
    Summarise a replay.

    Args:
        replay ([`Replay`]):
            A replayed recording.

    Returns:
        `dict`: of numbers, texts, lists and dictionaries, `None` where a number does not exist. Means are over steps.
    """
    recording = replay.recording
    prompts = replay.batch_metrics["prompts"]  # (T,)
    summary = {
        "name": recording.name,
        "completions": int(prompts.sum()) * recording.num_generations,
        "groups": int(prompts.sum()),
        "num_generations": recording.num_generations,
        "num_steps": len(replay.steps),
        "findings": _findings(replay),
        "notes": recording.notes,
        "left_out": recording.left_out,
        "frac_groups_inactive": known_mean(replay.batch_metrics["frac_groups_inactive"]),
        "frac_conflict": known_mean(replay.batch_metrics["frac_conflict"]),
        "channels": _channels(replay),
        "rules": _rules(replay),
        "rules_left_out": _reasons(replay.left_out),
        "steps": _steps(replay),
    }
    return _without_nan(summary)


def _channels(replay: Replay) -> list[dict]:
    metrics = replay.channel_metrics  # (T, K) each
    alive = [bool(np.nanmax(density, initial=0) > 0) for density in metrics["density"].T]
    fair = fair_shares(replay.weights, alive)
    channels = []
    for index, name in enumerate(replay.channels):
        own = {metric: values[:, index] for metric, values in metrics.items()}  # (T,) each
        constant = own["minimum"] == own["maximum"]  # (T,)
        history = ChannelHistory(
            name=name,
            steps=replay.steps,
            mean=np.where(constant, own["minimum"], own["mean"]),  # a mean of equal values may be rounded
            constant=constant,
            density=own["density"],
            dead_low=own["dead_low"],
            dead_high=own["dead_high"],
            shares={rule: known_mean(played.share[:, index]) for rule, played in replay.rules.items()},
            fair_share=fair[index],
            weight=replay.weights[index],
            sampled=replay.recording.misses_steps,
        )
        verdict = judge(history)
        known = own["mean"][~np.isnan(own["mean"])]
        quarter = max(1, len(known) // 4)
        channels.append(
            {
                "name": name,
                "verdict": verdict.kind,
                "sentence": verdict.text,
                "reward_weight": replay.weights[index],
                "reward_bounds": replay.bounds[index],
                "mean_first_quarter": known_mean(known[:quarter]),
                "mean_last_quarter": known_mean(known[-quarter:]),
                "lowest": float(np.nanmin(own["minimum"])) if len(known) else math.nan,
                "highest": float(np.nanmax(own["maximum"])) if len(known) else math.nan,
                **{
                    metric: known_mean(own[metric])
                    for metric in ("density", "energy", "coverage", "saturation", "dead_low", "dead_high")
                },
            }
        )
    return channels


def _rules(replay: Replay) -> list[dict]:
    return [
        {
            "rule": rule,
            "weighs": bool((np.nan_to_num(played.weight, nan=1.0) != 1).any()),
            "advantage_std": known_mean(played.advantage_std),
            "collisions": known_mean(played.collisions),
            "logged_difference": played.logged_difference,
            "share": {name: known_mean(played.share[:, index]) for index, name in enumerate(replay.channels)},
            "weight": {name: known_mean(played.weight[:, index]) for index, name in enumerate(replay.channels)},
        }
        for rule in quoted_first(replay.rules)
        for played in [replay.rules[rule]]
    ]


def _reasons(left_out: dict[str, str]) -> list[str]:
    rules_of = {reason: [rule for rule in left_out if left_out[rule] == reason] for reason in left_out.values()}
    return [f"{', '.join(rules)}: {reason}." for reason, rules in rules_of.items()]


def _steps(replay: Replay) -> dict:
    """Everything by step, each a list over the steps."""

    def by_channel(values: np.ndarray) -> dict:
        return {name: values[:, index].tolist() for index, name in enumerate(replay.channels)}

    return {
        "step": replay.steps.tolist(),
        **{metric: values.tolist() for metric, values in replay.batch_metrics.items()},
        "channels": {metric: by_channel(values) for metric, values in replay.channel_metrics.items()},
        "rules": {
            rule: {
                "share": by_channel(played.share),
                "weight": by_channel(played.weight),
                "advantage_std": played.advantage_std.tolist(),
                "collisions": played.collisions.tolist(),
            }
            for rule, played in replay.rules.items()
        },
    }


def _findings(replay: Replay) -> list[str]:
    findings = _steps_between(replay.recording)
    inactive = known_mean(replay.batch_metrics["frac_groups_inactive"])
    conflict = known_mean(replay.batch_metrics["frac_conflict"])
    collisions = {rule: known_mean(replay.rules[rule].collisions) for rule in ("grpo", "gdpo")}
    if inactive > 0:
        findings.append(f"In {percent(inactive)} of groups no reward differs: nothing is learned from them.")
    if collisions["grpo"] > 0:
        findings.append(
            f"grpo gives {percent(collisions['grpo'])} of completions the same advantage as another one of their "
            f"group with different rewards; gdpo {percent(collisions['gdpo'])}."
        )
    if conflict > 0:
        findings.append(f"{percent(conflict)} of completions are pushed up by one reward and down by another.")
    if (replay.batch_metrics["prompts"] == 1).all():
        findings.append(
            "Every step has one group: its density is 0 or 1, so here dara_* is gdpo. More prompts per generation "
            "batch, or `calibration_window`, let dara_* tell dense from sparse rewards."
        )
    return [*findings, *_logged_rule(replay)]


def _steps_between(recording: Recording) -> list[str]:
    if not recording.misses_steps:
        return []
    steps = recording.table_steps
    return [
        f"The tables hold {len(steps):,} of the {steps[-1]:,} steps: nothing is known of the others. "
        "Train with `logging_steps=1` for a table of every step."
    ]


def _logged_rule(replay: Replay) -> list[str]:
    differences = {rule: played.logged_difference for rule, played in replay.rules.items()}
    if any(math.isnan(difference) for difference in differences.values()):
        return []
    same = [rule for rule, difference in differences.items() if difference <= LOGGED_BY]
    if same:
        largest = max(differences[rule] for rule in same)
        return [f"The advantages in the table are those of {' = '.join(same)} (largest difference {largest:.1g})."]
    closest = min(differences, key=differences.get)
    return [
        f"No rule gives the advantages in the table (closest: {closest}, largest difference "
        f"{differences[closest]:.2g}). Were they made with other reward weights or bounds, with `scale_rewards` or a "
        "calibration window, or is a column no reward?"
    ]


def _without_nan(value):
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
