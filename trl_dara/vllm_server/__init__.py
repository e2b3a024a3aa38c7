"""
Generation through a vLLM server (`use_vllm=True, vllm_mode="server"`): does the server fit, does it answer, and does it
sample from the model that is trained?
"""

from .client import adapt_vllm_server, server_url
from .preflight import check_vllm_server
from .sampling import SamplingMonitor


__all__ = ["SamplingMonitor", "adapt_vllm_server", "check_vllm_server", "server_url"]
