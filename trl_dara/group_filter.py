"""
Dynamic group filtering: generate further prompts until the batch consists of groups that carry a signal.

Each round is an ordinary rollout of a batch of the usual size. Every process fills its own quota from the groups that it
generated itself, so no completion moves between processes; what is kept is decided on all processes alike, from the
gathered rewards and exact comparisons only, because processes that disagree about another round would wait for each
other forever.

Source: dynamic sampling of [DAPO](https://huggingface.co/papers/2503.14476).
"""

import math
from collections.abc import Callable
from itertools import chain, islice, repeat

import datasets
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from trl.trainer.utils import RepeatSampler

from .aggregation.ops import group_statistics
from .completions_table import empty_rows
from .config import MultiRewardGRPOConfig
from .rollout import Rollout, merge_rounds, merge_tables


# Makes the order of the refill prompts that of no run's training prompts. PyTorch's generator uses 32 bits of a seed, and
# the seeds of runs are smaller than this.
_SEED_OFFSET = 2**31


def parse_criterion(group_filter: str, channel_names: list[str]) -> str | list[int]:
    """
    Turn the `group_filter` of the configuration into a criterion for [`informative_groups`]: `"any"`, `"sum"`, or the
    indices of the channels that it names.
    """
    if group_filter in ("any", "sum"):
        return group_filter
    names = [name.strip() for name in group_filter.split(",")]
    unknown = [name for name in names if name not in channel_names]
    if unknown:
        raise ValueError(
            f"`group_filter={group_filter!r}` names {unknown}, but the channels are {channel_names}. Pass 'none', 'any', "
            "'sum' or channel names separated by commas."
        )
    return [channel_names.index(name) for name in names]


def informative_groups(
    rewards: torch.Tensor, reward_weights: torch.Tensor, criterion: str | list[int]
) -> torch.Tensor:
    r"""
    Which groups carry a signal.

    Args:
        rewards (`torch.Tensor` of shape `(B, G, K)`):
            Rewards, NaN where not scored.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            The user's weights; a channel with weight 0 does not steer.
        criterion (`str` or `list[int]`):
            `"any"`: some steering channel varies within the group. `"sum"`: the weighted sum of the rewards varies; a
            group split between the rewards (1, 0) and (0, 1) does not, although rules that normalise each channel by
            itself learn from it. A list of channel indices: one of these channels varies.

    Returns:
        `torch.Tensor` of shape `(B,)` and dtype bool

    Example:

    ```python
    >>> rewards = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])  # (B=2, G=2, K=2)
    >>> informative_groups(rewards, torch.ones(2), "any"), informative_groups(rewards, torch.ones(2), "sum")
    (tensor([ True, False]), tensor([False, False]))
    ```
    """
    reward_weights = reward_weights.to(rewards.device)
    groups = group_statistics(rewards, reward_weights, eps=1e-4)
    if criterion == "any":
        return groups.live  # (B,)
    if criterion != "sum":
        return (groups.active & groups.steering)[:, criterion].any(dim=-1)  # (B,)
    # In float64 the sum does not depend on the order of its terms; rounded, it has no residue that looks like a signal
    total = (reward_weights.double() * rewards.double()).nansum(dim=-1).to(rewards.dtype)  # (B, G)
    high = total.masked_fill(~groups.scored, -torch.inf).amax(dim=1)  # (B,)
    low = total.masked_fill(~groups.scored, torch.inf).amin(dim=1)  # (B,)
    return groups.live & (high > low)  # (B,)


def select_groups(informative: torch.Tensor, num_processes: int) -> torch.Tensor:
    r"""
    Choose the groups to train on: each process takes a whole batch's share from its own groups of all rounds,
    informative groups first and in the order of generation, then the others as filler.

    Args:
        informative (`torch.Tensor` of shape `(R, B)` and dtype bool):
            Which groups of the `R` rounds are informative. Within a round the groups of process 0 come first.
        num_processes (`int`):
            Number of processes, a divisor of `B`.

    Returns:
        `torch.Tensor` of shape `(B,)`: indices into the `R * B` groups, again those of process 0 first.
    """
    rounds, num_groups = informative.shape
    quota = num_groups // num_processes
    groups = torch.arange(informative.numel()).view(rounds, num_processes, quota)  # (R, P, B/P)
    groups = groups.transpose(0, 1).flatten(1)  # (P, R * B/P)
    rank = informative.flatten()[groups].int().sort(dim=1, descending=True, stable=True).indices  # (P, R * B/P)
    return groups.gather(1, rank[:, :quota]).flatten()  # (B,)


def rows_of(groups: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Row indices of the completions of groups, `(B,)` to `(B * G,)`."""
    return (groups.unsqueeze(1) * num_generations + torch.arange(num_generations)).flatten()  # (B * G,)


class RefillSampler:
    r"""
    Draws the prompts of the rounds after the first: from the training data, shuffled in an order of its own that is the
    same on all processes, without end.

    Args:
        num_prompts (`int`):
            Number of prompts in the training data, at least `batch_size`.
        num_generations (`int`):
            Number of completions per prompt.
        batch_size (`int`):
            Number of prompts per round.
        seed (`int`):
            Seed of the training run.
    """

    def __init__(self, num_prompts: int, num_generations: int, batch_size: int, seed: int):
        self._num_prompts = num_prompts
        self._num_generations = num_generations
        self._batch_size = batch_size
        self._seed = seed + _SEED_OFFSET
        self._start(drawn=0)

    def _start(self, drawn: int) -> None:
        sampler = RepeatSampler(range(self._num_prompts), self._num_generations, self._batch_size, seed=self._seed)
        endless = chain.from_iterable(repeat(sampler))  # each pass is a new permutation
        self._indices = islice(endless, drawn * self._num_generations, None)
        self.drawn = drawn

    def draw(self) -> list[int]:
        """Indices of the next round's prompts, each `num_generations` times in a row, for all processes."""
        self.drawn += self._batch_size
        return list(islice(self._indices, self._batch_size * self._num_generations))

    def state_dict(self) -> dict:
        """How many prompts have been drawn."""
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict) -> None:
        """Continue after the prompts drawn in the run that saved `state`."""
        self._start(state["drawn"])


class GroupFilter:
    r"""
    Generates a batch in up to `group_filter_max_rounds` rounds.

    Args:
        args ([`MultiRewardGRPOConfig`]):
            Criterion, largest number of rounds, batch sizes and seed.
        channel_names (`list[str]`):
            Names of the channels.
        train_dataset ([`~datasets.Dataset`]):
            The training data, from which the prompts of further rounds are taken.
        accelerator ([`~accelerate.Accelerator`]):
            The trainer's.
        pad_token_id (`int`):
            Token that pads prompts and completions.
    """

    def __init__(
        self,
        args: MultiRewardGRPOConfig,
        channel_names: list[str],
        train_dataset: datasets.Dataset | None,
        accelerator: Accelerator,
        pad_token_id: int,
    ):
        _check_dataset(train_dataset)
        if args.remove_unused_columns:
            raise ValueError(
                "`group_filter` hands whole rows to the reward functions, which `remove_unused_columns=True` does not. Set "
                "`remove_unused_columns=False`, TRL's default for this trainer."
            )
        _check_whole_groups(args)
        self._criterion = parse_criterion(args.group_filter, channel_names)
        self._max_rounds = args.group_filter_max_rounds
        self._dataset = train_dataset
        self._num_generations = args.num_generations
        self._accelerator = accelerator
        self._pad_token_id = pad_token_id
        self.refill = RefillSampler(
            num_prompts=len(train_dataset),
            num_generations=args.num_generations,
            batch_size=args.generation_batch_size // args.num_generations,
            seed=args.seed,
        )

    def __call__(
        self,
        inputs: list[dict],
        generate_round: Callable[[list[dict], dict], Rollout],
        reward_weights: torch.Tensor,
    ) -> Rollout:
        """
        Generate until every process has its share of informative groups, or the rounds run out.

        Args:
            inputs (`list[dict]`):
                This process's rows of the first round.
            generate_round (`Callable`):
                Takes the rows of a round and an empty table for them, and returns the round's [`Rollout`].
            reward_weights (`torch.Tensor` of shape `(K,)`):
                The user's weights at this step.

        Returns:
            [`Rollout`]: a batch of the size of one round.
        """
        num_rows = len(inputs) * self._accelerator.num_processes
        rounds, informative = [], []
        while True:
            rounds.append(generate_round(inputs, empty_rows(num_rows)))
            rewards = rounds[-1].rewards.unflatten(0, (-1, self._num_generations))  # (B, G, K)
            informative.append(informative_groups(rewards, reward_weights, self._criterion).cpu())  # (B,)
            found = torch.stack(informative)  # (R, B)
            selected = select_groups(found, self._accelerator.num_processes)  # (B,)
            if found.flatten()[selected].all() or len(rounds) == self._max_rounds:
                return self._merge(rounds, found, selected)
            inputs = self._refill(len(inputs))

    def _refill(self, num_local: int) -> list[dict]:
        start = self._accelerator.process_index * num_local
        indices = self.refill.draw()[start : start + num_local]
        # As a prepared dataloader would hand them over
        return send_to_device([self._dataset[index] for index in indices], self._accelerator.device)

    def _merge(self, rounds: list[Rollout], informative: torch.Tensor, selected: torch.Tensor) -> Rollout:
        """Merge the selected groups of all rounds; `informative` `(R, B)`, `selected` `(B,)`."""
        num_groups = informative.shape[1]
        quota = num_groups // self._accelerator.num_processes
        own = selected.split(quota)[self._accelerator.process_index]  # (B/P,)
        # From the position among the groups of all processes to that among this process's own
        own = own // num_groups * quota + own % quota  # (B/P,)
        rows = rows_of(selected, self._num_generations)  # (N,)
        batch = merge_rounds(
            [rollout.batch for rollout in rounds], rows_of(own, self._num_generations).tolist(), self._pad_token_id
        )
        batch["num_items_in_batch"] = self._accelerator.gather(batch["num_items_in_batch"]).sum()
        rewards = torch.cat([rollout.rewards for rollout in rounds])  # (R * N, K)
        return Rollout(
            batch=batch,
            rewards=rewards[rows.to(rewards.device)],  # (N, K)
            table=merge_tables([rollout.table for rollout in rounds], rows.tolist()),
            metrics={
                "group_filter/rounds": float(len(rounds)),
                "group_filter/frac_informative": informative.float().mean().item(),
                "group_filter/frac_filler": (~informative.flatten()[selected]).float().mean().item(),
            },
        )


def _check_dataset(train_dataset: datasets.Dataset | datasets.IterableDataset | None) -> None:
    """Refuse data from which single prompts cannot be taken, or whose batches cannot be merged."""
    if not isinstance(train_dataset, datasets.Dataset):
        what = "an environment's data" if train_dataset is None else "a streaming data set"
        raise ValueError(
            f"`group_filter` takes further prompts from `train_dataset` by index, which {what} does not allow. Pass a "
            "`datasets.Dataset`, or set `group_filter='none'`."
        )
    images = [name for name in ("image", "images") if name in train_dataset.column_names]
    if images:
        raise ValueError(
            f"`group_filter` does not support images, but `train_dataset` has the columns {images}. Remove them, or set "
            "`group_filter='none'`."
        )


def _check_whole_groups(args: MultiRewardGRPOConfig) -> None:
    """Refuse batches in which a group is split between processes; the error names the nearest legal values."""
    per_device, steps, size = args.per_device_train_batch_size, args.steps_per_generation, args.num_generations
    if per_device * steps % size:
        legal_steps = _nearest_multiples(steps, size // math.gcd(size, per_device))
        legal_per_device = _nearest_multiples(per_device, size // math.gcd(size, steps))
        raise ValueError(
            "`group_filter` needs whole groups on each process, but `per_device_train_batch_size * steps_per_generation` "
            f"= {per_device} * {steps} is not divisible by `num_generations` = {size}. Nearest legal values: "
            f"`steps_per_generation` {legal_steps}, or `per_device_train_batch_size` {legal_per_device}."
        )


def _nearest_multiples(value: int, factor: int) -> str:
    below = value // factor * factor
    return f"{below} or {below + factor}" if below else f"{factor}"
