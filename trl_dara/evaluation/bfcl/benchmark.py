"""What BFCL-v4 consists of, as far as it is evaluated here: 14 categories in three groups."""

VERSION = "2026.3.23"  # of `bfcl_eval`
COMMIT = "6ea57973c7a6097fd7c5915698c54c17c5b1b6c8"  # of ShishirPatil/gorilla; the same code

# Category -> number of cases
LIVE = {"live_simple": 258, "live_multiple": 1053, "live_parallel": 16, "live_parallel_multiple": 24}
SIMPLE = {"simple_python": 400, "simple_java": 100, "simple_javascript": 50}
NON_LIVE = SIMPLE | {"multiple": 200, "parallel": 200, "parallel_multiple": 200}
MULTI_TURN = {
    "multi_turn_base": 200,
    "multi_turn_miss_func": 200,
    "multi_turn_miss_param": 200,
    "multi_turn_long_context": 200,
}
CASES = LIVE | NON_LIVE | MULTI_TURN


def is_multi_turn(case_id: str) -> bool:
    """
    Whether a case is a dialogue of several turns.

    Args:
        case_id (`str`):
            Id of a case, such as `"multi_turn_base_7"`, or a category.

    Returns:
        `bool`
    """
    return "multi_turn" in case_id


def category_of(case_id: str) -> str:
    """
    Category of a case.

    Args:
        case_id (`str`):
            Id of a case, such as `"live_simple_0-0-0"`.

    Returns:
        `str`
    """
    return case_id.rpartition("_")[0]
