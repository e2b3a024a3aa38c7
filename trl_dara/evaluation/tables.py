"""Tables of results over several seeds."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from .stats import sample_std


def seed_table(results: Mapping[str, Mapping[int, float | None]], seeds: Sequence[int]) -> list[dict]:
    r"""
    Results of several methods with a column for every seed, whatever became of it.

    Args:
        results (`dict[str, dict[int, float]]`):
            Result by method and seed. A run that diverged has NaN.
        seeds (`list[int]`):
            All seeds that were planned.

    Returns:
        `list[dict]`: One row per method: `method`, `seed {n}` for each seed (`None` where the run is missing), `mean` and
        `std` (divisor n - 1) over the runs that exist, and `runs`, e.g. `"4 of 5"`. A diverged run makes mean and standard
        deviation NaN.
    """
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` is {list(seeds)}. Pass each seed once.")
    rows = []
    for method, by_seed in results.items():
        unplanned = sorted(set(by_seed) - set(seeds))
        if unplanned:
            raise ValueError(f"`results` of '{method}' has seeds {unplanned}, which `seeds` {list(seeds)} leaves out.")
        values = [by_seed.get(seed) for seed in seeds]
        existing = [value for value in values if value is not None]
        rows.append(
            {
                "method": method,
                **{f"seed {seed}": value for seed, value in zip(seeds, values, strict=True)},
                "mean": float(np.mean(existing)) if existing else None,
                "std": sample_std(existing) if existing else None,
                "runs": f"{len(existing)} of {len(seeds)}",
            }
        )
    return rows


def markdown_table(rows: Sequence[Mapping], decimals: int = 3) -> str:
    r"""
    Rows as a Markdown table.

    Args:
        rows (`list[dict]`):
            Rows with the same columns. `None` is shown as `missing`, NaN as `NaN`.
        decimals (`int`, *optional*, defaults to `3`):
            Digits after the point of floats.

    Returns:
        `str`
    """

    def cell(value) -> str:
        if value is None:
            return "missing"
        if isinstance(value, (float, np.floating)):
            return "NaN" if math.isnan(value) else f"{value:.{decimals}f}"
        return str(value).replace("|", r"\|")

    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([cell(row[column]) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
