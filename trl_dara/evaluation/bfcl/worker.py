"""
Runs the code of `bfcl_eval`: its data, its tools and its checkers.

A script of its own, since `bfcl_eval` cannot be installed beside the library: it needs nothing but the standard
library, `bfcl_eval`, `filelock` and `mpmath`, and runs under whatever interpreter has them ([`BFCL`] starts it). It
reads one JSON request a line and writes one JSON answer a line. BFCL evaluates a model's calls as Python expressions
in the process that checks them, hence:

- a name or key that could be more than a tool's name or parameter is replaced by a syntax error;
- what a model's calls cause has a time limit, after which the process ends itself, whatever holds the interpreter;
- they get an error in place of more memory than they may have;
- no tool outlives a request, so no case sees another's state.
"""

import builtins
import contextlib
import copy
import faulthandler
import functools
import importlib.metadata
import json
import os
import sys
import traceback
import types


MODEL_NAME = "trl-dara"  # without "_", which the checkers turn into "/"
# Evaluated like any other call string, and then reported with the words that BFCL has for a syntax error
REJECTED = "invalid syntax"
TOO_DEEP = "the parameters of a call are nested too deeply"
MEMORY = 4 << 30  # bytes; a case takes some ten MB
ERROR_LENGTH = 1000  # characters; the checkers quote what they were given, of any length


def version() -> dict:
    """Version of `bfcl_eval`, or the module that is missing."""
    try:
        import bfcl_eval.utils  # noqa: F401
        import mpmath  # noqa: F401
    except ModuleNotFoundError as error:
        return {"missing": error.name}
    return {"version": importlib.metadata.version("bfcl_eval")}


def cases(category: str) -> list[dict]:
    """What a model is asked in each case of a category, the tools with the hints on their language."""
    keys = ("id", "question", "function", "missed_function")
    return [{key: entry[key] for key in keys if key in entry} for entry in _entries(category, hints=True).values()]


def execute(case_id: str, steps: list[list[dict]], limit: float) -> list[dict]:
    """Replay the steps of a case from its initial state; the calls of the last step with what they return."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

    entry = _entries(_category(case_id))[case_id]
    with _no_tools_left(), _time_limit(limit):
        for step in steps:
            results, _ = execute_multi_turn_func_call(
                [_call_string(call) for call in step],
                entry["initial_config"],
                entry["involved_classes"],
                MODEL_NAME,
                case_id,
                long_context="long_context" in case_id,
            )
    return [{"call": _shown(call), "result": result} for call, result in zip(steps[-1], results, strict=True)]


def check_calls(case_id: str, calls: list[dict], limit: float) -> dict:
    """Check the calls of a single-turn case."""
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    from bfcl_eval.utils import is_function_calling_format_output, is_java, is_js

    category = _category(case_id)
    entry, truth = copy.deepcopy((_entries(category)[case_id], _truths(category)[case_id]))
    language = Language.JAVA if is_java(category) else Language.JAVASCRIPT if is_js(category) else Language.PYTHON
    decoded = [{call["name"]: call["parameters"]} for call in calls]
    if not is_function_calling_format_output(decoded):
        return _wrong("ast_decoder:decoder_wrong_output_format", "The parameters of a call are no JSON object.")
    with _time_limit(limit):
        return _verdict(lambda: ast_checker(entry["function"], decoded, truth, language, category, MODEL_NAME))


def check_turns(case_id: str, turns: list[list[list[dict]]], limit: float) -> dict:
    """Check the calls of a multi-turn case, `turns[turn][step]` being a list of calls."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    category = _category(case_id)
    entry, truth = copy.deepcopy((_entries(category)[case_id], _truths(category)[case_id]))
    if len(turns) != len(truth):
        return _wrong("multi_turn:force_terminated", f"The dialogue ended in turn {len(turns)} of {len(truth)}.")
    decoded = [[[_call_string(call) for call in step] for step in turn if step] for turn in turns]
    with _no_tools_left(), _time_limit(limit):
        return _verdict(lambda: multi_turn_checker(decoded, truth, entry, category, MODEL_NAME))


def _verdict(check) -> dict:
    """What a checker says; an exception of a checker is caused by what it was given and counts as wrong."""
    try:
        result = check()
    except Exception as error:
        return _wrong("checker_error", f"{type(error).__name__}: {error}")
    if result["valid"]:
        return {"valid": True, "error_type": None, "error": None}
    message = result.get("error_message") or result["error"]
    return _wrong(result["error_type"], message if isinstance(message, str) else "; ".join(map(str, message)))


def _wrong(error_type: str, error: str) -> dict:
    return {"valid": False, "error_type": error_type, "error": error[:ERROR_LENGTH]}


def _shown(call: dict) -> str:
    return f"{call['name']}({', '.join(f'{key}={value!r}' for key, value in call['parameters'].items())})"


def _call_string(call: dict) -> str:
    """
    The call as BFCL evaluates it. The values are literals, but name and keys are pasted into the expression as they
    are, so they have to be plain names, and the name may not be one that means something without a tool, such as
    `open`. Python reads letters such as those of full width as the ASCII letters: hence ASCII only.
    """
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    name = call["name"]
    plain = all(text.isascii() and text.isidentifier() for text in (name, *call["parameters"]))
    if not plain or name in vars(builtins) or name in vars(multi_turn_utils):
        return REJECTED
    return _shown(call)


@contextlib.contextmanager
def _no_tools_left():
    """
    Remove the tools that BFCL makes and keeps in global variables, which begin with the model's name. The name is the
    same each time, since a tool may show it: BFCL puts it before whatever looks like a call, within texts as well.
    """
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    try:
        yield
    finally:
        instances = vars(multi_turn_utils)
        prefix = MODEL_NAME.replace("-", "_") + "_"
        for key in [key for key in instances if key.startswith(prefix)]:
            del instances[key]


@contextlib.contextmanager
def _time_limit(seconds: float):
    """End this process after that time. No signal would do: one long multiplication keeps Python from handling it."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _limit_memory() -> None:
    """Up to what the system lets this process have anyway. Linux only: others may refuse or ignore the limit."""
    if sys.platform == "linux":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _category(case_id: str) -> str:
    from bfcl_eval.utils import extract_test_category_from_id

    return extract_test_category_from_id(case_id)


@functools.cache
def _entries(category: str, hints: bool = False) -> dict[str, dict]:
    """Cases by id. The hints turn every parameter of Java and JavaScript into a string: for prompts only."""
    from bfcl_eval.utils import load_dataset_entry

    entries = load_dataset_entry(category, include_prereq=False, include_language_specific_hint=hints)
    return {entry["id"]: entry for entry in entries}


@functools.cache
def _truths(category: str) -> dict[str, list]:
    from bfcl_eval.utils import load_ground_truth_entry

    # Aligned by position, as the official runner reads them
    return {
        case_id: truth["ground_truth"]
        for case_id, truth in zip(_entries(category), load_ground_truth_entry(category), strict=True)
    }


def main() -> None:
    _limit_memory()
    # The checkers take one setting from this module, which imports the handler of every vendor: a stand-in for it
    stand_in = types.ModuleType("bfcl_eval.constants.model_config")
    stand_in.MODEL_CONFIG_MAPPING = {MODEL_NAME: types.SimpleNamespace(underscore_to_dot=False)}
    sys.modules[stand_in.__name__] = stand_in

    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nothing that runs here reads the requests ...
    os.dup2(2, 1)  # ... or writes an answer
    methods = {method.__name__: method for method in (version, cases, execute, check_calls, check_turns)}
    for line in requests:
        try:
            request = json.loads(line)
            answer = {"result": methods[request["method"]](**request["arguments"])}
        except RecursionError:
            answer = {"case_failure": TOO_DEEP}
        except Exception:
            answer = {"failure": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
