import pytest
from datasets import Dataset

from train_scripts import tool_calling


CPU = "--use_cpu --bf16 False --gradient_checkpointing False --report_to none --save_strategy no --logging_steps 1"


@pytest.fixture
def rows(tmp_path):
    """Four prompts of one model answer, in a parquet file."""
    prompt = [{"role": "user", "content": "one two three"}]
    truth = '<think> Count. </think>\n<tool_call>\n{"name": "count", "parameters": {"to": 3}}\n</tool_call>'
    path = tmp_path / "rows.parquet"
    Dataset.from_list([{"prompt": prompt, "ground_truth": truth}] * 4).to_parquet(path)
    return path


def test_the_script_trains_an_adapter_with_three_rewards(tiny_model, rows, tmp_path):
    output_dir = tmp_path / "out"
    trainer = tool_calling.main(
        *tool_calling.parse(
            f"--model_name_or_path {tiny_model} --dataset_path {rows} --output_dir {output_dir} --think_length {CPU} "
            "--eval_dataset_path {rows} --eval_strategy steps --eval_steps 1 --num_generations 2 "
            "--per_device_train_batch_size 4 --per_device_eval_batch_size 4 --max_completion_length 4 --max_steps 1 "
            "--use_peft --lora_target_modules q_proj v_proj".replace("{rows}", str(rows)).split()
        )
    )
    first, evaluation = trainer.state.log_history[:2]
    # Four tokens of a random model are no tool call: the lowest reward everywhere, so no group is active.
    for name, lowest in [("tool_format_reward", 0), ("tool_correctness_reward", -3), ("think_length_reward", 0)]:
        assert first[f"rewards/{name}/mean"] == evaluation[f"eval_rewards/{name}/mean"] == lowest
        assert first[f"channels/{name}/density"] == 0
        assert first[f"channels/{name}/saturation"] == 0  # the bounds are declared
    assert (output_dir / "adapter_model.safetensors").exists()


def test_the_best_checkpoint_by_joint_success_from_yaml(tiny_model, rows, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"""
model_name_or_path: {tiny_model}
dataset_path: {rows}
eval_dataset_path: {rows}
output_dir: {tmp_path / "out"}
think_length: true
eval_strategy: steps
eval_steps: 1
save_steps: 1
load_best_model_at_end: true
metric_for_best_model: joint
num_generations: 2
per_device_train_batch_size: 4
per_device_eval_batch_size: 4
max_completion_length: 4
max_steps: 1
use_cpu: true
bf16: false
report_to: none
logging_steps: 1
"""
    )
    trainer = tool_calling.main(*tool_calling.parse(["--config", str(recipe)]))
    assert trainer.state.best_metric == 0 and trainer.state.best_global_step == 1
    (evaluation,) = [entry for entry in trainer.state.log_history if "eval_joint" in entry]
    for name in ("tool_format_reward", "tool_correctness_reward", "think_length_reward"):
        assert evaluation[f"eval_channels/{name}/success"] == 0


def test_bounds_of_the_user_win(tiny_model, rows, tmp_path):
    trainer = tool_calling.main(
        *tool_calling.parse(
            f"--model_name_or_path {tiny_model} --dataset_path {rows} --output_dir {tmp_path / 'out'} {CPU} "
            "--num_generations 2 --per_device_train_batch_size 2 --max_completion_length 4 --max_steps 1".split()
            + ["--reward_bounds", '{"tool_correctness_reward": [-6, 6]}']
        )
    )
    first = trainer.state.log_history[0]
    assert first["channels/tool_correctness_reward/saturation"] == 0.25
    assert first["channels/tool_format_reward/saturation"] == 0  # the others keep theirs


def test_long_prompts_are_left_out(tiny_model, rows, tmp_path):
    truth = Dataset.from_parquet(str(rows))["ground_truth"][0]
    prompts = [[{"role": "user", "content": "one two three " * count}] for count in (1, 1, 50)]
    Dataset.from_list([{"prompt": prompt, "ground_truth": truth} for prompt in prompts]).to_parquet(rows)
    trainer = tool_calling.main(
        *tool_calling.parse(
            f"--model_name_or_path {tiny_model} --dataset_path {rows} --output_dir {tmp_path / 'out'} {CPU} "
            "--num_generations 2 --per_device_train_batch_size 2 --max_completion_length 4 --max_steps 1 "
            "--max_prompt_length 20".split()
        )
    )
    assert trainer.train_dataset["prompt"][:] == prompts[:2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--dataset_path rows.parquet", "`model_name_or_path` is not set"),
        ("--model_name_or_path gpt2", "`dataset_path` is not set"),
        ("--model_name_or_path gpt2 --dataset_path rows.parquet --kl_coef 0.1", "`kl_coef` does not exist"),
        ("--model_name_or_path gpt2 --dataset_path rows.parquet --num_processes 2", "before the script's name"),
    ],
)
def test_wrong_options_of_the_script_end_it_with_a_sentence(options, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        tool_calling.parse(options.split())
    assert message in capsys.readouterr().err
