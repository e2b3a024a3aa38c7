"""Mean 0 and standard deviation 1, without the traps of floating point."""

import math
from typing import NamedTuple

import torch


# In units of the dtype's precision and of half the range: a value this close to the mean is the mean, up to rounding.
ROUNDING = 16


class Standardized(NamedTuple):
    """What [`standardize`] returns; the last two with the reduced dimension kept as 1."""

    values: torch.Tensor  # standardised, 0 where there is no value or the reference is constant
    std: torch.Tensor  # sample standard deviation of the reference, 0 where it is constant
    varies: torch.Tensor  # whether the reference varies


def nan_mask(values: torch.Tensor) -> torch.Tensor | None:
    """Where values are NaN; `None` if none is, which one pass that needs no memory tells and which spares others."""
    return values.isnan() if math.isnan(values.amax().item()) else None


def standardize(
    values: torch.Tensor,
    dim: int,
    eps: float,
    reference: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
) -> Standardized:
    r"""
    `(values - mean) / (std + eps)` along one dimension over what is not NaN, with the sample standard deviation.

    Constant values give exactly 0. A plain float32 mean differs from the values by a rounding error, which the
    division by a tiny `std + eps` turns into an advantage of up to 0.2; here the values are first mapped from their
    range to [-1, 1], so that squares of huge or tiny rewards neither overflow nor vanish. The map takes the extremes
    to exactly -1 and 1 and the negated values to the exact negative, so opposed rewards cancel without a residue. A
    value that is the mean gives exactly 0: its rounding error is above `ops.NEGLIGIBLE` and would take a side.

    Args:
        values (`torch.Tensor`):
            Values, NaN where there is none.
        dim (`int`):
            Dimension to normalise along.
        eps (`float`):
            Added to the standard deviation.
        reference (`torch.Tensor`, *optional*):
            Values from which mean and standard deviation are taken, a superset of `values`; by default `values`.
        counts (`torch.Tensor`, *optional*):
            How often each entry of the reference counts in mean and standard deviation; by default once.

    Returns:
        [`Standardized`]
    """
    given, reference = values, values if reference is None else reference
    missing = nan_mask(reference) if counts is None else reference.isnan() | (counts <= 0)

    def fill(x: torch.Tensor, value: float) -> torch.Tensor:
        return x if missing is None else x.masked_fill(missing, value)

    low = fill(reference, torch.inf).amin(dim, keepdim=True)  # (..., 1, ...)
    high = fill(reference, -torch.inf).amax(dim, keepdim=True)  # (..., 1, ...)
    varies = high > low
    constant = ~varies
    spread = (high - low).masked_fill_(constant, 1).clamp_(max=torch.finfo(values.dtype).max)

    def to_unit(x: torch.Tensor) -> torch.Tensor:
        return (x - low).sub_(high - x).div_(spread).clamp_(-1, 1)

    def total(x: torch.Tensor) -> torch.Tensor:
        return (x if counts is None else x * counts).sum(dim, keepdim=True)  # (..., 1, ...)

    count = low.new_full((), reference.shape[dim]) if missing is None else total(~missing)
    unit = fill(to_unit(reference), 0)
    mean = total(unit) / count
    centred = fill(unit.sub_(mean), 0)
    std = (total(centred.square()) / (count - 1)).sqrt_()
    if given is not reference:
        centred = (to_unit(given) - mean).masked_fill_(given.isnan(), 0)
    centred = torch.hardshrink(centred, ROUNDING * torch.finfo(centred.dtype).eps)
    # `std` and `eps` are in units of half the range; an infinite divisor makes exact zeros
    divisor = (std + 2 * eps / spread).masked_fill_(constant, torch.inf)
    return Standardized(centred.div_(divisor), (std * (spread / 2)).masked_fill_(constant, 0), varies)
