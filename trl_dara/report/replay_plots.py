"""The plots of a replay."""

import numpy as np
from markupsafe import Markup

from .plots import (
    HIGH,
    LIVE,
    LOW,
    NOTHING,
    WEIGHTED,
    as_share,
    color_of,
    draw_bars,
    draw_series,
    from_zero,
    line_style,
    over_steps,
    plot,
    to_svg,
)
from .replay import Replay
from .verdicts import known_mean, quoted_first


def replay_plots(replay: Replay) -> list[dict]:
    """
    Draw a replay.

    Args:
        replay ([`Replay`]):
            A replayed recording.

    Returns:
        `list[dict]`: `title`, `text` (how to read it), `svg` and `legend` (labels and colours) of each plot.
    """
    groups = [("too hard: all low", LOW), ("differ", LIVE), ("too easy: all high", HIGH), ("not comparable", NOTHING)]
    energy = [("before", NOTHING), ("after", WEIGHTED)]
    return [
        _panel("Mean reward", "From the lowest (0 %) to the highest reward, declared or else seen.", _reward(replay)),
        _panel("Density", "Share of groups in which the reward differs between completions.", _density(replay)),
        _panel("Weights", "What dara_asym gives a channel: more to the sparser, up to 5.", _weights(replay)),
        _panel("Share of the signal", "Share of each channel in the advantages, by rule.", _shares(replay)),
        _panel("Groups", "Where a channel can teach, and why not elsewhere.", _groups(replay), groups),
        _panel(
            "Energy",
            "Squared advantages per completion, before and after dara_sym's weights.",
            _energy(replay),
            energy,
        ),
    ]


def _panel(title: str, text: str, svg: Markup, legend: list[tuple[str, str]] | None = None) -> dict:
    return {"title": title, "text": text, "svg": svg, "legend": legend or []}


def _lines(replay: Replay, values: np.ndarray, label: str, share: bool) -> Markup:
    """One line per channel; `values` has shape `(T, K)`."""
    with plot() as (figure, axes):
        for index in range(len(replay.channels)):
            draw_series(axes, replay.steps, values[:, index], color_of(index), linestyle=line_style(index))
        over_steps(axes)
        if share:
            as_share(axes)
        else:
            from_zero(axes)
        return to_svg(figure, label)


def _means(values: np.ndarray) -> np.ndarray:
    """Mean over the steps, `(T, K)` to `(K,)`."""
    return np.array([known_mean(column) for column in values.T])


def _reward(replay: Replay) -> Markup:
    metrics = replay.channel_metrics  # (T, K) each
    scaled = []
    for index, bounds in enumerate(replay.bounds):
        mean, low, high = (metrics[name][:, index] for name in ("mean", "minimum", "maximum"))  # (T,) each
        low, high = bounds or (np.nanmin(low, initial=np.inf), np.nanmax(high, initial=-np.inf))
        scaled.append((mean - low) / (high - low) if high > low else np.full_like(mean, np.nan))
    return _lines(replay, np.array(scaled).T, "mean reward of each channel over the steps", share=True)


def _density(replay: Replay) -> Markup:
    return _lines(replay, replay.channel_metrics["density"], "density of each channel over the steps", share=True)


def _weights(replay: Replay) -> Markup:
    return _lines(replay, replay.rules["dara_asym"].weight, "weights of dara_asym over the steps", share=False)


def _shares(replay: Replay) -> Markup:
    rules = quoted_first(replay.rules)
    shares = np.array([_means(replay.rules[rule].share) for rule in rules])  # (rules, K)
    with plot(height=0.9 + 0.2 * len(rules)) as (figure, axes):
        draw_bars(axes, rules, [(shares[:, index], color_of(index)) for index in range(shares.shape[1])])
        as_share(axes, "x")
        return to_svg(figure, "share of each channel in the advantages of each rule")


def _groups(replay: Replay) -> Markup:
    low, live, high = (
        np.nan_to_num(_means(replay.channel_metrics[name])) for name in ("dead_low", "density", "dead_high")
    )  # (K,) each
    with plot(height=0.8 + 0.3 * len(replay.channels)) as (figure, axes):
        rest = np.clip(1 - low - live - high, 0, 1)
        draw_bars(axes, replay.channels, [(low, LOW), (live, LIVE), (high, HIGH), (rest, NOTHING)])
        as_share(axes, "x")
        return to_svg(figure, "share of groups that are all low, differ, are all high")


def _energy(replay: Replay) -> Markup:
    energy = replay.channel_metrics["energy"]  # (T, K)
    weighted = energy * replay.rules["dara_sym"].weight ** 2  # (T, K)
    with plot(height=0.8 + 0.3 * len(replay.channels)) as (figure, axes):
        draw_bars(axes, replay.channels, [(_means(energy), NOTHING)])
        axes.barh(
            range(len(replay.channels)),
            np.nan_to_num(_means(weighted)),
            height=0.72,
            facecolor="none",
            edgecolor=WEIGHTED,
            linewidth=1.6,
        )
        return to_svg(figure, "energy of each channel before and after the weights of dara_sym")
