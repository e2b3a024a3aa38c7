"""
Each rule on a batch small enough for pencil and paper, the arithmetic in the test's docstring, `eps` = 0.

Two groups of four completions. A group with one success of four has mean 1/4 and standard deviation sqrt((9/16 + 3/16)
/ 3) = 1/2, so its success is at A = 1.5 and its failures are at -0.5; three successes of four mirror that. Hence

| | rewards, group 1 | A, group 1 | rewards, group 2 | A, group 2 |
| --- | --- | --- | --- | --- |
| channel a | 1 0 0 0 | 1.5 -.5 -.5 -.5 | 1 1 1 0 | .5 .5 .5 -1.5 |
| channel b | 1 1 1 0 | .5 .5 .5 -1.5 | 0 0 0 0 | 0 0 0 0 |
| sum | 2 1 1 0 | 2 0 0 -2 | 1 1 1 0 | .5 .5 .5 -1.5 |
"""

import pytest
import torch

from trl_dara import compute_advantages

from .support import channels, compute


REWARDS = channels("1 0 0 0 | 1 1 1 0", "1 1 1 0 | 0 0 0 0")
BOUNDS = [(0.0, 1.0), (0.0, 1.0)]


def check(rule, expected, rewards=REWARDS, weights=None, **options):
    """Advantages, given group by group, to the five decimals that the docstrings carry."""
    result = compute_advantages(rewards, 4, rule, weights, eps=0.0, **options)
    flat = torch.tensor(expected, dtype=torch.float64).flatten()
    torch.testing.assert_close(result.advantages, flat, rtol=0, atol=5.1e-6)
    return result


# Sums and normalised sums


def test_grpo():
    """
    Sums R = 2 1 1 0 | 1 1 1 0. Group 1: mean 1, std sqrt((1 + 1) / 3) = .81650, so 1 / .81650 = 1.22474. Group 2:
    three successes of four. Unscaled: R less its group mean, 1 and 3/4. Over the batch: mean 7/8, squares 4 + 6 * 1 -
    1 = 9, std sqrt((9 - 8 * 49/64) / 7) = sqrt(2.875 / 7) = .64087.
    """
    check("grpo", [[1.22474, 0, 0, -1.22474], [0.5, 0.5, 0.5, -1.5]])
    check("grpo", [[1, 0, 0, -1], [0.25, 0.25, 0.25, -0.75]], scale="none")
    check("grpo", [[1.56038, 0, 0, -1.56038], [0.39009, 0.39009, 0.39009, -1.17028]], scale="batch")


def test_mo_grpo():
    """The sums of A in the table above."""
    check("mo_grpo", [[2, 0, 0, -2], [0.5, 0.5, 0.5, -1.5]])


def test_gdpo():
    """
    S = 2 0 0 -2 | .5 .5 .5 -1.5 has mean 0 and squares 8 + 3 = 11, std sqrt(11 / 7) = 1.25357. 2 / 1.25357 = 1.59545.
    """
    check("gdpo", [[1.59545, 0, 0, -1.59545], [0.39886, 0.39886, 0.39886, -1.19659]])


# DARA and static weights


def test_dara_sym():
    """
    a is active in both groups, b in one: pi = (1, 1/2), w = (1, sqrt 2 = 1.41421). S = 1.5 + .70711 = 2.20711, -.5 +
    .70711 = .20711 twice, -.5 - 2.12132 = -2.62132 | .5 .5 .5 -1.5. Mean 0, squares 4.87132 + 2 * .04289 + 6.87132 + 3
    = 14.82843, std sqrt(14.82843 / 7) = 1.45545. 2.20711 / 1.45545 = 1.51644.
    """
    expected = [[1.51644, 0.14230, 0.14230, -1.80103], [0.34354, 0.34354, 0.34354, -1.03061]]
    result = check("dara_sym", expected)
    assert result.density.tolist() == [1.0, 0.5]
    assert result.weights.tolist() == pytest.approx([1.0, 2**0.5])


def test_dara_asym():
    """
    As above, but w multiplies only positive contributions: S = 2.20711 .20711 .20711 -.5 - 1.5 = -2 | .5 .5 .5 -1.5.
    Sum .62132, mean .07766; squares 4.87132 + .08579 + 4 + 3 = 11.95711, less 8 * .07766^2 = .04825 is 11.90886, std
    sqrt(11.90886 / 7) = 1.30433. (2.20711 - .07766) / 1.30433 = 1.63260.
    """
    expected = [[1.63260, 0.09924, 0.09924, -1.59290], [0.32380, 0.32380, 0.32380, -1.20956]]
    check("dara_asym", expected)


def test_static_sym():
    """
    Weights (1, 5): S = 1.5 + 2.5 = 4, -.5 + 2.5 = 2 twice, -.5 - 7.5 = -8 | .5 .5 .5 -1.5. Mean 0, squares 16 + 4 + 4
    + 64 + 3 = 91, std sqrt(91 / 7) = sqrt 13 = 3.60555.
    """
    expected = [[1.10940, 0.55470, 0.55470, -2.21880], [0.13868, 0.13868, 0.13868, -0.41603]]
    check("static_sym", expected, static_weights=[1, 5])


def test_static_asym():
    """
    S = 4 2 2 -.5 - 1.5 = -2 | .5 .5 .5 -1.5. Mean 6 / 8 = .75, squares 16 + 4 + 4 + 4 + 3 = 31, std sqrt((31 - 8 *
    .5625) / 7) = sqrt(26.5 / 7) = 1.94569. (4 - .75) / 1.94569 = 1.67036.
    """
    expected = [[1.67036, 0.64245, 0.64245, -1.41338], [-0.12849, -0.12849, -0.12849, -1.15640]]
    check("static_asym", expected, static_weights=[1, 5])


# Weights from spread and saturation


def test_dvao():
    """
    b three times as large: 3 3 3 0 has std 1.5 and the same A. Group 1: shares .5 / 2 = 1/4 and 1.5 / 2 = 3/4, so
    1/4 * 1.5 + 3/4 * .5 = .75, 1/4 * -.5 + 3/4 * .5 = .25 twice, 1/4 * -.5 + 3/4 * -1.5 = -1.25. Group 2: a alone.
    With user weights (3, -1) the shares of group 1 are 1.5 / 3 = 1/2 each, and b is subtracted: 1/2 * 1.5 - 1/2 * .5 =
    .5, -1/2 twice, -1/4 + 3/4 = .5.
    """
    rewards = REWARDS * torch.tensor([1.0, 3.0])
    result = check("dvao", [[0.75, 0.25, 0.25, -1.25], [0.5, 0.5, 0.5, -1.5]], rewards)
    assert result.weights.tolist() == [[0.25, 0.75], [1.0, 0.0]]
    check("dvao", [[0.5, -0.5, -0.5, 0.5], [0.5, 0.5, 0.5, -1.5]], rewards, weights=[3.0, -1.0])


def test_saw():
    """
    Bounds (0, 1), delta 1/16. a: mean 1/2, std sqrt(8 * 1/4 / 7) = .53452, CV .53452 / (1/2 + 1/8) = .85524. b: mean
    3/8, std sqrt((3 * 25/64 + 5 * 9/64) / 7) = sqrt(1.875 / 7) = .51755, CV .51755 / (3/8 + 1/8) = 1.03510. w = 2 *
    (.85524, 1.03510) / 1.89034 = (.90485, 1.09515). S = 1.35728 + .54757 = 1.90485, -.45243 + .54757 = .09515 twice,
    -.45243 - 1.64272 = -2.09515 | .45243 .45243 .45243 -1.35728. Mean 0, squares 3.62846 + .01811 + 4.38965 + .61407 +
    1.84220 = 10.49248, std sqrt(10.49248 / 7) = 1.22431. 1.90485 / 1.22431 = 1.55586.
    """
    expected = [[1.55586, 0.07772, 0.07772, -1.71129], [0.36954, 0.36954, 0.36954, -1.10861]]
    result = check("saw", expected, reward_bounds=BOUNDS, delta=1 / 16)
    assert result.weights.tolist() == pytest.approx([0.90485, 1.09515], abs=1e-5)


def test_sa_mrpo():
    """
    Bounds (0, 1): saturations are the means 1/2 and 3/8. gamma = 1: w = (1/2, 5/8), S = .75 + .3125 = 1.0625, -.25 +
    .3125 = .0625 twice, -.25 - .9375 = -1.1875 | .25 .25 .25 -.75. Mean 0, squares 1.12891 + .00781 + 1.41016 + .75 =
    3.29688, std sqrt(3.29688 / 7) = .68628. 1.0625 / .68628 = 1.54820. By default gamma = 1/4: w = (.5^.25, .625^.25).
    """
    expected = [[1.54820, 0.09107, 0.09107, -1.73034], [0.36428, 0.36428, 0.36428, -1.09285]]
    check("sa_mrpo", expected, reward_bounds=BOUNDS, gamma=1.0)
    weights = compute("sa_mrpo", REWARDS, reward_bounds=BOUNDS).weights
    assert weights.tolist() == pytest.approx([0.84090, 0.88914], abs=1e-5)


# Conflicts


def test_gd2po_hard():
    """
    Completions 2 and 3 of group 1 have contributions (-.5, .5): in conflict. Kept S = 2 -2 | .5 .5 .5 -1.5, mean 0,
    squares 11, std sqrt(11 / 5) = 1.48324; kappa = (1/2, 1). 1/2 * 2 / 1.48324 = .67420; .5 / 1.48324 = .33710. kappa
    before the normalisation: S = 1 -1 | .5 .5 .5 -1.5, squares 5, std sqrt(5 / 5) = 1.
    """
    result = check("gd2po_hard", [[0.67420, 0, 0, -0.67420], [0.33710, 0.33710, 0.33710, -1.01130]])
    assert result.kept.tolist() == [True, False, False, True, True, True, True, True]
    assert result.kappa.tolist() == [0.5, 1.0]
    check("gd2po_hard", [[1, 0, 0, -1], [0.5, 0.5, 0.5, -1.5]], kappa_before_norm=True)


def test_gd2po_snr():
    """
    User weights (1, 5): completions 2 and 3 of group 1 have (-.5, 2.5), of which |2| / 3 = .667 is left. Below .8:
    dropped. Kept S = 4 -8 | .5 .5 .5 -1.5, sum -4, mean -2/3, squares 16 + 64 + 3 = 83, std sqrt((83 - 6 * 4/9) / 5) =
    sqrt(80.33333 / 5) = 4.00832. 1/2 * (4 + .66667) / 4.00832 = .58212. With a threshold of .6 they stay, and so does
    everything: gdpo.
    """
    expected = [[0.58212, 0, 0, -0.91476], [0.29106, 0.29106, 0.29106, -0.20790]]
    result = check("gd2po_snr", expected, weights=[1.0, 5.0])
    assert result.kappa.tolist() == [0.5, 1.0]
    gdpo = [[1.10940, 0.55470, 0.55470, -2.21880], [0.13868, 0.13868, 0.13868, -0.41603]]
    assert check("gd2po_snr", gdpo, weights=[1.0, 5.0], threshold=0.6).kept.all()


# Soft minimum, correlations


def test_rvpo():
    """
    The soft minimum of m + d and m - d is m - log cosh(k d) / k; in group 1, d = 1/2 throughout and log cosh(1/2) =
    .12011, so S = 1 - .12011 = .87989, -.12011 twice, -1.12011. Group 2: a alone, .5 .5 .5 -1.5. A third group, in
    which nothing varies: 0. Sum -.48046, mean -.04004; squares .77420 + .02886 + 1.25466 + 3 = 5.05771, std
    sqrt((5.05771 - 12 * .00160) / 11) = .67679. (.87989 + .04004) / .67679 = 1.35925; the third group gets .04004 /
    .67679 = .05916.
    """
    rewards = torch.cat([REWARDS, torch.full((1, 4, 2), 0.7, dtype=torch.float64)])
    group_2 = [0.79794, 0.79794, 0.79794, -2.15719]
    expected = [[1.35925, -0.11832, -0.11832, -1.59588], group_2, [0.05916] * 4]
    check("rvpo", expected, rewards)


def test_corr_grpo():
    """
    Centred rewards .75 -.25 -.25 -.25 and .25 .25 .25 -.75, sum 1 0 0 -1. Squares .75 each, products .1875 - .0625 -
    .0625 + .1875 = .25, correlation 1/3; 1 + 1 + 2/3 = 8/3 in all, 1 / sqrt(8/3) = .61237. Group 2: a alone,
    correlation 1 with itself. Opposed, b = 0 .5 .5 .5: correlation -1, sum 0, so the floor counts: (.75 - .375) /
    sqrt(.01) = 3.75.
    """
    group_2 = [0.25, 0.25, 0.25, -0.75]
    check("corr_grpo", [[0.61237, 0, 0, -0.61237], group_2])
    opposed = channels("1 0 0 0 | 1 1 1 0", "0 .5 .5 .5 | 0 0 0 0")
    check("corr_grpo", [[3.75, -1.25, -1.25, -1.25], group_2], opposed)


# Normalisation over tokens


def test_token_normalisation():
    """
    The first completion of gdpo's example has three tokens, the others one: S over tokens is 2 2 2 0 0 -2 .5 .5 .5
    -1.5, sum 4, mean .4, squares 12 + 4 + 3 = 19, std sqrt((19 - 10 * .16) / 9) = sqrt(17.4 / 9) = 1.39044. (2 - .4) /
    1.39044 = 1.15071; what was 0 is now -.4 / 1.39044 = -.28768.
    """
    lengths = torch.tensor([3, 1, 1, 1, 1, 1, 1, 1])
    expected = [[1.15071, -0.28768, -0.28768, -1.72607], [0.07192, 0.07192, 0.07192, -1.36647]]
    check("gdpo", expected, batch_norm="token", completion_lengths=lengths)
