"""`trl-dara eval`: evaluate a model on one of the tasks."""

import argparse

from trl_dara.cli.main import run_one_of


HELP = "evaluate a model: mathematics (math) or tool calling (bfcl)"

TASKS = {"math": "trl_dara.cli.eval_math", "bfcl": "trl_dara.cli.eval_bfcl"}


def run(argv: list[str]) -> int:
    """
    Run the evaluation of a task.

    Args:
        argv (`list[str]`):
            The task and its options.

    Returns:
        `int`: the exit code of the evaluation.
    """
    parser = argparse.ArgumentParser(
        prog="trl-dara eval",
        description="Evaluate a model on one of the tasks.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    return run_one_of("task", TASKS, parser, argv)
