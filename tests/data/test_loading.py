import pytest
from datasets import Dataset

from tests.tiny import make_tokenizer
from trl_dara.data.loading import filter_long_prompts, hold_out, load_rows


def prompts(*texts) -> Dataset:
    return Dataset.from_list([{"prompt": [{"role": "user", "content": text}], "text": text} for text in texts])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl.*Pass a parquet, jsonl or json file"):
        load_rows(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.parquet"])
def test_a_broken_file_is_named(tmp_path, name):
    (tmp_path / name).write_text('{"a": ')
    with pytest.raises(ValueError, match=rf"{name}' cannot be read"):
        load_rows(tmp_path / name)


def test_the_cause_is_part_of_the_message(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"a": "1"}\n{"a": "2')
    with pytest.raises(ValueError, match="Missing a closing quotation mark"):
        load_rows(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.parquet"])
def test_an_empty_file_is_named(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=rf"{name}', an empty file"):
        load_rows(tmp_path / name)


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl.gz", "rows"])
def test_a_file_of_another_kind_is_no_hub_id(tmp_path, name):
    (tmp_path / name).write_text("a\n1\n")
    with pytest.raises(ValueError, match=rf"{name}', a file of another kind. Pass one that ends in .parquet, .jsonl"):
        load_rows(tmp_path / name)


def test_a_split_that_is_not_there_is_named(tmp_path):
    Dataset.from_list([{"a": 1}]).to_parquet(tmp_path / "train.parquet")
    assert load_rows(tmp_path)[:] == {"a": [1]}
    with pytest.raises(ValueError, match="'validation'"):
        load_rows(tmp_path, split="validation")


def test_the_limit_counts_the_tokens_of_the_chat_template():
    tokenizer = make_tokenizer()
    dataset = prompts("one two", "one two three", "one", "one two three four five")
    # A token per turn mark: <|user|>, <|end|> and <|assistant|>
    lengths = [3 + len(tokenizer(text).input_ids) for text in dataset["text"]]
    assert len(set(lengths)) == 4
    kept = filter_long_prompts(dataset, tokenizer, sorted(lengths)[1])
    assert kept["text"][:] == ["one two", "one"]
    assert kept.column_names == dataset.column_names
    assert len(filter_long_prompts(dataset, tokenizer, max(lengths))) == 4
    with pytest.raises(ValueError, match=f"the shortest of the 4 prompts has {min(lengths)} tokens"):
        filter_long_prompts(dataset, tokenizer, min(lengths) - 1)


def test_arguments_of_the_chat_template_count():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% if loud %}{{ 'one two three four five' }}{% endif %}" + tokenizer.chat_template
    dataset, limit = prompts("one", "one two"), 3 + len(tokenizer("one").input_ids)
    assert len(filter_long_prompts(dataset, tokenizer, limit)) == 1
    with pytest.raises(ValueError, match="`max_prompt_length`"):
        filter_long_prompts(dataset, tokenizer, limit, {"loud": True})


def test_the_same_seed_holds_out_the_same_rows():
    dataset = prompts(*map(str, range(100)))
    train, monitoring = hold_out(dataset, 10)
    assert (len(train), len(monitoring)) == (90, 10)
    assert sorted(train["text"][:] + monitoring["text"][:]) == sorted(dataset["text"])
    assert hold_out(dataset, 10)[1]["text"][:] == monitoring["text"][:]
    assert hold_out(dataset, 10, seed=1)[1]["text"][:] != monitoring["text"][:]


@pytest.mark.parametrize("size", [0, 3, -1])
def test_some_rows_must_remain(size):
    with pytest.raises(ValueError, match=f"`size` is {size}.*from 1 to 2"):
        hold_out(prompts("a", "b", "c"), size)
