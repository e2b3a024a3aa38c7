"""The process that runs the code of `bfcl_eval`, seen from here."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import TIMEOUT_MAX

from trl_dara.evaluation.bfcl.benchmark import VERSION
from trl_dara.evaluation.bfcl.worker import TOO_DEEP


WORKER = Path(__file__).with_name("worker.py")
TIMED_OUT = "Timeout ("  # how Python's watchdog begins its last words
# All that the worker gets of the environment: what an interpreter may need to start, and no secrets
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")


class CaseFailure(Exception):
    """A model's calls did not come to an end in time, could not be read, or brought down the process that ran them."""


class BFCL:
    """
    Access to the data, the tools and the checkers of BFCL, which run in a process of their own
    (`trl_dara/evaluation/bfcl/worker.py`) in a scratch folder. A context manager.

    Args:
        python (`str`, *optional*):
            Interpreter that has `bfcl_eval`. By default the one that runs this.
        time_limit (`float`, *optional*, defaults to `10.0`):
            Seconds that the calls of one case may take.

    Raises:
        `FileNotFoundError`: when there is no such interpreter.
        `ImportError`: when it does not have `bfcl_eval` in the version of the protocol.
        `ChildProcessError`: here and in every call, when the interpreter cannot run the process.
        `ValueError`: for a time limit that is not positive.
    """

    def __init__(self, python: str | None = None, time_limit: float = 10.0):
        if not 0 < time_limit <= TIMEOUT_MAX:
            raise ValueError(f"`time_limit` is {time_limit}. Pass a number of seconds above 0, such as 10.")
        self.python = _find(python or sys.executable)
        self.time_limit = time_limit
        self._folder = tempfile.TemporaryDirectory(prefix="bfcl-", ignore_cleanup_errors=True)
        self._process = None
        try:
            self._check_version()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "BFCL":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it is at, and remove its folder."""
        if self._process is not None:
            self._process.kill()
        self._stop()
        self._folder.cleanup()

    def cases(self, category: str) -> list[dict]:
        """
        Cases of a category as a model is asked.

        Args:
            category (`str`):
                Name of the category.

        Returns:
            `list[dict]`: the cases, with `id`, `question` (messages per turn), `function` (the tools) and, where tools
            are held out until a turn, `missed_function`.
        """
        return self._ask("cases", category=category)

    def execute(self, case_id: str, steps: list[list[dict]]) -> list[dict]:
        """
        Run the calls of a multi-turn case from its initial state.

        Args:
            case_id (`str`):
                Id of the case.
            steps (`list[list[dict]]`):
                Calls of every step so far, each with `name` and `parameters`.

        Returns:
            `list[dict]`: `call` and `result`, both texts, for each call of the last step.

        Raises:
            [`CaseFailure`]
        """
        return self._ask("execute", case_id=case_id, steps=steps, limit=self.time_limit)

    def check_calls(self, case_id: str, calls: list[dict]) -> dict:
        """
        Check the calls of a single-turn case with the official checker.

        Args:
            case_id (`str`):
                Id of the case.
            calls (`list[dict]`):
                Its calls, each with `name` and `parameters`.

        Returns:
            `dict`: `valid`, and `error_type` and `error` where it is not.

        Raises:
            [`CaseFailure`]
        """
        return self._ask("check_calls", case_id=case_id, calls=calls, limit=self.time_limit)

    def check_turns(self, case_id: str, turns: list[list[list[dict]]]) -> dict:
        """
        Check the calls of a multi-turn case with the official checker.

        Args:
            case_id (`str`):
                Id of the case.
            turns (`list[list[list[dict]]]`):
                Calls by turn and step, each with `name` and `parameters`.

        Returns:
            `dict`: `valid`, and `error_type` and `error` where it is not.

        Raises:
            [`CaseFailure`]
        """
        return self._ask("check_turns", case_id=case_id, turns=turns, limit=self.time_limit)

    def _check_version(self) -> None:
        found = self._ask("version")
        if found.get("version") == VERSION:
            return
        what = f"has version {found['version']}" if "version" in found else f"lacks the module {found['missing']}"
        raise ImportError(
            f"`bfcl_python` is {self.python!r}, which {what}. The evaluation needs bfcl_eval {VERSION} in an environment of "
            "its own, without the packages that it declares (they do not fit beside this library):\n"
            "  python3 -m venv bfcl-env\n"
            f"  bfcl-env/bin/pip install --no-deps bfcl-eval=={VERSION} filelock mpmath==1.3.0\n"
            "Then pass `--bfcl_python bfcl-env/bin/python`."
        )

    def _ask(self, method: str, **arguments):
        """
        The worker's answer. A worker that crashes is asked once more, and only if a signal ends it again is that the
        case's doing; whatever else goes wrong is ours.
        """
        try:
            request = json.dumps({"method": method, "arguments": arguments}) + "\n"
        except RecursionError:
            raise CaseFailure(TOO_DEEP) from None
        for _ in range(2):
            if self._process is None:
                self._start()
            answer, code = self._exchange(request)
            if answer is not None:
                if "case_failure" in answer:
                    raise CaseFailure(answer["case_failure"])
                if "failure" in answer:
                    raise RuntimeError(f"{WORKER.name} failed:\n{answer['failure']}")
                return answer["result"]
            log = self._log().read_text(encoding="utf-8", errors="replace")
            if TIMED_OUT in log:
                raise CaseFailure(f"no end within {arguments['limit']:g} s")
        if code < 0 and "limit" in arguments:
            raise CaseFailure(f"the process ended with exit code {code}: {log[-2000:]}")
        raise ChildProcessError(f"{self.python} could not run {WORKER.name} (exit code {code}):\n{log[-2000:]}")

    def _start(self) -> None:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= {"BFCL_PROJECT_ROOT": self._folder.name, "HOME": self._folder.name, "TZ": "UTC"}
        with self._log().open("w") as log:
            self._process = subprocess.Popen(
                [self.python, "-I", "-X", "utf8", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env=environment,
                cwd=self._folder.name,
                start_new_session=True,  # Ctrl-C is for us alone: it says nothing about the case at hand
            )

    def _exchange(self, request: str) -> tuple[dict | None, int | None]:
        """The answer, or `None` and the exit code of the process."""
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line.endswith("\n"):
            return json.loads(line), None
        return None, self._stop()

    def _stop(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.stdout.close()
        try:
            process.stdin.close()  # the worker ends at the end of its requests
        except BrokenPipeError:
            pass
        return process.wait()

    def _log(self) -> Path:
        return Path(self._folder.name) / "worker.log"


def _find(python: str) -> str:
    """Absolute path of an interpreter; of the link in a virtual environment, not of what it points to."""
    found = shutil.which(python)
    if found is None:
        raise FileNotFoundError(
            f"`bfcl_python` is {python!r}, but there is no such program. Pass the path of a Python interpreter."
        )
    return os.path.abspath(found)
