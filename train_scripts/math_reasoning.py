# /// script
# dependencies = [
#     "trl-dara",
# ]
# ///

r"""
Train a model to solve mathematical problems.

The task `deepscaler` is that of the paper on DARA: the problems of DeepScaleR-Preview, with a reward for a correct answer
in `\boxed{}` and one for at most 4,000 tokens. The task `gsm8k` is one of GDPO's
(https://huggingface.co/papers/2601.05242): the problems of GSM8K, with rewards for a correct answer, for an integer and
for the format.

# Full training, as in the paper: one recipe per model and rule in `train_scripts/recipes/math_reasoning`
```bash
accelerate launch --config_file train_scripts/accelerate_configs/zero3.yaml --num_processes 8 \
    -m train_scripts.math_reasoning \
    --config train_scripts/recipes/math_reasoning/deepseek-r1-distill-qwen-1.5b/dara_asym.yaml
```

# GSM8K with three rewards, in the settings of GDPO: 32 prompts times 16 completions per update
```bash
accelerate launch --config_file train_scripts/accelerate_configs/zero3.yaml --num_processes 8 \
    -m train_scripts.math_reasoning \
    --task gsm8k \
    --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct \
    --aggregation dara_asym \
    --num_generations 16 \
    --per_device_train_batch_size 16 \
    --gradient_accumulation_steps 4 \
    --max_prompt_length 512 \
    --max_completion_length 1024 \
    --learning_rate 5.0e-6 \
    --lr_scheduler_type cosine \
    --warmup_steps 0.1 \
    --num_train_epochs 1 \
    --loss_type bnpo \
    --beta 0.04 \
    --use_vllm \
    --seed 42 \
    --output_dir outputs/Qwen2.5-1.5B-GSM8K
```
"""

import sys
from dataclasses import dataclass, field


@dataclass
class ScriptArguments:
    """
    Script arguments for the mathematical-reasoning training script.

    Args:
        task (`str`, *optional*, defaults to `"deepscaler"`):
            Data and rewards: `"deepscaler"`, boxed correctness and length; or `"gsm8k"`, correctness, integer and
            format.
        dataset_path (`str`, *optional*):
            Training data, a parquet, jsonl or json file with the columns of the task's data set. By default that data
            set on the Hub.
        max_prompt_length (`int`, *optional*):
            Longest prompt in tokens, after the chat template; longer ones are left out. By default none is.
        eval_size (`int`, *optional*):
            Number of rows to set aside for evaluation, the same ones in every run; needed with `eval_strategy`. Evaluations
            then measure `joint`, the share of completions with the highest reward of each kind: `metric_for_best_model:
            joint`.
    """

    task: str = field(
        default="deepscaler",
        metadata={
            "help": "Data and rewards: 'deepscaler', boxed correctness and length; or 'gsm8k', correctness, integer and "
            "format.",
            "choices": ["deepscaler", "gsm8k"],
        },
    )
    dataset_path: str | None = field(
        default=None,
        metadata={
            "help": "Training data, a parquet, jsonl or json file with the columns of the task's data set. By default "
            "that data set on the Hub."
        },
    )
    max_prompt_length: int | None = field(
        default=None,
        metadata={
            "help": "Longest prompt in tokens, after the chat template; longer ones are left out. By default none is."
        },
    )
    eval_size: int | None = field(
        default=None,
        metadata={
            "help": "Number of rows to set aside for evaluation, the same ones in every run; needed with `eval_strategy`. "
            "Evaluations then measure `joint`, the share of completions with the highest reward of each kind: "
            "`metric_for_best_model: joint`."
        },
    )

    def __post_init__(self):
        if self.task not in ("deepscaler", "gsm8k"):
            raise ValueError(f"`task` is {self.task!r}. Pass 'deepscaler' or 'gsm8k'.")


def load_datasets(script_args: ScriptArguments, training_args, model_args) -> tuple:
    """
    Load the problems, set rows aside, and leave out long prompts.

    Args:
        script_args ([`ScriptArguments`]):
            What to load.
        training_args ([`~trl_dara.MultiRewardGRPOConfig`]):
            With the arguments of the chat template.
        model_args ([`~trl.ModelConfig`]):
            With the model, whose tokenizer counts the tokens.

    Returns:
        `tuple` of two [`~datasets.Dataset`]: to train on and to evaluate with; the second is `None` without `eval_size`.
    """
    from trl_dara.data.loading import hold_out
    from trl_dara.data.math_problems import boxed_prompt, gsm8k_prompt, load_math_training_set
    from trl_dara.scripts.grpo import without_long_prompts

    make_prompt = gsm8k_prompt if script_args.task == "gsm8k" else boxed_prompt
    datasets = (load_math_training_set(script_args.task, script_args.dataset_path, make_prompt), None)
    if script_args.eval_size is not None:
        datasets = hold_out(datasets[0], script_args.eval_size)
    return tuple(without_long_prompts(datasets, script_args.max_prompt_length, training_args, model_args))


def main(script_args, training_args, model_args):
    from trl import get_peft_config, get_quantization_config

    from trl_dara import MultiRewardGRPOTrainer, rewards
    from trl_dara.evaluation.callback import JointEvaluationCallback
    from trl_dara.scripts.grpo import model_init_kwargs, train_and_save

    if script_args.task == "gsm8k":
        reward_funcs = [
            rewards.gsm8k_correctness_reward,
            rewards.gsm8k_integer_reward,
            rewards.gsm8k_format_reward,
        ]
    else:
        reward_funcs = [rewards.boxed_correctness_reward, rewards.token_length_reward]
    reward_bounds = {reward_func.__name__: [0, 1] for reward_func in reward_funcs}
    training_args.reward_bounds = reward_bounds | (training_args.reward_bounds or {})

    training_args.model_init_kwargs = model_init_kwargs(training_args, model_args)
    train_dataset, eval_dataset = load_datasets(script_args, training_args, model_args)

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

    return parse_script_options(argv, ScriptArguments, "python -m train_scripts.math_reasoning")


if __name__ == "__main__":
    main(*parse(sys.argv[1:]))
