"""The aggregation rules once more, as slow loops over Python floats: what the tests compare the tensor code with.

Written from the formulas alone, without torch and without the package, so that a mistake would have to be made twice
to go unseen. Rewards are nested lists `[group][completion][channel]`; `None`, NaN and infinities mean "not scored".
"""

import math
from dataclasses import dataclass


TAU = 1e-8  # a channel whose |A| sum up to no more than this in a group is inactive there
NEUTRAL = 1e-8  # a contribution this close to zero takes no side in a conflict


# Shared statistics


def centre(values):
    """Deviations from the mean. Subtracting the first value before averaging keeps constants at exactly 0."""
    shifted = [value - values[0] for value in values]
    mean = math.fsum(shifted) / len(shifted)
    return [value - mean for value in shifted]


def sample_std(values):
    if len(values) < 2:
        return 0.0
    return math.sqrt(math.fsum(d * d for d in centre(values)) / (len(values) - 1))


@dataclass
class Statistics:
    """What all rules share: per-group z-scores of every channel, and who was scored on what."""

    rewards: list  # (B, G, K)
    weights: list  # (K,)
    eps: float
    scored: list  # (B, G, K) bool
    scorable: list  # (B, G) bool: some channel with a non-zero weight scored the completion
    active: list  # (B, K) bool
    rated: list  # (B, K) bool: at least two completions of the group were scored
    spread: list  # (B, K) standard deviation of the group, 0 where inactive
    centred: list  # (B, G, K) r - mu, 0 where inactive or not scored
    advantages: list  # (B, G, K) A
    contributions: list  # (B, G, K) c = u * A
    lengths: list  # (B, G) how often a completion counts in the batch normalisation: once, or once per token

    @property
    def steering(self):
        return [k for k, weight in enumerate(self.weights) if weight != 0]

    @property
    def rows(self):
        """All scorable completions as (group, completion)."""
        return [(i, j) for i, group in enumerate(self.scorable) for j, counts in enumerate(group) if counts]

    @property
    def density(self):
        return [sum(group[k] for group in self.active) / len(self.active) for k in range(len(self.weights))]

    @property
    def energy(self):
        channels = range(len(self.weights))
        return [math.fsum(row[k] ** 2 for group in self.advantages for row in group) for k in channels]

    def informative(self, i):
        return any(self.active[i][k] for k in self.steering)

    def grid(self, value=0.0):
        return [[value] * len(group) for group in self.scorable]


def group_statistics(rewards, weights, eps, lengths=None):
    shape = len(rewards), len(rewards[0]), len(weights)
    scored = [[[r is not None and math.isfinite(r) for r in row] for row in group] for group in rewards]
    scorable = [[any(s and u != 0 for s, u in zip(row, weights, strict=True)) for row in group] for group in scored]
    active, rated, spread = ([[empty] * shape[2] for _ in rewards] for empty in (False, False, 0.0))
    centred, advantages = ([[[0.0] * shape[2] for _ in group] for group in rewards] for _ in range(2))
    for i, k in ((i, k) for i in range(shape[0]) for k in range(shape[2])):
        members = [j for j in range(shape[1]) if scored[i][j][k] and scorable[i][j]]
        values = [rewards[i][j][k] for j in members]
        rated[i][k] = len(values) >= 2
        if not rated[i][k] or max(values) == min(values):
            continue
        deviations, std = centre(values), sample_std(values)
        z = [d / (std + eps) for d in deviations]
        if math.fsum(map(abs, z)) <= TAU:
            continue
        active[i][k], spread[i][k] = True, std
        for j, deviation, advantage in zip(members, deviations, z, strict=True):
            centred[i][j][k], advantages[i][j][k] = deviation, advantage
    contributions = [[[u * a for u, a in zip(weights, row, strict=True)] for row in group] for group in advantages]
    lengths = [[1] * shape[1] for _ in rewards] if lengths is None else lengths
    return Statistics(
        rewards, weights, eps, scored, scorable, active, rated, spread, centred, advantages, contributions, lengths
    )


def sums(stats):
    """S = sum_k c_k."""
    return [[math.fsum(row) for row in group] for group in stats.contributions]


def repeated(scores, rows, lengths):
    return [scores[i][j] for i, j in rows for _ in range(lengths[i][j])]


def normalise(scores, rows, stats, population=None):
    """NB(S) over `rows`; mean and standard deviation come from `population`, by default from the rows themselves."""
    out = stats.grid()
    values = repeated(scores, rows, stats.lengths) if population is None else population
    std = sample_std(values)
    if std == 0.0:
        return out
    mean = values[0] + math.fsum(value - values[0] for value in values) / len(values)
    for i, j in rows:
        out[i][j] = (scores[i][j] - mean) / (std + stats.eps)
    return out


@dataclass
class Result:
    advantages: list  # (B, G)
    statistics: Statistics
    scores: list | None = None  # (B, G)
    weights: list | None = None  # (K,) or (B, K)
    density: list | None = None  # (K,) the density that weighted


# GRPO, GDPO, MO-GRPO


def grpo(stats, scale="group"):
    """Group z-score of R = sum_k u_k r_k; a channel that did not score a completion adds nothing to its sum."""
    total, batch = stats.grid(), []
    for i, group in enumerate(stats.rewards):
        members = [j for j in range(len(group)) if stats.scorable[i][j]]
        for k, u in enumerate(stats.weights):
            values = [group[j][k] if stats.scored[i][j][k] else 0.0 for j in members]
            for j, deviation in zip(members, centre(values) if values else [], strict=True):
                total[i][j] += u * deviation
        batch += [
            math.fsum(u * group[j][k] for k, u in enumerate(stats.weights) if stats.scored[i][j][k]) for j in members
        ]
    out = stats.grid()
    for i, j in stats.rows:
        if not stats.informative(i):
            continue
        group = [total[i][m] for m in range(len(total[i])) if stats.scorable[i][m]]
        std = {"group": sample_std(group), "batch": sample_std(batch), "none": None}[scale]
        out[i][j] = total[i][j] if std is None else total[i][j] / (std + stats.eps)
    return Result(out, stats)


def gdpo(stats):
    scores = sums(stats)
    return Result(normalise(scores, stats.rows, stats), stats, scores)


def mo_grpo(stats):
    scores = sums(stats)
    return Result(scores, stats, scores)


# DARA and static weights


class Window:
    """The most recent groups: which channels were active and rated, and the scores as they were weighted then."""

    def __init__(self, size):
        self.size = size
        self.groups = []

    def extend(self, stats):
        self.groups += [
            {"active": a, "rated": r, "scores": []} for a, r in zip(stats.active, stats.rated, strict=True)
        ]
        return self.groups[-max(self.size, len(stats.active)) :]


def amplify(contributions, factors, asymmetric):
    if asymmetric:
        return math.fsum(c + (w - 1) * max(c, 0.0) for c, w in zip(contributions, factors, strict=True))
    return math.fsum(w * c for c, w in zip(contributions, factors, strict=True))


def weigh_and_normalise(stats, recent, factors, asymmetric, zero_inactive_groups):
    batch = len(stats.active)
    scores = [[amplify(row, factors, asymmetric) for row in group] for group in stats.contributions]
    for i, group in enumerate(recent[-batch:]):
        group["scores"] = repeated(scores, [row for row in stats.rows if row[0] == i], stats.lengths)
    population = [value for group in recent for value in group["scores"]]
    out = stats.grid()
    if any(stats.informative(i) for i in range(batch)):
        out = normalise(scores, stats.rows, stats, population)
    if zero_inactive_groups:
        out = [row if stats.informative(i) else [0.0] * len(row) for i, row in enumerate(out)]
    return out, scores


def dara(stats, asymmetric, w_max=5.0, density_over="all", zero_inactive_groups=False, window=None):
    recent = (window or Window(1)).extend(stats)
    density = []
    for k in range(len(stats.weights)):
        counted = [group for group in recent if density_over == "all" or group["rated"][k]]
        density.append(sum(group["active"][k] for group in counted) / len(counted) if counted else 0.0)
    pi_ref = max((density[k] for k in stats.steering), default=0.0)
    factors = [min(w_max, math.sqrt(pi_ref / pi)) if pi > 0 else 1.0 for pi in density]
    out, scores = weigh_and_normalise(stats, recent, factors, asymmetric, zero_inactive_groups)
    return Result(out, stats, scores, factors, density)


def dara_sym(stats, **options):
    return dara(stats, asymmetric=False, **options)


def dara_asym(stats, **options):
    return dara(stats, asymmetric=True, **options)


def static(stats, asymmetric, static_weights, zero_inactive_groups=False, window=None):
    recent = (window or Window(1)).extend(stats)
    out, scores = weigh_and_normalise(stats, recent, static_weights, asymmetric, zero_inactive_groups)
    return Result(out, stats, scores, static_weights)


def static_sym(stats, **options):
    return static(stats, asymmetric=False, **options)


def static_asym(stats, **options):
    return static(stats, asymmetric=True, **options)


# DVAO, SAW, SA-MRPO


def dvao(stats):
    out, shares = stats.grid(), []
    for i, group in enumerate(stats.advantages):
        parts = [abs(u) * sd for u, sd in zip(stats.weights, stats.spread[i], strict=True)]
        total = math.fsum(parts)
        shares.append([part / total if total > 0 else 0.0 for part in parts])
        for j, row in enumerate(group):
            terms = zip(stats.weights, shares[i], row, strict=True)
            out[i][j] = math.fsum(math.copysign(share, u) * a for u, share, a in terms)
    return Result(out, stats, out, shares)


def scored_values(stats, k):
    return [stats.rewards[i][j][k] for i, j in stats.rows if stats.scored[i][j][k]]


def weighted_gdpo(stats, factors):
    scores = [[amplify(row, factors, asymmetric=False) for row in group] for group in stats.contributions]
    return Result(normalise(scores, stats.rows, stats), stats, scores, factors)


def saw(stats, reward_bounds, delta=1e-4):
    variation = [0.0] * len(stats.weights)
    for k in stats.steering:
        shifted = [r - reward_bounds[k][0] + delta for r in scored_values(stats, k)]
        if shifted:
            variation[k] = sample_std(shifted) / (math.fsum(shifted) / len(shifted) + delta)
    total = math.fsum(variation)
    factors = [len(stats.steering) * cv / total if total > 0 else 1.0 for cv in variation]
    return weighted_gdpo(stats, factors)


def sa_mrpo(stats, reward_bounds, gamma=0.25):
    factors = [1.0] * len(stats.weights)
    for k, (low, high) in enumerate(reward_bounds):
        values = scored_values(stats, k)
        if values:
            saturation = (math.fsum(values) / len(values) - low) / (high - low)
            factors[k] = (1.0 - min(1.0, max(0.0, saturation))) ** gamma
    return weighted_gdpo(stats, factors)


# GD2PO


def gd2po(stats, dropped, kappa_before_norm):
    """Drop conflicting completions, normalise over the kept ones, scale each group by the share that it kept."""
    kept = [(i, j) for i, j in stats.rows if not dropped(stats.contributions[i][j])]
    kappa = [0.0] * len(stats.scorable)
    for i, group in enumerate(stats.scorable):
        if any(group):
            kappa[i] = sum(1 for g, _ in kept if g == i) / sum(group)
    scores = sums(stats)
    if kappa_before_norm:
        scores = [[kappa[i] * score for score in group] for i, group in enumerate(scores)]
    out = normalise(scores, kept, stats) if len(kept) >= 2 else stats.grid()
    if not kappa_before_norm:
        out = [[kappa[i] * value for value in group] for i, group in enumerate(out)]
    return Result(out, stats, scores)


def in_conflict(row):
    return any(c > NEUTRAL for c in row) and any(c < -NEUTRAL for c in row)


def gd2po_hard(stats, kappa_before_norm=False):
    return gd2po(stats, in_conflict, kappa_before_norm)


def gd2po_snr(stats, threshold=0.8, kappa_before_norm=False):
    def dropped(row):
        return in_conflict(row) and abs(math.fsum(row)) / math.fsum(map(abs, row)) < threshold

    return gd2po(stats, dropped, kappa_before_norm)


# RVPO, CorrGRPO


def rvpo(stats, k=1.0):
    scores = stats.grid()
    for i, group in enumerate(stats.contributions):
        live = [channel for channel in stats.steering if stats.active[i][channel]]
        for j, row in enumerate(group):
            if live:
                worst = min(row[channel] for channel in live)  # taken out of the exponentials: no overflow
                mean = math.fsum(math.exp(-k * (row[channel] - worst)) for channel in live) / len(live)
                scores[i][j] = worst - math.log(mean) / k
    return Result(normalise(scores, stats.rows, stats), stats, scores)


def corr_grpo(stats, floor=1e-2):
    out = stats.grid()
    for i, group in enumerate(stats.centred):
        live = [k for k in stats.steering if stats.active[i][k]]
        length = {k: math.sqrt(math.fsum(row[k] ** 2 for row in group)) for k in live}
        agreement = 0.0  # the sum over all entries of the correlation matrix of the weighted channels
        for k in live:
            for m in live:
                sign = math.copysign(1.0, stats.weights[k]) * math.copysign(1.0, stats.weights[m])
                agreement += sign * math.fsum(row[k] / length[k] * row[m] / length[m] for row in group)
        for j, row in enumerate(group):
            total = math.fsum(stats.weights[k] * row[k] for k in live)
            out[i][j] = total / math.sqrt(max(floor, agreement))
    return Result(out, stats, out)


RULES = {
    "grpo": grpo,
    "gdpo": gdpo,
    "mo_grpo": mo_grpo,
    "dara_sym": dara_sym,
    "dara_asym": dara_asym,
    "static_sym": static_sym,
    "static_asym": static_asym,
    "dvao": dvao,
    "saw": saw,
    "sa_mrpo": sa_mrpo,
    "gd2po_hard": gd2po_hard,
    "gd2po_snr": gd2po_snr,
    "rvpo": rvpo,
    "corr_grpo": corr_grpo,
}


def compute(rule, rewards, weights=None, eps=1e-4, lengths=None, **options):
    """The advantages of `rule` for nested lists of rewards `[group][completion][channel]`.

    With `lengths`, `[group][completion]`, batch normalisation is over tokens.
    """
    weights = [1.0] * len(rewards[0][0]) if weights is None else weights
    result = RULES[rule](group_statistics(rewards, weights, eps, lengths), **options)
    for i, group in enumerate(result.statistics.scorable):
        for j, counts in enumerate(group):
            if not counts:
                result.advantages[i][j] = 0.0
    return result
