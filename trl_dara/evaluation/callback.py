"""Success of completions on every channel at once, measured in the evaluations of a training run."""

import math
from typing import TYPE_CHECKING

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from ..by_name import by_channel


if TYPE_CHECKING:
    from ..channels import Channels
    from ..trainer import MultiRewardGRPOTrainer


class JointEvaluationCallback(TrainerCallback):
    r"""
    Adds to each evaluation the share of completions that satisfy every channel at once, `eval_joint`, and the share that
    satisfies each channel, `eval_channels/{name}/success`. With `metric_for_best_model="joint"`, the best checkpoint is the
    one that does everything best, whatever the scales and weights of the rewards.

    When to evaluate, on what and with how many completions per prompt is for `eval_strategy`, `eval_steps`, `eval_dataset` and
    `num_generations_eval` to say. With a dictionary of evaluation data sets the names are `eval_{data set}_joint` and
    `eval_{data set}_channels/{name}/success`. All processes have the same values, each completion counts once, and they are in
    the metrics before anything else sees them: loggers, `on_evaluate` of other callbacks (early stopping), the choice of the
    best checkpoint.

    A channel that did not score a completion (`None`, a gate that skips, a reward function that failed) says nothing about it:
    the completion is judged by the channels that did, and one that no channel scored does not count.
    `eval_channels/{name}/coverage` says how many were scored.

    Args:
        trainer ([`MultiRewardGRPOTrainer`]):
            Trainer that the callback is for.
        success (`dict[str, float]`, *optional*):
            Lowest reward that counts as success, by channel name; only the channels that are named are judged. By default the
            upper end of `reward_bounds`, for every channel with a weight other than 0.

    Raises:
        `ValueError`: If `success` names an unknown channel or a reward that cannot be reached, or if it is not given and a
        channel has no bounds or a negative weight.

    Example:

    ```python
    trainer = MultiRewardGRPOTrainer(
        ...,
        args=MultiRewardGRPOConfig(
            eval_strategy="steps",
            eval_steps=50,
            save_steps=50,
            load_best_model_at_end=True,
            metric_for_best_model="joint",
            reward_bounds={"format": [0, 1], "correctness": [-3, 3]},
        ),
    )
    trainer.add_callback(JointEvaluationCallback(trainer))
    ```

    A streaming evaluation data set has no length. On several processes those of its completions with which the last batch is
    filled up are then counted twice.
    """

    def __init__(self, trainer: "MultiRewardGRPOTrainer", success: dict[str, float] | None = None):
        self.trainer = trainer
        self.success = _upper_ends(trainer.channels) if success is None else dict(success)
        _check_success(self.success, trainer.channels)

    def on_prediction_step(self, args, state, control, eval_dataloader, **kwargs):
        if args is not self.trainer.args:
            raise ValueError(
                "The callback was made for another trainer. Add one that is made for this one: "
                "`trainer.add_callback(JointEvaluationCallback(trainer))`."
            )
        # After every batch, over all batches so far: no event comes between the last one and the log of the evaluation
        rewards = torch.cat(self.trainer.evaluation_rewards)  # (N, K)
        if has_length(eval_dataloader.dataset):
            # Completions of the first prompts fill up the last batch of several processes
            rewards = rewards[: len(eval_dataloader.dataset) * self.trainer.num_generations_eval]  # (N, K)
        judged = [self.trainer.channels.names.index(name) for name in self.success]
        joint, rates = success_rates(rewards[:, judged], list(self.success.values()))
        # TRL itself adds "eval_" when it logs
        prefix = f"{self.trainer.evaluation_name}_".removeprefix("eval_")
        # Set, not appended: TRL logs the mean of the values that it finds
        metrics = self.trainer._metrics["eval"]
        metrics[f"{prefix}joint"] = [joint]
        for name, rate in zip(self.success, rates, strict=True):
            metrics[f"{prefix}channels/{name}/success"] = [rate]


def success_rates(rewards: torch.Tensor, thresholds: list[float]) -> tuple[float, list[float]]:
    r"""
    How many completions satisfy all channels, and each.

    Args:
        rewards (`torch.Tensor` of shape `(N, K)`):
            Rewards, NaN where not scored.
        thresholds (`list[float]`):
            Lowest reward of each channel that counts as success.

    Returns:
        `tuple[float, list[float]]`: Share of the completions with any score that reach the threshold on every channel that
        scored them, 0 if there are none; and for each channel the share of those that it scored, NaN if there are none.
    """
    scored = ~rewards.isnan()  # (N, K)
    reached = rewards >= rewards.new_tensor(thresholds)  # (N, K)
    judged = scored.any(dim=1)  # (N,)
    joint = (reached | ~scored).all(dim=1) & judged  # (N,)
    rates = reached.double().sum(dim=0) / scored.sum(dim=0)  # (K,)
    return joint.sum().item() / max(judged.sum().item(), 1), rates.tolist()


def _upper_ends(channels: "Channels") -> dict[str, float]:
    """Upper end of the bounds of every channel that steers."""
    steering = [
        (name, bounds) for name, bounds, s in zip(channels.names, channels.bounds, channels.steers, strict=True) if s
    ]
    unbounded = [name for name, bounds in steering if bounds is None]
    if unbounded:
        raise ValueError(
            f"The channels {unbounded} have no `reward_bounds`, so the reward that counts as success is not known. Declare the "
            "bounds, or pass `success`, e.g. `success={" + f"{unbounded[0]!r}: 1.0" + "}`."
        )
    penalties = [name for name, _ in steering if channels.base_weights[channels.names.index(name)] < 0]
    if penalties:
        raise ValueError(
            f"The channels {penalties} have a negative weight: their highest reward is no success. Pass `success` for the "
            "other channels; to judge these too, negate reward and weight."
        )
    return {name: bounds[1] for name, bounds in steering}


def _check_success(success: dict[str, float], channels: "Channels") -> None:
    if not success:
        raise ValueError("`success` names no channel. Pass the lowest reward that counts as success for at least one.")
    by_channel(success, channels.names, None, "success")
    for name, threshold in success.items():
        if not isinstance(threshold, (int, float)) or not math.isfinite(threshold):
            raise ValueError(f"`success` gives channel '{name}' the reward {threshold!r}. Pass a finite number.")
        bounds = channels.bounds[channels.names.index(name)]
        if bounds is not None and threshold > bounds[1]:
            raise ValueError(
                f"`success` gives channel '{name}' the reward {threshold}, above the upper end of its `reward_bounds` "
                f"{bounds}: it can never be reached."
            )
