"""Reward functions with TRL's signature: prompts, completions and data columns in, one number per completion out."""

from .gsm8k import gsm8k_correctness_reward, gsm8k_format_reward, gsm8k_integer_reward
from .math import boxed_correctness_reward, math_verify_reward, token_length_reward
from .text import think_length_reward
from .tool_calling import tool_correctness_reward, tool_format_reward
from .worker import in_worker_process


__all__ = [
    "boxed_correctness_reward",
    "gsm8k_correctness_reward",
    "gsm8k_format_reward",
    "gsm8k_integer_reward",
    "in_worker_process",
    "math_verify_reward",
    "think_length_reward",
    "token_length_reward",
    "tool_correctness_reward",
    "tool_format_reward",
]
