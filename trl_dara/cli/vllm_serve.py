"""`trl-dara vllm-serve`: start vLLM's own server with what TRL's client needs, for training with `vllm_mode: server`."""

import argparse
import os
import shlex
import sys


HELP = "start a vLLM server to generate with (options it does not know go to `vllm serve`)"

# What `trl.generation.vllm_client` needs of a server, TRL 1.16
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}  # opens the endpoints for weights and for the prefix cache
FLAGS = {
    "--weight-transfer-config": '{"backend": "nccl"}',  # receives the trainer's weights
    "--logprobs-mode": "processed_logprobs",  # after the temperature, as the importance sampling ratio needs them
    "--max-logprobs": "-1",  # as many as a trainer asks for
}
SCALE_OUT = "--enable-scale-out"  # the endpoints for images; they were always open before this version
SCALE_OUT_SINCE = "0.30.0"


def run(argv: list[str]) -> int:
    """
    Become vLLM's server: this process is replaced by it, so that signals reach it and its exit code is the command's.

    Args:
        argv (`list[str]`):
            `--model`, and options of `vllm serve`. What is given here, or in the file given with `--config`, comes
            before what TRL needs; so does the environment.

    Returns:
        `int`: never, in fact: the process ends with the server's exit code, or with 2 when it cannot be started.
    """
    from rich.console import Console
    from trl.import_utils import is_vllm_available

    parser = make_parser()
    options, vllm_options = parser.parse_known_args(argv)
    if not is_vllm_available():
        parser.error("vLLM is not installed. Install it with `pip install 'trl-dara[vllm]'`.")
    flags = FLAGS if not is_vllm_available(min_version=SCALE_OUT_SINCE) else {**FLAGS, SCALE_OUT: None}
    try:
        arguments = serve_arguments(options, vllm_options, flags)
    except (OSError, ValueError) as error:
        parser.error(f"`--config`: {error}")
    environment = {**ENVIRONMENT, **os.environ}

    equivalent = [f"{name}={shlex.quote(environment[name])}" for name in ENVIRONMENT]
    equivalent.append(shlex.join(["vllm", *arguments]))
    Console(soft_wrap=True, markup=False, highlight=False).print(*equivalent)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "vllm.entrypoints.cli.main", *arguments], environment)


def serve_arguments(options: argparse.Namespace, vllm_options: list[str], flags: dict[str, str | None]) -> list[str]:
    """
    Put the command line of vLLM together.

    Args:
        options (`argparse.Namespace`):
            `model` and `config`.
        vllm_options (`list[str]`):
            The other options, for vLLM.
        flags (`dict[str, str | None]`):
            What TRL needs, with the value of each flag that has one.

    Returns:
        `list[str]`: the arguments of `vllm`.

    Raises:
        `OSError` or `ValueError`: when the file of options cannot be read.
    """
    config = ["--config", options.config] if options.config else []
    given = {_flag(option) for option in vllm_options} | {_flag(f"--{key}") for key in _read_config(options.config)}
    # Ours come first: vLLM takes the last value, should one be given in a way that `_flag` does not recognise
    needed = [
        argument
        for flag, value in flags.items()
        if flag not in given
        for argument in ([flag] if value is None else [flag, value])
    ]
    return ["serve", options.model, *config, *needed, *vllm_options]


def make_parser() -> argparse.ArgumentParser:
    """
    Make the parser of the options that are not simply handed to vLLM.

    Returns:
        `argparse.ArgumentParser`
    """
    parser = argparse.ArgumentParser(
        prog="trl-dara vllm-serve",
        usage="%(prog)s --model MODEL [option of `vllm serve` ...]",
        description="Start vLLM's own server with the flags and the environment that TRL needs for training with "
        "`vllm_mode: server`, and print the `vllm serve` command that does the same. All other options are those of "
        "`vllm serve` (see `vllm serve --help`); a value given here comes before the one that TRL needs.",
        allow_abbrev=False,
    )
    parser.add_argument("--model", required=True, help="model to serve, the one to be trained: a folder, or a Hub id")
    parser.add_argument("--config", help="YAML file with options of `vllm serve`")
    return parser


def _flag(option: str) -> str:
    """The flag that an option sets: `--weight_transfer_config.backend=gloo` sets `--weight-transfer-config`."""
    flag = option.partition("=")[0].partition(".")[0].replace("_", "-")
    return f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else flag


def _read_config(path: str | None) -> dict:
    import yaml

    if path is None:
        return {}
    with open(path) as file:
        try:
            options = yaml.safe_load(file)
        except yaml.YAMLError as error:
            raise ValueError(f"{path!r} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(options, dict):
        raise ValueError(f"{path!r} holds no options. Write one a line, `max-model-len: 4096`.")
    return options
