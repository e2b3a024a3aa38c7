"""`trl-dara grpo`: launch the training script with `accelerate launch`, as `trl grpo` does."""

import os
import subprocess


HELP = "train a model (options it does not know go to `accelerate launch`)"


def run(argv: list[str]) -> int:
    """
    Launch the training script.

    Args:
        argv (`list[str]`):
            Options of the training script and of `accelerate launch`; `--accelerate_config` takes a path or the name of
            one of TRL's configurations (`multi_gpu`, `zero2`, `fsdp2`, ...).

    Returns:
        `int`: the exit code of the training script.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser

    from trl_dara.child_processes import python_path
    from trl_dara.cli.options import read_options
    from trl_dara.scripts.grpo import make_parser

    _, launch_args = read_options(make_parser(), argv)
    # As a module, so that the working folder is importable. The script gets all options and leaves out accelerate's.
    launch = [*launch_args, "--module", "trl_dara.scripts.grpo", *argv]
    os.environ["PYTHONPATH"] = python_path()
    try:
        launch_command(launch_command_parser().parse_args(launch))
    except subprocess.CalledProcessError as error:
        return error.returncode  # the script has said what is wrong
    return 0
