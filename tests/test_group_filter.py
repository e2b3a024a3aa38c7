import itertools
from collections import Counter, deque

import pytest
import torch
from trl.trainer.utils import RepeatSampler

from trl_dara.completions_table import empty_rows
from trl_dara.group_filter import RefillSampler, informative_groups, parse_criterion, rows_of, select_groups
from trl_dara.rollout import merge_rounds, merge_tables


NAN = float("nan")


def test_any_and_sum_differ_on_a_group_that_is_split_between_two_channels():
    rewards = torch.tensor(
        [
            [[1.0, 0.0], [0.0, 1.0]],  # channels vary, their sum does not
            [[1.0, 0.0], [1.0, 1.0]],  # the sum varies
            [[1.0, 0.0], [1.0, 0.0]],  # nothing varies
        ]
    )  # (B=3, G=2, K=2)
    weights = torch.ones(2)
    assert informative_groups(rewards, weights, "any").tolist() == [True, True, False]
    assert informative_groups(rewards, weights, "sum").tolist() == [False, True, False]
    assert informative_groups(rewards, weights, [0]).tolist() == [True, False, False]
    assert informative_groups(rewards, weights, [1]).tolist() == [True, True, False]
    assert informative_groups(rewards, weights, [0, 1]).tolist() == [True, True, False]


def test_a_channel_without_weight_does_not_make_a_group_informative():
    rewards = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]])  # (B=1, G=2, K=2)
    weights = torch.tensor([1.0, 0.0])
    assert informative_groups(rewards, weights, "any").tolist() == [False]
    assert informative_groups(rewards, weights, "sum").tolist() == [False]


def test_a_missing_score_is_no_difference():
    rewards = torch.tensor(
        [
            [[1.0, 2.0], [1.0, NAN]],  # a channel that scored one of two completions
            [[NAN, NAN], [1.0, 2.0]],  # an unscorable completion
            [[NAN, NAN], [NAN, NAN]],  # nothing scored
        ]
    )  # (B=3, G=2, K=2)
    for criterion in ("any", "sum", [0], [1]):
        assert informative_groups(rewards, torch.ones(2), criterion).tolist() == [False] * 3


def test_the_order_of_the_terms_is_no_difference_of_the_sum():
    values = torch.tensor(list(itertools.permutations([0.1, 0.2, 0.3, 0.7])))  # (24, K=4)
    sums = values.sum(dim=1)  # in float32
    assert sums.min() < sums.max()
    assert informative_groups(values.unsqueeze(0), torch.ones(4), "sum").tolist() == [False]


def _informative_slowly(group, weights, criterion):
    """Plain Python: `group` is a list of G lists of K rewards."""
    steering = [k for k, weight in enumerate(weights) if weight != 0]
    scored = [row for row in group if any(row[k] == row[k] for k in steering)]
    varying = [k for k in range(len(weights)) if len({row[k] for row in scored if row[k] == row[k]}) > 1]
    if criterion == "any":
        return any(k in steering for k in varying)
    if criterion == "sum":
        sums = {sum(weights[k] * row[k] for k in steering if row[k] == row[k]) for row in scored}
        return any(k in steering for k in varying) and len(sums) > 1
    return any(k in varying and k in steering for k in criterion)


@pytest.mark.parametrize("criterion", ["any", "sum", [0], [0, 2]])
def test_informative_groups_equal_a_plain_loop(criterion):
    generator = torch.Generator().manual_seed(0)
    seen = Counter()
    for _ in range(300):
        # Halves, so that the plain loop's sums are exact as well
        rewards = torch.randint(3, (4, 3, 3), generator=generator) / 2  # (B, G, K)
        rewards[torch.rand(rewards.shape, generator=generator) < 0.2] = NAN
        weights = torch.randint(-1, 2, (3,), generator=generator).float()
        expected = [_informative_slowly(group, weights.tolist(), criterion) for group in rewards.tolist()]
        assert informative_groups(rewards, weights, criterion).tolist() == expected
        seen.update(expected)
    assert min(seen[True], seen[False]) > 100


def test_criterion_by_names():
    names = ["format", "correct", "short"]
    assert parse_criterion("any", names) == "any"
    assert parse_criterion("sum", names) == "sum"
    assert parse_criterion("short, format", names) == [2, 0]
    with pytest.raises(ValueError, match=r"names \['shrot'\], but the channels are \['format', 'correct', 'short'\]"):
        parse_criterion("correct,shrot", names)


def test_selection_by_hand():
    informative = torch.tensor([[False, True, True, True], [True, False, True, False]])  # (R=2, B=4)
    # Process 0 has the groups 0, 1 of round one and 4, 5 of round two; process 1 has 2, 3 and 6, 7
    assert select_groups(informative, num_processes=2).tolist() == [1, 4, 2, 3]
    assert select_groups(informative, num_processes=1).tolist() == [1, 2, 3, 4]
    none = torch.zeros(2, 4, dtype=torch.bool)
    assert select_groups(none, num_processes=2).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_each_process_takes_its_own_informative_groups_first(num_processes):
    generator = torch.Generator().manual_seed(num_processes)
    for rounds in (1, 2, 3, 5):
        for _ in range(20):
            num_groups, quota = 8, 8 // num_processes
            informative = torch.rand(rounds, num_groups, generator=generator) < 0.4  # (R, B)
            selected = select_groups(informative, num_processes).tolist()
            flags = informative.flatten().tolist()
            for process in range(num_processes):
                own = [g for g in range(rounds * num_groups) if g % num_groups // quota == process]
                expected = [g for g in own if flags[g]] + [g for g in own if not flags[g]]
                assert selected[process * quota : (process + 1) * quota] == expected[:quota]


def test_rows_of_groups():
    assert rows_of(torch.tensor([2, 0]), num_generations=3).tolist() == [6, 7, 8, 0, 1, 2]


def _batch(prompts, completions, tool_mask=None):
    """One round as TRL returns it; token 9 is padding. Log-probabilities are minus the token, for easy comparison."""
    width, length = max(map(len, prompts)), max(map(len, completions))
    batch = {
        "prompt_ids": torch.tensor([[9] * (width - len(ids)) + ids for ids in prompts]),
        "prompt_mask": torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]),
        "completion_ids": torch.tensor([ids + [9] * (length - len(ids)) for ids in completions]),
        "completion_mask": torch.tensor([[1] * len(ids) + [0] * (length - len(ids)) for ids in completions]),
        "advantages": torch.tensor([float(ids[0]) for ids in completions]),
        "num_items_in_batch": torch.tensor(sum(map(len, completions))),
    }
    batch["old_per_token_logps"] = -batch["completion_ids"].float() * batch["completion_mask"]
    if tool_mask is not None:
        batch["tool_mask"] = torch.tensor([mask + [1] * (length - len(mask)) for mask in tool_mask])
    return batch


def test_merged_rows_are_those_of_one_batch():
    prompts = [[1], [1, 2], [3, 4, 5], [6]]
    completions = [[1, 2], [2], [3, 4, 5, 6], [4]]
    tool_mask = [[1, 0], [1], [1, 0, 0, 1], [1]]
    first = _batch(prompts[:2], completions[:2], tool_mask[:2])
    second = _batch(prompts[2:], completions[2:], tool_mask[2:])
    rows = [2, 1]
    merged = merge_rounds([first, second], rows, pad_token_id=9)
    expected = _batch(*([values[row] for row in rows] for values in (prompts, completions, tool_mask)))
    expected["num_items_in_batch"] = torch.tensor(2 + 1)  # without the tool's tokens
    assert merged.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(merged[name], values), name
        assert merged[name].dtype == values.dtype


def test_padding_is_what_trl_has_at_masked_positions():
    first, second = _batch([[1]], [[1, 2, 3]]), _batch([[1]], [[4]])
    for batch in (first, second):
        shape = batch["completion_ids"].shape
        for name in ("ref_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio"):
            batch[name] = torch.full(shape, -1.0 if name.endswith("logps") else 0.5)
    merged = merge_rounds([first, second], [0, 1], pad_token_id=9)
    assert merged["ref_per_token_logps"].tolist() == [[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]]
    assert merged["sampling_per_token_logps"].tolist() == [[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]]
    assert merged["importance_sampling_ratio"].tolist() == [[0.5, 0.5, 0.5], [0.5, 1.0, 1.0]]


def test_a_ratio_per_sequence_keeps_its_shape():
    first, second = _batch([[1]], [[1, 2]]), _batch([[1]], [[4]])
    first["importance_sampling_ratio"], second["importance_sampling_ratio"] = (
        torch.tensor([[0.5]]),
        torch.tensor([[2.0]]),
    )
    merged = merge_rounds([first, second], [1, 0], pad_token_id=9)
    assert merged["importance_sampling_ratio"].tolist() == [[2.0], [0.5]]


def test_batches_that_cannot_be_merged_are_refused():
    batch = _batch([[1]], [[1]])
    with pytest.raises(ValueError, match=r"cannot merge rounds with \['pixel_values'\].*without images"):
        merge_rounds([batch, {**batch, "pixel_values": torch.zeros(1, 3)}], [0], pad_token_id=9)
    with pytest.raises(ValueError, match="has to return it in every call"):
        merge_rounds([batch, {**batch, "tool_mask": torch.ones(1, 1)}], [0], pad_token_id=9)


def _table(letter, extra=None):
    table = empty_rows(2)
    table["prompt"].extend([f"{letter}0", f"{letter}1"])
    table["completion"].extend([f"{letter}2", f"{letter}3"])
    table["rewards"]["r"].extend([0.0, 1.0])
    table["advantages"].extend([-1.0, 1.0])
    for name, values in (extra or {}).items():
        table["extra"][name].extend(values)
    return table


def test_table_of_the_merged_rows():
    merged = merge_tables([_table("a"), _table("b", {"note": ["x", "y"]})], rows=[3, 0])
    assert merged["prompt"] == deque(["b1", "a0"])
    assert merged["completion"] == deque(["b3", "a2"])
    assert merged["rewards"] == {"r": deque([1.0, 0.0])}
    assert merged["extra"] == {"note": deque(["y", None])}
    with pytest.raises(ValueError, match="'note' of the completions table has 1 values for 2 completions"):
        merge_tables([_table("a", {"note": ["x"]})], rows=[0, 1])


def test_refill_draws_whole_groups_of_all_prompts():
    sampler = RefillSampler(num_prompts=6, num_generations=2, batch_size=3, seed=0)
    draws = [sampler.draw() for _ in range(4)]
    assert all(draw[::2] == draw[1::2] for draw in draws)
    first_pass, second_pass = draws[0][::2] + draws[1][::2], draws[2][::2] + draws[3][::2]
    assert sorted(first_pass) == sorted(second_pass) == list(range(6))
    assert first_pass != second_pass
    assert first_pass != list(RepeatSampler(range(6), 1, 3, seed=0))  # the order of training
    on_another_process = RefillSampler(num_prompts=6, num_generations=2, batch_size=3, seed=0)
    assert draws == [on_another_process.draw() for _ in range(4)]


@pytest.mark.parametrize("drawn", [0, 1, 2, 5])  # in batches; a pass over the data takes two
def test_refill_continues_where_it_was(drawn):
    sampler = RefillSampler(num_prompts=7, num_generations=2, batch_size=3, seed=1)
    for _ in range(drawn):
        sampler.draw()
    resumed = RefillSampler(num_prompts=7, num_generations=2, batch_size=3, seed=1)
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.state_dict() == {"drawn": 3 * drawn}
    assert [sampler.draw() for _ in range(5)] == [resumed.draw() for _ in range(5)]
