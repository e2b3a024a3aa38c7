"""Stage 2 of 3: whether the recorded answers are right, and what they look like. Needs no model."""

import hashlib
import json

from trl_dara.evaluation.bfcl.benchmark import is_multi_turn
from trl_dara.evaluation.bfcl.client import BFCL, CaseFailure
from trl_dara.evaluation.bfcl.interface import multi_turn_calls, single_turn_calls
from trl_dara.rewards import think_length_reward, tool_format_reward


METRICS = ("accuracy", "format", "length")
MAX_THINK_WORDS = 16
# One model answer for each of the three formats that count: there is no ground truth here to say which one is wanted
_CALL = '<tool_call>\n{"name": "f", "parameters": {}}\n</tool_call>'
_RESPONSE = "<response> Done. </response>"
FORMATS = (_RESPONSE, _CALL, f"{_CALL}\n{_RESPONSE}")


def score_case(record: dict, bfcl: BFCL) -> dict:
    """
    Score one case. Cases that were cut off, and those whose calls do not come to an end, are wrong.

    Args:
        record (`dict`):
            Record of stage 1.
        bfcl ([`BFCL`]):
            Runs the official checkers.

    Returns:
        `dict`: `id`, `accuracy` (0 or 1), `format` and `length` (means over the answers, 0 to 1), `error_type` and
        `error` (`None` for a right answer), and `digest` of the record.
    """
    if record["error"] is not None:
        verdict = {"valid": False, "error_type": "cut_off", "error": record["error"]}
        shape = {"format": 0.0, "length": 0.0}
    else:
        verdict = _check(record, bfcl)
        shape = score_shape(_answers(record))
    return {
        "id": record["id"],
        "accuracy": float(verdict["valid"]),
        **shape,
        "error_type": verdict["error_type"],
        "error": verdict["error"],
        "digest": digest(record),
    }


def score_shape(answers: list[str]) -> dict:
    """
    Format and length of a case, the means over its answers, 0 without any. An answer has the format when it is a think
    block with a tool-call block, a response block, or both, as [`~trl_dara.rewards.tool_format_reward`] has it; it has
    the length when its think block is not longer than 16 words ([`~trl_dara.rewards.think_length_reward`]).

    Args:
        answers (`list[str]`):
            Answers of the model, with or without the markers of Qwen's chat format.

    Returns:
        `dict`: `format` and `length`.
    """
    answers = [_unwrapped(answer) for answer in answers]
    formats = [
        max(tool_format_reward([answer] * len(FORMATS), ground_truth=list(FORMATS))) for answer in answers
    ]  # (answers,)
    lengths = think_length_reward(answers, max_words=MAX_THINK_WORDS)
    return {"format": _mean(formats), "length": _mean(lengths)}


def digest(record: dict) -> str:
    """
    Identifies the record that a score belongs to.

    Args:
        record (`dict`):
            Record of stage 1.

    Returns:
        `str`
    """
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def _check(record: dict, bfcl: BFCL) -> dict:
    try:
        if not is_multi_turn(record["id"]):
            return bfcl.check_calls(record["id"], single_turn_calls(record["result"]))
        turns = [[multi_turn_calls(answer) for answer in turn] for turn in record["result"]]
        return bfcl.check_turns(record["id"], turns)
    except CaseFailure as failure:
        return {"valid": False, "error_type": "case_failure", "error": str(failure)}


def _answers(record: dict) -> list[str]:
    result = record["result"]
    return [answer for turn in result for answer in turn] if is_multi_turn(record["id"]) else [result]


def _unwrapped(answer: str) -> str:
    return answer.rpartition("<|im_start|>assistant")[2].partition("<|im_end|>")[0].strip()


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
