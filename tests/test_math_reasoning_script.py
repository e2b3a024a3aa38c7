import json

import pytest

from train_scripts import math_reasoning


CPU = (
    "--use_cpu --bf16 False --gradient_checkpointing False --report_to none --save_strategy no --logging_steps 1 "
    "--num_generations 2 --per_device_train_batch_size 4 --per_device_eval_batch_size 4 --max_completion_length 4"
)


@pytest.fixture
def problems(tmp_path):
    """Nine problems of one token and one of many, in a jsonl file."""
    path = tmp_path / "problems.jsonl"
    texts = [str(number) for number in range(9)] + ["one two three four five " * 20]
    path.write_text("\n".join(json.dumps({"problem": text, "answer": "1"}) for text in texts))
    return path


def test_the_script_trains_and_evaluates(tiny_model, problems, tmp_path):
    trainer = math_reasoning.main(
        *math_reasoning.parse(
            f"--model_name_or_path {tiny_model} --dataset_path {problems} --output_dir {tmp_path / 'out'} {CPU} "
            "--eval_size 3 --eval_strategy steps --eval_steps 1 --max_prompt_length 200 --max_steps 1 "
            "--metric_for_best_model joint".split()
        )
    )
    prompts = [
        row["prompt"][0]["content"] for dataset in (trainer.train_dataset, trainer.eval_dataset) for row in dataset
    ]
    assert sorted(prompts) == [
        f"{n}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}." for n in range(9)
    ]
    first, evaluation = trainer.state.log_history[:2]
    # Four tokens of a random model are short, and no box
    for name, value in [("boxed_correctness_reward", 0), ("token_length_reward", 1)]:
        assert first[f"rewards/{name}/mean"] == evaluation[f"eval_rewards/{name}/mean"] == value
        assert first[f"channels/{name}/density"] == 0
        assert first[f"channels/{name}/saturation"] == value  # the bounds are declared
        assert evaluation[f"eval_channels/{name}/success"] == value
    assert trainer.state.best_metric == evaluation["eval_joint"] == 0
    assert (tmp_path / "out/model.safetensors").exists()


def test_the_script_trains_on_gsm8k_with_its_three_rewards(tiny_model, tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    row = json.dumps({"question": "one two three", "answer": "Count.\n#### 3"})
    path.write_text("\n".join([row] * 4))
    trainer = math_reasoning.main(
        *math_reasoning.parse(
            f"--task gsm8k --model_name_or_path {tiny_model} --dataset_path {path} --output_dir {tmp_path / 'out'} {CPU} "
            "--max_steps 1".split()
        )
    )
    assert [message["role"] for message in trainer.train_dataset[0]["prompt"]] == ["system", "user"]
    first = trainer.state.log_history[0]
    for name in ("gsm8k_correctness_reward", "gsm8k_integer_reward", "gsm8k_format_reward"):
        assert 0 <= first[f"rewards/{name}/mean"] <= 1
        assert first[f"channels/{name}/coverage"] == 1


def test_the_rows_set_aside_are_the_same_for_every_seed(tiny_model, problems, tmp_path):
    texts = []
    for seed in (0, 1):
        parsed = math_reasoning.parse(
            f"--model_name_or_path {tiny_model} --dataset_path {problems} --output_dir {tmp_path} {CPU} "
            f"--seed {seed} --eval_size 3".split()
        )
        texts.append([dataset["problem"][:] for dataset in math_reasoning.load_datasets(*parsed)])
    assert texts[0] == texts[1]
    assert list(map(len, texts[0])) == [7, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--dataset_path rows.jsonl", "`model_name_or_path` is not set"),
        ("--model_name_or_path gpt2 --task aime", "invalid choice: 'aime'"),
        ("--model_name_or_path gpt2 --kl_coef 0.1", "use `beta`"),
        ("--model_name_or_path gpt2 --num_processes 2", "before the script's name"),
    ],
)
def test_wrong_options_of_the_script_end_it_with_a_sentence(options, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        math_reasoning.parse(options.split())
    assert message in capsys.readouterr().err
