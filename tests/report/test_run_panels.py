"""What the plots of runs show: the numbers that reach the axes."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from trl_dara.report.plots import plot, to_svg
from trl_dara.report.run_groups import group_runs
from trl_dara.report.run_panels import (
    energy_panels,
    line_panels,
    ratio_panels,
    size_panels,
    stable_panels,
    weight_panels,
)

from .run_logs import RECORD, run_of


CHANNELS = ("format", "correct")


def drawn(panel):
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


def lines(axes) -> dict[str, list[float]]:
    """Values of the lines by their style; solid ones that are not a single dot."""
    return {line.get_linestyle(): line.get_ydata() for line in axes.lines if len(line.get_ydata()) > 1}


def weighed(seed: int = 0, **values):
    """Two channels over three steps; format has a quarter, a hundredth, then none of the density of correct."""
    density = np.array([[0.2, 0.8], [0.009, 0.9], [0.0, 0.5]])
    weight = np.array([[2.0, 1.0], [5.0, 1.0], [1.0, 1.0]])
    given = {"mean": density, "density": density, "weight": weight, "energy": density * 0.75} | values
    return run_of(f"run{seed}", record=RECORD | {"seed": seed}, channels=CHANNELS, **given)


def test_curves_are_medians_with_a_band():
    runs = [run_of(f"s{seed}", record=RECORD | {"seed": seed}, mean=[seed, 2 * seed, seed]) for seed in (0, 1, 5)]
    (panel,) = line_panels(group_runs(runs, {}), ["format", "other"], "mean")
    axes = drawn(panel)
    assert panel.title == "format" and lines(axes)["-"].tolist() == [1, 2, 1]
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0.5, 6.0)  # the quartiles of 0, 2, 10 are 1 and 6


def test_weights_are_shown_of_channels_that_are_weighed():
    assert [panel.title for panel in weight_panels(group_runs([weighed()], {}), CHANNELS)] == ["format"]


def test_a_constant_weight_is_within_its_plot():
    (panel,) = weight_panels(group_runs([run_of(mean=[0.5] * 50, weight=[1.4] * 50)], {}), ["format"])
    low, high = drawn(panel).get_ylim()
    assert low == 0 and high > 1.4 * 1.04


def test_letters_that_a_font_lacks_are_no_warning_on_a_page(recwarn):
    with plot() as (figure, axes):
        axes.set_title("奖励")
        assert "奖励" in to_svg(figure, "title")
    assert not recwarn.list


def test_energy_ratio_with_and_without_the_weights():
    (panel,) = ratio_panels(group_runs([weighed()], {}), CHANNELS)
    axes = drawn(panel)
    assert panel.title == "format / correct" and axes.get_yscale() == "log"
    shown = lines(axes)
    assert shown["-"] == pytest.approx([1.0, 0.25, 0.0]) and shown[":"] == pytest.approx([0.25, 0.01, 0.0])
    assert list(shown["--"]) == [1, 1]
    nothing = weighed(energy=np.full((3, 2), np.nan))  # the density is proportional to the energy
    assert lines(drawn(ratio_panels(group_runs([nothing], {}), CHANNELS)[0]))["-"] == pytest.approx([1.0, 0.25, 0.0])


def test_a_monitor_is_no_reference_of_the_energy_ratio():
    run = weighed()
    run.record["reward_weights"] = {"format": 1.0, "correct": 0.0}
    assert ratio_panels(group_runs([run], {}), CHANNELS) == []


def test_energy_at_the_step_at_which_the_weights_add_most():
    (panel,) = energy_panels(group_runs([weighed(0), weighed(1)], {}))
    assert panel.title == "dara_asym, step 1"  # (4 - 1) 0.2 against (25 - 1) 0.009
    widths = [patch.get_width() for patch in drawn(panel).patches]
    assert widths == pytest.approx([0.2, 0.8, 0.8, 0.8])  # before, then after
    plain = weighed(weight=np.ones((3, 2)))
    assert energy_panels(group_runs([plain], {})) == []


def test_stable_crossings_have_a_mean_where_every_run_crosses():
    def rising(name: str, seed: int, at: int, top: float):
        return run_of(name, record=RECORD | {"seed": seed}, mean=np.repeat([0.0, top], [at - 1, 61 - at]))

    (panel,) = stable_panels(group_runs([rising("a", 0, 11, 1.0), rising("b", 1, 21, 0.85)], {}), ["format"], {})
    axes = drawn(panel)
    (bar,) = axes.containers
    mean = bar.lines[0].get_ydata()
    # The means of 10 steps reach 0.5 and 0.8 with the fifth and eighth 1, with the sixth and tenth 0.85
    assert mean.tolist() == [(15 + 26) / 2, (18 + 30) / 2]
    dots = [line.get_ydata().tolist() for line in axes.lines if line.get_marker() == "o" and len(line.get_ydata())]
    assert dots == [[15, 26], [18, 30], [19], [20], [20], [20]]


def test_group_sizes():
    runs = [
        run_of(
            f"{size}-{seed}",
            record=RECORD | {"num_generations": size, "prompts": 256 // size, "seed": seed},
            mean=np.linspace(0, 1, 101) * size / 8,
            density=np.full(101, size / 32),
        )
        for size in (4, 8)
        for seed in (0, 1)
    ]
    density, first = size_panels(group_runs(runs, {}), ["format"], {})
    assert [density.title, first.title] == ["format: density", "format: first step at 80 %"]
    axes = drawn(density)
    assert axes.containers[0].lines[0].get_ydata().tolist() == [0.125, 0.25]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "8"]
    assert [label.get_text() for label in axes.get_legend().get_texts()] == ["dara_asym"]
    (bar,) = drawn(first).containers
    assert bar.lines[0].get_ydata().tolist() == [81]  # with 4 completions it is never reached
    assert size_panels(group_runs(runs[:2], {}), ["format"], {}) == []
