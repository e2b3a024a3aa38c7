# /// script
# dependencies = [
#     "trl-dara",
# ]
# ///

"""
Train a model to call tools, on the data and with the rewards of ToolRL (https://huggingface.co/papers/2504.13958):
format (0 or 1) and correctness of the calls (-3 to 3).

The data are `dataset/rlla_4k/train.parquet` and `test.parquet` of https://github.com/qiancheng0/ToolRL.

# Full training, as in the paper on DARA: one recipe per model and rule in `train_scripts/recipes/tool_calling`
```bash
accelerate launch --config_file train_scripts/accelerate_configs/zero2.yaml --num_processes 4 \
    -m train_scripts.tool_calling \
    --config train_scripts/recipes/tool_calling/qwen2.5-1.5b-instruct/dara_asym.yaml
```

# LoRA
```bash
accelerate launch -m train_scripts.tool_calling \
    --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct \
    --dataset_path train.parquet \
    --num_generations 8 \
    --per_device_train_batch_size 8 \
    --gradient_accumulation_steps 8 \
    --max_completion_length 512 \
    --learning_rate 1.0e-5 \
    --max_steps 400 \
    --use_peft \
    --lora_r 32 \
    --lora_alpha 64 \
    --output_dir outputs/Qwen2.5-1.5B-ToolRL-LoRA
```

`python -m train_scripts.smoke` runs this script on a machine without a GPU.
"""

import sys
from dataclasses import dataclass, field


@dataclass
class ScriptArguments:
    """
    Script arguments for the tool-calling training script.

    Args:
        dataset_path (`str`, *optional*):
            Training data: a parquet or json file, a folder of data files, or the id of a data set on the Hub, with the columns
            of ToolRL.
        dataset_split (`str`, *optional*, defaults to `"train"`):
            Split of a folder or Hub data set.
        eval_dataset_path (`str`, *optional*):
            Evaluation data, a parquet file of the same kind; needed with `eval_strategy`. Evaluations then measure `joint`,
            the share of completions with the highest reward of each kind: `metric_for_best_model: joint`.
        max_prompt_length (`int`, *optional*):
            Longest prompt in tokens, after the chat template; longer ones are left out. By default none is.
        think_length (`bool`, *optional*, defaults to `False`):
            Whether to add a third reward: 1 if the think block has at most 16 words, else 0.
    """

    dataset_path: str | None = field(
        default=None,
        metadata={
            "help": "Training data: a parquet or json file, a folder of data files, or the id of a data set on the Hub, "
            "with the columns of ToolRL."
        },
    )
    dataset_split: str = field(default="train", metadata={"help": "Split of a folder or Hub data set."})
    eval_dataset_path: str | None = field(
        default=None,
        metadata={
            "help": "Evaluation data, a parquet file of the same kind; needed with `eval_strategy`. Evaluations then measure "
            "`joint`, the share of completions with the highest reward of each kind: `metric_for_best_model: joint`."
        },
    )
    max_prompt_length: int | None = field(
        default=None,
        metadata={
            "help": "Longest prompt in tokens, after the chat template; longer ones are left out. By default none is."
        },
    )
    think_length: bool = field(
        default=False,
        metadata={"help": "Whether to add a third reward: 1 if the think block has at most 16 words, else 0."},
    )

    def __post_init__(self):
        if self.dataset_path is None:
            raise ValueError(
                "`dataset_path` is not set. Pass a parquet file, a folder or a Hub id, e.g. "
                "`dataset/rlla_4k/train.parquet` of https://github.com/qiancheng0/ToolRL."
            )


def main(script_args, training_args, model_args):
    from trl import get_peft_config, get_quantization_config

    from trl_dara import MultiRewardGRPOTrainer
    from trl_dara.data.toolrl import load_toolrl
    from trl_dara.evaluation.callback import JointEvaluationCallback
    from trl_dara.rewards import think_length_reward, tool_correctness_reward, tool_format_reward
    from trl_dara.scripts.grpo import model_init_kwargs, train_and_save, without_long_prompts

    reward_funcs = [tool_format_reward, tool_correctness_reward]
    reward_bounds = {"tool_format_reward": [0, 1], "tool_correctness_reward": [-3, 3]}
    if script_args.think_length:
        reward_funcs.append(think_length_reward)
        reward_bounds["think_length_reward"] = [0, 1]
    training_args.reward_bounds = reward_bounds | (training_args.reward_bounds or {})

    training_args.model_init_kwargs = model_init_kwargs(training_args, model_args)
    datasets = [load_toolrl(script_args.dataset_path, script_args.dataset_split), None]
    if script_args.eval_dataset_path is not None:
        datasets[1] = load_toolrl(script_args.eval_dataset_path)
    limit = script_args.max_prompt_length
    train_dataset, eval_dataset = without_long_prompts(datasets, limit, training_args, model_args)

    trainer = MultiRewardGRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=reward_funcs,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )
    if eval_dataset is not None:
        trainer.add_callback(JointEvaluationCallback(trainer))
    train_and_save(trainer)
    return trainer


def parse(argv: list[str]) -> list:
    """
    Read the options; ends the program with one sentence when one is wrong.

    Args:
        argv (`list[str]`):
            Command-line arguments.

    Returns:
        `list`: the [`ScriptArguments`], [`~trl_dara.MultiRewardGRPOConfig`] and [`~trl.ModelConfig`].
    """
    from trl_dara.cli.options import parse_script_options

    return parse_script_options(argv, ScriptArguments, "python -m train_scripts.tool_calling")


if __name__ == "__main__":
    main(*parse(sys.argv[1:]))
