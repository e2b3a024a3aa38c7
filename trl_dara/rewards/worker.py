"""Reward functions in a process of their own, where one that never returns can be stopped."""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import multiprocessing
import operator
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait


# Arguments that live in the trainer's process; a worker process does not get them.
NOT_PASSED = ("trainer_state", "log_extra", "log_metric", "environments")

# Longest wait for a worker process to import its function, in seconds; not part of a call's time limit.
_START_LIMIT = 300

_PROCESS_NAME = "reward worker"


class WorkerProcessError(RuntimeError):
    """A reward function raised in its worker process, whose traceback is a note of this error, or the process died."""


def in_worker_process(reward_func: Callable) -> "WorkerReward":
    """
    Mark a reward function to be run in a process of its own, so that `reward_timeout` can stop it.

    Nothing else stops a function that computes for ever, as a math grader does on `9^{9^{9^9}}`: a signal or another
    thread waits until the computation lets Python run. The process is started at the first call and then kept; after a
    timeout or a crash, the next call starts a new one. It ends with the trainer. Linux and macOS only.

    The function gets `prompts`, `completions`, `completion_ids` and the columns of the data set, copied by pickle. It does
    not get `trainer_state`, `log_extra`, `log_metric` and `environments`, which live in the trainer's process. What it
    changes, global variables for instance, stays in its process.

    The process imports the function, and, as any process that Python's `multiprocessing` spawns, the script that is
    being run: what trains must be under `if __name__ == "__main__":` there.

    Args:
        reward_func (`Callable`):
            Sync function at the top level of a module (in a notebook: of a file that it imports).

    Returns:
        [`WorkerReward`]: to be used in place of the function. `__wrapped__` is the function itself.

    Raises:
        `TypeError`: for an async function, which needs no worker process, and for anything that is not a function.

    Example:

    ```python
    # rewards.py
    from trl.rewards import accuracy_reward

    from trl_dara.rewards.worker import in_worker_process


    @in_worker_process
    def correctness(completions, answer, **kwargs):
        return [float(grade(completion, gold)) for completion, gold in zip(completions, answer)]


    accuracy = in_worker_process(accuracy_reward)  # the same for a function of someone else
    ```
    """
    if inspect.iscoroutinefunction(reward_func):
        raise TypeError(
            f"`in_worker_process` got the async function '{reward_func.__name__}'. Pass it to the trainer as it is: "
            "`reward_timeout` stops async functions where they wait."
        )
    if not inspect.isfunction(reward_func):
        raise TypeError(
            f"`in_worker_process` takes a function that is defined at the top level of a module, not a "
            f"{type(reward_func).__name__}. Bind arguments outside: `functools.partial(in_worker_process(function), ...)`."
        )
    return WorkerReward(reward_func)


class WorkerReward:
    """
    A reward function that runs in its own process, see [`in_worker_process`].

    Args:
        function (`Callable`):
            Function at the top level of a module.

    Attributes:
        timeout (`float`, *optional*):
            Longest time that a call may take, in seconds. The trainer sets it to its `reward_timeout`.
    """

    def __init__(self, function: Callable):
        self.function = function
        self.timeout = None
        self._process = None
        self._connection = None
        self._lock = threading.Lock()
        functools.update_wrapper(self, function, updated=())

    def check_loadable(self) -> None:
        """
        Check, before anything is trained, that a worker process can import the function.

        Raises:
            `ValueError`: when it is not found in a module under its name.
            `RuntimeError`: in a worker process, which runs a training script that is not guarded.
        """
        if multiprocessing.current_process().name.startswith(_PROCESS_NAME):
            raise RuntimeError(
                "This is a reward's worker process, which imports the script that is being run, and the script started to "
                'train. Put what trains under `if __name__ == "__main__":`.'
            )
        module, name = self.function.__module__, self.function.__qualname__
        try:
            found = module != "__main__" or "__file__" in vars(sys.modules[module])
            found = found and _find(module, name) is self.function
        except AttributeError:
            found = False
        if not found:
            raise ValueError(
                f"A worker process cannot import the reward function '{name}' from {module!r}. Define it at the top level of "
                "a module (in a notebook: write it to a file with `%%writefile rewards.py`, then `import rewards`); not in "
                "another function, and not as a lambda."
            )

    def __call__(self, *args, **kwargs):
        request = pickle.dumps(
            (
                [self._pickled(value, f"positional argument {index}") for index, value in enumerate(args)],
                {name: self._pickled(value, name) for name, value in kwargs.items() if name not in NOT_PASSED},
            )
        )
        with self._lock:
            try:
                if self._process is None or not self._process.is_alive():
                    self.stop()
                    self._start()
                self._connection.send_bytes(request)
                output, failure = self._receive(self.timeout, "`reward_timeout`")
            except BaseException:  # KeyboardInterrupt as well: the next call must not get the answer to this one
                self.stop()
                raise
        if failure is not None:
            raise _as_error(*failure)
        return output

    def stop(self) -> None:
        """End the worker process, with the processes it has started, whatever it is doing."""
        if self._process is None:
            return
        if self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # still starting, without a group of its own
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        self._process.join()
        self._connection.close()
        self._process = self._connection = None

    def _pickled(self, value, argument: str) -> bytes:
        try:
            return pickle.dumps(value)
        except Exception as error:  # pickling runs the code of the value's own class
            raise TypeError(
                f"`{argument}` cannot be pickled and so cannot be sent to the worker process of '{self.__name__}': "
                f"{type(error).__name__}: {error}. Take the column out of the data set, store plain values in it, or do not "
                "mark the function with `in_worker_process`."
            ) from error

    def _start(self) -> None:
        module = self.function.__module__
        spawn = multiprocessing.get_context("spawn")
        self._connection, remote = spawn.Pipe()
        process = spawn.Process(
            target=_serve,
            args=(remote, module, vars(sys.modules[module]).get("__file__"), self.function.__qualname__),
            name=f"{_PROCESS_NAME} of {self.__name__}",
            daemon=True,
        )
        process.start()
        self._process = process
        remote.close()  # so that only the worker holds it, and its death ends the connection
        _, failure = self._receive(_START_LIMIT, "the limit for its start")
        if failure is not None:
            raise _as_error(*failure)

    def _receive(self, limit: float | None, limit_name: str) -> tuple:
        try:
            if not self._connection.poll(limit):
                raise TimeoutError(
                    f"no answer from the worker process of '{self.__name__}' within {limit:g} seconds ({limit_name}). It "
                    "has been ended; the next call starts a new one"
                )
            return pickle.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError) as error:
            self._process.join()
            raise WorkerProcessError(
                f"the worker process of '{self.__name__}' ended unexpectedly with exit code {self._process.exitcode} (a "
                "negative one is a signal; -9 often means out of memory); what it printed is above"
            ) from error


def find_worker(reward_func: Callable) -> WorkerReward | None:
    """
    Find the function marked with [`in_worker_process`] in a partial or behind decorators that set `__wrapped__`.
    """
    while not isinstance(reward_func, WorkerReward):
        if isinstance(reward_func, functools.partial):
            inner = reward_func.func
        else:
            inner = inspect.unwrap(reward_func, stop=_is_marked_or_partial)
        if inner is reward_func:
            return None
        reward_func = inner
    return reward_func


def _is_marked_or_partial(function: Callable) -> bool:
    return isinstance(function, (WorkerReward, functools.partial))


def _find(module: str, qualified_name: str) -> Callable:
    """The function of that name in an imported module, without its mark, which the decorator has put in its place."""
    found = operator.attrgetter(qualified_name)(sys.modules[module])
    worker = find_worker(found)
    return found if worker is None else worker.function


def _as_error(description: str, remote_traceback: str) -> WorkerProcessError:
    error = WorkerProcessError(description)
    error.add_note(f"In the worker process:\n{remote_traceback}")
    return error


def _serve(connection: Connection, module: str, file: str | None, qualified_name: str) -> None:
    """Main function of the worker process: import the reward function's module, then answer calls."""
    os.setpgrp()  # Ctrl-C reaches the trainer only, which then ends this process and all that it has started
    _end_with_parent()
    multiprocessing.current_process().daemon = False  # a daemon may not start processes, as some graders do
    work = functools.partial(_import, module, file)
    with contextlib.suppress(EOFError):  # the trainer has ended
        while True:
            connection.send_bytes(_outcome(work))
            work = functools.partial(_call, module, qualified_name, connection.recv_bytes())


def _outcome(work: Callable) -> bytes:
    """Pickled: what `work` returned and `None`, or `None` and the description and traceback of what it raised."""
    try:
        return pickle.dumps((work(), None))
    except Exception as error:  # sent to the trainer, which raises it
        description = "".join(traceback.format_exception_only(error)).strip()
        return pickle.dumps((None, (description, traceback.format_exc())))


def _import(module: str, file: str | None) -> None:
    if module in sys.modules or importlib.util.find_spec(module) is not None:
        importlib.import_module(module)
    else:  # loaded from a file under a name that Python does not find, as `rewards.py:function` is on the command line
        spec = importlib.util.spec_from_file_location(module, file)
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])


def _call(module: str, qualified_name: str, request: bytes):
    args, kwargs = pickle.loads(request)
    kwargs = {name: pickle.loads(value) for name, value in kwargs.items()}
    output = _find(module, qualified_name)(*map(pickle.loads, args), **kwargs)
    return list(output) if isinstance(output, Iterator) else output  # which cannot be pickled


def _end_with_parent() -> None:
    """
    Have the kernel end this process, and those that it has started, when the trainer's process ends in whatever way.

    A thread that watches the trainer would not do: a computation that does not let Python run stops the thread too. (On
    macOS, which ignores SIGIO, a process that is computing ends after the computation.)
    """
    import fcntl  # does not exist on Windows, where the rest of the package can be imported

    pipe = multiprocessing.parent_process().sentinel  # nothing is written to it, and the trainer's end closes it
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)  # SIGIO ends a process
    if wait([pipe], timeout=0):
        sys.exit()
