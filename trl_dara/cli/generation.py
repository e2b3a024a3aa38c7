"""Options of the evaluations that say what generates, and how."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trl_dara.evaluation.generation import CONTEXT_MARGIN, Generate, Sampling


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class GenerationArguments:
    """
    Options of `trl-dara eval` for generation. The defaults of the sampling are those of the DARA paper's evaluation.

    Args:
        model_name_or_path (`str`, *optional*):
            Model to evaluate: a folder or an id on the Hub. Needed to generate.
        backend (`str`, *optional*, defaults to `"transformers"`):
            What runs it: `"transformers"`, `"vllm"` in this process, or `"vllm_server"`.
        dtype (`str`, *optional*, defaults to `"bfloat16"`):
            Precision of the model; for a server, its own.
        vllm_server_base_url (`str`, *optional*, defaults to `"http://localhost:8000"`):
            Address of the server.
        vllm_gpu_memory_utilization (`float`, *optional*, defaults to `0.9`):
            Share of the GPU's memory that vLLM in this process may take.
        vllm_tensor_parallel_size (`int`, *optional*, defaults to `1`):
            GPUs that vLLM in this process spreads the model over.
        batch_size (`int`, *optional*):
            Completions that are generated and saved at a time. By default 16 with transformers and 512 with vLLM.
        context_length (`int`, *optional*):
            Most tokens of prompt and completion together, where less than what the model (or the server) allows.
        max_tokens (`int`, *optional*, defaults to `8192`):
            Most new tokens, the end token included.
        temperature (`float`, *optional*, defaults to `0.6`):
            Temperature.
        top_p (`float`, *optional*, defaults to `0.95`):
            Smallest probability mass that is sampled from.
        top_k (`int`, *optional*, defaults to `-1`):
            Number of most probable tokens that are sampled from; -1 for all.
        repetition_penalty (`float`, *optional*, defaults to `1.0`):
            Penalty of tokens that occurred before; 1 for none.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the sampling.
    """

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Model to evaluate: a folder or an id on the Hub. Needed to generate."}
    )
    backend: Literal["transformers", "vllm", "vllm_server"] = field(
        default="transformers",
        metadata={"help": "What runs it: transformers, vllm in this process, or a vllm_server."},
    )
    dtype: Literal["bfloat16", "float16", "float32"] = field(
        default="bfloat16", metadata={"help": "Precision of the model; for a server, its own."}
    )
    vllm_server_base_url: str = field(
        default="http://localhost:8000", metadata={"help": "Address of the vLLM server."}
    )
    vllm_gpu_memory_utilization: float = field(
        default=0.9, metadata={"help": "Share of the GPU's memory that vLLM in this process may take."}
    )
    vllm_tensor_parallel_size: int = field(
        default=1, metadata={"help": "GPUs that vLLM in this process spreads the model over."}
    )
    batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Completions that are generated and saved at a time. By default 16 with transformers and 512 with "
            "vLLM."
        },
    )
    context_length: int | None = field(
        default=None,
        metadata={
            "help": "Most tokens of prompt and completion together, where less than what the model (or the server) allows."
        },
    )
    max_tokens: int = field(default=8192, metadata={"help": "Most new tokens, the end token included."})
    temperature: float = field(default=0.6, metadata={"help": "Temperature."})
    top_p: float = field(default=0.95, metadata={"help": "Smallest probability mass that is sampled from."})
    top_k: int = field(
        default=-1, metadata={"help": "Number of most probable tokens that are sampled from; -1 for all."}
    )
    repetition_penalty: float = field(
        default=1.0, metadata={"help": "Penalty of tokens that occurred before; 1 for none."}
    )
    seed: int = field(default=0, metadata={"help": "Seed of the sampling."})

    def __post_init__(self):
        if self.batch_size is None:
            self.batch_size = 16 if self.backend == "transformers" else 512
        if self.batch_size < 1:
            raise ValueError(f"`batch_size` is {self.batch_size}. Pass an integer of at least 1.")
        if self.context_length is not None and self.context_length < CONTEXT_MARGIN + 2:
            raise ValueError(
                f"`context_length` is {self.context_length}, which has no room for a prompt. Pass the tokens of the longest "
                "prompt and its completion together."
            )
        self.sampling(n=1)  # an impossible setting is refused before a model is loaded

    def sampling(self, n: int) -> Sampling:
        """How to sample `n` completions per prompt."""
        return Sampling(
            n=n,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            repetition_penalty=self.repetition_penalty,
            max_tokens=self.max_tokens,
            seed=self.seed,
        )

    def settings(self) -> dict:
        """What a completion depends on, beside the sampling."""
        return {
            "model": self.model_name_or_path,
            "backend": self.backend,
            "dtype": None if self.backend == "vllm_server" else self.dtype,
            "context_length": self.context_length,
        }


def load_backend(arguments: GenerationArguments) -> tuple["PreTrainedTokenizerBase", Generate]:
    """
    Load the model, or find the server.

    Args:
        arguments ([`GenerationArguments`]):
            Options.

    Returns:
        `tuple[PreTrainedTokenizerBase, Generate]`: the tokenizer, and what generates.

    Raises:
        `ValueError`: when there is no model or vLLM is needed and not installed.
        `OSError`: when the model cannot be loaded, or the server not be reached.
    """
    from transformers import AutoTokenizer
    from trl.import_utils import is_vllm_available

    from trl_dara.evaluation.backends import transformers_backend, vllm_backend, vllm_server_backend

    model, context_length = arguments.model_name_or_path, arguments.context_length
    if model is None:
        raise ValueError("`model_name_or_path` is missing. Pass the model to generate with.")
    tokenizer = AutoTokenizer.from_pretrained(model)
    if arguments.backend == "vllm_server":
        url = arguments.vllm_server_base_url
        return tokenizer, vllm_server_backend(url, model, tokenizer, context_length=context_length)
    if arguments.backend == "vllm":
        if not is_vllm_available():
            raise ValueError("`backend` is 'vllm', which is not installed: `pip install 'trl-dara[vllm]'`.")
        from vllm import LLM  # optional

        llm = LLM(
            model=model,
            dtype=arguments.dtype,
            max_model_len=context_length,
            gpu_memory_utilization=arguments.vllm_gpu_memory_utilization,
            tensor_parallel_size=arguments.vllm_tensor_parallel_size,
        )
        return tokenizer, vllm_backend(llm)
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=arguments.dtype)
    loaded = loaded.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    generate = transformers_backend(loaded, tokenizer, context_length=context_length, batch_size=arguments.batch_size)
    return tokenizer, generate
