import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_dara.data.synthetic import (
    TINY_TOOL_CALLER,
    TOOLS,
    correctness_reward,
    format_reward,
    make_dataset,
    sample_task,
    score_call,
)
from trl_dara.data.warm_start import (
    MALFORMED,
    WELL_FORMED,
    damage_call,
    make_demonstrations,
    make_tokenizer,
    warm_start,
)


EXPECTED = {"name": "get_weather", "parameters": {"city": "oslo", "day": "friday"}}


def as_completion(text):
    return [{"role": "assistant", "content": text}]


def answer_with(call) -> str:
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def test_dataset_depends_on_the_seed_alone():
    assert make_dataset(20, seed=3).to_list() == make_dataset(20, seed=3).to_list()
    assert make_dataset(20, seed=3).to_list() != make_dataset(20, seed=4).to_list()


def test_prompt_offers_the_wanted_tool_and_quotes_every_value():
    tools = {tool.name: tool for tool in TOOLS}
    for row in make_dataset(100):
        call, content = json.loads(row["answer"]), row["prompt"][0]["content"]
        assert tools[call["name"]].signature in content
        assert sum(tool.signature in content for tool in TOOLS) == 3
        assert all(f'"{value}"' in content for value in call["parameters"].values())
        assert len(set(call["parameters"].values())) == 2


def test_format_reward_accepts_one_layout_only():
    blocks = {"think": "use it", "call": "anything"}
    well_formed = WELL_FORMED.format(**blocks)
    wrong = [layout.format(**blocks) for layout in MALFORMED]
    wrong += [
        "",
        well_formed + "\n",
        " " + well_formed,
        well_formed + "\n" + well_formed,
        "<think> a </think>\nanything",
    ]
    completions = [as_completion(text) for text in [well_formed, *wrong]]
    assert format_reward(completions) == [1.0] + [0.0] * len(wrong)


@pytest.mark.parametrize(
    ("call", "score"),
    [
        (EXPECTED, 3.0),
        ({"name": "set_alarm", "parameters": EXPECTED["parameters"]}, 6 * (0 + 1 + 2) / 4 - 3),
        ({"name": "get_weather", "parameters": {"city": "oslo", "day": "monday"}}, 6 * (1 + 1 + 1) / 4 - 3),
        ({"name": "get_weather", "parameters": {"city": "oslo"}}, 6 * (1 + 1 / 2 + 1) / 4 - 3),
        ({"name": "get_weather", "parameters": {}}, 6 * (1 + 0 + 0) / 4 - 3),
        (
            {"name": "get_weather", "parameters": EXPECTED["parameters"] | {"hour": "one"}},
            6 * (1 + 2 / 3 + 2) / 4 - 3,
        ),
        ({"name": "send_mail", "parameters": {"person": "bob", "topic": "lunch"}}, -3.0),
        ({"parameters": EXPECTED["parameters"]}, 6 * (0 + 1 + 2) / 4 - 3),
        ({"name": "get_weather"}, -3.0),
        ({"name": "get_weather", "parameters": "oslo"}, -3.0),
        (["get_weather"], -3.0),
    ],
)
def test_score_of_a_call(call, score):
    assert score_call(answer_with(call), EXPECTED) == pytest.approx(score)


@pytest.mark.parametrize(
    "text", ["", "get_weather", "<tool_call>\n", "<tool_call>\n{oslo\n</tool_call>", json.dumps(EXPECTED)]
)
def test_text_without_a_readable_call_has_the_lowest_score(text):
    assert score_call(text, EXPECTED) == -3.0


def test_correctness_does_not_depend_on_the_format():
    call = json.dumps(EXPECTED)
    completions = [as_completion(layout.format(think="use it", call=call)) for layout in [WELL_FORMED, *MALFORMED]]
    answers = [call] * len(completions)
    assert correctness_reward(completions, answer=answers) == [3.0] * len(completions)


def test_tokenizer_knows_every_token_and_gives_back_the_exact_text():
    tokenizer = make_tokenizer()
    for row in make_demonstrations(500, seed=1, well_formed=0.5):
        for message in row["prompt"] + row["completion"]:
            tokens = tokenizer(message["content"])["input_ids"]
            assert tokenizer.unk_token_id not in tokens
            assert tokenizer.decode(tokens) == message["content"]


def test_share_of_well_formed_demonstrations():
    answers = make_demonstrations(4000, well_formed=0.25)["completion"]
    assert sum(format_reward(answers)) / 4000 == pytest.approx(0.25, abs=0.03)


def test_damaged_calls_are_readable_and_mostly_wrong():
    rng = random.Random(0)
    tasks = [sample_task(rng) for _ in range(2000)]
    scores = [score_call(answer_with(damage_call(task, rng)), task.call) for task in tasks]
    # The tool and the value drawn anew may be the right ones
    assert 0.75 < sum(score < 3 for score in scores) / 2000 < 0.95
    assert sum(score == 0.75 for score in scores) / 2000 == pytest.approx(0.2, abs=0.03)  # one parameter missing


def test_shipped_model_starts_with_a_dense_and_a_sparse_reward():
    tokenizer = AutoTokenizer.from_pretrained(TINY_TOOL_CALLER)
    model = AutoModelForCausalLM.from_pretrained(TINY_TOOL_CALLER)
    assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
    rows = make_dataset(512, seed=1000)
    prompts = tokenizer.apply_chat_template(
        list(rows["prompt"]), add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    torch.manual_seed(0)
    tokens = model.generate(**prompts, do_sample=True, top_k=0, max_new_tokens=40)
    texts = tokenizer.batch_decode(tokens[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    completions = [as_completion(text) for text in texts]
    assert 0.005 < sum(format_reward(completions)) / 512 < 0.04
    assert 0.4 < sum(correctness_reward(completions, answer=rows["answer"])) / 512 < 1.0


def test_warm_start_saves_a_model_that_generates(tmp_path):
    warm_start(str(tmp_path), steps=2)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    shipped = AutoModelForCausalLM.from_pretrained(TINY_TOOL_CALLER)
    assert model.num_parameters() == shipped.num_parameters() < 100_000
    prompt = tokenizer.apply_chat_template(
        make_dataset(1)[0]["prompt"], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert model.generate(**prompt, max_new_tokens=5).shape[1] > prompt["input_ids"].shape[1]
