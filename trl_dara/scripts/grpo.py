# /// script
# dependencies = [
#     "trl-dara",
# ]
# ///

"""
Train a model with several rewards; what `trl-dara grpo` launches on every process.

```bash
trl-dara grpo \
    --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct \
    --dataset_name trl-lib/DeepMath-103K \
    --reward_funcs accuracy_reward rewards.py:brevity \
    --output_dir DeepMath-dara
```
"""

import sys
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser

from trl_dara.cli.options import build, check_channels, read_options
from trl_dara.config import MultiRewardGRPOConfig
from trl_dara.rewards.loading import load_rewards, merge_weights
from trl_dara.validation import check_prompt_column


@dataclass
class MultiRewardGRPOScriptArguments(ScriptArguments):
    """
    Script arguments for training with several rewards.

    Args:
        reward_model_name_or_path (`str`, *optional*):
            Reward model id of a pretrained model hosted inside a model repo on huggingface.co or local path to a
            directory containing model weights saved using [`~transformers.PreTrainedModel.save_pretrained`]. The first
            channel, with weight 1 where weights are given in `reward_funcs`.
        reward_funcs (`list[str]`, *optional*):
            Reward functions, each a channel: the name of a built-in one, a key of [`trl_dara.rewards.loading.REWARDS`];
            a dotted path; `path/to/file.py:function`; or a mapping (on the command line a JSON string) of `path`, one of
            these three, and any of `name`, `weight` and `kwargs`.
    """

    reward_model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "Reward model id of a pretrained model hosted inside a model repo on huggingface.co or local path to "
            "a directory containing model weights saved using `PreTrainedModel.save_pretrained`. The first channel, with "
            "weight 1 where weights are given in `reward_funcs`."
        },
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Reward functions, each a channel: the name of a built-in one, a dotted path, "
            "`path/to/file.py:function`, or a mapping (on the command line a JSON string) of `path`, one of these three, "
            "and any of `name`, `weight` and `kwargs`."
        },
    )
    functions: list[Any] = field(init=False, repr=False)  # what `reward_funcs` names
    weights: list[float | None] = field(init=False, repr=False)  # one per channel

    def __post_init__(self):
        if not (self.reward_funcs or self.reward_model_name_or_path):
            raise ValueError(
                "There is no reward. Set `reward_funcs`, e.g. `--reward_funcs think_format_reward rewards.py:brevity`, or "
                "`reward_model_name_or_path`."
            )
        self.functions, self.weights = load_rewards(self.reward_funcs or [])
        if self.reward_model_name_or_path:
            self.weights = [None, *self.weights]


def load_data(script_args: ScriptArguments, dataset_args: DatasetMixtureConfig):
    """
    Load the data set.

    Args:
        script_args ([`~trl.ScriptArguments`]):
            With `dataset_name`, a data set on the Hub or a folder, and its splits.
        dataset_args ([`~trl.DatasetMixtureConfig`]):
            With `datasets`, a mixture.

    Returns:
        `datasets.DatasetDict` or `datasets.IterableDatasetDict`

    Raises:
        `ValueError`: without a data set, or with two.
    """
    from datasets import load_dataset
    from trl import get_dataset

    if bool(dataset_args.datasets) == bool(script_args.dataset_name):
        raise ValueError("Set one of `dataset_name` and `datasets`.")
    if dataset_args.datasets:
        return get_dataset(dataset_args)
    return load_dataset(
        script_args.dataset_name, name=script_args.dataset_config, streaming=script_args.dataset_streaming
    )


def get_split(dataset, script_args: ScriptArguments, option: str):
    """
    Take one split of a data set.

    Args:
        dataset (`datasets.DatasetDict` or `datasets.IterableDatasetDict`):
            What [`load_data`] returned.
        script_args ([`~trl.ScriptArguments`]):
            Names of the splits.
        option (`str`):
            `"dataset_train_split"` or `"dataset_test_split"`.

    Returns:
        `datasets.Dataset` or `datasets.IterableDataset`

    Raises:
        `ValueError`: when there is no such split, or it has no prompts.
    """
    split = vars(script_args)[option]
    if split not in dataset:
        raise ValueError(f"`{option}` is {split!r}, but the data set has the splits {list(dataset)}.")
    check_prompt_column(dataset[split], f"The split `{split}` of the data set")
    return dataset[split]


def checkpoint_to_resume(trainer) -> str | bool | None:
    """
    Choose the checkpoint to resume from.

    Args:
        trainer ([`MultiRewardGRPOTrainer`]):
            With the setting `resume_from_checkpoint`: a folder, or true (in YAML `true`, on the command line `True` or
            `true`) for the last complete checkpoint in `output_dir`.

    Returns:
        `str`, `bool` or `None`: the argument of [`~transformers.Trainer.train`].
    """
    from trl_dara.state import last_complete_checkpoint

    given, output_dir = trainer.args.resume_from_checkpoint, trainer.args.output_dir
    if str(given).lower() != "true":
        return given
    checkpoint = last_complete_checkpoint(output_dir)
    if checkpoint is None:
        trainer.accelerator.print(f"There is no complete checkpoint in {output_dir}: training starts anew.")
    return checkpoint


def model_init_kwargs(training_args, model_args) -> dict:
    """
    How to load the model: the options of [`~trl.ModelConfig`], unless the setting `model_init_kwargs` says otherwise.
    """
    return {
        "revision": model_args.model_revision,
        "trust_remote_code": training_args.trust_remote_code,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }


def without_long_prompts(datasets, max_length: int | None, training_args, model_args) -> list:
    """
    The data sets without the prompts of more than `max_length` tokens of the model's tokenizer; all prompts if it is
    `None`. A data set that is `None` stays so.
    """
    if max_length is None:
        return list(datasets)
    from transformers import AutoTokenizer

    from trl_dara.data.loading import filter_long_prompts

    tokenizer = AutoTokenizer.from_pretrained(
        model_args.model_name_or_path,
        revision=model_args.model_revision,
        trust_remote_code=training_args.trust_remote_code,
    )
    return [
        dataset and filter_long_prompts(dataset, tokenizer, max_length, training_args.chat_template_kwargs)
        for dataset in datasets
    ]


def train_and_save(trainer, dataset_name: str | None = None) -> None:
    """
    Train, resuming where the setting `resume_from_checkpoint` says, save the model, and push it if asked to.

    Args:
        trainer ([`MultiRewardGRPOTrainer`]):
            Trainer that has not yet run.
        dataset_name (`str`, *optional*):
            Data set for the model card on the Hub.
    """
    trainer.train(resume_from_checkpoint=checkpoint_to_resume(trainer))
    trainer.accelerator.print("Training completed.")

    trainer.save_model(trainer.args.output_dir)
    trainer.accelerator.print(f"Model saved to {trainer.args.output_dir}.")
    if trainer.args.push_to_hub:
        trainer.push_to_hub(dataset_name=dataset_name)
        trainer.accelerator.print(f"Model pushed to https://huggingface.co/{trainer.hub_model_id}.")
    trainer.end()  # finishes the trackers and the process group


def main(script_args, training_args, model_args, dataset_args):
    from trl import get_peft_config, get_quantization_config

    from trl_dara import MultiRewardGRPOTrainer

    reward_model = script_args.reward_model_name_or_path
    training_args.model_init_kwargs = model_init_kwargs(training_args, model_args)
    dataset = load_data(script_args, dataset_args)
    evaluates = training_args.eval_strategy != "no"

    trainer = MultiRewardGRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=[reward_model, *script_args.functions] if reward_model else script_args.functions,
        args=training_args,
        train_dataset=get_split(dataset, script_args, "dataset_train_split"),
        eval_dataset=get_split(dataset, script_args, "dataset_test_split") if evaluates else None,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )
    train_and_save(trainer, script_args.dataset_name)


def make_parser(prog: str = "trl-dara grpo", *extra_types: type) -> TrlParser:
    """
    Make the parser of a subcommand that takes the options of `trl-dara grpo`.

    Args:
        prog (`str`, *optional*, defaults to `"trl-dara grpo"`):
            Name of the subcommand.
        extra_types (`type`):
            Dataclasses with more options.

    Returns:
        [`~trl.TrlParser`]
    """
    dataclass_types = (MultiRewardGRPOScriptArguments, MultiRewardGRPOConfig, ModelConfig, DatasetMixtureConfig)
    return TrlParser(
        (*extra_types, *dataclass_types),
        prog=prog,
        usage=f"{prog} [--config recipe.yaml] [--option value ...]",
        allow_abbrev=False,
    )


def build_script_arguments(parser: TrlParser, namespace: Namespace) -> MultiRewardGRPOScriptArguments:
    """
    Load the rewards, and move a `weight` in `reward_funcs` to `reward_weights`.

    Args:
        parser ([`~trl.TrlParser`]):
            Parser of the subcommand.
        namespace (`argparse.Namespace`):
            Its options, whose `reward_weights` is set.

    Returns:
        [`MultiRewardGRPOScriptArguments`]
    """
    script_args = build(parser, namespace, MultiRewardGRPOScriptArguments)
    try:
        namespace.reward_weights = merge_weights(script_args.weights, namespace.reward_weights)
    except ValueError as error:
        parser.error(str(error))
    return script_args


if __name__ == "__main__":
    parser = make_parser()
    namespace, _ = read_options(parser, sys.argv[1:])
    if namespace.model_name_or_path is None:
        parser.error("`model_name_or_path` is not set. Give the model to train: a folder, or a name on the Hub.")
    script_args = build_script_arguments(parser, namespace)
    training_args = build(parser, namespace, MultiRewardGRPOConfig)
    check_channels(parser, namespace, script_args)
    main(
        script_args,
        training_args,
        build(parser, namespace, ModelConfig),
        build(parser, namespace, DatasetMixtureConfig),
    )
