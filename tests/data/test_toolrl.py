from pathlib import Path

import pytest
from datasets import Dataset

from trl_dara.data.toolrl import load_toolrl
from trl_dara.rewards import tool_correctness_reward, tool_format_reward


DATA = Path(__file__).parents[3] / "shared/data/tool-calling/rlla_4k_test.parquet"

PROMPT = [{"role": "system", "content": "Tools: none."}, {"role": "user", "content": "Hello"}]
TRUTH = "<think> Greet. </think>\n<response> Hello! </response>"


@pytest.fixture
def save(tmp_path):
    """Write rows to a parquet file and return its path."""

    def save(*rows):
        path = str(tmp_path / "rows.parquet")
        Dataset.from_list(list(rows)).to_parquet(path)
        return path

    return save


@pytest.mark.skipif(
    not DATA.exists(), reason="needs the 80 held-out rows of ToolRL, tool-calling/rlla_4k_test.parquet"
)
def test_the_file_of_toolrl_loads_as_it_is():
    dataset = load_toolrl(str(DATA))
    assert dataset.column_names == ["prompt", "ground_truth"]
    assert len(dataset) == 80
    assert all([message["role"] for message in row["prompt"]] == ["system", "user"] for row in dataset)
    assert all(list(message) == ["role", "content"] for row in dataset for message in row["prompt"])
    truths = list(dataset["ground_truth"])
    assert tool_format_reward(completions=truths, ground_truth=truths) == [1.0] * 80
    assert sorted(tool_correctness_reward(completions=truths, ground_truth=truths)) == [0.0] * 9 + [3.0] * 71


def test_both_places_of_the_ground_truth(save):
    expected = [{"prompt": PROMPT, "ground_truth": TRUTH}]
    assert list(load_toolrl(save({"prompt": PROMPT, "ground_truth": TRUTH, "other": 1}))) == expected
    reward_model = {"style": "rule", "ground_truth": TRUTH}
    assert list(load_toolrl(save({"prompt": PROMPT, "reward_model": reward_model}))) == expected


def test_a_folder_has_splits(tmp_path):
    for split, count in [("train", 3), ("test", 2)]:
        rows = Dataset.from_list([{"prompt": PROMPT, "ground_truth": TRUTH}] * count)
        rows.to_parquet(str(tmp_path / f"{split}.parquet"))
    assert len(load_toolrl(str(tmp_path))) == 3
    assert len(load_toolrl(str(tmp_path), split="test")) == 2


def test_the_columns_are_what_trl_takes_for_a_conversation(save):
    from trl import is_conversational

    assert is_conversational(load_toolrl(save({"prompt": PROMPT, "ground_truth": TRUTH}))[0])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`path`.*nowhere\.parquet"):
        load_toolrl(str(tmp_path / "nowhere.parquet"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "?", "ground_truth": TRUTH}, r"columns \['question', 'ground_truth'\].*needs `prompt`"),
        ({"prompt": PROMPT, "answer": TRUTH}, r"columns \['prompt', 'answer'\].*`ground_truth` or `reward_model`"),
        ({"prompt": PROMPT, "reward_model": {"style": "rule"}}, r"Row 0 .*`ground_truth` is None"),
        ({"prompt": PROMPT, "reward_model": None}, r"Row 0 .*`ground_truth` is None"),
        ({"prompt": PROMPT, "reward_model": TRUTH}, r"Row 0 .*`ground_truth` is None"),
        ({"prompt": PROMPT, "ground_truth": 7}, r"Row 0 .*`ground_truth` is 7"),
        ({"prompt": PROMPT, "ground_truth": "<tool_call>\nf(1)\n</tool_call>"}, r"Row 0 .*malformed tool-call block"),
        ({"prompt": "Hello", "ground_truth": TRUTH}, r"Row 0 .*`prompt` is 'Hello'"),
        ({"prompt": [], "ground_truth": TRUTH}, r"Row 0 .*`prompt` is \[\]"),
        ({"prompt": [{"role": "user", "content": None}], "ground_truth": TRUTH}, r"Row 0 .*a `content` of text"),
        ({"prompt": [{"from": "user", "value": "Hello"}], "ground_truth": TRUTH}, r"Row 0 .*`role`"),
    ],
)
def test_bad_data_are_named(save, row, message):
    with pytest.raises(ValueError, match=message):
        load_toolrl(save(row))


def test_a_bad_row_is_found_among_good_ones(save):
    good = {"prompt": PROMPT, "ground_truth": TRUTH}
    with pytest.raises(ValueError, match="Row 2 .*malformed"):
        load_toolrl(save(good, good, {**good, "ground_truth": "<tool_call>"}, good))
