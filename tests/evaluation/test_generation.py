import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_dara.evaluation.backends import transformers_backend
from trl_dara.evaluation.generation import Generation, Sampling, token_budget


PROMPTS = ["<|user|>the cat<|end|><|assistant|>", "a dog and a bird sing in the sun", "one"]
GREEDY = Sampling(temperature=0, max_tokens=12)
FREE = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 12}


@pytest.fixture(scope="module")
def model(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    # A file of defaults that none of the tests asks for
    model.generation_config.update(
        do_sample=True, temperature=0.01, top_k=1, top_p=0.1, min_p=0.9, repetition_penalty=9.0, max_new_tokens=3
    )
    return model


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.mark.parametrize(
    ("prompt_tokens", "expected"), [(100, 8192), (24_574, 8192), (24_575, 8191), (32_765, 1), (32_766, 0), (40_000, 0)]
)
def test_token_budget(prompt_tokens, expected):
    assert token_budget(prompt_tokens, 8192, 32_768) == expected


@pytest.mark.parametrize(
    ("setting", "value"),
    [("n", 0), ("temperature", -0.1), ("top_p", 0), ("top_p", 1.1), ("top_k", 0), ("top_k", -2)]
    + [("repetition_penalty", 0), ("max_tokens", 0), ("seed", -1)],
)
def test_impossible_sampling(setting, value):
    with pytest.raises(ValueError, match=rf"`{setting}` is {value}\. Pass "):
        Sampling(**{setting: value})


def test_several_greedy_samples_are_refused():
    with pytest.raises(ValueError, match="`n` is 4 with `temperature` 0"):
        Sampling(n=4, temperature=0)


def greedy_by_hand(model, tokenizer, prompt: str, max_tokens: int) -> list[int]:
    """The most probable tokens, one forward pass each."""
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    completion = []
    while len(completion) < max_tokens and tokenizer.eos_token_id not in completion:
        with torch.inference_mode():
            logits = model(torch.tensor([ids + completion])).logits  # (1, T, V)
        completion.append(logits[0, -1].argmax().item())
    return completion


def test_greedy_completions_are_the_most_probable_tokens_whatever_the_batch(model, tokenizer):
    expected = [greedy_by_hand(model, tokenizer, prompt, 12) for prompt in PROMPTS]
    for batch_size in (1, 2, 16):
        generations = transformers_backend(model, tokenizer, batch_size=batch_size)(PROMPTS, GREEDY)
        assert [[g.num_tokens for g in of_prompt] for of_prompt in generations] == [[len(ids)] for ids in expected]
        assert [[g.text for g in of_prompt] for of_prompt in generations] == [
            [tokenizer.decode(ids, skip_special_tokens=True)] for ids in expected
        ]


def test_samples_differ_and_repeat_with_the_seed(model, tokenizer):
    generate = transformers_backend(model, tokenizer)
    state = torch.get_rng_state()
    first = generate(PROMPTS, Sampling(n=8, **FREE))
    assert torch.equal(torch.get_rng_state(), state)
    assert [len(of_prompt) for of_prompt in first] == [8, 8, 8]
    assert all(len({g.text for g in of_prompt}) > 4 for of_prompt in first)  # and not the top token only
    torch.manual_seed(7)
    assert generate(PROMPTS, Sampling(n=8, **FREE)) == first
    assert generate(PROMPTS, Sampling(n=8, seed=1, **FREE)) != first


def test_the_end_token_is_counted_and_not_part_of_the_text(model, tokenizer):
    of_prompts = transformers_backend(model, tokenizer)(PROMPTS, Sampling(n=64, **FREE))
    generations = [generation for of_prompt in of_prompts for generation in of_prompt]
    stopped = [g for g in generations if g.finish_reason == "stop"]
    truncated = [g for g in generations if g.finish_reason == "length"]
    assert stopped and truncated and len(stopped) + len(truncated) == len(generations)
    assert all(g.num_tokens == 12 for g in truncated) and min(g.num_tokens for g in stopped) < 12
    assert not any("<|end|>" in g.text or "<pad>" in g.text for g in generations)


def test_the_context_limits_a_completion_and_a_prompt_without_room_fails(model, tokenizer):
    lengths = [len(tokenizer(prompt, add_special_tokens=False)["input_ids"]) for prompt in PROMPTS]
    context = lengths[0] + 2 + 3  # room for three tokens behind the first prompt, and for none behind the second
    assert lengths[2] < lengths[0] < lengths[1] - 3
    generations = transformers_backend(model, tokenizer, context_length=context)(PROMPTS, Sampling(n=16, **FREE))
    assert max(g.num_tokens for g in generations[0]) == 3
    assert generations[1] == [Generation("", 0, "overflow")] * 16
    assert max(g.num_tokens for g in generations[2]) == min(12, context - 2 - lengths[2])
    # The model's own limit of 256 tokens
    (long,) = transformers_backend(model, tokenizer)(["one " * 300], GREEDY)
    assert long == [Generation("", 0, "overflow")]


def test_an_end_token_of_the_generation_config_counts_too(tiny_model, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    (expected,) = transformers_backend(model, tokenizer)(PROMPTS[:1], GREEDY)
    second = greedy_by_hand(model, tokenizer, PROMPTS[0], 12)[1]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, second]
    (shorter,) = transformers_backend(model, tokenizer)(PROMPTS[:1], GREEDY)
    assert expected[0].num_tokens > 2
    assert (shorter[0].num_tokens, shorter[0].finish_reason) == (2, "stop")
