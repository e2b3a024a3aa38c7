"""Reward functions for the tests of worker processes, which import this module: no PyTorch, so that they start at once."""

import functools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from trl_dara.rewards.worker import in_worker_process


def plain_lengths(completions, scale=1.0, **kwargs):
    return [scale * len(completion) for completion in completions]


def scaled(scale, completions, **kwargs):
    return plain_lengths(completions, scale)


lengths = in_worker_process(plain_lengths)
scaled_lengths = in_worker_process(scaled)


def doubled(reward_func):
    @functools.wraps(reward_func)
    def inner(*args, **kwargs):
        return [2 * reward for reward in reward_func(*args, **kwargs)]

    return inner


@in_worker_process
def decorated(completions, **kwargs):
    return plain_lengths(completions)


@doubled
@in_worker_process
def decorated_outside(completions, **kwargs):
    return plain_lengths(completions)


@in_worker_process
@doubled
def decorated_inside(completions, **kwargs):
    return plain_lengths(completions)


class Grader:
    @staticmethod
    @in_worker_process
    def static(completions, **kwargs):
        return plain_lengths(completions)


@in_worker_process
def process_ids(completions, **kwargs):
    return [os.getpid()] * len(completions)


@in_worker_process
def argument_names(**kwargs):
    return sorted(kwargs)


@in_worker_process
def generator(completions, **kwargs):
    return (float(len(completion)) for completion in completions)


@in_worker_process
def does(completions, **kwargs):
    """Do what the first completion says, and return this process's id for each."""
    action, _, argument = completions[0].partition(" ")
    if action == "tower":
        note(argument)
        9**9**9**9  # computes for ever, and lets no other Python code run
    elif action == "sleep":
        time.sleep(600)
    elif action == "start":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note(argument, child.pid)
        child.wait()
    elif action == "fork":
        child = multiprocessing.get_context("fork").Process(target=note, args=(argument,))
        child.start()
        child.join()
    elif action == "raise":
        raise KeyError(argument)
    elif action == "exit":
        sys.exit(3)
    elif action == "die":
        os.kill(os.getpid(), 9)
    elif action == "lock":
        return [threading.Lock()]
    return [os.getpid()] * len(completions)


def note(path: str, pid: int | None = None) -> None:
    """Write a process id into a file that appears complete."""
    if path:
        Path(path + ".part").write_text(str(pid or os.getpid()))
        os.replace(path + ".part", path)
