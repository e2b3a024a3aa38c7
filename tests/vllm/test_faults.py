"""A server that does not fit, or fails: an error that names it and the remedy, and nothing that was paid for is lost."""

import json

import pytest

from trl_dara import CalibrationWindow
from trl_dara.state import STATE_FILE, last_complete_checkpoint

from ..tiny import save_tiny_model
from ..trainer.support import build, digest
from .checks import check_advantages, check_sampling, server_settings
from .servers import free_port


pytestmark = pytest.mark.vllm

LONG_RUN = dict(max_steps=4, save_strategy="steps", save_steps=2, calibration_window=12)
PATIENCE = {"vllm_request_timeout": 10}


@pytest.fixture(scope="module")
def other_servers(start_server, serve, model):
    """A server to be killed, and one that takes no weights; started together to save time."""
    plain_serve = [serve[0].replace("trl-dara", "vllm"), "serve", model]
    servers = [start_server(*serve), start_server("env", "VLLM_SERVER_DEV_MODE=1", *plain_serve)]
    for server in servers:
        server.wait_until_ready()
    return servers


def refusal(model: str, folder, server, error: type[Exception], **settings) -> str:
    """The message of the trainer that does not want this server."""
    with pytest.raises(error) as caught:
        build(model, folder, [digest], use_vllm=True, **server_settings(server, **settings))
    message = str(caught.value)
    assert settings.get("vllm_server_base_url", server.url) in message and "`trl-dara vllm-serve --model" in message
    return message


def test_server_is_not_there(server, model, tmp_path):
    nowhere = f"http://127.0.0.1:{free_port()}"
    message = refusal(model, tmp_path, server, ConnectionError, vllm_server_base_url=nowhere, vllm_server_timeout=2)
    assert "is not ready after `vllm_server_timeout=2` s" in message


def test_server_hangs(server, model, tmp_path):
    with server.stopped():
        message = refusal(model, tmp_path, server, ConnectionError, vllm_server_timeout=2)
    assert "is not ready after `vllm_server_timeout=2` s" in message


def test_server_has_another_model(server, model, tmp_path):
    other = save_tiny_model(tmp_path / "other", seed=1, hidden_size=64)
    message = refusal(other, tmp_path, server, ValueError)
    assert model in message and other in message


def test_context_is_too_short(server, model, tmp_path):
    message = refusal(model, tmp_path, server, ValueError, max_completion_length=300)
    assert "has a context of 256 tokens" in message and "--max-model-len" in message


def test_server_takes_no_weights(other_servers, model, tmp_path):
    message = refusal(model, tmp_path, other_servers[1], ValueError)
    assert "has no weight-transfer engine" in message and "--weight-transfer-config" in message


@pytest.fixture(scope="module")
def killed(other_servers, launch):
    """A run whose server dies between the third optimiser step and the fourth: how it ended, and its folder."""
    server = other_servers[0]
    kill = dict(moment="sync_weights", step=3, process_group=server.process_group, signal_name="SIGKILL")
    result, folder = launch(
        [{"name": "killed", "settings": server_settings(server, **LONG_RUN, **PATIENCE), "disturbance": kill}]
    )
    return result, folder / "killed"


@pytest.fixture(scope="module")
def resumed(killed, server, train):
    """The same run with a server that lives, and the killed one continued with that server."""
    _, folder = killed
    settings = server_settings(server, **LONG_RUN)
    records = train(
        [
            {"name": "undisturbed", "settings": settings},
            {
                "name": "resumed",
                "settings": {**settings, "vllm_group_port": free_port()},
                "resume_from": last_complete_checkpoint(str(folder)),
            },
        ]
    )
    return records["undisturbed"][0], records["resumed"][0]


def check_failure(result, server) -> None:
    assert result.returncode == 1, result.stderr
    error = result.stderr.rpartition("\nConnectionError: ")[2]
    assert server.url in error and "restart it (`trl-dara vllm-serve" in error and "resume_from_checkpoint" in error


def test_server_is_killed_between_two_steps(killed, other_servers):
    result, folder = killed
    check_failure(result, other_servers[0])
    assert last_complete_checkpoint(str(folder)) == str(folder / "checkpoint-2")


def test_server_hangs_while_it_generates(server, launch):
    stop = dict(moment="generate", step=1, process_group=server.process_group, signal_name="SIGSTOP")
    case = {"name": "hangs", "settings": server_settings(server, **LONG_RUN, **PATIENCE), "disturbance": stop}
    with server.continued_afterwards():
        result, _ = launch([case])
    check_failure(result, server)


def test_run_continues_with_another_server(killed, resumed):
    _, folder = killed
    undisturbed, continued = resumed
    assert continued["prompts"] == undisturbed["prompts"][2:]
    assert continued["prompts"][0] != continued["prompts"][1]
    check_advantages([undisturbed], CalibrationWindow(LONG_RUN["calibration_window"]))

    window = CalibrationWindow(LONG_RUN["calibration_window"])
    window.load_state_dict(json.loads((folder / "checkpoint-2" / STATE_FILE).read_text())["calibration_window"])
    assert len(window) == 8  # two steps of four groups
    check_advantages([continued], window)
    check_sampling(continued, num_steps=2)
    assert [entry["step"] for entry in continued["logs"]] == [1, 2, 3, 4]
