"""Requests to a vLLM server while training: they end, and a failure names the server."""

import socket
import threading

import pytest
import requests
from urllib3.exceptions import NewConnectionError

from trl_dara.vllm_server.client import BoundedAdapter, name_the_server

from .local_servers import http_server, silent_server


def session(url: str, timeout: float) -> requests.Session:
    session = requests.Session()
    session.mount("http://", BoundedAdapter(url, timeout))
    return session


def test_request_to_a_server_that_hangs_ends_in_an_error_that_names_it():
    with silent_server() as url, pytest.raises(ConnectionError) as caught:
        session(url, timeout=0.5).post(f"{url}/v1/completions", json={})
    message = str(caught.value)
    assert url in message and "/v1/completions" in message and "ReadTimeout" in message
    assert "vllm_request_timeout" in message and "resume_from_checkpoint" in message


def test_request_to_a_server_that_is_gone_ends_in_an_error_that_names_it():
    with silent_server() as url:
        pass
    with pytest.raises(ConnectionError, match="trl-dara vllm-serve") as caught:
        session(url, timeout=0.5).get(f"{url}/health")
    assert url in str(caught.value)


def test_connection_that_the_server_has_closed_is_opened_again():
    answered = []

    def serve(listener):
        closed, _ = listener.accept()
        closed.recv(1000)
        closed.close()  # as of a connection that was idle for too long
        connection, _ = listener.accept()
        answered.append(connection.recv(1000))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=[listener], daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert session(url, timeout=10).post(f"{url}/v1/completions").json() == {}
    assert len(answered) == 1


def test_request_that_is_not_answered_is_sent_once():
    received = []

    def serve(listener):
        while True:
            connection, _ = listener.accept()
            received.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=[listener], daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="ReadTimeout"):
            session(url, timeout=0.3).post(f"{url}/v1/completions")
        assert len(received) == 1


def test_server_that_stops_in_the_middle_of_an_answer():
    def serve(listener, hang):
        connection, _ = listener.accept()
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        hang.wait(10)
        connection.close()

    for hangs, problem in ((True, "ConnectionError"), (False, "ChunkedEncodingError")):
        ended = threading.Event()
        if not hangs:
            ended.set()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve, args=[listener, ended], daemon=True).start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(ConnectionError, match=rf"at {url} failed at /v1/completions \({problem}\)"):
                session(url, timeout=0.5).post(f"{url}/v1/completions")
        ended.set()


def test_answers_pass_unchanged():
    with http_server({"/fine": (200, {"a": 1})}) as url:
        requester = session(url, timeout=10)
        assert requester.get(f"{url}/fine").json() == {"a": 1}
        assert requester.get(f"{url}/no_endpoint").status_code == 404  # for which TRL has an explanation


@pytest.mark.parametrize(("status", "times"), [(400, 1), (422, 1), (500, 1), (503, 4)])
def test_refusal_names_the_server_and_says_what_it_said(status, times):
    received = []
    with http_server({"/v1/completions": (status, {"error": "presence_penalty is 99"})}, received) as url:
        with pytest.raises(ConnectionError) as caught:
            session(url, timeout=0.5).post(f"{url}/v1/completions", json={})
    assert len(received) == times
    message = str(caught.value)
    assert f"{url} answered /v1/completions with {status}" in message and "presence_penalty is 99" in message
    assert "trl-dara vllm-serve" in message and "resume_from_checkpoint" in message


@pytest.mark.parametrize("timeout", [0.3, 5.0, 60.0, 600.0])
def test_waits_between_retries_fit_into_the_timeout(timeout):
    retries = BoundedAdapter("", timeout).max_retries
    waits = 0.0
    for _ in range(retries.connect):
        retries = retries.increment(method="POST", url="/", error=NewConnectionError(None, ""))
        waits += retries.get_backoff_time()
    assert 0 < waits <= min(timeout, 60) + 1e-9


def test_failure_while_the_weights_are_sent_names_the_server():
    class Client:
        base_url = "http://node:8000"

        def update_named_params(self, metadata, named_params):
            raise RuntimeError("NCCL error: unhandled system error")

    client = Client()
    name_the_server(client)
    with pytest.raises(
        ConnectionError, match="http://node:8000 failed while it received the weights.*NCCL error"
    ) as caught:
        client.update_named_params([], iter([]))
    assert "trl-dara vllm-serve" in str(caught.value) and "resume_from_checkpoint" in str(caught.value)
