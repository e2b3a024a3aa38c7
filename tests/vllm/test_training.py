"""
Training with a real vLLM: the completions come from the weights that are trained, and our advantages are the rule's.

vLLM runs on the CPU and receives the weights over gloo: NCCL, CUDA and sleep mode need a run on a GPU.
"""

import pytest

from trl_dara.vllm_server.sampling import LARGEST_MEAN_DIFFERENCE, MEAN_DIFFERENCE

from .checks import check_advantages, check_sampling, server_settings
from .servers import free_port


pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def server_runs(server, train):
    """Runs with one trainer process, one after the other."""
    return train(
        [
            {"name": "full", "settings": server_settings(server)},
            {"name": "lora", "lora": {}, "settings": server_settings(server)},
            {
                "name": "dora",
                "lora": {"use_dora": True, "modules_to_save": ["norm"]},
                "settings": server_settings(server),
            },
            {"name": "refill", "settings": server_settings(server, group_filter="has_a")},
            {"name": "lora_of_trl", "lora": {}, "plain_trl": True, "settings": server_settings(server)},
        ]
    )


@pytest.fixture(scope="module")
def two_processes(server, train):
    """One process for each half of a batch, before that with the address of a server that does not exist."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    launcher += ["--master-port", str(free_port())]
    settings = server_settings(server, per_device_train_batch_size=8)
    nowhere = {**settings, "vllm_server_base_url": f"http://127.0.0.1:{free_port()}", "vllm_server_timeout": 2}
    cases = [{"name": "refused", "settings": nowhere, "refused": True}, {"name": "trained", "settings": settings}]
    return train(cases, *launcher)


@pytest.fixture(scope="module")
def colocate_runs(train):
    settings = {"vllm_mode": "colocate"}
    return train([{"name": "full", "settings": settings}, {"name": "lora", "lora": {}, "settings": settings}])


@pytest.mark.parametrize("name", ["full", "lora", "dora"])
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
    assert min(entry[MEAN_DIFFERENCE] for entry in record["logs"]) > LARGEST_MEAN_DIFFERENCE  # our trainer would warn
    assert record["synced"] > 0.1


def test_server_with_two_trainer_processes(two_processes):
    for record in two_processes["trained"]:
        check_sampling(record)
    check_advantages(two_processes["trained"])


def test_all_trainer_processes_hear_that_the_server_does_not_fit(two_processes):
    errors = [record["error"] for record in two_processes["refused"]]
    assert len(errors) == 2 and errors[0] == errors[1]
    assert "vllm_server_timeout" in errors[0] and "trl-dara vllm-serve" in errors[0]


@pytest.mark.parametrize("name", ["full", "lora"])
def test_colocate(colocate_runs, name):
    (record,) = colocate_runs[name]
    check_sampling(record)
    check_advantages([record])
