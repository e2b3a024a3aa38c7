"""Before training with a vLLM server: does it answer, and does it fit?"""

import socket
import time
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import requests
from accelerate.utils import broadcast_object_list
from packaging.version import InvalidVersion, Version
from requests.utils import get_environ_proxies, select_proxy
from rich.console import Console
from transformers import AutoTokenizer, PreTrainedTokenizerBase, ProcessorMixin
from trl import GRPOConfig
from trl.import_utils import is_vllm_available

from .client import server_url
from .prompts import longest_prompt, probe_text


# The range that TRL 1.16 is tested with, and the version from which on it sends weights in another way
OLDEST_VLLM, NEWEST_VLLM = "0.22.0", "0.31.0"
OTHER_TRANSFER_SINCE = "0.28.0"

# Longest time in seconds for one request while the server starts, shortest for one to a server that is healthy, and the
# time between two progress lines in a log file
_PROBE_TIMEOUT = 10
_LINE_EVERY = 30

_SERVE = "trl-dara vllm-serve --model {model}"


def check_vllm_server(
    args: GRPOConfig,
    model,
    processing_class: PreTrainedTokenizerBase | ProcessorMixin | None,
    train_dataset,
    tools: list[Callable] | None,
) -> None:
    """
    Check that the vLLM server of `args` can be trained with, before TRL connects to it: reachable and healthy, of a
    version that TRL supports and that fits the trainer's, with this model, this tokenizer, a context for prompt plus
    completion, the endpoints that take new weights, and log-probabilities at the trainer's temperature; and the port for
    the weights is free. The main process asks; a failure is raised on every process.

    Args:
        args ([`~trl.GRPOConfig`]):
            Configuration with `vllm_mode="server"`. A server that is still starting is waited for up to
            `vllm_server_timeout` seconds.
        model (`str` or [`~transformers.PreTrainedModel`]):
            The model to be trained.
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`], *optional*):
            Its tokenizer; by default the one of the model's name.
        train_dataset ([`~datasets.Dataset`], *optional*):
            Data set whose first 1,000 prompts have to fit. A streamed one, or one with images, is not measured.
        tools (`list[Callable]`, *optional*):
            Tools that become part of the prompt.

    Raises:
        `ConnectionError`: If the server does not answer in time.
        `ValueError`: If it does not fit.
    """
    failure = None
    if args.process_index == 0:
        try:
            _check(args, model, processing_class, train_dataset, tools)
        except Exception as error:  # the other processes wait to hear of it, whatever it is
            failure = error
    (message,) = broadcast_object_list([None if failure is None else str(failure)])
    if failure is not None:
        raise failure
    if message is not None:
        raise RuntimeError(message)


def _check(args: GRPOConfig, model, processing_class, train_dataset, tools) -> None:
    if not is_vllm_available():
        raise ImportError(
            "`use_vllm` is on, but vLLM is not installed. Install it with `pip install 'trl-dara[vllm]'`."
        )
    check_group_port(args.vllm_group_port)
    model_name = model if isinstance(model, str) else model.config._name_or_path
    server = Server(server_url(args), args.vllm_server_timeout, _SERVE.format(model=model_name or "..."))
    server.wait_until_healthy()
    server.check_version(is_vllm_available(min_version=OTHER_TRANSFER_SINCE))
    card = server.get("/v1/models")["data"][0]
    if model_name:  # a model that was built in code has none
        server.check_model(card["root"], card["id"], model_name)
    tokenizer = processing_class or AutoTokenizer.from_pretrained(model_name, trust_remote_code=args.trust_remote_code)
    if isinstance(tokenizer, ProcessorMixin):
        tokenizer = tokenizer.tokenizer
    server.check_tokenizer(tokenizer)
    server.check_context(
        card["max_model_len"], longest_prompt(train_dataset, tokenizer, args, tools), args.max_completion_length
    )
    server.check_flags(args.temperature)


def check_group_port(port: int) -> None:
    """The trainer opens the group that sends the weights; were the port taken, both sides would wait for minutes."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM does
        try:
            listener.bind(("", port))
        except OSError as error:
            raise ValueError(
                f"`vllm_group_port` is {port}, which cannot be opened on this machine ({error.strerror}), perhaps because "
                "another run uses it. Pass a free port."
            ) from error


class Server:
    """
    A vLLM server as the checks see it; every request has a time-out, every failure names the server and the remedy.

    Args:
        url (`str`):
            Its address.
        timeout (`float`):
            Seconds that all checks together may wait for it.
        command (`str`):
            Command that starts the right server.
    """

    def __init__(self, url: str, timeout: float, command: str):
        self.url = url
        self.timeout = timeout
        self.command = command
        self.deadline = time.monotonic() + timeout

    def __str__(self):
        if not select_proxy(self.url, get_environ_proxies(self.url)):
            return f"vLLM server at {self.url}"
        return (
            f"vLLM server at {self.url} (asked through the environment's proxy; for none, add its host to `no_proxy`)"
        )

    def wait_until_healthy(self) -> None:
        """Wait for `/health`, with a line that moves in a terminal and one every half minute elsewhere."""
        address = (
            "Give scheme, host and port in `vllm_server_base_url`, `http://localhost:8000`, or `vllm_server_host` and "
            "`vllm_server_port`."
        )
        if self.url.endswith("/"):  # TRL appends "/health" to it
            raise ValueError(f"The address of the vLLM server, {self.url!r}, ends with a slash. {address}")
        console = Console(stderr=True)
        started = time.monotonic()
        next_line = started
        with console.status(f"Connecting to the {self}") as status:
            while True:
                try:
                    remaining = max(self.deadline - time.monotonic(), 1)
                    answer = requests.get(f"{self.url}/health", timeout=min(_PROBE_TIMEOUT, remaining))
                except (ValueError, requests.exceptions.SSLError) as error:  # waiting does not help
                    raise ValueError(f"The {self} has an address that cannot be used ({error}). {address}") from error
                except requests.RequestException as error:
                    problem = type(error).__name__
                else:
                    if answer.status_code == 200:
                        return
                    problem = f"/health answers {answer.status_code}"
                now = time.monotonic()
                if now >= self.deadline:
                    raise ConnectionError(
                        f"The {self} is not ready after `vllm_server_timeout={self.timeout:g}` s "
                        f"({problem}). Start it with `{self.command}`, or correct `vllm_server_base_url` (or "
                        "`vllm_server_host` and `vllm_server_port`); for a large model raise `vllm_server_timeout`."
                    )
                line = f"Waiting for the {self}: {now - started:.0f} of {self.timeout:g} s ({problem})"
                status.update(line)
                if not console.is_terminal and now >= next_line:
                    console.print(line, soft_wrap=True)
                    next_line += _LINE_EVERY
                time.sleep(min(1, max(self.deadline - now, 0)))

    def _request(self, method: str, path: str, **kwargs) -> requests.Response:
        timeout = max(self.deadline - time.monotonic(), _PROBE_TIMEOUT)
        try:
            return requests.request(method, f"{self.url}{path}", timeout=timeout, **kwargs)
        except requests.RequestException as error:
            raise ConnectionError(
                f"The {self} is healthy but failed at {path} ({type(error).__name__}: {error}). See its "
                f"log. Restart it with `{self.command}`."
            ) from error

    def get(self, path: str, method: str = "GET", **kwargs) -> dict:
        """The JSON answer of one endpoint."""
        return self._content(path, self._request(method, path, **kwargs))

    def _content(self, path: str, answer: requests.Response) -> dict:
        if answer.status_code == 200 and answer.headers.get("content-type", "").startswith("application/json"):
            return answer.json()
        raise ValueError(
            f"The {self} answers {path} with {answer.status_code}: {answer.text[:200]!r}. Is it a vLLM server? Start one with "
            f"`{self.command}`."
        )

    def check_version(self, other_transfer: bool) -> None:
        """`other_transfer` says whether the trainer's vLLM is of version `OTHER_TRANSFER_SINCE` or newer."""
        answer = self.get("/version")
        try:
            version = Version(Version(answer["version"]).base_version)
        except (KeyError, TypeError, InvalidVersion) as error:
            raise ValueError(
                f"The {self} answers /version with {answer!r}, which is no version of vLLM. Start one with `{self.command}`."
            ) from error
        if not Version(OLDEST_VLLM) <= version <= Version(NEWEST_VLLM):
            raise ValueError(
                f"The {self} runs vLLM {version}; TRL is tested with {OLDEST_VLLM} to {NEWEST_VLLM}. "
                "Install one of these for the server and the trainer."
            )
        if other_transfer != (version >= Version(OTHER_TRANSFER_SINCE)):
            raise ValueError(
                f"The {self} runs vLLM {version}, and the trainer's is {'newer' if other_transfer else 'older'}: weights are "
                f"sent in another way since {OTHER_TRANSFER_SINCE}. Install the same version for both."
            )

    def check_model(self, served: str, served_name: str, trained: str) -> None:
        if trained not in (served, served_name) and _last_part(served) != _last_part(trained):
            raise ValueError(
                f"The {self} serves the model {served!r}, but {trained!r} is trained. Restart it with `{self.command}`, or "
                f"train the model that is served; if it is the same one, add `--served-model-name {trained}`."
            )

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        text = probe_text(tokenizer)
        theirs = self.get("/tokenize", "POST", json={"prompt": text, "add_special_tokens": False})["tokens"]
        ours = tokenizer(text, add_special_tokens=False)["input_ids"]
        if theirs != ours:
            pairs = enumerate(zip_longest(theirs, ours))
            position, (their_token, our_token) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
            raise ValueError(
                f"The {self} has another tokenizer than the trainer: token {position} of a probe text is {their_token} there "
                f"and {our_token} here. Restart it with `{self.command}` and the trainer's revision, or pass the server's "
                "tokenizer as `processing_class`; after adding tokens, save model and tokenizer and use that folder for both."
            )

    def check_context(self, context: int, prompt: int, completion: int) -> None:
        needed = prompt + completion
        if needed > context:
            raise ValueError(
                f"The {self} has a context of {context} tokens, but the longest prompt ({prompt}) plus "
                f"`max_completion_length` ({completion}) takes {needed}. Restart it with `{self.command} --max-model-len "
                f"{needed}`, lower `max_completion_length`, or leave out long prompts."
            )

    def check_flags(self, temperature: float) -> None:
        """Was it started to take new weights, and to report log-probabilities that compare with the trainer's?"""
        answer = self._request("GET", "/server_info", params={"config_format": "json"})
        if answer.status_code == 404:
            raise ValueError(
                f"The {self} takes no new weights: its development endpoints are off. Restart it with `{self.command}`, "
                "or set `VLLM_SERVER_DEV_MODE=1` in its environment."
            )
        config = self._content("/server_info", answer)["vllm_config"]
        if config["weight_transfer_config"] is None:
            raise ValueError(
                f"The {self} takes no new weights: it has no weight-transfer engine. Restart it with `{self.command}`, or "
                """add `--weight-transfer-config '{"backend": "nccl"}'`."""
            )
        mode = config["model_config"]["logprobs_mode"]
        if temperature != 1 and mode != "processed_logprobs":
            raise ValueError(
                f"The {self} reports log-probabilities without the `temperature` of {temperature:g} ({mode!r}), and the "
                f"importance sampling ratios would be wrong. Restart it with `{self.command}`, or add "
                "`--logprobs-mode processed_logprobs`."
            )


def _last_part(model: str) -> str:
    """The last part of the path or the Hub id of a model; a folder of the Hub's cache is taken for the id."""
    path = Path(model).resolve()
    if path.parent.name == "snapshots":  # models--{organisation}--{name}/snapshots/{revision}
        return path.parents[1].name.rpartition("--")[2]
    return path.name
