"""Stage 3 of 3: from cases to categories, groups and the average. A pure function of the scores."""

from collections.abc import Mapping
from statistics import fmean

from trl_dara.evaluation.bfcl.benchmark import CASES, LIVE, MULTI_TURN, SIMPLE
from trl_dara.evaluation.bfcl.score import METRICS


GROUPS = ("live", "non_live", "multi_turn", "average")


def aggregate(scores: Mapping[str, list[dict]], partial: bool = False) -> dict:
    """
    Average the scores of one checkpoint. All three metrics have the same weights:

    - Live: all cases alike;
    - Non-Live: mean of Simple, Multiple, Parallel and Parallel Multiple, with Simple the mean of its three languages;
    - Multi-Turn: mean of its four categories;
    - Average: mean of the three groups. This is the average of DARA's tables, not the "Overall" of the leaderboard.

    Args:
        scores (`dict[str, list[dict]]`):
            Scores of stage 2 by category.
        partial (`bool`, *optional*, defaults to `False`):
            Accept missing cases. The result says so, and a group without any case of one of its categories is `None`.

    Returns:
        `dict`: `partial` (whether cases are missing), `groups` and `categories`. A group has the three metrics,
        between 0 and 1; a category also has its number of `cases`.

    Raises:
        `ValueError`: when cases are missing, unless `partial`, or all of them, or when some occur twice.
    """
    unknown = sorted(set(scores) - set(CASES))
    if unknown:
        raise ValueError(
            f"`scores` has the categories {unknown}, which are not evaluated here. Pass some of {list(CASES)}."
        )
    if not any(scores.values()):
        raise ValueError("There are no scores. Score the answers first, or pass the folder that has them.")
    counts = {category: len({score["id"] for score in scores.get(category, [])}) for category in CASES}
    for category, records in scores.items():
        if len(records) != counts[category]:
            raise ValueError(
                f"`scores` of '{category}' has {len(records)} records of {counts[category]} different cases."
            )
    missing = [
        f"{category} ({counts[category]} of {cases})" for category, cases in CASES.items() if counts[category] != cases
    ]
    if missing and not partial:
        raise ValueError(
            f"These categories are incomplete: {', '.join(missing)}. Generate and score what is missing, or pass "
            "`partial` (on the command line, `--partial`) for a result that is marked as such."
        )
    categories = {
        category: {"cases": counts[category]}
        | {metric: fmean(score[metric] for score in scores[category]) for metric in METRICS}
        for category in CASES
        if counts[category]
    }
    by_metric = {
        metric: group_means({name: category[metric] for name, category in categories.items()}, counts)
        for metric in METRICS
    }
    groups = {group: {metric: by_metric[metric][group] for metric in METRICS} for group in GROUPS}
    return {"partial": bool(missing), "groups": groups, "categories": categories}


def group_means(means: Mapping[str, float], counts: Mapping[str, int] = CASES) -> dict[str, float | None]:
    """
    The weights of [`aggregate`], for one metric.

    Args:
        means (`dict[str, float]`):
            Mean by category.
        counts (`dict[str, int]`, *optional*, defaults to the numbers of the benchmark):
            Cases by category, the weights of Live.

    Returns:
        `dict[str, float]`: `live`, `non_live`, `multi_turn` and `average`; `None` where a category is missing.
    """

    def mean(*values: float | None) -> float | None:
        return None if None in values else fmean(values)

    live = None
    if all(category in means for category in LIVE):
        live = fmean([means[category] for category in LIVE], weights=[counts[category] for category in LIVE])
    simple = mean(*(means.get(category) for category in SIMPLE))
    non_live = mean(simple, *(means.get(category) for category in ("multiple", "parallel", "parallel_multiple")))
    multi_turn = mean(*(means.get(category) for category in MULTI_TURN))
    return {
        "live": live,
        "non_live": non_live,
        "multi_turn": multi_turn,
        "average": mean(live, non_live, multi_turn),
    }
