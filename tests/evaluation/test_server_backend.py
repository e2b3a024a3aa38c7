"""The client of a vLLM server, against a server that answers what a test tells it. `tests/vllm` has a real one."""

import pytest
import requests

from trl_dara.evaluation.backends import vllm_server_backend
from trl_dara.evaluation.generation import Generation, Sampling

from ..tiny import make_tokenizer
from .served import MODELS, completions, failure


PROMPTS = ["the cat", "a dog and a bird sing in the sun", "one " * 40, "two"]


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>", "<|tool|>"]})
    return tokenizer


def test_prompts_go_out_as_tokens_with_every_setting_and_come_back_in_order(server, tokenizer):
    generate = vllm_server_backend(server.url + "/v1/", "tiny", tokenizer)
    server.answers = [completions([f"{n}<|end|>" for n in range(4)], tokenizer)]
    sampling = Sampling(n=2, temperature=0.7, top_p=0.9, top_k=5, repetition_penalty=1.1, max_tokens=10, seed=3)
    generations = generate([PROMPTS[0], PROMPTS[3]], sampling)
    assert [[g.text for g in of_prompt] for of_prompt in generations] == [["0", "1"], ["2", "3"]]
    assert {g.num_tokens for of_prompt in generations for g in of_prompt} == {2}  # the end token is counted
    assert server.requests == [
        {
            "model": "tiny",
            "prompt": [
                tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in (PROMPTS[0], PROMPTS[3])
            ],
            "n": 2,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "min_p": 0.0,
            "repetition_penalty": 1.1,
            "max_tokens": 10,
            "seed": 3,
            "return_token_ids": True,
        }
    ]


def test_tags_stay_in_the_text_and_special_tokens_do_not(server, tokenizer):
    generate = vllm_server_backend(server.url, "tiny", tokenizer)
    server.answers = [completions(["<think> the cat </think>\n<|tool|>one<|end|>"], tokenizer)]
    ((generation,),) = generate(["two"], Sampling(max_tokens=10))
    assert generation.text == "<think> the cat </think>\none"


def test_each_prompt_has_the_room_that_the_context_leaves(server, tokenizer):
    generate = vllm_server_backend(server.url, "/models/tiny", tokenizer)
    lengths = [len(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]
    budgets = [40 - 2 - length for length in lengths]
    assert budgets[2] < 0 < budgets[1] < budgets[0] < 38
    server.answers = [
        completions(["second", "second"], tokenizer),
        completions(["first"] * 2 + ["last"] * 2, tokenizer),
    ]
    generations = generate(PROMPTS, Sampling(n=2, max_tokens=budgets[0]))
    assert [request["max_tokens"] for request in server.requests] == [budgets[1], budgets[0]]
    assert [of_prompt[1].text for of_prompt in generations] == ["first", "second", "", "last"]
    assert generations[2] == [Generation("", 0, "overflow")] * 2


def test_a_busy_server_is_asked_again(server, tokenizer):
    generate = vllm_server_backend(server.url, "tiny", tokenizer)
    server.answers = [failure(503), completions(["yes"], tokenizer)]
    assert generate(["two"], Sampling(max_tokens=10))[0][0].text == "yes"
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 503])
def test_what_fails_is_raised_and_no_completion(server, tokenizer, status):
    generate = vllm_server_backend(server.url, "tiny", tokenizer, retries=1)
    server.answers = [failure(status), failure(status)]
    with pytest.raises(requests.RequestException, match="400: .*failure 400" if status == 400 else "503"):
        generate(["two"], Sampling(max_tokens=10))
    assert len(server.requests) == (1 if status == 400 else 2)  # what the server refuses is not asked again


def test_a_completion_that_the_engine_gave_up_is_an_error(server, tokenizer):
    generate = vllm_server_backend(server.url, "tiny", tokenizer)
    aborted = {"index": 0, "token_ids": [5], "finish_reason": "abort"}
    server.answers = [lambda body: (200, {"choices": [aborted]})]
    with pytest.raises(RuntimeError, match="'abort'"):
        generate(["two"], Sampling(max_tokens=10))


def test_a_server_that_leaves_out_completions_or_their_tokens_is_refused(server, tokenizer):
    generate = vllm_server_backend(server.url, "tiny", tokenizer)
    without_ids = {"index": 0, "text": "one", "finish_reason": "stop"}
    server.answers = [completions(["one"], tokenizer), lambda body: (200, {"choices": [without_ids]})]
    with pytest.raises(ValueError, match="returned 1 of 2 completions.* Use a vLLM server, 0.10.2"):
        generate(["two"], Sampling(n=2, max_tokens=10))
    with pytest.raises(ValueError, match="some without `token_ids`"):
        generate(["two"], Sampling(max_tokens=10))


def test_a_server_without_a_limit_is_refused(server, tokenizer, monkeypatch):
    monkeypatch.delitem(MODELS["data"][0], "max_model_len")
    with pytest.raises(ValueError, match="does not say its `max_model_len`"):
        vllm_server_backend(server.url, "tiny", tokenizer)


def test_an_answer_that_is_no_json_is_shown(server, tokenizer):
    generate = vllm_server_backend(server.url, "tiny", tokenizer)
    server.answers = [lambda body: (200, b"<html>gateway</html>")]
    with pytest.raises(requests.RequestException, match="answered with no JSON: '<html>gateway"):
        generate(["two"], Sampling(max_tokens=10))


def test_a_server_of_another_model_is_refused(server, tokenizer):
    with pytest.raises(ValueError, match="`model` is 'other', but the server at http.* has tiny, lora"):
        vllm_server_backend(server.url, "other", tokenizer)


def test_no_server(tokenizer):
    with pytest.raises(requests.ConnectionError):
        vllm_server_backend("http://127.0.0.1:9", "tiny", tokenizer, retries=0)
