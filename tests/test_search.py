"""The search for a better rule: its candidates, what counts as better, and one short run."""

import dataclasses
import json
import os
import subprocess
import sys

import pandas as pd
import pytest
import torch

from tests.markdown import ROOT
from train_scripts.benchmark.candidates import CANDIDATES, candidate, shrunken_advantages
from train_scripts.benchmark.search import compare, make_runs, markdown, reached
from trl_dara import AGGREGATIONS, CalibrationWindow, compute_advantages


def rewards(seed: int) -> torch.Tensor:
    """A sparse and a dense channel of 32 groups, `(N, K)`."""
    generator = torch.Generator().manual_seed(seed)
    sparse = (torch.rand(128, generator=generator) < 0.08).float()  # (N,)
    return torch.stack([sparse, torch.randint(-3, 4, (128,), generator=generator).float()], dim=1)  # (N, K)


def test_without_changes_it_is_dara():
    expected = compute_advantages(rewards(0), 4, "dara_sym")
    result = compute_advantages(rewards(0), 4, candidate)
    assert torch.equal(result.advantages, expected.advantages) and torch.equal(result.weights, expected.weights)
    assert 1 < result.weights[0] < 5


def test_weights_by_hand():
    # 16 groups of two, the sparse channel active in one of them: density 1/16, beside 1
    sparse = torch.tensor([1.0, 0.0] + 30 * [0.0])
    both = torch.stack([sparse, torch.tensor([0.0, 1.0]).repeat(16)], dim=1)  # (N, K)

    def weight(**settings):
        return compute_advantages(both, 2, candidate, **settings).weights.tolist()

    assert weight() == [4, 1]
    assert weight(level=0.25) == [2, 1]  # (1/4 x 16) ** 0.5
    assert weight(level=0.25, exponent=1.0) == [4, 1]
    assert weight(level=0.25, exponent=2.0) == [5, 1]
    assert weight(level=0.25, exponent=2.0, w_max=8.0) == [8, 1]
    assert weight(level=1 / 64) == [1, 1]
    opposed = compute_advantages(both, 2, candidate, agreement=True)
    assert opposed.contributions[:2].tolist() == compute_advantages(both, 2, "gdpo").contributions[:2].tolist()


def test_baseline_is_the_batch_where_prompts_do_not_differ_and_the_prompt_where_completions_do_not():
    same = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).unsqueeze(-1)  # (B, G, K)
    advantages = shrunken_advantages(same, eps=0.0).flatten()  # (N,)
    assert advantages.tolist() == [1, -1, -1, 1, 1, -1]
    steady = torch.tensor([[1.0, 1.0], [0.0, 0.0], [5.0, 5.0]]).unsqueeze(-1)  # (B, G, K)
    assert not shrunken_advantages(steady, eps=1e-4).any()


def test_needs_other_prompts_to_compare_with():
    with pytest.raises(ValueError, match="at least two prompts"):
        compute_advantages(rewards(0)[:4], 4, candidate, shrunken=True)


def test_density_over_a_window_of_groups():
    window = CalibrationWindow(size=64)
    first, second = (compute_advantages(rewards(seed), 4, candidate, window=window) for seed in (0, 1))
    assert first.weights.tolist() == compute_advantages(rewards(0), 4, candidate).weights.tolist()
    together = compute_advantages(torch.cat([rewards(0), rewards(1)]), 4, candidate)
    assert second.weights.tolist() == together.weights.tolist()


def test_every_candidate_is_a_setting_of_the_function():
    assert not set(CANDIDATES) & set(AGGREGATIONS)
    for settings in CANDIDATES.values():
        options = {name: value for name, value in settings.items() if name != "window"}
        assert compute_advantages(rewards(1), 4, candidate, **options).advantages.isfinite().all()


def results(**values: tuple[float | None, float]) -> pd.DataFrame:
    """Experiment A: steps to 0.8 and mean correctness of a rule, two seeds of which the second is 2 steps slower."""
    rows = []
    for rule, (steps, correctness) in values.items():
        for seed in (0, 1):
            reached_at = None if steps is None else steps + 2 * seed
            rows.append({"rule": rule, "seed": seed, "measure": "steps to 0.8", "value": reached_at})
            rows.append({"rule": rule, "seed": seed, "measure": "mean correctness", "value": correctness})
    return pd.DataFrame(rows).assign(experiment="A").astype({"value": float})


def test_aims():
    compared = compare(
        results(
            gdpo=(40, 1.15), dara_sym=(32, 1.06), both=(24, 1.14), free=(32, 1.14), fast=(24, 1.07), no=(None, 1.2)
        )
    )
    assert compared.loc[compared["rule"] == "dara_sym", "ratio"].tolist() == pytest.approx([32 / 40, 34 / 42])
    aims = reached(compared).set_index("rule")
    assert aims["free"].to_dict() == {"dara_sym": False, "both": True, "free": True, "fast": False, "no": False}
    assert aims["fast"].to_dict() == {"dara_sym": False, "both": True, "free": False, "fast": True, "no": False}
    report = markdown(compared)
    assert (
        "| `fast` | **0.61** [0.60, 0.62] (0.60 0.62) | **-0.080** [-0.080, -0.080] (-0.080 -0.080) | no | yes |"
        in report
    )
    assert "| `no` | – (never never) |" in report
    assert report.splitlines()[0] == "| rule | changed | A: steps to 0.8, ratio | mean correctness |"
    assert "| `fast` |  | 0.61 | -0.080 |" in report and "| `no` |  | – | +0.050 |" in report
    assert "In A: `both` is free, `free` is free, `both` is fast, `fast` is fast." in report


def test_a_reference_that_never_gets_there_gives_a_bound():
    compared = compare(results(gdpo=(None, 1.15), dara_sym=(32, 1.06)))
    assert compared["ratio"].tolist() == pytest.approx([32 / 61, 34 / 61])  # 60 steps
    assert "| `dara_sym` |  | at most 0.54 |" in markdown(compared)
    assert "| `dara_sym` | at most **0.54** [0.52, 0.56] (0.52 0.56) |" in markdown(compared)


def test_a_short_run(tmp_path):
    (run,) = [
        run for (_, rule, _), run in make_runs(["A"], [next(iter(CANDIDATES))], [0]).items() if rule in CANDIDATES
    ]
    run = dataclasses.replace(run, steps=2, prompts=4)
    command = [sys.executable, "-m", "train_scripts.benchmark.search_training", json.dumps(dataclasses.asdict(run))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert run.is_finished(tmp_path)
