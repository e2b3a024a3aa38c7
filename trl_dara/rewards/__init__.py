"""Reward functions with TRL's signature: lists of prompts, completions and data columns in, one number per completion out."""

from .text import think_length_reward
from .tool_calling import tool_correctness_reward, tool_format_reward


__all__ = ["think_length_reward", "tool_correctness_reward", "tool_format_reward"]
