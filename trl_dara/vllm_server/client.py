"""What we change in the vLLM client and weight synchronisation that one trainer owns."""

from collections.abc import Iterator

import torch
from accelerate.utils import is_peft_model
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException
from trl import GRPOConfig
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from urllib3.exceptions import ReadTimeoutError
from urllib3.util.retry import Retry


# With `n` retries urllib3 waits 0, 2f, 4f, ... 2^(n-1) f seconds between them: 30f in all for five.
_RETRIES = 5
_BACKOFFS_IN_ALL = 30
_LONGEST_BACKOFF_FACTOR = 2.0  # TRL's

# TRL's client sends at most as many requests at once
_CONNECTIONS = 64

_RESTART = (
    "restart it (`trl-dara vllm-serve --model ...`) and continue from the last checkpoint with "
    "`resume_from_checkpoint=True`."
)


def server_url(args: GRPOConfig) -> str:
    """
    Address of the server, as TRL derives it from `vllm_server_base_url`, or from `vllm_server_host` and
    `vllm_server_port`.
    """
    return args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"


class RetryLostConnections(Retry):
    """Tries again what a lost or refused connection kept from the server, but not a request that it did not answer."""

    def increment(self, *args, error=None, **kwargs):
        if isinstance(error, ReadTimeoutError):  # the server may still be at it, and the time is up
            raise error
        return super().increment(*args, error=error, **kwargs)


class BoundedAdapter(HTTPAdapter):
    """
    Requests to one vLLM server that end: with an answer, or with an error that names the server and says what it said.

    A connection that is refused is tried again for up to a minute, within the time-out, one that is lost (the server
    closes those that were idle) once; a request that was not answered in time is not repeated.

    Args:
        server (`str`):
            Address of the server, for the error.
        timeout (`float`):
            Longest time in seconds to connect, and to wait for the next bytes of the answer.
    """

    def __init__(self, server: str, timeout: float):
        self.server = server
        self.timeout = timeout
        retries = RetryLostConnections(
            connect=_RETRIES,
            read=1,
            status=3,
            status_forcelist=[502, 503],  # not 500: the answer to an update of weights sent twice would hide the first
            raise_on_status=False,  # the answer says why
            backoff_factor=min(_LONGEST_BACKOFF_FACTOR, timeout / _BACKOFFS_IN_ALL),
            allowed_methods=["POST", "GET"],
        )
        super().__init__(max_retries=retries, pool_maxsize=_CONNECTIONS)

    def send(self, request, *args, **kwargs):
        try:
            response = super().send(request, *args, **{**kwargs, "timeout": self.timeout})
            text = response.text  # read here: a server may also fail in the middle of its answer
        except RequestException as error:
            raise ConnectionError(
                f"The vLLM server at {self.server} failed at {request.path_url} ({type(error).__name__}). See its "
                f"log. If it was only slow, raise `vllm_request_timeout` (now {self.timeout:g} s); otherwise {_RESTART}"
            ) from error
        if response.status_code >= 400 and response.status_code != 404:  # which TRL explains
            raise ConnectionError(
                f"The vLLM server at {self.server} answered {request.path_url} with {response.status_code}: {text[:500]!r}. "
                f"If that is not about a setting of the trainer, see its log, {_RESTART}"
            )
        return response


def adapt_vllm_server(generation: VLLMGeneration, request_timeout: float) -> None:
    """
    Make the generation that one trainer owns safe to train with: its requests end, and it sends what is trained. Only
    this instance is changed.

    Args:
        generation ([`~trl.generation.vllm_generation.VLLMGeneration`]):
            Generation in server mode.
        request_timeout (`float`):
            `vllm_request_timeout`, in seconds. TRL sends requests without one, so a server that hangs would stop
            training without a word.
    """
    if generation.accelerator.is_main_process:  # only it has a client
        client = generation.vllm_client
        for scheme in ("http://", "https://"):
            client.session.mount(scheme, BoundedAdapter(client.base_url, request_timeout))
        name_the_server(client)
    if is_peft_model(generation.model):
        _send_merged_weights(generation)


def name_the_server(client: VLLMClient) -> None:
    """Say which server it was, and what to do, when the connection fails over which the weights are sent."""
    update = client.update_named_params

    def update_named_params(*args) -> None:
        try:
            update(*args)
        except RuntimeError as error:  # of NCCL
            raise ConnectionError(
                f"The vLLM server at {client.base_url} failed while it received the weights ({error}). See its log, {_RESTART}"
            ) from error

    client.update_named_params = update_named_params


def _send_merged_weights(generation: VLLMGeneration) -> None:
    """
    Send copies of the weights of a model with adapters.

    TRL 1.16 yields references to the merged weights, vLLM packs up to 1 GiB of them into one buffer only when its
    iterator has ended, and by then TRL has taken the adapter out of the weights again: the last buffer, which is the
    whole of a small model, would carry the weights *without* the adapter. `tests/vllm` shows the fault as TRL ships it.
    """
    references = generation._iter_named_params

    def copies() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weights in references():
            yield name, weights.clone()

    generation._iter_named_params = copies
