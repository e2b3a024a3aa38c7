"""
Training with a real vLLM: the completions come from the weights that are trained, and our advantages are the rule's.

vLLM runs on the CPU and receives the weights over gloo: NCCL, CUDA and sleep mode need a run on a GPU.
"""

import pytest
import torch

from trl_dara import compute_advantages

from ..trainer.support import digest, has_a
from .servers import free_port


pytestmark = pytest.mark.vllm

NUM_GENERATIONS = 4


def server_settings(server, **settings) -> dict:
    return {
        "vllm_mode": "server",
        "vllm_server_base_url": server.url,
        "vllm_group_port": free_port(),
        **settings,
    }


@pytest.fixture(scope="module")
def server_runs(server, train):
    """Runs with one trainer process, one after the other."""
    return train(
        [
            {"name": "full", "settings": server_settings(server)},
            {"name": "lora", "lora": True, "settings": server_settings(server)},
            {"name": "refill", "settings": server_settings(server, group_filter="has_a")},
            {"name": "lora_of_trl", "lora": True, "plain_trl": True, "settings": server_settings(server)},
        ]
    )


@pytest.fixture(scope="module")
def two_processes(server, train):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    launcher += ["--master-port", str(free_port())]
    settings = server_settings(server, per_device_train_batch_size=8)
    return train([{"name": "two", "settings": settings}], *launcher)["two"]


@pytest.fixture(scope="module")
def colocate_runs(train):
    settings = {"vllm_mode": "colocate"}
    return train([{"name": "full", "settings": settings}, {"name": "lora", "lora": True, "settings": settings}])


def check_sampling(record: dict, num_steps: int = 3) -> None:
    """vLLM sampled with the trainer's weights at each step and after a synchronisation, and not just by chance."""
    logged = [entry["sampling/sampling_logp_difference/max"] for entry in record["logs"]]
    assert len(logged) == len(record["differences"]) == num_steps
    assert max(*logged, *record["differences"], record["synced"]) < 1e-4
    assert record["behind"] > 0.1  # the same measure after an optimiser step that vLLM has not received


def check_advantages(records: list[dict]) -> None:
    """What the processes trained on and logged is what the rule makes of the completions that they sampled."""
    for step, entry in enumerate(records[0]["logs"]):
        completions = [text for record in records for text in record["completions"][step]]
        rewards = torch.tensor([digest(completions), has_a(completions)]).T  # (N, K)
        torch.testing.assert_close(torch.tensor(records[0]["rewards"][step]), rewards)
        expected = compute_advantages(rewards, NUM_GENERATIONS, "dara_asym")
        trained = torch.tensor([advantage for record in records for advantage in record["advantages"][step]])  # (N,)
        torch.testing.assert_close(trained, expected.advantages)
        for index, name in enumerate(["digest", "has_a"]):
            assert entry[f"channels/{name}/density"] == pytest.approx(expected.density[index].item())
            assert entry[f"channels/{name}/weight"] == pytest.approx(expected.weights[index].item())
    assert max(abs(advantage) for advantage in records[0]["advantages"][0]) > 0.1


@pytest.mark.parametrize("name", ["full", "lora"])
def test_server(server_runs, name):
    (record,) = server_runs[name]
    check_sampling(record)
    check_advantages([record])


def test_server_with_refill_rounds(server_runs):
    (record,) = server_runs["refill"]
    check_sampling(record)
    check_advantages([record])
    assert max(entry["group_filter/rounds"] for entry in record["logs"]) > 1


def test_trl_itself_sends_a_lora_model_without_its_adapter(server_runs):
    """When this fails, TRL has been mended: then our trainer need not send copies any more."""
    (record,) = server_runs["lora_of_trl"]
    assert min(entry["sampling/sampling_logp_difference/max"] for entry in record["logs"]) > 0.1
    assert record["synced"] > 0.1


def test_server_with_two_trainer_processes(two_processes):
    for record in two_processes:
        check_sampling(record)
    check_advantages(two_processes)


@pytest.mark.parametrize("name", ["full", "lora"])
def test_colocate(colocate_runs, name):
    (record,) = colocate_runs[name]
    check_sampling(record)
    check_advantages([record])
