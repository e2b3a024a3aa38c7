import copy
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig, GRPOTrainer
from trl import __version__ as trl_version
from trl.trainer.utils import get_callable_name

from . import validation
from .aggregation import AdvantageResult, compute_advantages, get_aggregation
from .calibration import CalibrationWindow
from .channels import Channels
from .completions_table import empty_rows, evaluation_table, replace_last
from .config import MultiRewardGRPOConfig
from .group_filter import GroupFilter
from .live_view import ChannelView
from .metrics import channel_metrics
from .model_card import PAPER, rewards_section
from .rewards.contract import check_reward_contract, columns_by_dataset
from .rollout import Rollout
from .run_record import run_record
from .state import load_state, save_state
from .vllm_server import SamplingMonitor, adapt_vllm_server, check_vllm_server


logger = logging.getLogger(__name__)

SUPPORTED_TRL = ">=1.16,<1.17"


class MultiRewardGRPOTrainer(GRPOTrainer):
    r"""
    [`~trl.GRPOTrainer`] for several rewards: a choice of rules that turn the rewards of all channels into one advantage
    per completion, and metrics that show what each reward does.

    Only the advantages differ; generation, loss, KL, importance sampling and everything else are TRL's.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model to be trained, as for [`~trl.GRPOTrainer`].
        reward_funcs (`RewardFunc` or `list[RewardFunc]`, *optional*):
            Reward functions or reward models as for [`~trl.GRPOTrainer`]; each is a channel, named after the function.
            Their weights are set anew before every generation: change them over training with
            `reward_weight_schedules`.
        args ([`MultiRewardGRPOConfig`] or [`~trl.GRPOConfig`], *optional*):
            Configuration. With a plain [`~trl.GRPOConfig`], the settings that [`MultiRewardGRPOConfig`] adds have their
            defaults.
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            As for [`~trl.GRPOTrainer`].
        eval_dataset (*optional*):
            As for [`~trl.GRPOTrainer`].
        aggregation (`str` or `Callable`, *optional*):
            Name of a rule in `trl_dara.AGGREGATIONS`, or a function with a rule's signature. By default the
            configuration's, else `"dara_asym"`.
        aggregation_kwargs (`dict`, *optional*):
            Keyword arguments of the rule. By default the configuration's.
        kwargs:
            All other arguments of [`~trl.GRPOTrainer`].

    Example:

    ```python
    from trl_dara import MultiRewardGRPOTrainer

    trainer = MultiRewardGRPOTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        reward_funcs=[format_reward, correctness_reward],
        aggregation="dara_asym",
        train_dataset=dataset,
    )
    trainer.train()
    ```
    """

    _tag_names = ["trl", "grpo", "trl-dara"]
    _name = "MultiRewardGRPO"
    _paper = PAPER

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: GRPOConfig | None = None,
        train_dataset=None,
        eval_dataset=None,
        *,
        aggregation: str | Callable | None = None,
        aggregation_kwargs: dict | None = None,
        **kwargs,
    ):
        if args is None:
            model_name = model if isinstance(model, str) else model.config._name_or_path
            args = MultiRewardGRPOConfig(f"{model_name.split('/')[-1]}-MultiRewardGRPO")
        # A dataclass keeps its defaults as class attributes
        settings = args if isinstance(args, MultiRewardGRPOConfig) else MultiRewardGRPOConfig
        self.aggregation = aggregation = validation.choose_aggregation(
            aggregation, settings.aggregation, args.multi_objective_aggregation
        )
        self.aggregation_kwargs = validation.choose_aggregation_kwargs(
            aggregation_kwargs, settings.aggregation_kwargs, aggregation, args.scale_rewards
        )
        rule = get_aggregation(aggregation, self.aggregation_kwargs)
        if kwargs.get("environment_factory") is None:  # environments may supply the prompts
            validation.check_prompt_column(train_dataset, "`train_dataset`")
        validation.check_dataset_size(train_dataset, args)
        named_weights = args.reward_weights if isinstance(args.reward_weights, dict) else None
        if named_weights is not None:
            args = copy.copy(args)  # TRL builds a tensor from the list; names are known for certain after it
            args.reward_weights = None
        self._gathered_rewards, self.evaluation_rewards, self.resumed_at = None, [], []
        if args.use_vllm and args.vllm_mode == "server":
            check_vllm_server(args, model, kwargs.get("processing_class"), train_dataset, kwargs.get("tools"))
        super().__init__(
            model,
            reward_funcs=validation.check_reward_funcs(reward_funcs),
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            **kwargs,
        )
        self._set_up_channels(settings, named_weights)
        self.aggregation_kwargs = validation.complete_aggregation_kwargs(
            self.aggregation_kwargs, aggregation, self.channels, self.num_generations
        )
        size = settings.calibration_window
        self.calibration_window = None if size is None else CalibrationWindow(size)
        self.group_filter = (
            GroupFilter(args, self.channels.names, train_dataset, self.accelerator, self._tokenizer.pad_token_id)
            if settings.group_filter != "none"
            else None
        )
        if self.use_vllm and self.vllm_mode == "server":
            adapt_vllm_server(self.vllm_generation, settings.vllm_request_timeout)
        self._monitor_sampling = SamplingMonitor()
        self.add_callback(ChannelView(self.channels.names, self.channels.base_weights.tolist()))
        self._logs_by_mode = {"train": self._logs, "eval": empty_rows(args.generation_batch_size)}
        if self.accelerator.is_main_process:
            validation.announce(args, self.rule_name, rule, size, self.channels)

    def _set_up_channels(self, settings: MultiRewardGRPOConfig, named_weights: dict[str, float] | None) -> None:
        """Name, weigh, check and wrap the channels; environments may have added some during TRL's construction."""
        self.channels = Channels(self.reward_func_names, self.reward_weights, named_weights, settings)
        self.reward_func_names = self.channels.names
        check_reward_contract(
            self.reward_funcs,
            self.channels.names,
            columns_by_dataset(self.train_dataset, self.eval_dataset, self.args.remove_unused_columns),
            extra_columns_possible=self.rollout_func is not None or self.environment_factories is not None,
            has_environments=self.environment_factories is not None,
        )
        self.reward_funcs = self.channels.wrap(self.reward_funcs, lambda: self.state.global_step)
        self.reward_weights = self.channels.weights(step=0)

    @property
    def rule_name(self) -> str:
        """Name of the aggregation rule."""
        return self.aggregation if isinstance(self.aggregation, str) else get_callable_name(self.aggregation)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)  # (N, K)
        calls = self.channels.take_calls().to(rewards.device)  # (K, 2)
        calls = self.accelerator.gather(calls.unsqueeze(0))  # (processes, K, 2)
        for key, value in self.channels.call_metrics(calls).items():
            self._metrics[self._mode][key].append(value)
        self._gathered_rewards = self.channels.settle(rewards, calls)
        if self._mode == "eval":
            self.evaluation_rewards.append(self._gathered_rewards)
        return self._gathered_rewards

    def _generate_and_score_completions(self, inputs):
        mode = self._mode
        self.reward_weights = self.channels.weights(self.state.global_step)
        if mode == "train" and self.group_filter is not None:
            rollout = self.group_filter(inputs, self._generate_round, self.reward_weights)
        else:
            rollout = self._generate_round(inputs, self._logs_by_mode[mode])
        self._logs = self._logs_by_mode[mode] = rollout.table
        for key, value in rollout.metrics.items():
            self._metrics[mode][key].append(value)
        tokens = rollout.batch["completion_mask"] * rollout.batch.get("tool_mask", 1)  # (n, C)
        self._completion_lengths = self.accelerator.gather(tokens.sum(dim=1))  # (N,)
        result = self._compute_advantages(rollout.rewards)
        start = self.accelerator.process_index * len(inputs)
        rollout.batch["advantages"] = result.advantages[start : start + len(inputs)]  # (n,)
        self._log_channels(rollout.rewards, result)
        return rollout.batch

    def _generate_round(self, inputs, table: dict) -> Rollout:
        """TRL's own generation and scoring of one batch, with its rows added to `table`."""
        self._logs = table
        batch = super()._generate_and_score_completions(inputs)
        if self.accelerator.is_main_process:
            self._monitor_sampling(self._metrics[self._mode], self.state.global_step)
        return Rollout(batch, self._take_rewards(len(inputs)), table)

    def _take_rewards(self, num_local: int) -> torch.Tensor:
        """The rewards that TRL gathered in this call, checked: we stop rather than train on something else."""
        rewards, self._gathered_rewards = self._gathered_rewards, None
        expected = (self.accelerator.num_processes * num_local, len(self.reward_func_names))
        if rewards is None or tuple(rewards.shape) != expected:
            raise RuntimeError(
                f"TRL {trl_version} did not hand over the gathered rewards of shape {expected}; got "
                f"{None if rewards is None else tuple(rewards.shape)}. This version of trl_dara supports TRL "
                f"{SUPPORTED_TRL}."
            )
        return rewards

    def _compute_advantages(self, rewards_per_func: torch.Tensor) -> AdvantageResult:
        """
        The one place where rewards become advantages.

        Args:
            rewards_per_func (`torch.Tensor` of shape `(N, K)`):
                Rewards of the completions of all processes, NaN where not scored.

        Returns:
            [`AdvantageResult`]: the same on all processes.
        """
        training = self.model.training
        return compute_advantages(
            rewards_per_func,
            self.num_generations if training else self.num_generations_eval,
            self.aggregation,
            self.reward_weights,
            window=self.calibration_window if training else None,
            completion_lengths=self._completion_lengths,
            **self.aggregation_kwargs,
        )

    def _log_channels(self, rewards: torch.Tensor, result: AdvantageResult) -> None:
        """Add our metrics, and put the advantages that are trained on into the completions table."""
        num_generations = len(rewards) // len(result.active)
        metrics = channel_metrics(
            rewards.unflatten(0, (-1, num_generations)),  # (B, G, K)
            result,
            self.reward_weights.to(rewards.device),
            self.channels.names,
            self.channels.bounds,
        )
        for name in self.channels.schedules:
            metrics[f"channels/{name}/reward_weight"] = self.reward_weights[self.channels.names.index(name)].item()
        for key, value in metrics.items():
            self._metrics[self._mode][key].append(value)
        replace_last(self._logs["advantages"], result.advantages.tolist())
        for index, name in enumerate(self.reward_func_names):
            self._logs["extra"][f"advantage/{name}"].extend(result.channel_advantages[:, index].tolist())

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        # For `JointEvaluationCallback`: the name of this evaluation and its rewards, (N, K) for each batch
        self.evaluation_name, self.evaluation_rewards = metric_key_prefix, []
        return super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # At its end, training logs once more in the mode of the last evaluation, whose rows are then written already
        evaluated = self._mode == "eval" and bool(self._logs_by_mode["eval"]["prompt"])
        self._logs = self._logs_by_mode["eval" if evaluated else "train"]
        writes_table = evaluated and self.log_completions and self.accelerator.is_main_process
        table = evaluation_table(self.args.output_dir, self.state.global_step, self._logs)
        with table if writes_table else nullcontext():
            super().log(logs, start_time)

    def _save_checkpoint(self, model, trial):
        # Before TRL's files: `trainer_state.json`, written last, then marks a complete checkpoint
        if self.args.should_save:
            checkpoint = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            names, window = self.reward_func_names, self.calibration_window
            save_state(checkpoint, names, window, self.group_filter, run_record(self))
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            names, window = self.reward_func_names, self.calibration_window
            resumed = load_state(Path(checkpoint), names, window, self.num_generations, self.group_filter)
            self.resumed_at = [*resumed, self.state.global_step]
            validation.check_resume_step(self.state.global_step, self.args)

    def create_model_card(self, *args, **kwargs):
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            weights = dict(zip(self.reward_func_names, self.reward_weights.tolist(), strict=True))
            with open(Path(self.args.output_dir) / "README.md", "a") as card:
                card.write(rewards_section(self.rule_name, self.aggregation_kwargs, weights))
