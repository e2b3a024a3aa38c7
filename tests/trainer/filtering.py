"""A trainer that remembers what it was given, and data in which it is known which groups are informative."""

import zlib
from collections import Counter

import torch
from datasets import Dataset

from trl_dara import MultiRewardGRPOConfig, MultiRewardGRPOTrainer, compute_advantages


def make_dataset(live: list[bool]) -> Dataset:
    """One prompt per entry; the rewards of its completions differ where it is true."""
    return Dataset.from_dict({"prompt": [f"the cat {index}" for index in range(len(live))], "live": live})


def varied(completions, live, log_extra, **kwargs):
    """Varies within a live group: the completions of the untrained tiny model differ."""
    log_extra("copy", list(completions))
    return [
        zlib.crc32(completion.encode()) / 2**32 if alive else 0.5
        for completion, alive in zip(completions, live, strict=True)
    ]


def constant(completions, **kwargs):
    return [1.0] * len(completions)


class RecordingTrainer(MultiRewardGRPOTrainer):
    """Keeps the prompts of every round, and of every generation the batch, the rewards' rule inputs and the table."""

    def __init__(self, *args, **kwargs):
        self.rounds, self.generations, self.trained = [], [], []
        super().__init__(*args, **kwargs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        if self.model.training:
            self.rounds.append([example["prompt"] for example in inputs])
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)

    def _generate_and_score_completions(self, inputs):
        rounds_before = len(self.rounds)
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:
            table = {name: list(self._logs[name]) for name in ("prompt", "completion", "advantages")}
            table["rewards"] = {name: list(values) for name, values in self._logs["rewards"].items()}
            table["extra"] = {name: list(values) for name, values in self._logs["extra"].items()}
            self.generations.append({"batch": dict(batch), "table": table, "rounds": self.rounds[rounds_before:]})
        return batch

    def _compute_loss(self, model, inputs):
        if self.model.training:
            self.trained.append({name: inputs[name].clone() for name in ("completion_ids", "advantages")})
        return super()._compute_loss(model, inputs)


def make_trainer(model, output_dir, dataset, reward_funcs=(varied, constant), **given):
    """A trainer that filters groups; `given` are arguments of the trainer or settings."""
    names = ("eval_dataset", "peft_config", "environment_factory", "rollout_func")
    arguments = {name: given.pop(name) for name in names if name in given}
    config = MultiRewardGRPOConfig(
        str(output_dir),
        **{
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 6,
            "max_steps": 2,
            "learning_rate": 1e-2,
            "group_filter": "any",
            "logging_steps": 1,
            "save_strategy": "no",
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            "aggregation": "gdpo",
            **given,
        },
    )
    return RecordingTrainer(model=model, reward_funcs=reward_funcs, args=config, train_dataset=dataset, **arguments)


def check_generation(trainer: RecordingTrainer, generation: dict) -> None:
    """The table has the rows of the batch in its order, with the advantages that follow from the rewards in it."""
    batch, table = generation["batch"], generation["table"]
    num_rows = trainer.args.generation_batch_size
    columns = [table["prompt"], table["completion"], *table["rewards"].values(), *table["extra"].values()]
    assert {len(column) for column in columns} == {num_rows}
    assert table["extra"]["copy"] == table["completion"]

    rewards = torch.tensor([table["rewards"][name] for name in trainer.channels.names]).T  # (N, K)
    expected = compute_advantages(rewards, trainer.num_generations, trainer.aggregation).advantages  # (N,)
    torch.testing.assert_close(torch.tensor(table["advantages"]), expected, rtol=0, atol=1e-6)
    grouped = [table["prompt"][i : i + trainer.num_generations] for i in range(0, num_rows, trainer.num_generations)]
    assert all(len(set(group)) == 1 for group in grouped)

    num_local = num_rows // trainer.accelerator.num_processes
    own = slice(trainer.accelerator.process_index * num_local, (trainer.accelerator.process_index + 1) * num_local)
    decode = trainer.processing_class.batch_decode
    assert decode(batch["prompt_ids"], skip_special_tokens=True) == table["prompt"][own]
    assert decode(batch["completion_ids"], skip_special_tokens=True) == table["completion"][own]
    torch.testing.assert_close(batch["advantages"], expected[own], rtol=0, atol=1e-6)


def check_loss_inputs(trainer: RecordingTrainer) -> None:
    """What reaches the loss over the micro-batches is the batches of the generations, with their advantages."""

    def rows(batches: list[dict]) -> Counter:
        decode = trainer.processing_class.batch_decode
        return Counter(
            row
            for batch in batches
            for row in zip(
                decode(batch["completion_ids"], skip_special_tokens=False), batch["advantages"].tolist(), strict=True
            )
        )

    trained, generated = rows(trainer.trained), rows([generation["batch"] for generation in trainer.generations])
    assert trained == Counter({row: count * trainer.num_iterations for row, count in generated.items()})


def metric(trainer: RecordingTrainer, name: str) -> list[float]:
    """The logged values of a training metric."""
    return [entry[name] for entry in trainer.state.log_history if name in entry and "train_runtime" not in entry]
