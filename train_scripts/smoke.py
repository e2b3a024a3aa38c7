"""
The tool-calling script on a machine without a GPU, with a pretrained model and real prompts, in a few minutes:
`make smoke`, or `python -m train_scripts.smoke`.

SmolLM2-135M-Instruct never answers in the format of ToolRL, so all its rewards would be constant. A short supervised
fine-tuning on 40 rows makes them vary; then `train_scripts/tool_calling.py` trains a LoRA adapter on other rows. The
smoke test fails unless each reward is active in some group, every adapter weight has moved, and the logged density,
energy and weights and the advantages in the completions table are those that `compute_advantages` finds for the
rewards in the table.
"""

import argparse
import resource
import sys
import time
from pathlib import Path

import pandas as pd
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from train_scripts import tool_calling
from train_scripts.smollm2 import prepare_smollm2
from trl_dara import CalibrationWindow, compute_advantages
from trl_dara.data.toolrl import load_toolrl


ROOT = Path(__file__).parents[1]
DATASET = ROOT / "../shared/data/tool-calling/rlla_4k_test.parquet"
BASE_MODEL = ROOT / "outputs/SmolLM2-135M-Instruct"
OUTPUT_DIR = ROOT / "outputs/smoke"

CHANNELS = ["tool_format_reward", "tool_correctness_reward"]
AGGREGATION = "dara_asym"
NUM_GENERATIONS = 4
CALIBRATION_WINDOW = 64
TOLERANCE = 1e-6  # log, table and core work with the same float32 numbers

# LoRA on the last ten of thirty layers: what lies below needs no gradient, which saves a third of the time.
LAST_LAYERS = r".*layers\.2\d\..*(q|k|v|o|gate|up|down)_proj"


class SmokeError(Exception):
    """The run ended, but not as it must."""


def run_smoke(dataset_path: str | Path, output_dir: str | Path, base_model: str | Path = BASE_MODEL) -> list[dict]:
    """
    Fine-tune, train and check.

    Args:
        dataset_path (`str` or `Path`):
            Parquet file of ToolRL with at least 48 rows.
        output_dir (`str` or `Path`):
            Where the models and the completions tables go.
        base_model (`str` or `Path`, *optional*):
            Folder of the pretrained model, written if it does not exist.

    Returns:
        `list[dict]`: one entry per generation batch; see [`compare_with_core`].

    Raises:
        [`SmokeError`]: when something is not as it must be.
    """
    output_dir = Path(output_dir)
    model_path = prepare_smollm2(base_model)
    short, longer = split_rows(load_toolrl(str(dataset_path)), AutoTokenizer.from_pretrained(model_path))
    short.to_parquet(str(output_dir / "rl.parquet"))
    fine_tune(model_path, longer, output_dir / "fine_tuned")
    trainer = tool_calling.main(*tool_calling.parse(_arguments(output_dir)))
    generations = compare_with_core(trainer.state.log_history, output_dir / "grpo")
    check_activity(generations)
    check_adapter(output_dir / "grpo/adapter_model.safetensors")
    return generations


def split_rows(dataset: Dataset, tokenizer: PreTrainedTokenizerBase) -> tuple[Dataset, Dataset]:
    """The 8 rows with the shortest prompts, for reinforcement learning, and the next 40, for fine-tuning."""
    lengths = [len(tokenizer.apply_chat_template(prompt, tokenize=False)) for prompt in dataset["prompt"]]
    order = sorted(range(len(dataset)), key=lengths.__getitem__)
    return dataset.select(order[:8]), dataset.select(order[8:48])


def fine_tune(model_path: str, dataset: Dataset, output_dir: Path) -> None:
    """
    Train a LoRA adapter on the ground truths, one pass with one row per update, and save the merged model.

    Args:
        model_path (`str`):
            Folder of the pretrained model.
        dataset ([`~datasets.Dataset`]):
            Rows with `prompt` and `ground_truth`.
        output_dir (`Path`):
            Folder of the fine-tuned model.
    """
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=LAST_LAYERS, task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-3)
    for row in dataset.shuffle(seed=0):
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        answer = tokenizer(row["ground_truth"] + tokenizer.eos_token).input_ids
        # The position before each answer token predicts it: one more position than answer tokens
        outputs = model(input_ids=torch.tensor([prompt + answer]), logits_to_keep=len(answer) + 1, use_cache=False)
        loss = torch.nn.functional.cross_entropy(outputs.logits[0, :-1], torch.tensor(answer))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.merge_and_unload().save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)


def compare_with_core(log_history: list[dict], output_dir: Path) -> list[dict]:
    """
    Compare what was logged and trained on with [`~trl_dara.compute_advantages`].

    Args:
        log_history (`list[dict]`):
            Log of the trainer, every step.
        output_dir (`Path`):
            The trainer's output folder, with its completions tables.

    Returns:
        `list[dict]`: per generation batch its `step` and, by channel, the mean `rewards`, `density`,
        `calibrated_density` and `weights`.

    Raises:
        [`SmokeError`]: when they differ.
    """
    window = CalibrationWindow(CALIBRATION_WINDOW)
    generations = []
    for entry in log_history:
        if f"channels/{CHANNELS[0]}/density" not in entry:
            continue  # the summary at the end
        step = entry["step"]
        table = pd.read_parquet(output_dir / f"completions/completions_{step:05d}.parquet")
        rewards = torch.tensor(table[CHANNELS].to_numpy(), dtype=torch.float32)  # (N, K)
        result = compute_advantages(rewards, NUM_GENERATIONS, AGGREGATION, window=window)
        pairs = {"advantages": (table["advantage"], result.advantages)}
        for index, name in enumerate(CHANNELS):
            pairs[f"advantages of {name}"] = (table[f"advantage/{name}"], result.channel_advantages[:, index])
            statistics = {
                "density": result.density,
                "calibrated_density": result.calibrated_density,
                "energy": result.energy / len(table),  # logged per completion
                "weight": result.weights,
            }
            for key, values in statistics.items():
                pairs[f"{key} of {name}"] = ([entry[f"channels/{name}/{key}"]], values[index : index + 1])
        for what, (found, expected) in pairs.items():
            found = torch.tensor(list(found), dtype=torch.float32)
            if not torch.allclose(found, expected, rtol=0, atol=TOLERANCE):
                raise SmokeError(
                    f"At step {step} the {what} are {found.tolist()}, but the core says {expected.tolist()}."
                )
        generations.append(
            {
                "step": step,
                "rewards": rewards.mean(dim=0).tolist(),
                "density": result.density.tolist(),
                "calibrated_density": result.calibrated_density.tolist(),
                "weights": result.weights.tolist(),
            }
        )
    return generations


def check_activity(generations: list[dict]) -> None:
    """Each channel must differ within some group, or the run has tested nothing."""
    if not generations:
        raise SmokeError("No generation batch was logged.")
    for index, name in enumerate(CHANNELS):
        if not any(generation["density"][index] > 0 for generation in generations):
            raise SmokeError(f"{name} was constant in every group of {NUM_GENERATIONS} completions.")


def check_adapter(path: Path) -> None:
    """The second LoRA matrices start at zero, so each must differ from zero after training."""
    moved = {name: weight.abs().max().item() for name, weight in load_file(path).items() if "lora_B" in name}
    still = [name for name, change in moved.items() if change == 0]
    if not moved or still:
        raise SmokeError(f"The adapter in {path} has not moved: {still or 'it has no LoRA weights'}.")


def _arguments(output_dir: Path) -> list[str]:
    """Command line of the training script: 5 steps of one prompt each."""
    options = {
        "model_name_or_path": output_dir / "fine_tuned",
        "dataset_path": output_dir / "rl.parquet",
        "output_dir": output_dir / "grpo",
        "aggregation": AGGREGATION,
        "calibration_window": CALIBRATION_WINDOW,
        "num_generations": NUM_GENERATIONS,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": NUM_GENERATIONS // 2,
        "max_steps": 5,
        "max_completion_length": 128,
        "learning_rate": 1e-4,
        "use_peft": True,
        "lora_target_modules": LAST_LAYERS,
        "lora_dropout": 0.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "log_completions": True,
        "num_completions_to_print": 0,
        "save_strategy": "no",
        "report_to": "none",
    }
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m train_scripts.smoke", description="Train for a few steps and check."
    )
    parser.add_argument("--dataset_path", default=DATASET, help="`dataset/rlla_4k/test.parquet` of ToolRL")
    parser.add_argument("--output_dir", default=OUTPUT_DIR, help="folder for models and completions tables")
    args = parser.parse_args()
    if not Path(args.dataset_path).is_file():
        parser.error(
            f"There is no file {args.dataset_path}. Get `dataset/rlla_4k/test.parquet` of "
            "https://github.com/qiancheng0/ToolRL and pass its path with `--dataset_path`."
        )
    start, console = time.perf_counter(), Console()
    try:
        generations = run_smoke(args.dataset_path, args.output_dir)
    except SmokeError as error:
        console.print(f"The smoke test failed: {error}", style="red")
        return 1
    table = Table("step", "reward", "mean", "density", "calibrated density", "weight", title="Generation batches")
    for generation in generations:
        for index, name in enumerate(CHANNELS):
            columns = ("rewards", "density", "calibrated_density", "weights")
            table.add_row(str(generation["step"]), name, *(f"{generation[key][index]:.3f}" for key in columns))
    console.print(table)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # from KiB on Linux
    console.print(
        f"The smoke test passed in {time.perf_counter() - start:.0f} s, with at most {memory:.1f} GiB of memory."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
