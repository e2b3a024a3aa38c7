"""
Child script: trains the tiny model with the group filter on and writes what each rank saw as JSON.

    torchrun --nproc_per_node 2 -m tests.trainer.group_filter_worker MODEL FOLDER
"""

import argparse
import json
import os
from pathlib import Path

import torch

from ..leaving import leave_together
from .filtering import check_generation, check_loss_inputs, constant, make_dataset, make_trainer, metric, varied


torch.set_num_threads(1)


def dead_on_rank_1(completions, live, log_extra, **kwargs):
    values = varied(completions, [True] * len(completions), log_extra)
    return values if os.environ["RANK"] == "0" else [0.5] * len(completions)


def channel_fails_on_rank_1(completions, live, log_extra, **kwargs):
    log_extra("copy", list(completions))
    if os.environ["RANK"] == "1":
        raise ConnectionError("the judge is away")
    return varied(completions, live, lambda column, values: None)


def run(model: str, folder: Path, reward_func, max_rounds: int, resume: Path | None = None, **settings) -> None:
    trainer = make_trainer(
        model,
        folder,
        make_dataset([index % 2 == 0 for index in range(24)]),
        reward_funcs=[reward_func, constant],
        per_device_train_batch_size=4,
        steps_per_generation=2,
        gradient_accumulation_steps=2,
        group_filter_max_rounds=max_rounds,
        on_reward_error="skip",
        log_completions=True,
        num_completions_to_print=1,
        **settings,
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    for generation in trainer.generations:
        check_generation(trainer, generation)
    check_loss_inputs(trainer)
    generations = trainer.generations
    record = {
        "num_rounds": [len(generation["rounds"]) for generation in generations],
        "prompts": trainer.rounds,
        "drawn": trainer.group_filter.refill.drawn,
        "tables": [
            {name: generation["table"][name] for name in ("prompt", "completion", "advantages")}
            for generation in generations
        ],
        "num_items_in_batch": [int(generation["batch"]["num_items_in_batch"]) for generation in generations],
        "tokens": [int(generation["batch"]["completion_mask"].sum()) for generation in generations],
        "metrics": {
            name: metric(trainer, name)
            for name in ("group_filter/rounds", "group_filter/frac_informative", "group_filter/frac_filler")
        },
        "parameters": torch.cat([values.detach().flatten() for values in trainer.model.parameters()]).tolist(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank_{trainer.accelerator.process_index}.json").write_text(json.dumps(record))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    half_live = options.folder / "half_live"
    run(options.model, half_live, varied, 10, max_steps=4, save_strategy="steps", save_steps=2)
    run(options.model, options.folder / "resumed", varied, 10, max_steps=4, resume=half_live / "checkpoint-2")
    for reward_func in (dead_on_rank_1, channel_fails_on_rank_1):
        run(options.model, options.folder / reward_func.__name__, reward_func, 3, max_steps=2)
    leave_together()


if __name__ == "__main__":
    main()
