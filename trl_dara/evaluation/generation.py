"""Text in, text out: what an evaluation asks of a model, whatever runs it ([`trl_dara.evaluation.backends`])."""

from collections.abc import Callable
from dataclasses import dataclass


CONTEXT_MARGIN = 2  # tokens of the context that are left free, as in BFCL's protocol


@dataclass(frozen=True)
class Sampling:
    """
    How completions are sampled.

    Args:
        n (`int`, *optional*, defaults to `1`):
            Completions per prompt.
        temperature (`float`, *optional*, defaults to `0.6`):
            Temperature; 0 takes the most probable token.
        top_p (`float`, *optional*, defaults to `0.95`):
            Smallest probability mass that is sampled from, in (0, 1].
        top_k (`int`, *optional*, defaults to `-1`):
            Number of most probable tokens that are sampled from; -1 for all.
        repetition_penalty (`float`, *optional*, defaults to `1.0`):
            Penalty of tokens that occurred before; 1 for none.
        max_tokens (`int`, *optional*, defaults to `8192`):
            Most new tokens, the end token included. A prompt that leaves less room gets less, see [`token_budget`].
        seed (`int`, *optional*, defaults to `0`):
            Seed. The same call on the same machine gives the same completions, as far as the engine guarantees it.

    Raises:
        `ValueError`: for a value out of its range.
    """

    n: int = 1
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = -1
    repetition_penalty: float = 1.0
    max_tokens: int = 8192
    seed: int = 0

    def __post_init__(self):
        allowed = {
            "n": (self.n >= 1, "an integer of at least 1"),
            "temperature": (self.temperature >= 0, "0 or more"),
            "top_p": (0 < self.top_p <= 1, "a number above 0 and at most 1"),
            "top_k": (self.top_k == -1 or self.top_k >= 1, "an integer of at least 1, or -1 for all tokens"),
            "repetition_penalty": (self.repetition_penalty > 0, "a number above 0, 1 for no penalty"),
            "max_tokens": (self.max_tokens >= 1, "an integer of at least 1"),
            "seed": (self.seed >= 0, "an integer of at least 0"),
        }
        for name, (is_allowed, what) in allowed.items():
            if not is_allowed:
                raise ValueError(f"`{name}` is {vars(self)[name]}. Pass {what}.")
        if self.temperature == 0 and self.n > 1:
            raise ValueError(
                f"`n` is {self.n} with `temperature` 0, which would give {self.n} equal completions. Pass `n=1`, or a "
                "temperature above 0."
            )


@dataclass(frozen=True)
class Generation:
    """
    One completion.

    Args:
        text (`str`):
            Its text without special tokens, but with tags such as `<think>` and `<tool_call>`.
        num_tokens (`int`):
            Its tokens, the end token included where there is one.
        finish_reason (`str`):
            `"stop"` at an end token, `"length"` at the limit of new tokens, `"overflow"` when the prompt left no room
            for a single one: the text is then empty, which is the model's failure.
    """

    text: str
    num_tokens: int
    finish_reason: str


# Prompts with the chat template applied -> for each prompt, `sampling.n` generations. Raises when the engine fails: an
# error of the infrastructure is never a completion.
Generate = Callable[[list[str], Sampling], list[list[Generation]]]


def token_budget(prompt_tokens: int, max_tokens: int, context_length: int) -> int:
    """
    New tokens that a prompt may get: `min(max_tokens, context_length - prompt_tokens - 2)`, as in BFCL's protocol.

    Args:
        prompt_tokens (`int`):
            Tokens of the prompt.
        max_tokens (`int`):
            Most new tokens.
        context_length (`int`):
            Most tokens of prompt and completion together.

    Returns:
        `int`: 0 when nothing fits.
    """
    return max(0, min(max_tokens, context_length - prompt_tokens - CONTEXT_MARGIN))
