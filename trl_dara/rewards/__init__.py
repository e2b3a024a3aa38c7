"""Reward functions with TRL's signature: prompts, completions and data columns in, one number per completion out."""

from .text import think_length_reward
from .tool_calling import tool_correctness_reward, tool_format_reward
from .worker import in_worker_process


__all__ = ["in_worker_process", "think_length_reward", "tool_correctness_reward", "tool_format_reward"]
