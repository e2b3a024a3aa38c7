"""`trl-dara eval`: evaluate a model on one of the tasks."""

import argparse
import importlib


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
    parser.add_argument("-h", "--help", action="store_true", help="show this help; every task has one of its own")
    parser.add_argument("task", nargs="?", choices=TASKS, metavar="task", help="one of those below")
    args = parser.parse_args(argv[:1])  # what follows the task is the task's
    if args.task is None:
        parser.epilog = "tasks:\n" + "\n".join(
            f"  {name:<8}{importlib.import_module(module).HELP}" for name, module in TASKS.items()
        )
        parser.print_help()
        return 0
    return importlib.import_module(TASKS[args.task]).run(argv[1:])
