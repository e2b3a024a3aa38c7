import json
import sys

import pytest

from trl_dara.cli import check


REWARDS = """
import asyncio
import math


def solution_length(completions, solution, **kwargs):
    return [float(len(text)) for text in solution]


def mentions(completions, solution, **kwargs):
    return [float(text in completion[0]["content"]) for completion, text in zip(completions, solution)]


def holes(completions, **kwargs):
    return [None, math.nan, math.inf, -math.inf, None] + [0.5] * (len(completions) - 5)


async def judge(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    return (len(prompt[0]["content"]) for prompt in prompts)


def number_of_tokens(completion_ids, **kwargs):
    return [len(ids) for ids in completion_ids]


def uses_the_trainer(completions, trainer_state, log_extra, log_metric, **kwargs):
    log_extra("column", completions)
    log_metric("metric", 1.0)
    return [trainer_state.global_step] * len(completions)


def raises(completions, **kwargs):
    return [1 / 0 for _ in completions]


def one_number(completions, **kwargs):
    return [1.0]


def texts(completions, **kwargs):
    return ["good"] * len(completions)


def needs_answer(completions, answer, **kwargs):
    return [0.0] * len(completions)


def takes_no_more(completions, solution):
    return [0.0] * len(completions)
"""

ROWS = [
    {"prompt": [{"role": "user", "content": "six times seven?"}], "solution": "42"},
    {"prompt": [{"role": "user", "content": "1 + 1?"}], "solution": "2"},
    {"prompt": [{"role": "user", "content": "3 * 3?"}], "solution": "nine"},
]


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """Runs `trl-dara check` on `ROWS` and returns its exit code, the rows of its tables and all text."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "checked_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "300")

    def run(*argv, rewards, data="data"):
        paths = [name if name.startswith("{") else f"checked_rewards.py:{name}" for name in rewards]
        code = check.run(["--dataset_name", data, "--reward_funcs", *paths, *argv])
        text = capsys.readouterr().out
        lines = [line for line in text.splitlines() if line.startswith("│")]
        return code, [[cell.strip() for cell in line.strip("│").split("│")] for line in lines], text

    return run


def test_rewards_of_every_row_and_completion(checked):
    code, cells, text = checked("--num_rows", "2", "--completions", "2 [/b]", rewards=["solution_length", "mentions"])
    assert code == 0
    assert cells[:8] == [
        ["0", '""', "2", "0"],
        ["0", '"The answer is 42."', "2", "1"],
        ["0", '"<think> Six times seven is forty-two. </think> [...]"', "2", "1"],
        ["0", '"2 [/b]"', "2", "0"],
        ["1", '""', "1", "0"],
        ["1", '"The answer is 42."', "1", "1"],
        ["1", '"<think> Six times seven is forty-two. </think> [...]"', "1", "1"],
        ["1", '"2 [/b]"', "1", "1"],
    ]
    assert [row[0] for row in cells[8:]] == ["solution_length", "mentions"]
    assert [row[2:] for row in cells[8:]] == [["1", "2", "0", "0", "0"], ["0", "1", "0", "0", "0"]]
    assert all(row[1].endswith(" ms") for row in cells[8:])


def test_rewards_that_are_not_scored_are_counted(checked):
    code, cells, _ = checked(rewards=["holes"])
    assert code == 0
    assert [row[2] for row in cells[:6]] == ["None", "nan", "inf", "-inf", "None", "0.5"]
    assert cells[-1][2:] == ["0.5", "0.5", "2", "1", "2"]


def test_async_generator_and_trainer_arguments(checked):
    mapping = json.dumps({"path": "checked_rewards.py:judge", "name": "asked"})
    code, cells, text = checked("--num_rows", "1", rewards=[mapping, "uses_the_trainer"])
    assert code == 0 and "asked" in text
    assert [row[2:] for row in cells[:3]] == [["16", "0"]] * 3


def test_completions_from_files(checked, tmp_path):
    (tmp_path / "some.txt").write_text("one two\n\nthree\n")
    (tmp_path / "some.jsonl").write_text('"a b c"\n{"completion": "line\\nbreak", "more": 1}\n')
    defaults = ["0", "4", "9"]
    for file, expected in (("some.txt", ["2", "0", "1"]), ("some.jsonl", ["3", "2"])):
        code, cells, text = checked("--completions_file", file, "--num_rows", "1", rewards=["number_of_tokens"])
        assert code == 0 and "one id per word" in text
        assert [row[2] for row in cells[:-1]] == defaults[:2] + [cells[2][2]] + expected


def test_tokenizer_of_the_model_gives_completion_ids(checked, tiny_model):
    argv = ("--model_name_or_path", tiny_model, "--num_rows", "1", "--completions", "cat<|end|>")
    code, cells, text = checked(*argv, rewards=["number_of_tokens"])
    assert code == 0 and "one id per word" not in text
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(tiny_model)("cat<|end|>")["input_ids"]
    assert cells[3][2] == str(len(tokens))


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ("raises", ["channel 'raises' raised ZeroDivisionError: division by zero", "checked_rewards.py, line "]),
        ("one_number", ["channel 'one_number' returned 1 rewards", "Return 9 numbers"]),
        ("texts", ["channel 'texts'", "'good' (a str)"]),
        ("needs_answer", ["channel 'needs_answer' requires ['answer']", "columns of the data set are ['solution']"]),
        ("takes_no_more", ["channel 'takes_no_more' does not accept ['prompts'", "Add `**kwargs`"]),
    ],
)
def test_broken_reward_fails_and_the_others_are_shown(checked, reward, says):
    code, cells, text = checked(rewards=[reward, "mentions"])
    assert code == 1
    for part in says:
        assert part in text
    assert [row[2:] for row in cells[:2]] == [["error", "0"], ["error", "1"]]


def test_two_channels_of_one_name(checked):
    _, cells, _ = checked(rewards=["mentions", "mentions"])
    assert [row[0] for row in cells[-2:]] == ["mentions", "mentions_2"]


def test_plain_prompts_get_plain_completions(checked, tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "train.jsonl").write_text('{"prompt": "six times seven?"}\n')
    (tmp_path / "checked_rewards.py").write_text(
        "def plain(completions, **kwargs):\n    return [float(isinstance(text, str)) for text in completions]\n\n\n"
        "def for_messages(completions, **kwargs):\n    return [len(text[0]['content']) for text in completions]\n"
    )
    code, cells, _ = checked(rewards=["plain"], data="plain")
    assert code == 0 and [row[2] for row in cells[:3]] == ["1", "1", "1"]
    _, _, text = checked(rewards=["for_messages"], data="plain")
    assert "The prompts are strings, so the completions are strings too" in text


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--num_rows", "0"], "`num_rows` is 0"),
        (["--completions_file", "nowhere"], "no file 'nowhere'"),
        (
            ["--dataset_train_split", "test"],
            "`dataset_train_split` is 'test', but the data set has the splits ['train']",
        ),
        (["--datasets", "json"], "one of `dataset_name` and `datasets`"),
        (["--reward_weights", "1"], "`reward_weights` is [1.0]"),
    ],
)
def test_wrong_options(checked, capsys, argv, says):
    mapping = json.dumps({"path": "think_format_reward", "weight": 2})
    with pytest.raises(SystemExit) as end:
        checked(*argv, rewards=[mapping])
    assert end.value.code == 2
    usage, error = capsys.readouterr().err.strip().splitlines()[-2:]
    assert error.startswith("trl-dara check: error: ") and says in error


def test_data_without_prompts_and_lines_that_are_no_completions(checked, capsys, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.jsonl").write_text('{"question": "six times seven?"}\n')
    with pytest.raises(SystemExit):
        checked(rewards=["mentions"], data="other")
    assert "The split `train` of the data set has no column `prompt`, only ['question']" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('"fine"\n{"text": "no"}\n')
    with pytest.raises(SystemExit):
        checked("--completions_file", "bad.jsonl", rewards=["mentions"])
    assert "line 2 of 'bad.jsonl'" in capsys.readouterr().err
