"""What the tests of the trainer share: short runs of the tiny model, and reward functions that are known beforehand."""

import itertools
import zlib
from dataclasses import dataclass

import torch
from datasets import Dataset
from trl import GRPOTrainer

from trl_dara import AdvantageResult, MultiRewardGRPOConfig, MultiRewardGRPOTrainer


WORDS = ["cat", "dog", "bird", "mat", "sun", "one", "two", "yes"]
PROMPTS = [f"the {first} and the {second}" for first in WORDS for second in WORDS]


def prompts(texts: list[str] = PROMPTS) -> Dataset:
    return Dataset.from_dict({"prompt": texts})


def settings(folder, **given) -> dict:
    """Arguments of a configuration for four groups of four completions per step, on CPU, in silence."""
    defaults = dict(
        output_dir=str(folder),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        num_generations=4,
        max_completion_length=8,
        max_steps=2,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        num_completions_to_print=0,
    )
    return {**defaults, **given}


# Reward functions of the completion alone, so that two runs that generate the same completions score them the same.


def digest(completions, **kwargs):
    """A dense reward in [-10, 10): practically never equal for two different completions."""
    return [20 * zlib.crc32(completion.encode()) / 2**32 - 10 for completion in completions]


def has_a(completions, **kwargs):
    """A binary reward that is neither rare nor certain at the start."""
    return [float("a" in completion) for completion in completions]


def has_q(completions, **kwargs):
    """A binary reward that is rare."""
    return [float("q" in completion) for completion in completions]


def scripted(name: str, *batches):
    """A reward function that returns the given rewards, one batch per call, again from the first after the last."""
    calls = itertools.cycle(batches)

    def reward(completions, **kwargs):
        return next(calls)

    reward.__name__ = name
    return reward


def drawn(kind: str, seed: int, num_generations: int):
    """A reward function that draws rewards of magnitude up to 10, of which no group of completions is constant."""
    generator = torch.Generator().manual_seed(seed)

    def reward(completions, **kwargs):
        values = torch.rand(len(completions), generator=generator)  # (N,)
        if kind == "binary":
            values = values.round()
        if kind == "thirds":
            values = (values * 18).round() / 18
        values = values.view(-1, num_generations)  # (B, G)
        values[:, 0], values[:, 1] = 0.0, 1.0
        rewards = (20 * values - 10).flatten().tolist() if kind != "binary" else values.flatten().tolist()
        if kind == "sometimes":  # never the first two of a group, so that each group has two different scores
            unscored = (torch.rand(len(completions), generator=generator) < 0.3).view(-1, num_generations)  # (B, G)
            unscored[:, :2] = False
            rewards = [None if gone else reward for gone, reward in zip(unscored.flatten(), rewards, strict=True)]
        return rewards

    reward.__name__ = kind
    return reward


class TRLOutput(GRPOTrainer):
    """Comes after `MultiRewardGRPOTrainer` in the method resolution order and keeps what TRL itself returned."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.trl_advantages.append(output["advantages"].clone())
        return output


@dataclass
class Batch:
    """What one call of `_generate_and_score_completions` saw and returned."""

    mode: str
    rewards: torch.Tensor
    result: AdvantageResult
    output: dict


class ObservedTrainer(MultiRewardGRPOTrainer, TRLOutput):
    """The trainer, with a record of its batches and of the advantages that reach the loss."""

    def __init__(self, *args, **kwargs):
        self.trl_advantages = []
        self.batches = []
        self.losses = []
        super().__init__(*args, **kwargs)

    def _compute_advantages(self, rewards_per_func):
        result = super()._compute_advantages(rewards_per_func)
        self._scored = rewards_per_func.clone(), result
        return result

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.batches.append(Batch("train" if self.model.training else "eval", *self._scored, dict(output)))
        return output

    def _compute_loss(self, model, inputs):
        if model.training:
            self.losses.append({name: inputs[name] for name in ("completion_ids", "completion_mask", "advantages")})
        return super()._compute_loss(model, inputs)

    @property
    def train_batches(self) -> list[Batch]:
        return [batch for batch in self.batches if batch.mode == "train"]


def build(model, folder, reward_funcs, *, train_dataset=None, eval_dataset=None, trainer=None, config=None, **given):
    """A trainer that has not yet run; `given` are settings, or arguments of the trainer."""
    names = ("aggregation", "aggregation_kwargs", "peft_config", "processing_class", "environment_factory")
    arguments = {name: given.pop(name) for name in names if name in given}
    if config is None:
        given.setdefault("calibration_window", 64)
    return (trainer or ObservedTrainer)(
        model=model,
        reward_funcs=reward_funcs,
        args=(config or MultiRewardGRPOConfig)(**settings(folder, **given)),
        train_dataset=prompts() if train_dataset is None else train_dataset,
        eval_dataset=eval_dataset,
        **arguments,
    )


def run(*args, resume_from_checkpoint=None, **kwargs):
    """A trainer that has run."""
    trainer = build(*args, **kwargs)
    trainer.train(resume_from_checkpoint=resume_from_checkpoint)
    return trainer


def train_logs(trainer) -> list[dict]:
    """The log entries of optimiser steps."""
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def eval_logs(trainer) -> list[dict]:
    return [entry for entry in trainer.state.log_history if "eval_loss" in entry]


def parameters(trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
