"""Runs side by side as plain data: what the terminal, the page and the Markdown table show."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .run_groups import HOLD, WINDOW, RunGroup
from .run_tables import channel_table, common_end
from .runs import TrainingRun
from .verdicts import ChannelHistory, Verdict, fair_shares, judge, known_mean


SETTINGS_OF_A_RULE = (
    "aggregation_kwargs",
    "calibration_window",
    "rule",
    "seed",
    "name",
    "steps",
    "task",
    "resumed_at",
)
W_MAX = 5.0  # default of dara_*


def summarize_runs(groups: Sequence[RunGroup], bounds: Mapping[str, Sequence[float]]) -> dict:
    """
    Summarise runs.

    Args:
        groups (`list[RunGroup]`):
            The runs.
        bounds (`dict[str, list[float]]`):
            Lowest and highest reward by channel, where the runs do not say.

    Returns:
        `dict`: `groups` (label, runs, verdicts of the channels, findings), `tables` (one for each channel), their `scope`
        and `findings` on all runs.
    """
    channels = list(dict.fromkeys(channel for group in groups for channel in group.channels))
    end = common_end(groups)
    return {
        "groups": [
            {
                "label": group.label,
                "runs": [_describe(run, group.label) for run in group.runs],
                "channels": [_verdict(group, channel) for channel in group.channels],
                "findings": _equation_6(group),
            }
            for group in groups
        ],
        "tables": [channel_table(groups, channel, bounds, end) for channel in channels],
        "scope": _scope(groups, end),
        "findings": _findings(groups),
    }


def run_title(run: TrainingRun) -> str:
    """How a run is called within its group."""
    return run.name if run.record.get("seed") is None else f"seed {run.record['seed']}"


def _describe(run: TrainingRun, label: str) -> dict:
    steps = f"{run.last_step}" if run.max_steps is None else f"{run.last_step} of {run.max_steps}"
    progress = f"{steps} step" if steps == "1" else f"{steps} steps"
    notes = list(run.notes)
    if run.max_steps is not None and run.last_step < run.max_steps:
        notes.insert(0, f"Going on, or stopped, at step {run.last_step} of {run.max_steps}.")
    if run.record.get("resumed_at"):
        notes.append(f"Resumed at step {', '.join(map(str, run.record['resumed_at']))}.")
    if run.steps[-1] < run.last_step - run.interval:
        notes.append(f"The last logged step is {run.steps[-1]}.")
    if run.record.get("rule") is None and label == run.name:
        notes.append("Its rule was not written down: name it with --label.")
    logged = "every step" if run.interval == 1 else f"every {run.interval} steps"
    return {
        "name": run.name,
        "title": run_title(run),
        "seed": run.record.get("seed"),
        "source": str(run.source),
        "progress": progress,
        "logged": logged,
        "notes": notes,
    }


def _history(run: TrainingRun, channel: str) -> ChannelHistory:
    own = {metric: values[:, run.channels.index(channel)] for metric, values in run.values.items()}  # (T,) each
    mean, density = own["mean"], own["density"]
    size = np.maximum(1.0, np.abs(mean))
    constant = (own["std"] <= 1e-6 * size) & ~(density > 0)  # (T,); float32 leaves a residue
    rule = run.record.get("rule") or "the run's rule"
    weights = [(run.record.get("reward_weights") or {}).get(name, 1.0) for name in run.channels]
    alive = [bool((values > 0).any()) for values in run.values["density"].T]
    index = run.channels.index(channel)
    shares = {} if np.isnan(own["share"]).all() else {rule: known_mean(own["share"])}
    return ChannelHistory(
        name=channel,
        steps=run.steps,
        mean=np.where(constant, _rounded(mean), mean),
        constant=constant,
        density=density,
        dead_low=own["dead_low"],
        dead_high=own["dead_high"],
        shares=shares,
        fair_share=fair_shares(weights, alive)[index],
        weight=weights[index],
        judged_by="gdpo" if rule == "grpo" else rule,  # grpo drowns channels, which `judge` says by itself
    )


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.array([float(f"{value:.6g}") for value in values])


def _pooled(histories: Sequence[ChannelHistory]) -> ChannelHistory | None:
    """Means over the runs at the steps that all have logged; `None` where there is no such step."""
    common = histories[0].steps
    for history in histories[1:]:
        common = np.intersect1d(common, history.steps)
    if len(histories) == 1 or not len(common):
        return histories[0] if len(histories) == 1 else None

    def mean(values_of: Callable[[ChannelHistory], np.ndarray]) -> np.ndarray:
        rows = np.array([values_of(history)[np.isin(history.steps, common)] for history in histories])  # (runs, T)
        return np.array([known_mean(column) for column in rows.T])  # (T,)

    first = histories[0]
    shares = {rule: known_mean(np.array([h.shares.get(rule, np.nan) for h in histories])) for rule in first.shares}
    return ChannelHistory(
        name=first.name,
        steps=common,
        mean=mean(lambda history: history.mean),
        constant=mean(lambda history: history.constant) == 1,
        density=mean(lambda history: history.density),
        dead_low=mean(lambda history: history.dead_low),
        dead_high=mean(lambda history: history.dead_high),
        shares=shares,
        fair_share=float(np.mean([history.fair_share for history in histories])),
        weight=first.weight,
        judged_by=first.judged_by,
    )


def _verdict(group: RunGroup, channel: str) -> dict:
    """The verdict on the mean over the runs, and that of each run on which it does not fit."""
    runs = [run for run in group.runs if channel in run.channels]
    histories = [_history(run, channel) for run in runs]
    own = [_judge(history) for history in histories]
    pooled = _pooled(histories)
    verdict = own[0] if pooled is None else _judge(pooled)
    others = [
        f"{run_title(run)}: {of_run.text}"
        for run, of_run in zip(runs, own, strict=True)
        if of_run.kind != verdict.kind or pooled is None
    ]
    return {"name": channel, "verdict": verdict.kind, "sentence": verdict.text, "others": others}


def _judge(history: ChannelHistory) -> Verdict:
    scored = ~np.isnan(history.mean)
    known = ~np.isnan(history.density)
    if known.any() or not scored.any() or history.constant[scored].all():
        return judge(history)
    values = history.mean[scored]
    text = f"mean reward {values[0]:.3g} → {values[-1]:.3g}; no density was logged, so nothing says how much it steers"
    return Verdict(history.name, "not known", text)


def _equation_6(group: RunGroup) -> list[str]:
    """Whether the logged weights are those that DARA's Equation 6 gives for the logged densities."""
    differences = [difference for run in group.runs if (difference := _weight_difference(run)) is not None]
    if not differences:
        return []
    largest = max(differences)
    if largest <= 1e-4:
        return [f"The weights are those of DARA's Equation 6 (largest difference {largest:.1g})."]
    known = str(group.runs[0].record.get("rule")).startswith("dara")
    return [f"The weights differ from DARA's Equation 6 by up to {largest:.2g}."] if known else []


def _weight_difference(run: TrainingRun) -> float | None:
    rule = run.record.get("rule")
    density, calibrated = run.values["density"], run.values["calibrated_density"]  # (T, K)
    density = np.where(np.isnan(calibrated), density, calibrated)
    weight, scheduled = run.values["weight"], run.values["reward_weight"]  # (T, K)
    user = np.array([(run.record.get("reward_weights") or {}).get(name, 1.0) for name in run.channels])  # (K,)
    steers = np.where(np.isnan(scheduled), user, scheduled) != 0  # (T, K)
    told = ~np.isnan(density) & ~np.isnan(weight)  # (T, K)
    foreign = rule is None and (weight[told] == 1).all()
    if (rule is not None and not rule.startswith("dara")) or run.batches_per_value > 1 or foreign:
        return None
    w_max = float((run.record.get("aggregation_kwargs") or {}).get("w_max", W_MAX))
    reference = np.where(steers & told, density, 0).max(axis=1, keepdims=True)  # (T, 1)
    ratio = np.sqrt(reference / np.where(density > 0, density, 1))  # (T, K)
    expected = np.where(density > 0, np.minimum(w_max, ratio), 1.0)
    compared = told & steers
    return float(np.abs(weight - expected)[compared].max()) if compared.any() else None


def _scope(groups: Sequence[RunGroup], end: int) -> str:
    """What the means and the crossings of the tables are over."""
    shared = any(run.last_step != end for group in groups for run in group.runs)
    steps = f"steps 1 to {end}" + (", which all runs have" if shared else "")
    return (
        f"Mean reward, density, weight and share are means over {steps}. First: a single logged value of the mean reward is "
        f"at a share of its range. Stable: the mean of {WINDOW} generation batches is there, and stays for {HOLD} more."
    )


def _findings(groups: Sequence[RunGroup]) -> list[str]:
    findings = []
    records = [run.record for group in groups for run in group.runs if run.record]
    for key in dict.fromkeys(key for record in records for key in record):
        values = dict.fromkeys(str(record.get(key)) for record in records)
        if len(values) > 1 and key not in SETTINGS_OF_A_RULE:
            findings.append(f"The runs differ in {key}: {', '.join(values)}.")
    for group in groups:
        titles = [run_title(run) for run in group.runs]
        for title in dict.fromkeys(titles):
            if titles.count(title) > 1:
                findings.append(f"{group.label} has {titles.count(title)} runs of {title}; each counts.")
    return findings
