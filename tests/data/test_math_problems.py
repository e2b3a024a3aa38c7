import json
import math
from pathlib import Path

import pytest
from datasets import Dataset
from trl import is_conversational

from trl_dara.data.math_problems import (
    MATH_BENCHMARKS,
    MATH_TRAINING_SETS,
    boxed_prompt,
    gsm8k_prompt,
    load_math_benchmark,
    load_math_training_set,
)


DATA = Path(__file__).parents[3] / "shared/data"
INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."


@pytest.fixture
def save(tmp_path):
    """Write rows to a jsonl file and return its path."""

    def save(*rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    return save


@pytest.mark.skipif(not (DATA / "math/math500.jsonl").exists(), reason="needs MATH-500, math/math500.jsonl")
def test_math500_loads_as_it_is():
    dataset = load_math_benchmark("math500", DATA / "math/math500.jsonl")
    assert dataset.column_names == ["id", "problem", "prompt", "answer"]
    assert (len(dataset), len(set(dataset["id"]))) == (500, 500)
    first = dataset[0]
    assert (first["id"], first["answer"]) == ("math500-0", r"\left( 3, \frac{\pi}{2} \right)")
    assert first["prompt"] == [{"role": "user", "content": f"{first['problem']}\n\n{INSTRUCTION}"}]
    assert is_conversational(first)
    assert r"\text{Evelyn}" in dataset["answer"]


@pytest.mark.skipif(not (DATA / "gsm8k/test.jsonl").exists(), reason="needs the test split of GSM8K, gsm8k/test.jsonl")
def test_gsm8k_loads_as_it_is():
    dataset = load_math_benchmark("gsm8k", str(DATA / "gsm8k/test.jsonl"))
    assert len(dataset) == 1319
    assert dataset["answer"][0] == "18"
    assert all("#" not in answer and answer == answer.strip() for answer in dataset["answer"])
    training = load_math_training_set("gsm8k", DATA / "gsm8k/test.jsonl", gsm8k_prompt)
    assert training["answer"][:] == dataset["answer"][:]
    assert [message["role"] for message in training[0]["prompt"]] == ["system", "user"]
    assert training[0]["prompt"][1]["content"] == dataset[0]["problem"]


# The quirks of each benchmark: what is in its answer column, and the answer
@pytest.mark.parametrize(
    ("name", "row", "answer"),
    [
        ("math500", {"problem": "?", "answer": r"90^\circ"}, r"90^\circ"),
        ("aime24", {"problem": "?", "answer": "025"}, "025"),
        ("amc23", {"problem": "?", "answer": 142.0}, "142"),
        ("amc23", {"problem": "?", "answer": "142.0"}, "142"),
        ("amc23", {"problem": "?", "answer": 7}, "7"),
        ("amc23", {"problem": "?", "answer": "9007199254740993.0"}, "9007199254740993"),  # no float
        ("aime24", {"problem": "?", "answer": 25}, "25"),
        ("minerva", {"question": "?", "answer": "4.5e33\n"}, "4.5e33"),
        ("minerva", {"question": "?", "answer": "7 \\times 10^{37}\n\n"}, r"7 \times 10^{37}"),
        ("olympiadbench", {"question": "?", "final_answer": ["$2^{1009}$"]}, "2^{1009}"),
        ("olympiadbench", {"question": "?", "final_answer": ["$a$ or $b$", "$c$"]}, "$a$ or $b$"),
        ("olympiadbench", {"question": "?", "final_answer": ["(2, 3)"]}, "(2, 3)"),
        ("olympiadbench", {"problem": "?", "answer": "$5$"}, "5"),
        ("gsm8k", {"question": "?", "answer": "2 + 2 = <<2+2=4>>4\n#### 1,000"}, "1,000"),
        ("gsm8k", {"question": "?", "answer": "#### -3 #### 4"}, "-3 #### 4"),
    ],
)
def test_answers_as_each_benchmark_writes_them(save, name, row, answer):
    assert load_math_benchmark(name, save(row))[:] == {
        "id": [f"{name}-0"],
        "problem": ["?"],
        "prompt": [boxed_prompt("?")],
        "answer": [answer],
    }


def test_whole_numbers_beside_decimals_keep_their_spelling(save):
    rows = [{"problem": "?", "answer": answer} for answer in (25, 0.5, -3)]
    assert load_math_benchmark("math500", save(*rows))["answer"][:] == ["25", "0.5", "-3"]


@pytest.mark.parametrize("suffix", ["parquet", "json", "jsonl"])
def test_three_kinds_of_files(tmp_path, suffix):
    rows = [{"problem": f"What is {n}?", "answer": str(n), "solution": "..."} for n in range(3)]
    path = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_text(json.dumps(rows) if suffix == "json" else "\n".join(map(json.dumps, rows)))
    dataset = load_math_training_set("deepscaler", path)
    assert dataset["id"][:] == ["deepscaler-0", "deepscaler-1", "deepscaler-2"]
    assert dataset["answer"][:] == ["0", "1", "2"]
    assert dataset[2]["prompt"] == boxed_prompt("What is 2?")


def test_the_sources_are_those_of_the_paper():
    sources = {
        name: (source.hub_id, source.config, source.split, source.problem_column, source.answer_column)
        for name, source in MATH_BENCHMARKS.items()
    }
    assert sources == {
        "math500": ("HuggingFaceH4/MATH-500", None, "test", "problem", "answer"),
        "aime24": ("HuggingFaceH4/aime_2024", None, "train", "problem", "answer"),
        "amc23": ("AI-MO/aimo-validation-amc", None, "train", "problem", "answer"),
        "minerva": ("math-ai/minervamath", None, "test", "question", "answer"),
        "olympiadbench": ("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train", "question", "final_answer"),
        "gsm8k": ("openai/gsm8k", "main", "test", "question", "answer"),
    }
    assert {name: (source.hub_id, source.split) for name, source in MATH_TRAINING_SETS.items()} == {
        "deepscaler": ("agentica-org/DeepScaleR-Preview-Dataset", "train"),
        "gsm8k": ("openai/gsm8k", "train"),
    }


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("math501", {"problem": "?", "answer": "1"}, "`name` is 'math501'.*'math500', 'aime24'"),
        ("minerva", {"text": "?", "answer": "1"}, r"columns \['text', 'answer'\].*`question` or `problem`"),
        ("olympiadbench", {"question": "?", "gold": "1"}, "needs `final_answer` or `answer`"),
        ("math500", {"problem": " ", "answer": "1"}, "Row 0 .* problem ' '"),
        ("math500", {"problem": "?", "answer": None}, "Row 0 .* answer None"),
        ("olympiadbench", {"question": "?", "final_answer": []}, r"Row 0 .* answer \[\]"),
        (
            "math500",
            {"problem": "?", "answer": " \n"},
            "Row 0 .* nothing is left to compare: an empty box would be correct",
        ),
        ("math500", {"problem": "?", "answer": r"^\circ"}, "Row 0 .* nothing is left to compare"),
        ("olympiadbench", {"question": "?", "final_answer": [" "]}, "Row 0 .* nothing is left to compare"),
        ("gsm8k", {"question": "?", "answer": "So it is\n#### "}, "Row 0 .* nothing is left to compare"),
        ("gsm8k", {"question": "?", "answer": "18"}, "Row 0 .*'18', which has no '####'"),
        ("amc23", {"problem": "?", "answer": "two"}, "Row 0 .*'two'"),
        (
            "amc23",
            {"problem": "?", "answer": ["7"]},
            r"Row 0 .* answer is \['7'\], which is neither text nor a number",
        ),
        ("math500", {"problem": "?", "answer": ["7"]}, r"Row 0 .* answer is \['7'\]"),
        ("math500", {"problem": "?", "answer": True}, "Row 0 .* answer is True"),
        ("math500", {"problem": "?", "answer": math.nan}, "Row 0 .* answer is nan"),
        ("math500", {"problem": "?", "answer": "2020-01-01"}, "Row 0 .* answer is datetime"),  # the reader's guess
        ("olympiadbench", {"question": "?", "final_answer": [None]}, "Row 0 .* answer is None"),
    ],
)
def test_bad_data_are_named(save, name, row, message):
    with pytest.raises(ValueError, match=message):
        load_math_benchmark(name, save(row))


def test_a_training_set_is_no_benchmark(save):
    with pytest.raises(ValueError, match="`name` is 'deepscaler'"):
        load_math_benchmark("deepscaler", save({"problem": "?", "answer": "1"}))


def test_without_a_network_the_error_says_what_to_do():
    with pytest.raises(OSError, match="'HuggingFaceH4/MATH-500' cannot be loaded.*Without a network, pass a parquet"):
        load_math_benchmark("math500")
