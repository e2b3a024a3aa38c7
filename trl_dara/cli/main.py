"""Entry point `trl-dara`. Subcommands are imported when they run, so that this module needs the standard library only."""

import argparse
import importlib
import sys

from trl_dara import __version__


SUBCOMMANDS = {
    "grpo": "trl_dara.cli.grpo",
    "demo": "trl_dara.cli.demo",
    "plan": "trl_dara.cli.plan",
    "check": "trl_dara.cli.check",
    "eval": "trl_dara.cli.eval",
    "replay": "trl_dara.cli.replay",
    "report": "trl_dara.cli.report",
    "vllm-serve": "trl_dara.cli.vllm_serve",
}


def main(argv: list[str] | None = None) -> int:
    """
    Run the command line.

    Args:
        argv (`list[str]`, *optional*):
            Arguments after the program's name. By default those of the process.

    Returns:
        `int`: the exit code.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="trl-dara",
        description="Train language models with several rewards at once, and see what each reward does.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("--version", action="version", version=f"trl-dara {__version__}")
    return run_one_of("command", SUBCOMMANDS, parser, argv)


def run_one_of(kind: str, modules: dict[str, str], parser: argparse.ArgumentParser, argv: list[str]) -> int:
    """
    Run the module that the first argument names, with the other arguments; without one, print what there is.

    Args:
        kind (`str`):
            What the first argument is, for the help.
        modules (`dict[str, str]`):
            Paths of the modules by name; each has `HELP` and `run(argv)`.
        parser (`argparse.ArgumentParser`):
            Parser without `--help`.
        argv (`list[str]`):
            Arguments.

    Returns:
        `int`: the exit code.
    """
    parser.add_argument("-h", "--help", action="store_true", help=f"show this help; every {kind} has one of its own")
    parser.add_argument("name", nargs="?", choices=modules, metavar=kind, help="one of those below")
    args = parser.parse_args(argv[:1])  # what follows the name is the module's
    if args.name is None:
        width = max(map(len, modules)) + 2
        parser.epilog = f"{kind}s:\n" + "\n".join(
            f"  {name:<{width}}{importlib.import_module(module).HELP}" for name, module in modules.items()
        )
        parser.print_help()
        return 0
    return importlib.import_module(modules[args.name]).run(argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
