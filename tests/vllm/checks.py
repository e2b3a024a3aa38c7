"""What the tests with vLLM share: settings for server mode, and what must hold of a run."""

import pytest
import torch

from trl_dara import CalibrationWindow, compute_advantages

from ..trainer.support import digest, has_a
from .servers import Server, free_port


def server_settings(server: Server, **settings) -> dict:
    return {
        "vllm_mode": "server",
        "vllm_server_base_url": server.url,
        "vllm_group_port": free_port(),
        **settings,
    }


def check_sampling(record: dict, num_steps: int = 3) -> None:
    """vLLM sampled with the trainer's weights at each step and after a synchronisation, and not just by chance."""
    logged = [entry["sampling/sampling_logp_difference/max"] for entry in record["logs"][-num_steps:]]
    assert len(logged) == len(record["differences"]) == num_steps
    assert max(*logged, *record["differences"], record["synced"]) < 1e-4
    assert record["behind"] > 0.1  # the same measure after an optimiser step that vLLM has not received


def check_advantages(records: list[dict], window: CalibrationWindow | None = None) -> None:
    """What the processes trained on and logged is what the rule makes of the completions that they sampled."""
    num_steps = len(records[0]["rewards"])
    for step, entry in enumerate(records[0]["logs"][-num_steps:]):  # a resumed run has the logs of the first one too
        completions = [text for record in records for text in record["completions"][step]]
        rewards = torch.tensor([digest(completions), has_a(completions)]).T  # (N, K)
        torch.testing.assert_close(torch.tensor(records[0]["rewards"][step]), rewards)
        expected = compute_advantages(rewards, 4, "dara_asym", window=window)
        trained = torch.tensor([advantage for record in records for advantage in record["advantages"][step]])  # (N,)
        torch.testing.assert_close(trained, expected.advantages)
        for index, name in enumerate(["digest", "has_a"]):
            assert entry[f"channels/{name}/density"] == pytest.approx(expected.density[index].item())
            assert entry[f"channels/{name}/calibrated_density"] == pytest.approx(
                expected.calibrated_density[index].item()
            )
            assert entry[f"channels/{name}/weight"] == pytest.approx(expected.weights[index].item())
    assert max(abs(advantage) for advantage in records[0]["advantages"][0]) > 0.1
