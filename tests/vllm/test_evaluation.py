"""Generation for evaluations with a real vLLM, as a server and in this process, against transformers."""

import json
import subprocess
import sys

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_dara.evaluation.backends import transformers_backend, vllm_server_backend
from trl_dara.evaluation.generation import Generation, Sampling

from .conftest import TRAINING_TIMEOUT
from .servers import CONTEXT, ROOT


pytestmark = pytest.mark.vllm

PROMPTS = ["<|user|>the cat<|end|><|assistant|>", "a dog and a bird sing in the sun", "one " * CONTEXT, "one"]
GREEDY = Sampling(temperature=0, max_tokens=100)
FREE = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 12}

# Arguments: the model. Writes the generations of each call, as JSON, in the last line
IN_PROCESS = """
import json
import sys
from dataclasses import asdict

from tests.vllm.servers import CONTEXT
from tests.vllm.test_evaluation import PROMPTS, calls
from trl_dara.evaluation.backends import vllm_backend
from vllm import LLM

llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=CONTEXT, kv_cache_memory_bytes=2**25)
generate = vllm_backend(llm)
print(json.dumps([[[asdict(g) for g in of_prompt] for of_prompt in generate(PROMPTS, call)] for call in calls()]))
"""


def calls() -> list[Sampling]:
    return [GREEDY, Sampling(n=4, seed=5, **FREE), Sampling(n=2, seed=7, **FREE)]


@pytest.fixture(scope="module")
def expected(model) -> list[list[Generation]]:
    """The most probable tokens by transformers."""
    generate = transformers_backend(AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model))
    return generate(PROMPTS, GREEDY)


@pytest.fixture(scope="module")
def of_server(server, model) -> list[list[list[Generation]]]:
    generate = vllm_server_backend(server.url, model, AutoTokenizer.from_pretrained(model))
    return [generate(PROMPTS, call) for call in calls()]


@pytest.fixture(scope="module")
def in_process(model, environment) -> list[list[list[Generation]]]:
    environment = environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    result = subprocess.run(
        [sys.executable, "-c", IN_PROCESS, model],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TRAINING_TIMEOUT,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    batches = json.loads(result.stdout.splitlines()[-1])
    return [[[Generation(**g) for g in of_prompt] for of_prompt in batch] for batch in batches]


@pytest.mark.parametrize("engine", ["of_server", "in_process"])
def test_vllm_and_transformers_write_the_same(engine, expected, request):
    greedy, samples, last_two = request.getfixturevalue(engine)
    assert greedy == expected
    assert {g.finish_reason for of_prompt in expected for g in of_prompt} == {"stop", "length", "overflow"}
    assert samples[2] == [Generation("", 0, "overflow")] * 4
    for of_prompt, last in zip(samples, last_two, strict=True):
        assert of_prompt[2:] == last  # sample i has the seed `seed + i`, by which a torn batch is completed
    assert all(len({g.text for g in samples[index]}) > 1 for index in (0, 1, 3))
    assert all(0 < g.num_tokens <= 12 for index in (0, 1, 3) for g in samples[index])


def test_a_server_gives_the_same_samples_again(of_server, server, model):
    generate = vllm_server_backend(server.url, model, AutoTokenizer.from_pretrained(model))
    for call, before in zip(calls(), of_server, strict=True):
        assert generate(PROMPTS, call) == before
