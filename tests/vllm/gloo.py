"""
Weight transfer from TRL to a vLLM server over gloo instead of NCCL, so that server mode runs on a machine without a GPU.

On the server, vLLM loads `register` as a plugin, which adds the engine of `--weight-transfer-config '{"backend": "gloo"}'`.
In the training process `install` gives TRL's client the sending side. Only the transport is replaced: requests, packing and
reloading are TRL's and vLLM's own.
"""

import math
from datetime import timedelta

import torch
import vllm.model_executor.layers.utils as vllm_layers
from torch.distributed import BroadcastOptions, PrefixStore
from trl.generation import vllm_client
from vllm.distributed.utils import StatelessProcessGroup, init_gloo_process_group
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.distributed.weight_transfer.packed_tensor import (
    DEFAULT_PACKED_BUFFER_SIZE_BYTES,
    pack_tensors,
    unpack_tensor,
)


class GlooGroup:
    """What TRL's client and the engine use of vLLM's `PyNcclCommunicator`."""

    def __init__(self, host: str, port: int, rank: int, world_size: int):
        # Not torch's "tcp://": under torchrun that waits for the launcher to host the store
        self.group = StatelessProcessGroup.create(host=host, port=port, rank=rank, world_size=world_size)
        store = PrefixStore("weights", self.group.store)
        self._gloo = init_gloo_process_group(store, rank, world_size, timedelta(minutes=1))

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        options = BroadcastOptions()
        options.rootRank = src
        self._gloo.broadcast([tensor], options).wait()


class GlooWeightTransferEngine(NCCLWeightTransferEngine):
    """vLLM's dense engine, with a worker that receives over gloo. The whole model is one buffer: it has to be small."""

    def init_transfer_engine(self, init_info) -> None:
        self.model_update_group = GlooGroup(
            init_info.master_address,
            init_info.master_port,
            rank=init_info.rank_offset + self.parallel_config.rank,
            world_size=init_info.world_size,
        )

    def update_weights(self, update_info: dict) -> None:
        self.receive_weights(self.parse_update_info(update_info))  # vLLM's own would wait for an accelerator

    def receive_weights(self, update_info) -> None:
        dtypes = [getattr(torch, name) for name in update_info.dtype_names]
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(update_info.shapes, dtypes, strict=True)]
        buffer = torch.empty(sum(sizes), dtype=torch.uint8)
        self.model_update_group.broadcast(buffer, src=0)
        self.model.load_weights(unpack_tensor(buffer, update_info.names, update_info.shapes, dtypes, sizes))


def register() -> None:
    """Set vLLM up: a `vllm.general_plugins` entry point, which every process of vLLM calls once."""
    WeightTransferEngineFactory.register_engine("gloo", GlooWeightTransferEngine)
    vllm_layers.dispatch_cpu_unquantized_gemm = multiply_by_live_weight


def multiply_by_live_weight(layer: torch.nn.Module, remove_weight: bool) -> None:
    """
    On a CPU, vLLM multiplies by a packed copy of a weight that it makes at load time. A weight update would not renew the
    copy of a head that is tied to the embeddings, and fail in colocate mode, where the original is gone.
    """
    layer.cpu_linear = torch.nn.functional.linear


def install() -> None:
    """Let TRL's client send weights over gloo, from a CPU."""
    init_communicator = vllm_client.VLLMClient.init_communicator

    def init_communicator_on_cpu(self, device=None):
        init_communicator(self, torch.device("cuda"))  # passes the client's check; without an index it is not used

    vllm_client.VLLMClient.init_communicator = init_communicator_on_cpu
    vllm_client.open_trainer_endpoint = open_trainer_endpoint
    vllm_client.packed_nccl_broadcast_producer = send_packed


def open_trainer_endpoint(init_info: dict) -> GlooGroup:
    return GlooGroup(init_info["master_address"], init_info["master_port"], 0, init_info["world_size"])


def send_packed(iterator, group: GlooGroup, src: int, post_iter_func) -> None:
    chunk = pack_tensors(iterator, post_iter_func, DEFAULT_PACKED_BUFFER_SIZE_BYTES)
    group.broadcast(chunk.packed_tensor, src)
