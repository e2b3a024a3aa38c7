import asyncio
import functools
import inspect
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from trl_dara.rewards.channel import ChannelLog, as_channel
from trl_dara.rewards.loading import RewardSpec, load_reward
from trl_dara.rewards.worker import WorkerProcessError, find_worker, in_worker_process

from . import worker_functions
from .worker_functions import does, lengths, process_ids


ROOT = Path(__file__).parents[2]
LONG = 60  # seconds that only a broken test waits


@pytest.fixture(autouse=True)
def no_limit_and_no_process_left():
    yield
    for worker in vars(worker_functions).values():
        if find_worker(worker) is not None:
            find_worker(worker).timeout = None
            find_worker(worker).stop()


def channel(reward_func, on_error="raise", timeout=None, log=None):
    return as_channel(reward_func, "grader", log or ChannelLog(), on_error, lambda: 7, timeout)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition):
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def run_script(folder, text: str, **kwargs) -> subprocess.Popen:
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **kwargs,
    )


# What the worker does


def test_runs_in_one_process_that_is_kept():
    first, second = process_ids(completions=["a"]), process_ids(completions=["a", "b"])
    assert first[0] != os.getpid()
    assert second == first * 2


@pytest.mark.parametrize(
    ("reward_func", "rewards"),
    [
        (lengths, [3.0, 1.0]),
        (worker_functions.decorated, [3.0, 1.0]),
        (worker_functions.decorated_outside, [6.0, 2.0]),
        (worker_functions.decorated_inside, [6.0, 2.0]),
        (worker_functions.Grader.static, [3.0, 1.0]),
        (functools.partial(lengths, scale=5.0), [15.0, 5.0]),
        (functools.partial(worker_functions.scaled_lengths, 5.0), [15.0, 5.0]),
        (worker_functions.doubled(functools.partial(lengths, scale=5.0)), [30.0, 10.0]),
        (worker_functions.generator, [3.0, 1.0]),
    ],
)
def test_every_way_to_write_a_marked_function(reward_func, rewards):
    worker = find_worker(reward_func)
    assert worker is not None
    try:
        assert channel(reward_func)(prompts=["p", "p"], completions=["abc", "d"]) == rewards
    finally:
        worker.stop()


def test_unmarked_functions_have_no_worker():
    assert find_worker(worker_functions.plain_lengths) is None
    assert find_worker(functools.partial(worker_functions.plain_lengths, scale=2)) is None
    assert find_worker(worker_functions.doubled(worker_functions.plain_lengths)) is None


def test_name_and_signature_are_the_functions():
    assert lengths.__name__ == "plain_lengths"
    assert inspect.signature(lengths) == inspect.signature(worker_functions.plain_lengths)
    assert lengths.__wrapped__(completions=["ab"]) == [2.0]


def test_gets_columns_but_no_trainer_objects():
    names = worker_functions.argument_names(
        prompts=["p"],
        completions=["c"],
        completion_ids=[[1]],
        answer=["a"],
        trainer_state=lambda: None,
        log_extra=lambda: None,
        log_metric=lambda: None,
        environments=[lambda: None],
    )
    assert names == ["answer", "completion_ids", "completions", "prompts"]


def test_arguments_arrive_as_they_are():
    image = np.arange(6).reshape(2, 3)
    names = worker_functions.argument_names(
        completions=[[{"role": "assistant", "content": "é" * 10**6}]], image=[image]
    )
    assert names == ["completions", "image"]


def test_threads_get_their_own_answers():
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(lengths, completions=["x" * length]) for length in range(40)]
        assert [call.result(LONG) for call in calls] == [[float(length)] for length in range(40)]


def test_a_grader_may_start_processes(tmp_path):
    pid = does(completions=[f"fork {tmp_path / 'child'}"])[0]
    assert int((tmp_path / "child").read_text()) != pid


def test_function_from_a_file_on_the_command_line(tmp_path):
    (tmp_path / "my.rewards.py").write_text(
        "from trl_dara.rewards.worker import in_worker_process\n"
        "@in_worker_process\n"
        "def brevity(completions, longest=1, **kwargs):\n"
        "    return [float(len(completion) <= longest) for completion in completions]\n"
    )
    spec = RewardSpec(f"{tmp_path / 'my.rewards.py'}:brevity", name="short", kwargs={"longest": 2})
    reward_func = load_reward(spec)
    try:
        assert channel(reward_func, timeout=LONG)(prompts=["", ""], completions=["ab", "abc"]) == [1.0, 0.0]
    finally:
        find_worker(reward_func).stop()


# What goes wrong


def test_exception_keeps_its_type_message_and_traceback():
    pid = does(completions=["nothing"])[0]
    with pytest.raises(RuntimeError, match="channel 'grader' failed at step 7: .*KeyError: 'gold'") as caught:
        channel(does)(prompts=["p"], completions=["raise gold"])
    cause = caught.value.__cause__
    assert isinstance(cause, WorkerProcessError)
    assert "in does" in cause.__notes__[0] and "raise KeyError(argument)" in cause.__notes__[0]
    assert does(completions=["nothing"]) == [pid]  # it lives on


def test_answer_that_cannot_be_pickled_is_an_error():
    with pytest.raises(WorkerProcessError, match="pickle.*lock"):
        does(completions=["lock"])
    assert does(completions=["nothing"])


def test_column_that_cannot_be_pickled_is_named():
    with pytest.raises(TypeError, match="`answer` cannot be pickled.*worker process of 'does'.*Take the column out"):
        does(completions=["nothing"], answer=[lambda: None])
    assert does(completions=["nothing"])


def test_wrong_output_is_refused_as_from_any_function():
    with pytest.raises(TypeError, match="'grader' returned 'completions'"):
        channel(worker_functions.argument_names)(prompts=["p"] * 2, completions=["c"] * 2)


@pytest.mark.parametrize(("action", "code"), [("exit", 3), ("die", -9)])
def test_crash_is_an_error_and_the_next_call_starts_anew(action, code):
    pid = does(completions=["nothing"])[0]
    with pytest.raises(WorkerProcessError, match=f"'does' ended unexpectedly with exit code {code} "):
        does(completions=[action])
    assert has_ended(pid)
    assert does(completions=["nothing"])[0] != pid


def test_worker_that_died_between_calls_is_replaced():
    pid = does(completions=["nothing"])[0]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: has_ended(pid))
    assert does(completions=["nothing"])[0] != pid


@pytest.mark.parametrize("action", ["tower", "sleep"])
def test_timeout_ends_the_process(action):
    pid = does(completions=["nothing"])[0]
    with pytest.raises(
        RuntimeError, match="channel 'grader' failed at step 7: TimeoutError: .*within 0.5 seconds .`reward_timeout`"
    ) as e:
        channel(does, timeout=0.5)(prompts=["p"], completions=[action])
    assert isinstance(e.value.__cause__, TimeoutError)
    assert has_ended(pid)
    assert channel(does, timeout=LONG)(prompts=["p"], completions=["nothing"])[0] != pid


def test_timeout_can_be_skipped():
    log = ChannelLog()
    assert channel(does, "skip", 0.5, log)(prompts=["p"] * 2, completions=["tower", ""]) == [None, None]
    assert log.errors == 1
    assert log.seconds >= 0.5


def test_timeout_ends_what_the_worker_has_started(tmp_path):
    for limit in (1, 10, LONG):  # the first is enough for a process to start, unless the machine is very busy
        with pytest.raises(RuntimeError, match="TimeoutError"):
            channel(does, timeout=limit)(prompts=["p"], completions=[f"start {tmp_path / 'child'}"])
        if (tmp_path / "child").exists():
            break
    wait_until(lambda: has_ended(int((tmp_path / "child").read_text())))


# What a worker process cannot import is refused at construction


def test_functions_without_a_place_in_a_module_are_refused():
    def local(completions, **kwargs):
        return [0.0] * len(completions)

    for function in (local, lambda completions, **kwargs: [0.0] * len(completions)):
        with pytest.raises(ValueError, match="cannot import the reward function '.*top level of a module"):
            channel(functools.partial(in_worker_process(function)))


def test_function_that_was_replaced_in_its_module_is_refused(monkeypatch):
    marked = in_worker_process(worker_functions.plain_lengths)
    monkeypatch.setattr(worker_functions, "plain_lengths", worker_functions.scaled)
    with pytest.raises(ValueError, match="cannot import the reward function 'plain_lengths'"):
        channel(marked)


def test_only_sync_functions_can_be_marked():
    async def judge(completions, **kwargs):
        return [0.0] * len(completions)

    with pytest.raises(TypeError, match="async function 'judge'"):
        in_worker_process(judge)
    with pytest.raises(TypeError, match=r"not a partial.*functools.partial\(in_worker_process"):
        in_worker_process(functools.partial(worker_functions.plain_lengths, scale=2))


def test_function_of_a_notebook_is_refused():
    code = (
        "from trl_dara.rewards.worker import in_worker_process\n"
        "def grade(completions, **kwargs): return [0.0]\n"
        "in_worker_process(grade).check_loadable()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=LONG)
    assert "ValueError: A worker process cannot import" in done.stderr and "%%writefile" in done.stderr


def test_module_that_fails_to_import_in_the_worker_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "broken_in_worker.py").write_text(
        "import multiprocessing\n"
        "if multiprocessing.parent_process() is not None: raise ImportError('no such library here')\n"
        "def grade(completions, **kwargs): return [0.0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import broken_in_worker

    marked = in_worker_process(broken_in_worker.grade)
    with pytest.raises(WorkerProcessError, match="ImportError: no such library here"):
        marked(completions=["c"])


GUARDED = """
import os, sys
from trl_dara.rewards.worker import in_worker_process

@in_worker_process
def grade(completions, **kwargs):
    return [os.getpid()] * len(completions)

if __name__ == "__main__":
    grade.check_loadable()
    print(grade(completions=["c"])[0])
"""


def test_function_of_the_script_itself_and_nothing_left_at_its_end(tmp_path):
    output, errors = (script := run_script(tmp_path, GUARDED)).communicate(timeout=LONG)
    assert script.returncode == 0 and not errors
    assert has_ended(int(output))


def test_script_that_trains_without_guard_is_told_so(tmp_path):
    unguarded = GUARDED.replace('if __name__ == "__main__":', "if True:")
    output, errors = (script := run_script(tmp_path, unguarded)).communicate(timeout=LONG)
    assert script.returncode == 1 and not output
    assert 'Put what trains under `if __name__ == "__main__":`' in errors
    assert "WorkerProcessError: the worker process of 'grade' ended unexpectedly" in errors


# The trainer's end is the worker's

BUSY = """
from tests.rewards.worker_functions import does

if __name__ == "__main__":
    print(does(completions=["nothing"])[0], flush=True)
    does(completions=[{action!r}])
"""


@pytest.mark.parametrize("action", ["tower", "start"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_busy_worker_ends_with_the_trainer(tmp_path, action, sent):
    script = run_script(tmp_path, BUSY.format(action=f"{action} {tmp_path / 'busy'}"), start_new_session=True)
    worker = int(script.stdout.readline())
    wait_until((tmp_path / "busy").exists)
    busy = int((tmp_path / "busy").read_text())
    assert not has_ended(worker) and not has_ended(busy)
    os.killpg(script.pid, sent)  # as a terminal does with Ctrl-C: the whole process group
    script.communicate(timeout=LONG)
    assert script.returncode == -sent
    wait_until(lambda: has_ended(worker) and has_ended(busy))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_ctrl_c_is_not_swallowed(tmp_path, on_error):
    pid = does(completions=["nothing"])[0]

    def interrupt():
        wait_until((tmp_path / "busy").exists)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            channel(does, on_error, LONG)(prompts=["p"], completions=[f"tower {tmp_path / 'busy'}"])
        interrupted.result(LONG)
    assert has_ended(pid)
    assert does(completions=["nothing"])[0] != pid  # and its answer is not the interrupted call's


def test_idle_worker_ends_with_a_killed_trainer(tmp_path):
    idle = GUARDED.replace("print(", "import time; print(").replace("[0])", "[0], flush=True); time.sleep(600)")
    script = run_script(tmp_path, idle)
    worker = int(script.stdout.readline())
    assert not has_ended(worker)
    script.kill()
    script.communicate(timeout=LONG)
    wait_until(lambda: has_ended(worker))


# Time limits of functions that run in the trainer's process


async def waits_for_ever(completions, **kwargs):
    await asyncio.sleep(LONG)
    return [1.0] * len(completions)


async def answers(completions, **kwargs):
    await asyncio.sleep(0)
    return [1.0] * len(completions)


def test_async_function_is_stopped():
    with pytest.raises(
        RuntimeError, match="channel 'grader' failed at step 7: TimeoutError: .*within 0.1 seconds .`reward_timeout`"
    ) as e:
        asyncio.run(channel(waits_for_ever, timeout=0.1)(prompts=["p"], completions=["c"]))
    assert isinstance(e.value.__cause__, TimeoutError)


def test_async_function_that_is_stopped_leaves_others_alone():
    log = ChannelLog()

    async def both():
        return await asyncio.gather(
            channel(waits_for_ever, "skip", 0.1, log)(prompts=["p"], completions=["c"]),
            channel(functools.partial(answers), "raise", LONG)(prompts=["p"], completions=["c"]),
        )

    assert asyncio.run(both()) == [[None], [1.0]]
    assert log.errors == 1


def test_own_timeout_of_an_async_function_stays_its_own():
    async def judge(completions, **kwargs):
        raise TimeoutError("the judge's server did not answer")

    with pytest.raises(RuntimeError, match="TimeoutError: the judge's server did not answer"):
        asyncio.run(channel(judge, timeout=LONG)(prompts=["p"], completions=["c"]))


def test_one_warning_where_the_limit_does_not_apply(caplog):
    with caplog.at_level(logging.WARNING):
        channel(worker_functions.plain_lengths)
        channel(answers, timeout=1.0)
        channel(lengths, timeout=1.0)
        assert not caplog.records
        unmarked = channel(worker_functions.plain_lengths, timeout=1.0)
        assert unmarked(prompts=["p"], completions=["c"]) == [1.0]
    assert len(caplog.records) == 1
    assert "`reward_timeout` does not apply to channel 'grader'" in caplog.text and "in_worker_process" in caplog.text
