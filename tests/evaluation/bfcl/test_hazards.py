"""What a model's answers might do to the process that checks them, and to the cases that follow."""

import builtins
import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest

from trl_dara.evaluation.bfcl.client import BFCL
from trl_dara.evaluation.bfcl.dialogue import Dialogue
from trl_dara.evaluation.bfcl.interface import multi_turn_calls
from trl_dara.evaluation.bfcl.score import score_case
from trl_dara.evaluation.generation import Generation

from .answers import NO_CALL, answer, call, data_folder, questions, truths
from .test_checkers import AREA, TURNS, dialogue, score


pytestmark = pytest.mark.bfcl
CASE = "multi_turn_base_0"
SYNTAX_ERROR = "Error during execution: invalid syntax (<string>, line 1)"


def hostile_calls(file: Path) -> dict[str, dict]:
    """Calls that create the file where name and keys get into the evaluated expression."""
    create = f"__import__('pathlib').Path({str(file)!r}).touch()"
    full_width = "".join(chr(ord(letter) + 0xFEE0) for letter in "open")
    return {
        "code in the name": call(f"{create} or cd", folder="document"),
        "code in a key": {"name": "cd", "parameters": {f"folder={create}, x": 1}},
        "a built-in function": call("open", file=str(file), mode="w"),
        "a built-in function in other letters": call(full_width, file=str(file), mode="w"),
    }


KINDS = list(hostile_calls(Path("file")))


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_calls_are_not_executed(bfcl, tmp_path, kind):
    file = tmp_path / "created"
    hostile = hostile_calls(file)[kind]
    arguments = ", ".join(f"{key}={value!r}" for key, value in hostile["parameters"].items())
    try:
        eval(f"{hostile['name']}({arguments})", {"cd": lambda **_: None})  # as the checker of BFCL would
    except TypeError:
        pass
    assert file.exists()
    file.unlink()

    assert multi_turn_calls(answer(hostile)) == [hostile]
    assert [result["result"] for result in bfcl.execute(CASE, [[hostile]])] == [SYNTAX_ERROR]
    replaced = [[hostile, *TURNS[0][1:]], *TURNS[1:]]
    assert score(bfcl, CASE, dialogue(replaced))["accuracy"] == 0
    assert score(bfcl, "simple_python_0", answer(hostile))["accuracy"] == 0
    assert not file.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_calls_are_not_executed_while_generating(bfcl, tmp_path, kind):
    hostile = hostile_calls(tmp_path / "created")[kind]
    case = next(case for case in bfcl.cases("multi_turn_base") if case["id"] == CASE)
    running = Dialogue(case)
    running.receive(Generation(answer(hostile, TURNS[0][0]), 9, "stop"), bfcl)
    assert f"Execution returns: {SYNTAX_ERROR} </obs>" in running.prompt()
    assert 'Execution returns: {"current_working_directory": "document"} </obs>' in running.prompt()
    assert not (tmp_path / "created").exists()


def test_no_tool_has_a_name_that_is_refused():
    files = (data_folder() / "multi_turn_func_doc").glob("*.json")
    tools = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    names = {tool["name"] for tool in tools} | {key for tool in tools for key in tool["parameters"]["properties"]}
    assert len(tools) > 100
    assert all(name.isidentifier() and unicodedata.normalize("NFKC", name) == name for name in names)
    assert not {tool["name"] for tool in tools} & set(vars(builtins))


def test_an_unknown_tool_is_reported_in_the_official_words(bfcl):
    [result] = bfcl.execute(CASE, [[call("format_disk", drive="c")]])
    assert result == {
        "call": "format_disk(drive='c')",
        "result": "Error during execution: name 'format_disk' is not defined",
    }


def test_scoring_twice_gives_the_same(bfcl):
    for category in ("multi_turn_long_context", "multi_turn_miss_func"):
        for case_id, turns in list(truths(category).items())[:20]:
            result = dialogue([[call("pwd")] if turn else [] for turn in turns])
            first, second = (score(bfcl, case_id, result) for _ in range(2))
            assert first == second
    assert score(bfcl, CASE, dialogue(TURNS)) == score(bfcl, CASE, dialogue(TURNS))


def test_a_wrong_answer_leaves_nothing_behind(bfcl):
    wrong = [[call("cd", folder="document"), call("mkdir", dir_name="elsewhere")], *TURNS[1:]]
    assert score(bfcl, CASE, dialogue(wrong))["error_type"] == "multi_turn:instance_state_mismatch"
    assert score(bfcl, CASE, dialogue(TURNS))["accuracy"] == 1


def test_the_same_calls_have_the_same_results_whatever_came_before(bfcl):
    """BFCL takes `ls(` in a text for a call, and puts the name of a variable of its own before it."""
    steps = [[call("mkdir", dir_name="what ls() does"), call("cat", file_name="what ls() does")]]
    first = bfcl.execute(CASE, steps)
    assert "_GorillaFileSystem_instance.ls()" in first[1]["result"]
    assert bfcl.execute(CASE, steps) == first


@pytest.mark.skipif(sys.platform != "linux", reason="the memory is limited on Linux only")
def test_calls_that_ask_for_more_memory_than_allowed_get_an_error(bfcl):
    case_id = "multi_turn_base_15"  # has mathematical tools
    greedy = call("square_root", number=2, precision=10**10)
    results = bfcl.execute(case_id, [[greedy, call("add", a=1, b=2)]])
    assert [result["result"] for result in results] == ["Error during execution: ", '{"result": 3}']
    assert score(bfcl, case_id, dialogue([[greedy]] * 5))["error_type"] == "multi_turn:instance_state_mismatch"


def test_a_long_value_does_not_get_into_the_error_as_a_whole(bfcl):
    result = score(bfcl, "simple_python_0", answer(call(AREA, base=10, height=5, unit="x" * 200_000)))
    assert result["error"].startswith("Invalid value for parameter 'unit': 'xxx") and len(result["error"]) == 1000


def test_every_execution_starts_from_the_initial_state(bfcl):
    first = bfcl.execute(CASE, [TURNS[0]])
    assert bfcl.execute(CASE, [TURNS[0]]) == first
    again = bfcl.execute(CASE, [TURNS[0], [call("ls")]])
    assert "temp" in again[0]["result"]


ENDLESS = call("power", base=7, exponent=10**10)


def endless() -> tuple[str, list[list[str]]]:
    """A case with a calculator, and a dialogue that asks it for a number that takes forever."""
    case = next(case for case in questions("multi_turn_base") if "MathAPI" in case["involved_classes"])
    return case["id"], dialogue([[ENDLESS]] * len(case["question"]))


def test_calls_without_an_end_are_wrong_and_do_not_stop_the_others(bfcl_python):
    with BFCL(bfcl_python, time_limit=1) as bfcl:
        result = score(bfcl, *endless())
        assert result["accuracy"] == 0
        assert (result["error_type"], result["error"]) == ("case_failure", "no end within 1 s")
        assert result["format"] == 1  # its answers are there, and have the format
        assert score(bfcl, CASE, dialogue(TURNS))["accuracy"] == 1


def test_calls_without_an_end_end_their_case_while_generating(bfcl_python):
    with BFCL(bfcl_python, time_limit=1) as bfcl:
        case = next(case for case in bfcl.cases("multi_turn_base") if case["id"] == endless()[0])
        running = Dialogue(case)
        running.receive(Generation(answer(ENDLESS), 9, "stop"), bfcl)
        assert running.finished
        assert running.record()["error"] == "Executing the calls: no end within 1 s"
        assert score_case(running.record(), bfcl)["accuracy"] == 0


@pytest.mark.parametrize(
    "value",
    ["NaN", "1e400", '"\\ud800"', '"\\u0000"', "null", '"cd("', "1" * 4000, "1" * 5000]
    + ["[" * depth + "]" * depth for depth in (90, 190, 400, 900, 950, 990)],
)
def test_strange_values(bfcl, value):
    strange = f'<tool_call>\n{{"name": "cd", "parameters": {{"folder": {value}}}}}\n</tool_call>'
    assert score(bfcl, CASE, [[strange, NO_CALL]] * 4)["accuracy"] == 0
    assert score(bfcl, "simple_python_0", strange)["accuracy"] == 0
    case = next(case for case in bfcl.cases("multi_turn_base") if case["id"] == CASE)
    running = Dialogue(case)
    running.receive(Generation(strange, 9, "stop"), bfcl)
    running.prompt().encode()  # raises where a tokenizer would


def test_a_crash_counts_as_wrong(bfcl_python, tmp_path):
    """An interpreter that dies whenever a dialogue is checked."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\n"
        "import os, signal, subprocess, sys\n"
        f"child = subprocess.Popen([{bfcl_python!r}, *sys.argv[1:]], stdin=subprocess.PIPE, text=True)\n"
        "for line in sys.stdin:\n"
        "    if 'check_turns' in line:\n"
        "        child.kill()\n"
        "        os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    child.stdin.write(line)\n"
        "    child.stdin.flush()\n"
    )
    python.chmod(0o755)
    with BFCL(str(python)) as bfcl:
        result = score(bfcl, CASE, dialogue(TURNS))
        assert result["error_type"] == "case_failure" and "exit code -11" in result["error"]
        assert score(bfcl, "simple_python_0", answer(call(AREA, base=10, height=5)))["accuracy"] == 1


def test_the_process_sees_no_secrets(bfcl_python, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a secret")
    monkeypatch.setenv("PYTHONSTARTUP", "startup.py")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nenv > "{tmp_path}/environment"\nexec "{bfcl_python}" "$@"\n')
    python.chmod(0o755)
    with BFCL(str(python)):
        names = {line.partition("=")[0] for line in (tmp_path / "environment").read_text().splitlines()}
    assert names <= {"PATH", "LD_LIBRARY_PATH", "BFCL_PROJECT_ROOT", "HOME", "TZ", "PWD", "SHLVL", "_"}


def test_nothing_is_written_into_the_package(bfcl):
    assert not [name for name in ("result", "score", ".file_locks") if (data_folder().parents[1] / name).exists()]


def test_errors_of_our_own_are_not_scored(bfcl):
    with pytest.raises(RuntimeError, match="KeyError: 'multi_turn_base_999'"):
        bfcl.check_turns("multi_turn_base_999", [])


def test_an_interpreter_that_cannot_start_again_is_no_wrong_answer(bfcl_python, tmp_path):
    full, python = tmp_path / "full", tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nif [ -e "{full}" ]; then echo no space left >&2; exit 1; fi\nexec "{bfcl_python}" "$@"\n'
    )
    python.chmod(0o755)
    with BFCL(str(python), time_limit=0.5) as bfcl:
        assert score(bfcl, *endless())["error_type"] == "case_failure"  # ends the process
        full.touch()
        with pytest.raises(ChildProcessError, match="no space left"):
            score(bfcl, CASE, dialogue(TURNS))


def test_a_missing_package_is_named_with_its_remedy():
    with pytest.raises(ImportError) as error:
        BFCL(sys.executable)
    assert "lacks the module bfcl_eval" in str(error.value)
    assert "bfcl-env/bin/pip install --no-deps bfcl-eval==2026.3.23" in str(error.value)
    assert "`--bfcl_python bfcl-env/bin/python`" in str(error.value)


def test_a_missing_interpreter_is_named():
    with pytest.raises(FileNotFoundError, match="`bfcl_python` is '/nowhere/python'"):
        BFCL("/nowhere/python")


def test_the_interpreter_may_be_a_relative_path(bfcl_python, monkeypatch):
    monkeypatch.chdir(Path(bfcl_python).parents[1])
    with BFCL(f"bin/{Path(bfcl_python).name}") as bfcl:
        assert len(bfcl.cases("live_parallel")) == 16


@pytest.mark.parametrize("time_limit", [0, float("nan"), float("inf"), 1e300])
def test_the_time_limit_is_checked(bfcl_python, time_limit):
    with pytest.raises(ValueError, match=f"`time_limit` is {re.escape(str(time_limit))}"):
        BFCL(bfcl_python, time_limit=time_limit)
