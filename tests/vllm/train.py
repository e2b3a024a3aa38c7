"""
Child script: trains the tiny model with vLLM, case by case, and writes what each rank saw as JSON.

    python -m tests.vllm.train MODEL FOLDER

`FOLDER/cases.json` lists the cases: a `name`, the `settings` that differ from those of the other tests of the trainer, and
optionally `lora`, more arguments of the adapter; `plain_trl`, which trains with TRL's own trainer; `resume_from`, a
checkpoint; `disturbance`, see [`disturb`]; `refused`, when the trainer is expected to refuse the server.
"""

import argparse
import functools
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from trl import GRPOTrainer
from trl.generation import vllm_generation

from tests.trainer.support import ObservedTrainer, build, digest, has_a, train_logs

from . import gloo
from .servers import CONTEXT


# Merged from the start, the adapter changes the weights
LORA = dict(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM")


def build_trainer(model: str, folder: Path, lora: dict | None, plain_trl: bool, settings: dict) -> GRPOTrainer:
    given = dict(
        max_steps=3, max_grad_norm=100.0, use_vllm=True, vllm_max_model_length=CONTEXT, calibration_window=None
    )
    if plain_trl:
        given["trainer"] = GRPOTrainer
    else:
        given["aggregation"] = "dara_asym"
    adapter = None if lora is None else LoraConfig(**LORA, **lora)
    return build(model, folder, [digest, has_a], peft_config=adapter, **{**given, **settings})


def disturb(trainer: GRPOTrainer, moment: str, step: int, process_group: int, signal_name: str) -> None:
    """Send a signal to the server after `step` optimiser steps, when `moment`, a method of the generation, is called."""
    method = getattr(trainer.vllm_generation, moment)

    def disturbed(*args, **kwargs):
        if trainer.state.global_step == step:
            os.killpg(process_group, signal.Signals[signal_name])
        return method(*args, **kwargs)

    setattr(trainer.vllm_generation, moment, disturbed)


def sampling_difference(trainer: GRPOTrainer) -> float:
    """Largest |log-probability that vLLM reports - that of the trainer's model| over the tokens of new completions."""
    prompts = trainer.processing_class(trainer.train_dataset["prompt"][:8])["input_ids"]
    prompts = [prompt for prompt in prompts for _ in range(trainer.num_generations)]
    _, completions, sampled, _ = trainer.vllm_generation.generate(prompts, None, trainer.num_generations)
    largest = 0.0
    trainer.model.eval()
    for prompt, completion, reported in zip(prompts, completions, sampled, strict=True):
        with torch.no_grad():
            logits = trainer.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]  # (T, V)
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(completion).unsqueeze(-1))  # (T, 1)
        largest = max(largest, (torch.tensor(reported) - expected).abs().max().item())
    return largest


def observations(trainer: ObservedTrainer) -> dict:
    """Of each generation batch: what was sampled, how it was scored and what this process trained on."""
    decode = functools.partial(trainer.processing_class.batch_decode, skip_special_tokens=True)
    outputs = [batch.output for batch in trainer.train_batches]
    return {
        "prompts": [decode(output["prompt_ids"]) for output in outputs],
        "completions": [decode(output["completion_ids"]) for output in outputs],
        "rewards": [batch.rewards.tolist() for batch in trainer.train_batches],
        "advantages": [output["advantages"].tolist() for output in outputs],
        "differences": [
            (output["old_per_token_logps"] - output["sampling_per_token_logps"])[output["completion_mask"].bool()]
            .abs()
            .max()
            .item()
            for output in outputs
        ],
    }


def run(
    model: str,
    folder: Path,
    settings: dict,
    lora: dict | None = None,
    plain_trl: bool = False,
    resume_from: str | None = None,
    disturbance: dict | None = None,
) -> None:
    trainer = build_trainer(model, folder, lora, plain_trl, settings)
    if disturbance is not None:
        disturb(trainer, **disturbance)
    trainer.train(resume_from_checkpoint=resume_from)
    record = {"logs": train_logs(trainer), "behind": sampling_difference(trainer)}
    trainer.vllm_generation.sync_weights()
    record["synced"] = sampling_difference(trainer)
    if not plain_trl:
        record |= observations(trainer)
    write(record, folder)


def refuse(model: str, folder: Path, settings: dict) -> None:
    with pytest.raises(Exception) as caught:
        build_trainer(model, folder, None, False, settings)
    write({"error": str(caught.value)}, folder)


def write(record: dict, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"rank_{os.environ.get('RANK', 0)}.json").write_text(json.dumps(record))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    gloo.install()
    # TRL leaves the precision to vLLM, which takes bfloat16
    vllm_generation.LLM = functools.partial(vllm_generation.LLM, dtype="float32", enforce_eager=True)
    for case in json.loads((options.folder / "cases.json").read_text()):
        act = refuse if case.pop("refused", False) else run
        act(options.model, options.folder / case.pop("name"), **case)


if __name__ == "__main__":
    main()
