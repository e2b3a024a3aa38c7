"""
What generates: transformers, vLLM in this process, or a vLLM server. Each function here returns a [`Generate`].

All tokenise the prompts without adding special tokens, limit the new tokens to what the context leaves, and decode
alike, so that a text does not depend on the engine that wrote it.
"""

import zlib
from typing import TYPE_CHECKING

from trl_dara.evaluation.generation import Generate, Generation, Sampling, token_budget


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from vllm import LLM


# Part of the answer, even where a tokenizer has them as special tokens
TAGS = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>", "<response>", "</response>"})
CONNECT_TIMEOUT = 10  # seconds
RETRIED_STATUS = (429, 500, 502, 503, 504)
VLLM_NEEDED = "Use a vLLM server, 0.10.2 or newer."


def transformers_backend(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    *,
    context_length: int | None = None,
    batch_size: int = 16,
) -> Generate:
    """
    Generate with transformers, on the device and in the precision of the model. The random numbers of a call depend on
    the seed and on its prompts, and the global random state is left as it was.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            Causal language model.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Its tokenizer.
        context_length (`int`, *optional*):
            Most tokens of prompt and completion together, where less than the model's own limit.
        batch_size (`int`, *optional*, defaults to `16`):
            Completions that are generated at a time.

    Returns:
        [`Generate`]
    """
    import torch
    from transformers import GenerationConfig

    context_length = _shorter(context_length, model.config.get_text_config().max_position_embeddings)
    end = model.generation_config.eos_token_id
    end_ids = end if isinstance(end, list) else [tokenizer.eos_token_id if end is None else end]

    def run(prompts: list[list[int]], budgets: list[int], sampling: Sampling) -> list[list[int]]:
        """Completions of one batch, each up to its end token or budget."""
        length = max(len(ids) for ids in prompts)
        input_ids = torch.full((len(prompts), length), end_ids[0], device=model.device)  # (N, T)
        attention_mask = torch.zeros_like(input_ids)  # (N, T)
        for row, ids in enumerate(prompts):
            input_ids[row, length - len(ids) :] = torch.tensor(ids)
            attention_mask[row, length - len(ids) :] = 1
        # Whatever is not set here would come from the model's own file of defaults
        config = GenerationConfig(
            do_sample=sampling.temperature > 0,
            temperature=sampling.temperature or 1.0,
            top_p=sampling.top_p,
            top_k=max(sampling.top_k, 0),
            min_p=0.0,
            repetition_penalty=sampling.repetition_penalty,
            max_new_tokens=max(budgets),
            eos_token_id=end_ids,
            pad_token_id=end_ids[0],
        )
        with torch.inference_mode():
            output = model.generate(input_ids=input_ids, attention_mask=attention_mask, generation_config=config)
        completions = output[:, length:].tolist()  # (N, new tokens)
        return [_up_to_end(ids[:budget], end_ids) for ids, budget in zip(completions, budgets, strict=True)]

    def generate(prompts: list[str], sampling: Sampling) -> list[list[Generation]]:
        prompt_ids, budgets = _tokenize(tokenizer, prompts, sampling, context_length)
        rows = [index for index, budget in enumerate(budgets) if budget for _ in range(sampling.n)]
        completions = []
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(zlib.crc32("\n".join(prompts).encode(), sampling.seed))
            for start in range(0, len(rows), batch_size):
                batch = rows[start : start + batch_size]
                completions += run([prompt_ids[i] for i in batch], [budgets[i] for i in batch], sampling)
        generations = [[] if budget else _overflow(sampling) for budget in budgets]
        for index, ids in zip(rows, completions, strict=True):
            generations[index].append(_generation(tokenizer, ids, "stop" if ids[-1] in end_ids else "length"))
        return generations

    return generate


def vllm_backend(llm: "LLM", *, context_length: int | None = None) -> Generate:
    """
    Generate with vLLM in this process.

    Args:
        llm ([`~vllm.LLM`]):
            The engine.
        context_length (`int`, *optional*):
            Most tokens of prompt and completion together, where less than the engine's `max_model_len`.

    Returns:
        [`Generate`]
    """
    from vllm import SamplingParams

    tokenizer = llm.get_tokenizer()
    context_length = _shorter(context_length, llm.llm_engine.model_config.max_model_len)

    def generate(prompts: list[str], sampling: Sampling) -> list[list[Generation]]:
        prompt_ids, budgets = _tokenize(tokenizer, prompts, sampling, context_length)
        fitting = [index for index, budget in enumerate(budgets) if budget]
        inputs = [{"prompt_token_ids": prompt_ids[index]} for index in fitting]
        settings = [SamplingParams(**vars(sampling) | {"max_tokens": budgets[index]}) for index in fitting]
        outputs = llm.generate(inputs, settings, use_tqdm=False) if inputs else []
        generations = [[] if budget else _overflow(sampling) for budget in budgets]
        for index, output in zip(fitting, outputs, strict=True):
            generations[index] = [
                _generation(tokenizer, choice.token_ids, choice.finish_reason)
                for choice in sorted(output.outputs, key=lambda choice: choice.index)
            ]
        return generations

    return generate


def vllm_server_backend(
    base_url: str,
    model: str,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    context_length: int | None = None,
    timeout: float = 3600,
    retries: int = 5,
) -> Generate:
    """
    Generate with a vLLM server (0.10.2 or newer, for the token ids) through its OpenAI completions API. A connection
    that fails or a server that is busy is tried again with growing pauses; what still fails then is raised.

    Args:
        base_url (`str`):
            Address, e.g. `"http://localhost:8000"`.
        model (`str`):
            The model, by the name or the path that the server knows it by.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the served model.
        context_length (`int`, *optional*):
            Most tokens of prompt and completion together, where less than the server's `max_model_len`.
        timeout (`float`, *optional*, defaults to `3600`):
            Seconds to wait for the completions of one call.
        retries (`int`, *optional*, defaults to `5`):
            How often a request is tried again.

    Returns:
        [`Generate`]

    Raises:
        `requests.RequestException`: here and in every call, when the server cannot be reached or refuses.
        `ValueError`: when the server has another model, or is no vLLM server or too old.
    """
    import requests
    from requests.adapters import HTTPAdapter, Retry

    base_url = base_url.rstrip("/").removesuffix("/v1")
    session = requests.Session()
    retry = Retry(retries, backoff_factor=1, status_forcelist=RETRIED_STATUS, allowed_methods=None)
    session.mount(base_url, HTTPAdapter(max_retries=retry))

    def call(method: str, path: str, body: dict | None = None) -> dict:
        response = session.request(method, f"{base_url}/v1/{path}", json=body, timeout=(CONNECT_TIMEOUT, timeout))
        if not response.ok:
            raise requests.HTTPError(f"{response.url} answered {response.status_code}: {response.text[:500]}")
        try:
            return response.json()
        except requests.JSONDecodeError:
            raise requests.RequestException(f"{response.url} answered with no JSON: {response.text[:500]!r}") from None

    models = call("GET", "models")["data"]
    names = [served["id"] for served in models if model in (served["id"], served["root"])]
    if not names:
        served = ", ".join(served["id"] for served in models)
        raise ValueError(f"`model` is '{model}', but the server at {base_url} has {served}. Pass one of those names.")
    if models[0].get("max_model_len") is None:
        raise ValueError(f"The server at {base_url} does not say its `max_model_len`. {VLLM_NEEDED}")
    context_length = _shorter(context_length, models[0]["max_model_len"])  # of the base model, which comes first

    def generate(prompts: list[str], sampling: Sampling) -> list[list[Generation]]:
        prompt_ids, budgets = _tokenize(tokenizer, prompts, sampling, context_length)
        generations = [[] if budget else _overflow(sampling) for budget in budgets]
        # The server runs all prompts of a request at once, with one limit: nearly always there is just one
        for budget in sorted(set(budgets) - {0}):
            indices = [index for index, of_prompt in enumerate(budgets) if of_prompt == budget]
            body = {
                **vars(sampling),
                "min_p": 0.0,  # what is not set would come from the model's own file of defaults
                "max_tokens": budget,
                "model": names[0],
                "prompt": [prompt_ids[index] for index in indices],
                "return_token_ids": True,
            }
            choices = sorted(call("POST", "completions", body)["choices"], key=lambda choice: choice["index"])
            if len(choices) != len(indices) * sampling.n or any("token_ids" not in choice for choice in choices):
                raise ValueError(
                    f"The server at {base_url} returned {len(choices)} of {len(indices) * sampling.n} completions, or "
                    f"some without `token_ids`. {VLLM_NEEDED}"
                )
            for position, choice in enumerate(choices):  # those of a prompt are adjacent
                generation = _generation(tokenizer, choice["token_ids"], choice["finish_reason"])
                generations[indices[position // sampling.n]].append(generation)
        return generations

    return generate


def _shorter(context_length: int | None, limit: int) -> int:
    return limit if context_length is None else min(context_length, limit)


def _tokenize(tokenizer, prompts: list[str], sampling: Sampling, context_length: int):
    prompt_ids = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts]
    return prompt_ids, [token_budget(len(ids), sampling.max_tokens, context_length) for ids in prompt_ids]


def _overflow(sampling: Sampling) -> list[Generation]:
    return [Generation("", 0, "overflow")] * sampling.n


def _up_to_end(ids: list[int], end_ids: list[int]) -> list[int]:
    ends = [position for position, token in enumerate(ids) if token in end_ids]
    return ids[: ends[0] + 1] if ends else ids


def _generation(tokenizer, ids, finish_reason: str) -> Generation:
    if finish_reason not in ("stop", "length"):
        raise RuntimeError(f"The engine gave up a completion with the finish reason {finish_reason!r}.")
    added = tokenizer.added_tokens_decoder
    kept = [i for i in ids if i not in added or not added[i].special or added[i].content in TAGS]
    return Generation(tokenizer.decode(kept, clean_up_tokenization_spaces=False), len(ids), finish_reason)
