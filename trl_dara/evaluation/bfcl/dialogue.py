"""The official course of a case: who says what next, and when a turn and the case are over."""

from trl_dara.evaluation.bfcl.benchmark import is_multi_turn
from trl_dara.evaluation.bfcl.client import BFCL, CaseFailure
from trl_dara.evaluation.bfcl.interface import build_prompt, multi_turn_calls
from trl_dara.evaluation.generation import Generation


MAX_STEPS = 20  # of one turn; with one more the case is over
MORE_TOOLS = "{tools}\nI have updated some more functions you can choose from. What about now?"


class Dialogue:
    """
    One case while it is generated: `prompt` asks the model, `receive` takes its answer, until `finished`.

    A single-turn case ends with its first answer. In a multi-turn case the calls of an answer are executed and the
    model is asked again; an answer without calls ends the turn.

    Args:
        case (`dict`):
            The case as [`BFCL.cases`] gives it.

    Attributes:
        finished (`bool`):
            Whether the case is over.
    """

    def __init__(self, case: dict):
        self.case = case
        self.finished = False
        self._turns = []  # answers by turn and step
        self._num_tokens = []
        self._executed = []  # calls of every step
        self._messages = []
        self._error = None
        self._begin_turn()

    def prompt(self) -> str:
        """
        The prompt of the next answer.

        Returns:
            `str`
        """
        return build_prompt(self._messages, self.case["function"], is_multi_turn(self.case["id"]))

    def receive(self, generation: Generation, bfcl: BFCL) -> None:
        """
        Take the model's answer to `prompt`.

        Args:
            generation ([`Generation`]):
                The answer. A prompt that overflows the context is the model's failure and ends the case.
            bfcl ([`BFCL`]):
                Executes the calls.
        """
        if generation.finish_reason == "overflow":
            self._fail("The prompt leaves no room in the context.")
            return
        self._turns[-1].append(generation.text)
        self._num_tokens.append(generation.num_tokens)
        self._messages.append({"role": "assistant", "content": generation.text})
        calls = multi_turn_calls(generation.text) if is_multi_turn(self.case["id"]) else []
        if calls:
            self._execute(calls, bfcl)
        elif len(self._turns) < len(self.case["question"]):
            self._begin_turn()
        else:
            self.finished = True

    def record(self) -> dict:
        """
        What is kept of a finished case.

        Returns:
            `dict`: `id`, `result` (the answer; by turn and step in a multi-turn case), `num_tokens` of each answer and
            `error`, `None` unless the case was cut off.
        """
        result = self._turns if is_multi_turn(self.case["id"]) else "".join(self._turns[0])
        return {"id": self.case["id"], "result": result, "num_tokens": self._num_tokens, "error": self._error}

    def _begin_turn(self) -> None:
        turn = len(self._turns)
        held_out = self.case.get("missed_function", {}).get(str(turn))
        if held_out is None:
            self._messages += self.case["question"][turn]
        else:
            self._messages.append({"role": "user", "content": MORE_TOOLS.format(tools=held_out)})
        self._turns.append([])

    def _execute(self, calls: list[dict], bfcl: BFCL) -> None:
        self._executed.append(calls)
        try:
            results = bfcl.execute(self.case["id"], self._executed)
        except CaseFailure as failure:
            self._fail(f"Executing the calls: {failure}")
            return
        self._messages += [
            {"role": "tool", "call": _encodable(result["call"]), "content": _encodable(result["result"])}
            for result in results
        ]
        if len(self._turns[-1]) > MAX_STEPS:
            self.finished = True

    def _fail(self, error: str) -> None:
        self._error = error
        self.finished = True


def _encodable(text: str) -> str:
    """Without lone surrogates, which JSON lets through and tokenizers refuse."""
    return text.encode("utf-8", "replace").decode("utf-8")
