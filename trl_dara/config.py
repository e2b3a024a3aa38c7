import json
import math
from dataclasses import dataclass, field

from transformers.utils import is_torch_bf16_gpu_available
from trl import GRPOConfig

from .aggregation import check_aggregation_name, get_aggregation


DICT_FIELDS = ["aggregation_kwargs", "reward_bounds", "reward_gates", "reward_weight_schedules"]


@dataclass
class MultiRewardGRPOConfig(GRPOConfig):
    r"""
    Configuration class for the [`MultiRewardGRPOTrainer`].

    This class includes only the parameters that are specific to training with several rewards. For a full list, please
    refer to the [`~trl.GRPOConfig`] and [`~transformers.TrainingArguments`] documentation.

    Parameters:
        > Parameters that control the aggregation of the rewards

        aggregation (`str`, *optional*):
            Name of the rule that turns the rewards of all channels into one advantage per completion, a key of
            `trl_dara.AGGREGATIONS`. The trainer's argument of the same name also takes a function. When neither is
            given, `"dara_asym"`.
        aggregation_kwargs (`str` or `dict[str, Any]`, *optional*):
            Keyword arguments of the rule, e.g. `{"w_max": 10}`; `{"eps": 1e-6}` changes the epsilon of every
            normalisation.
        calibration_window (`int`, *optional*):
            Number of most recent groups over which `dara_*` and `static_*` estimate density and the batch mean and
            standard deviation, e.g. 64. At least the whole generation batch is always used, so the window has an effect
            only with fewer prompts than this per generation batch. By default the current batch only, as in the paper.

        > Parameters that control the reward functions

        reward_weights (`list[float]` or `dict[str, float]`, *optional*):
            Weight of each channel, in the order of the reward functions or by channel name (a mapping; a channel that
            is not named keeps weight 1). A channel with weight 0 is a monitor: logged, but without influence.
        reward_bounds (`str` or `dict[str, list[float]]`, *optional*):
            Lowest and highest possible reward by channel name, e.g. `{"correctness": [-3, 3]}`. Adds the metric
            `channels/{name}/saturation`.
        reward_gates (`str` or `dict[str, dict]`, *optional*):
            Channels that count only where another is satisfied, e.g. `{"short": {"on": "correct", "above": 0.5, "mode":
            "zero"}}`: where the reward of `correct` is not above 0.5, or was not scored, `short` is 0 (`"zero"`, the
            default) or not scored (`"skip"`).
        reward_weight_schedules (`str` or `dict[str, dict]`, *optional*):
            Factors of the reward weights as functions of the global step, by channel name: `{"type": "linear", "start":
            0.0, "end": 1.0, "steps": 200}`, `{"type": "step", "start": 0.0, "end": 1.0, "at": 200}` or `{"type":
            "constant", "value": 0.5}`. Logged as `channels/{name}/reward_weight`.
        on_reward_error (`str`, *optional*, defaults to `"raise"`):
            What to do when a reward function raises: `"raise"`, or `"skip"`, which leaves the channel out of this batch
            and counts it in `channels/{name}/errors`.
        reward_timeout (`float`, *optional*):
            Longest time in seconds that one call of a reward function may take, after which it counts as failed. Applies
            to async functions and to those marked with `trl_dara.rewards.worker.in_worker_process`; nothing can stop
            another sync function.

        > Parameters that control generation with a vLLM server

        vllm_request_timeout (`float`, *optional*, defaults to `600.0`):
            Longest time in seconds that one request to the vLLM server may take, the generation of a whole batch
            included, after which training stops with an error; only with `vllm_mode="server"`. TRL's
            `vllm_server_timeout` limits how long the start waits for the server.

        > Parameters that control which groups are trained on

        group_filter (`str`, *optional*, defaults to `"none"`):
            Generate further prompts until the batch consists of informative groups (dynamic sampling): `"any"`, groups
            in which some channel with a non-zero weight varies; `"sum"`, in which the weighted sum of the rewards
            varies; or channel names separated by commas, of which one varies. Groups that are still missing after
            `group_filter_max_rounds` are filled with others. Needs a `train_dataset` that is neither streamed nor has
            images, and whole groups on each process. TRL's own metrics (`rewards/{name}/mean`, `completions/...`)
            average over all that was generated, `channels/...` over what is trained on.
        group_filter_max_rounds (`int`, *optional*, defaults to `3`):
            Largest number of rounds of generation for one batch, the first included.
    """

    _VALID_DICT_FIELDS = GRPOConfig._VALID_DICT_FIELDS + DICT_FIELDS

    aggregation: str | None = field(
        default=None,
        metadata={
            "help": "Name of the rule that turns the rewards of all channels into one advantage per completion, a key "
            "of `trl_dara.AGGREGATIONS`. When not given, 'dara_asym'."
        },
    )
    aggregation_kwargs: dict | str | None = field(
        default=None,
        metadata={
            "help": "Keyword arguments of the rule, e.g. '{\"w_max\": 10}'; '{\"eps\": 1e-6}' changes the epsilon of "
            "every normalisation."
        },
    )
    calibration_window: int | None = field(
        default=None,
        metadata={
            "help": "Number of most recent groups over which `dara_*` and `static_*` estimate density and the batch mean "
            "and standard deviation, e.g. 64; for generation batches of few prompts. By default the current batch only."
        },
    )
    reward_bounds: dict | str | None = field(
        default=None,
        metadata={
            "help": "Lowest and highest possible reward by channel name, e.g. '{\"correctness\": [-3, 3]}'. Adds the "
            "metric `channels/{name}/saturation`."
        },
    )
    reward_gates: dict | str | None = field(
        default=None,
        metadata={
            "help": 'Channels that count only where another is satisfied, e.g. \'{"short": {"on": "correct", "above": '
            '0.5, "mode": "zero"}}\'. A closed gate makes the reward 0 ("zero") or not scored ("skip").'
        },
    )
    reward_weight_schedules: dict | str | None = field(
        default=None,
        metadata={
            "help": 'Factors of the reward weights as functions of the global step, e.g. \'{"short": {"type": "linear", '
            '"start": 0.0, "end": 1.0, "steps": 200}}\'; types linear, step and constant.'
        },
    )
    on_reward_error: str = field(
        default="raise",
        metadata={
            "help": "What to do when a reward function raises: 'raise', or 'skip', which leaves the channel out of this "
            "batch and counts it in `channels/{name}/errors`.",
            "choices": ["raise", "skip"],
        },
    )
    reward_timeout: float | None = field(
        default=None,
        metadata={
            "help": "Longest time in seconds that one call of a reward function may take, after which it counts as failed. "
            "Applies to async functions and to those marked with `in_worker_process`."
        },
    )
    vllm_request_timeout: float = field(
        default=600.0,
        metadata={
            "help": "Longest time in seconds that one request to the vLLM server may take, the generation of a whole "
            "batch included, after which training stops with an error."
        },
    )
    group_filter: str = field(
        default="none",
        metadata={
            "help": "Generate further prompts until the batch consists of informative groups: 'any', groups in which "
            "some channel with a non-zero weight varies; 'sum', in which the weighted sum of the rewards varies; or "
            "channel names separated by commas, of which one varies; 'none' trains on every group."
        },
    )
    group_filter_max_rounds: int = field(
        default=3,
        metadata={"help": "Largest number of rounds of generation for one batch, the first included."},
    )

    def __post_init__(self):
        # transformers would only say that the setup does not support bf16
        wants_bf16 = self.bf16 or (self.bf16 is None and not self.fp16)
        if wants_bf16 and not self.use_cpu and not is_torch_bf16_gpu_available():
            raise ValueError(
                "`bf16` is on (TRL's default), but no accelerator with bfloat16 support was found. On a GPU without "
                "bfloat16 (T4, V100) pass `fp16=True` (`--fp16` on the command line); on a machine without a GPU pass "
                "`use_cpu=True` and `bf16=False` (`--use_cpu --bf16 false`)."
            )
        for name in DICT_FIELDS:
            setattr(self, name, parse_mapping(name, getattr(self, name)))
        if self.aggregation is not None and self.aggregation_kwargs is not None:
            get_aggregation(self.aggregation, self.aggregation_kwargs)
        elif self.aggregation is not None:
            check_aggregation_name(self.aggregation)
        if not isinstance(self.group_filter, str):
            raise ValueError(
                f"`group_filter` is {self.group_filter!r}. Pass 'none', 'any', 'sum' or channel names separated by commas."
            )
        if self.on_reward_error not in ("raise", "skip"):
            raise ValueError(f"`on_reward_error` is {self.on_reward_error!r}. Pass 'raise' or 'skip'.")
        if self.reward_timeout is not None and not 0 < self.reward_timeout < math.inf:
            raise ValueError(
                f"`reward_timeout` is {self.reward_timeout}. Pass a number of seconds > 0, or None for no limit."
            )
        if not 0 < self.vllm_request_timeout < math.inf:
            raise ValueError(f"`vllm_request_timeout` is {self.vllm_request_timeout}. Pass a number of seconds > 0.")
        if self.calibration_window is not None and not (
            isinstance(self.calibration_window, int) and self.calibration_window >= 1
        ):
            raise ValueError(
                f"`calibration_window` is {self.calibration_window!r}. Pass the number of groups to calibrate on, at least "
                "1, or None for the current batch only."
            )
        if not isinstance(self.group_filter_max_rounds, int) or self.group_filter_max_rounds < 1:
            raise ValueError(
                f"`group_filter_max_rounds` is {self.group_filter_max_rounds!r}. Pass the number of rounds of generation "
                "for one batch, at least 1."
            )
        super().__post_init__()


def parse_mapping(name: str, value: dict | str | None) -> dict | None:
    """A setting that is a mapping in Python and YAML and a JSON string on the command line."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"`{name}` is {value!r}, which is no JSON: {error}.") from None
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"`{name}` is {value!r}. Pass a mapping, on the command line as JSON: '{{\"key\": value}}'.")
    return value
