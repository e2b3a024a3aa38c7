"""What needs no vLLM of the vLLM server mode: the checks of a server, and the watch over the sampling."""

import logging
import socket
import threading
import time

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from trl_dara import MultiRewardGRPOConfig
from trl_dara.vllm_server import SamplingMonitor, server_url
from trl_dara.vllm_server.preflight import Server, check_group_port
from trl_dara.vllm_server.prompts import longest_prompt, probe_text
from trl_dara.vllm_server.sampling import LARGEST_MEAN_DIFFERENCE, MEAN_DIFFERENCE

from .local_servers import http_server, silent_server


def check(url: str) -> Server:
    return Server(url, timeout=1, command="trl-dara vllm-serve --model M")


def test_server_that_is_not_there_or_hangs_or_is_ill():
    with silent_server() as url, pytest.raises(ConnectionError, match=r"vllm_server_timeout=1` s \(ReadTimeout\)"):
        check(url).wait_until_healthy()
    with pytest.raises(ConnectionError, match="trl-dara vllm-serve --model M"):
        check(url).wait_until_healthy()  # closed by now
    with http_server({"/health": (503, {})}) as url, pytest.raises(ConnectionError, match="/health answers 503"):
        check(url).wait_until_healthy()
    with http_server({"/health": (200, {})}) as url:
        check(url).wait_until_healthy()


@pytest.mark.parametrize(
    "address", ["http://node:8000/", "node:8000", "localhost:8000", "ftp://node", "http://node:99999"]
)
def test_address_that_cannot_be_one_is_not_waited_for(address):
    with pytest.raises(ValueError, match="`http://localhost:8000`") as caught:
        Server(address, timeout=600, command="").wait_until_healthy()
    assert address in str(caught.value)


def test_https_where_the_server_speaks_http_is_not_waited_for():
    with http_server({"/health": (200, {})}) as url, pytest.raises(ValueError, match="SSL"):
        Server(url.replace("http:", "https:"), timeout=600, command="").wait_until_healthy()


def test_proxy_of_the_environment_is_named(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http_server({"/health": (503, {})}) as url:
        monkeypatch.setenv("http_proxy", url)  # which does not get to the server
        with pytest.raises(ConnectionError, match="`no_proxy`"):
            check("http://node:8000").wait_until_healthy()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with pytest.raises(ConnectionError) as caught:
            check(url).wait_until_healthy()
    assert "no_proxy" not in str(caught.value)


def test_healthy_server_is_given_time_to_answer_at_the_end_of_the_wait():
    def serve(listener):
        connection, _ = listener.accept()
        time.sleep(1.5)
        body = b'{"version": "0.31.0"}'
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=[listener], daemon=True).start()
        Server(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0, command="").check_version(True)


@pytest.mark.parametrize(
    "version", [(404, {}), (200, "<html>hello</html>"), (200, {}), (200, []), (200, {"version": "of another kind"})]
)
def test_server_that_is_no_vllm_server(version):
    with http_server({"/health": (200, {}), "/version": version}) as url:
        check(url).wait_until_healthy()
        with pytest.raises(ValueError, match=rf"vLLM server at {url} answers /version with") as caught:
            check(url).check_version(True)
    assert "`trl-dara vllm-serve --model M`" in str(caught.value)


@pytest.mark.parametrize("path", ["/tokenize", "/server_info"])
def test_endpoint_that_fails(tiny_model, path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    checks = {"/tokenize": lambda s: s.check_tokenizer(tokenizer), "/server_info": lambda s: s.check_flags(1.0)}
    with http_server({path: (500, "out of memory")}) as url:
        with pytest.raises(ValueError, match=f"{url} answers {path} with 500: 'out of memory'"):
            checks[path](check(url))


@pytest.mark.parametrize("version", ["0.22.0", "0.31.0", "0.31.0+cpu"])
def test_versions_in_range(version):
    with http_server({"/version": (200, {"version": version})}) as url:
        check(url).check_version(other_transfer=version != "0.22.0")


@pytest.mark.parametrize(("version", "other_transfer"), [("0.27.1", True), ("0.28.0", False)])
def test_server_and_trainer_that_transfer_weights_differently(version, other_transfer):
    with http_server({"/version": (200, {"version": version})}) as url:
        check(url).check_version(not other_transfer)
        with pytest.raises(ValueError, match=f"{version}.*Install the same version for both"):
            check(url).check_version(other_transfer)


@pytest.mark.parametrize("version", ["0.21.3", "0.32.0", "1.0.0"])
def test_versions_out_of_range(version):
    with http_server({"/version": (200, {"version": version})}) as url, pytest.raises(ValueError) as caught:
        check(url).check_version(True)
    assert version in str(caught.value) and "0.22.0 to 0.31.0" in str(caught.value)


def test_model_may_lie_at_another_path(tmp_path):
    server = check("http://server")
    server.check_model("Qwen/Qwen2.5-0.5B", "policy", "Qwen/Qwen2.5-0.5B")
    server.check_model("/data/models/sft/", "policy", str(tmp_path / "sft"))
    server.check_model("/model", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B")  # by `--served-model-name`
    in_cache = str(tmp_path / "models--Qwen--Qwen2.5-0.5B" / "snapshots" / "0123abcd")
    server.check_model("Qwen/Qwen2.5-0.5B", "policy", in_cache)
    server.check_model(in_cache, "policy", "Qwen/Qwen2.5-0.5B")
    with pytest.raises(ValueError, match="serves the model 'Qwen/Qwen2.5-1.5B', but 'Qwen/Qwen2.5-0.5B' is trained"):
        server.check_model("Qwen/Qwen2.5-1.5B", "policy", "Qwen/Qwen2.5-0.5B")
    with pytest.raises(ValueError, match="is trained"):
        server.check_model("Qwen/Qwen2.5-1.5B", "policy", in_cache)


def test_tokenizer_has_to_agree(tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    with http_server({}) as url, pytest.raises(ValueError, match="/tokenize with 404"):
        check(url).check_tokenizer(tokenizer)
    tokens = tokenizer(probe_text(tokenizer), add_special_tokens=False)["input_ids"]
    with http_server({"/tokenize": (200, {"tokens": tokens})}) as url:
        check(url).check_tokenizer(tokenizer)
        extended = AutoTokenizer.from_pretrained(tiny_model)
        extended.add_tokens(["<tool_call>"])  # the server has no embedding for it
        with pytest.raises(ValueError, match="after adding tokens, save model and tokenizer"):
            check(url).check_tokenizer(extended)
    with http_server({"/tokenize": (200, {"tokens": tokens[:-1]})}) as url:
        with pytest.raises(
            ValueError, match=f"token {len(tokens) - 1} of a probe text is None there and {tokens[-1]}"
        ):
            check(url).check_tokenizer(tokenizer)


def test_context_holds_prompt_and_completion():
    server = check("http://server")
    server.check_context(context=512, prompt=448, completion=64)
    with pytest.raises(ValueError, match="`trl-dara vllm-serve --model M --max-model-len 513`"):
        server.check_context(context=512, prompt=449, completion=64)


def server_info(engine: dict | None = None, logprobs_mode: str = "processed_logprobs") -> dict:
    config = {"weight_transfer_config": engine, "model_config": {"logprobs_mode": logprobs_mode}}
    return {"/server_info": (200, {"vllm_config": config})}


def test_weight_transfer_is_on():
    with http_server(server_info({"backend": "nccl"})) as url:
        check(url).check_flags(temperature=0.7)
    with http_server(server_info(None)) as url, pytest.raises(ValueError, match="--weight-transfer-config"):
        check(url).check_flags(temperature=1.0)
    with http_server({}) as url, pytest.raises(ValueError, match="VLLM_SERVER_DEV_MODE=1"):
        check(url).check_flags(temperature=1.0)


def test_log_probabilities_are_those_of_the_temperature():
    with http_server(server_info({"backend": "nccl"}, "raw_logprobs")) as url:
        check(url).check_flags(temperature=1.0)  # where both are the same
        with pytest.raises(ValueError, match="0.7 .*'raw_logprobs'.*`--logprobs-mode processed_logprobs`"):
            check(url).check_flags(temperature=0.7)


def config(tmp_path, **given) -> MultiRewardGRPOConfig:
    return MultiRewardGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **given)


def test_port_for_the_weights_has_to_be_free():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ValueError, match=rf"`vllm_group_port` is {port}, .*Address already in use.*Pass a free port"
        ):
            check_group_port(port)
    check_group_port(port)


def test_longest_prompt(tiny_model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    args = config(tmp_path)
    texts = ["the cat", "the cat and the dog and the bird", "yes"]
    plain = Dataset.from_dict({"prompt": texts})
    assert longest_prompt(plain, tokenizer, args, None) == max(len(tokenizer(text).input_ids) for text in texts)
    chats = [[{"role": "user", "content": text}] for text in texts]
    rendered = [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]
    conversational = Dataset.from_dict({"prompt": chats, "completion": texts, "chosen": texts})
    assert longest_prompt(conversational, tokenizer, args, None) == max(map(len, rendered))
    plain = Dataset.from_dict({"prompt": texts, "messages": chats, "chosen": chats})
    assert longest_prompt(plain, tokenizer, args, None) == max(len(tokenizer(text).input_ids) for text in texts)
    tokenizer.chat_template = None  # where the processor of a model has it
    assert longest_prompt(conversational, tokenizer, args, None) == 0


def test_prompts_that_cannot_be_measured_beforehand(tiny_model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    args = config(tmp_path)
    streamed = Dataset.from_dict({"prompt": ["the cat"]}).to_iterable_dataset()
    with_images = Dataset.from_dict({"prompt": ["the cat"], "image": [None]})
    for dataset in (None, streamed, with_images, Dataset.from_dict({"question": ["the cat"]})):
        assert longest_prompt(dataset, tokenizer, args, None) == 0


def test_url_is_trl_s(tmp_path):
    assert server_url(config(tmp_path, vllm_server_base_url="http://node:1/v")) == "http://node:1/v"
    assert server_url(config(tmp_path, vllm_server_host="node", vllm_server_port=8001)) == "http://node:8001"


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_request_timeout_is_a_time(tmp_path, timeout):
    with pytest.raises(ValueError, match="vllm_request_timeout"):
        config(tmp_path, vllm_request_timeout=timeout)


def test_monitor_warns_once_when_sampler_and_trainer_disagree(caplog):
    monitor = SamplingMonitor()
    with caplog.at_level(logging.WARNING, "trl_dara.vllm_server.sampling"):
        monitor({}, step=0)  # no vLLM, or no correction
        monitor({MEAN_DIFFERENCE: [5.0, LARGEST_MEAN_DIFFERENCE]}, step=1)  # only the newest batch counts
        assert not caplog.records
        monitor({MEAN_DIFFERENCE: [0.01, 2 * LARGEST_MEAN_DIFFERENCE]}, step=2)
        monitor({MEAN_DIFFERENCE: [1.0]}, step=3)
    (record,) = caplog.records
    assert "step 2" in record.message and "0.2 nats" in record.message
