"""Reading the options of a subcommand from the command line and the YAML file, with one sentence for what is wrong."""

import argparse
import difflib
import importlib.resources
from dataclasses import fields

import torch
import yaml
from accelerate.commands.launch import launch_command_parser
from trl import ModelConfig, TrlParser
from trl.cli.accelerate_config import resolve_accelerate_config_argument
from trl.trainer.utils import get_callable_name

from ..channels import Channels
from ..config import DICT_FIELDS, MultiRewardGRPOConfig, parse_mapping
from ..group_filter import parse_criterion
from ..validation import DEFAULT_AGGREGATION, complete_aggregation_kwargs


# Options of earlier TRL and transformers versions, of TRL's forks and of open-r1, which recipes on the web still use.
REMOVED = {
    "adafactor": "use `optim: adafactor`",
    "apply_gdpo": "use `aggregation: gdpo`",
    "chat_template": "set the template in the tokenizer (`tokenizer.chat_template`) and save it with the model",
    "evaluation_strategy": "use `eval_strategy`",
    "fp16_backend": "leave it out; `fp16` and `bf16` choose the precision",
    "group_by_length": "leave it out; batches are made of whole prompt groups",
    "half_precision_backend": "leave it out; `fp16` and `bf16` choose the precision",
    "hub_model_revision": "use `hub_revision`",
    "include_tokens_per_second": "use `include_num_input_tokens_seen`",
    "kl_coef": "use `beta`",
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR (in YAML under `env`)",
    "max_new_tokens": "use `max_completion_length`",
    "max_prompt_length": "leave out long prompts of the data set before training; prompts are not truncated",
    "max_seq_length": "use `max_completion_length`; prompts are not truncated",
    "no_cuda": "use `use_cpu`",
    "overwrite_output_dir": "leave it out; `output_dir` may exist, and `resume_from_checkpoint` continues a run",
    "per_gpu_eval_batch_size": "use `per_device_eval_batch_size`",
    "per_gpu_train_batch_size": "use `per_device_train_batch_size`",
    "push_to_hub_model_id": "use `hub_model_id`",
    "push_to_hub_organization": "use `hub_model_id` with `organization/name`",
    "push_to_hub_token": "use `hub_token`",
    "response_length": "use `max_completion_length`",
    "save_safetensors": "leave it out; models are always saved as safetensors",
    "system_prompt": "put the system message into the `prompt` column of the data set",
    "torch_dtype": "use `dtype`",
    "use_liger_loss": "use `use_liger_kernel`",
    "use_mps_device": "leave it out; the device is found by itself",
    "vllm_device": "use `vllm_mode: colocate` or `vllm_mode: server`",
    "vllm_dtype": "leave it out; vLLM takes the dtype of the checkpoint",
    "vllm_enable_prefix_caching": "leave it out; prefix caching is vLLM's default",
    "vllm_guided_decoding_regex": "use `vllm_structured_outputs_regex`",
    "vllm_max_model_len": "use `vllm_max_model_length`",
    "wandb_entity": "set the environment variable WANDB_ENTITY (in YAML under `env`)",
    "wandb_log_unique_prompts": "use `log_unique_prompts`",
    "wandb_project": "set the environment variable WANDB_PROJECT (in YAML under `env`)",
    "wandb_run_group": "set the environment variable WANDB_RUN_GROUP (in YAML under `env`)",
    "warmup_ratio": "use `warmup_steps`; below 1 it is a share of all steps",
}


# What the training scripts of the repository, which are not installed, have beside the options of `trl-dara grpo`.
SCRIPT_OPTIONS = {
    "train_scripts.tool_calling": {
        "dataset_path",
        "dataset_split",
        "eval_dataset_path",
        "max_prompt_length",
        "think_length",
    },
    "train_scripts.math_reasoning": {"dataset_path", "eval_size", "max_prompt_length", "task"},
}


def read_options(
    parser: TrlParser, argv: list[str], script_options: bool = False
) -> tuple[argparse.Namespace, list[str]]:
    """
    Read the command line and the YAML file given with `--config`, without building the dataclasses: building a training
    configuration needs the devices and the number of processes of the training run.

    Ends the program with exit code 2 and one sentence when an option does not exist or has an impossible value.

    Args:
        parser ([`~trl.TrlParser`]):
            Parser of the subcommand.
        argv (`list[str]`):
            Arguments of the subcommand.
        script_options (`bool`, *optional*, defaults to `False`):
            Whether the options of one of the scripts in `SCRIPT_OPTIONS` may be among what remains.

    Returns:
        `tuple[argparse.Namespace, list[str]]`: the value of every option of the parser, and what remains: the options of
        `accelerate launch`, with `--accelerate_config` resolved.
    """
    parser.dataclass_types = []  # the values of all options come back in one namespace
    try:
        namespace, from_config, from_command_line = parser.parse_args_and_config(
            _split_config_option(argv), return_remaining_strings=True, separate_remaining_strings=True
        )
        launch_args = _resolve_accelerate_config(from_config + from_command_line)
        scripts, others = split_script_options(launch_args)
        if scripts and not script_options:
            raise ValueError(
                f"This is a recipe for {scripts}, with options that only that script has, beside data and rewards of its own. "
                "Start it with the script, from a clone of the repository; `trl-dara plan` takes it too."
            )
        _check_launch_args(parser, namespace, others)
    except yaml.YAMLError as error:
        parser.error(f"`--config`: the file is not valid YAML: {_one_line(error)}")
    except OSError as error:
        parser.error(f"`--config`: cannot read {error.filename!r}: {error.strerror}.")
    except (TypeError, ValueError) as error:
        parser.error(_one_line(error))
    return namespace, launch_args


def split_script_options(launch_args: list[str]) -> tuple[str, list[str]]:
    """
    Find the options that only a training script of the repository has.

    Args:
        launch_args (`list[str]`):
            Options that the subcommand does not have.

    Returns:
        `tuple[str, list[str]]`: how the script, or each that has all of these options, is started, empty when there are no
        such options; and the other options.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in set().union(*SCRIPT_OPTIONS.values()):
        parser.add_argument(f"--{name}", nargs="?", default=argparse.SUPPRESS)
    found, others = parser.parse_known_args(launch_args)
    given = set(vars(found))
    scripts = [f"`python -m {script}`" for script, options in SCRIPT_OPTIONS.items() if given <= options]
    if not scripts or given <= set(REMOVED):  # older versions of TRL had some of these options
        return "", launch_args
    return " or ".join(scripts), others


def build(parser: TrlParser, namespace: argparse.Namespace, dataclass_type: type):
    """
    Build one of the parser's dataclasses from the options.

    Ends the program with exit code 2 and one sentence when the dataclass refuses a value.

    Args:
        parser ([`~trl.TrlParser`]):
            Parser of the subcommand.
        namespace (`argparse.Namespace`):
            Options as returned by [`read_options`].
        dataclass_type (`type`):
            The dataclass.

    Returns:
        Instance of `dataclass_type`.
    """
    values = vars(namespace)
    try:
        return dataclass_type(**{option.name: values[option.name] for option in fields(dataclass_type) if option.init})
    except (TypeError, ValueError) as error:
        parser.error(_one_line(error))


def check_channels(parser: TrlParser, namespace: argparse.Namespace, script_args) -> None:
    """
    Check all that the options say about channels, by name or by position: weights, bounds, gates, schedules, keyword
    arguments of the rule and the group filter. The trainer does so too, but after the model is loaded.

    Ends the program with exit code 2 and one sentence when something is wrong.

    Args:
        parser ([`~trl.TrlParser`]):
            Parser of the subcommand.
        namespace (`argparse.Namespace`):
            Its options, `weight` entries of `reward_funcs` moved to `reward_weights`.
        script_args ([`~trl_dara.scripts.grpo.MultiRewardGRPOScriptArguments`]):
            The reward functions and the reward model.
    """
    names = [get_callable_name(function) for function in script_args.functions]
    if script_args.reward_model_name_or_path:
        names.insert(0, script_args.reward_model_name_or_path.split("/")[-1])  # as TRL names it
    weights = namespace.reward_weights
    named_weights = weights if isinstance(weights, dict) else None
    if weights is None or named_weights is not None:
        weights = [1.0] * len(names)
    settings = argparse.Namespace(**vars(namespace))
    try:
        if len(weights) != len(names):
            raise ValueError(
                f"`reward_weights` has {len(weights)} weights, but there are {len(names)} channels: {names}."
            )
        for name in DICT_FIELDS:
            setattr(settings, name, parse_mapping(name, vars(namespace)[name]))
        channels = Channels(names, torch.tensor(weights), named_weights, settings)  # weights of shape (K,)
        aggregation = settings.aggregation or DEFAULT_AGGREGATION
        complete_aggregation_kwargs(settings.aggregation_kwargs or {}, aggregation, channels, settings.num_generations)
        if settings.group_filter != "none":
            parse_criterion(settings.group_filter, channels.names)
    except ValueError as error:
        parser.error(_one_line(error))


def parse_script_options(argv: list[str], script_arguments: type, prog: str) -> list:
    """
    Read the options of a training script that `accelerate launch` starts; ends the program with one sentence when one is
    wrong.

    Args:
        argv (`list[str]`):
            Command-line arguments.
        script_arguments (`type`):
            Dataclass with the script's own options.
        prog (`str`):
            How the script is called.

    Returns:
        `list`: instances of `script_arguments`, [`~trl_dara.MultiRewardGRPOConfig`] and [`~trl.ModelConfig`].
    """
    dataclass_types = (script_arguments, MultiRewardGRPOConfig, ModelConfig)
    usage = f"{prog} [--config recipe.yaml] [--option value ...]"
    parser = TrlParser(dataclass_types, prog=prog, usage=usage, allow_abbrev=False)
    namespace, launch_args = read_options(parser, argv)
    if launch_args:
        parser.error(f"Give the options of `accelerate launch` before the script's name: {' '.join(launch_args)}")
    if namespace.model_name_or_path is None:
        parser.error("`model_name_or_path` is not set. Give the model to train: a folder, or a name on the Hub.")
    return [build(parser, namespace, dataclass_type) for dataclass_type in dataclass_types]


def _split_config_option(argv: list[str]) -> list[str]:
    """Write `--config=recipe.yaml` as two arguments, the only form in which TRL takes these two options."""
    split = []
    for argument in argv:
        option, equals, value = argument.partition("=")
        split += [option, value] if equals and option in ("--config", "--accelerate_config") else [argument]
    if split and split[-1] == "--config":
        raise ValueError("`--config` needs the path of a YAML file.")
    return split


def _resolve_accelerate_config(launch_args: list[str]) -> list[str]:
    try:
        return resolve_accelerate_config_argument(launch_args)
    except ValueError as error:
        files = importlib.resources.files("trl.accelerate_configs").iterdir()
        names = sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))
        raise ValueError(f"{error} Predefined: {', '.join(names)}.") from None


def _check_launch_args(parser: TrlParser, namespace: argparse.Namespace, launch_args: list[str]) -> None:
    launcher = launch_command_parser()
    launcher.prog, launcher.usage = parser.prog, parser.usage
    script = "the training script"
    launch, unknown = launcher.parse_known_args([*launch_args, script])
    for option in unknown:
        name = option.lstrip("-").partition("=")[0].replace("-", "_")
        if name in REMOVED:
            raise ValueError(f"The option `{name}` does not exist any more: {REMOVED[name]}.")
        if name in vars(namespace):
            raise ValueError(f"Write the option `{name}` with underscores in a YAML file.")
        close = difflib.get_close_matches(name, [*vars(namespace), *vars(launch)], n=2)
        hint = f" Did you mean {' or '.join(f'`{match}`' for match in close)}?" if close else ""
        raise ValueError(f"There is no option `{name}`, neither here nor in `accelerate launch`.{hint}")
    if launch.training_script != script:
        raise ValueError(
            f"What is {launch.training_script!r} for? Options are written `--name value`, and a YAML file is given with "
            "`--config recipe.yaml`."
        )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
