"""Names, outputs and failures of reward functions, as a run meets them."""

import functools
import logging

import numpy as np
import pytest
import torch

from trl_dara import compute_advantages

from .support import digest, has_a, run, scripted, train_logs


def scaled(completions, factor=1.0, **kwargs):
    return [factor * (1 + value) for value in has_a(completions)]


class Length:
    """A reward function that is an object."""

    def __init__(self, divisor):
        self.divisor = divisor

    def __call__(self, completions, **kwargs):
        return [len(completion) / self.divisor for completion in completions]


def test_partials_of_one_function_are_two_channels(tiny_model, tmp_path):
    once, five = functools.partial(scaled, factor=1), functools.partial(functools.partial(scaled), factor=5)
    trainer = run(tiny_model, tmp_path, [once, five, Length(1), Length(2)], log_completions=True)
    assert trainer.reward_func_names == ["scaled", "scaled_2", "Length", "Length_2"]
    for entry in train_logs(trainer):
        assert entry["rewards/scaled_2/mean"] == pytest.approx(5 * entry["rewards/scaled/mean"])
        assert entry["rewards/Length/mean"] == pytest.approx(2 * entry["rewards/Length_2/mean"])
        assert entry["channels/scaled_2/density"] == entry["channels/scaled/density"]


def test_two_lambdas_are_two_channels(tiny_model, tmp_path):
    trainer = run(
        tiny_model,
        tmp_path,
        [lambda completions, **kwargs: has_a(completions), lambda completions, **kwargs: digest(completions)],
    )
    first, second = trainer.reward_func_names
    assert first != second
    for entry, batch in zip(train_logs(trainer), trainer.batches, strict=True):
        assert entry[f"rewards/{first}/mean"] == pytest.approx(batch.rewards[:, 0].mean().item())
        assert entry[f"rewards/{second}/mean"] == pytest.approx(batch.rewards[:, 1].mean().item())
        assert set(batch.rewards[:, 0].tolist()) == {0.0, 1.0} != set(batch.rewards[:, 1].tolist())


ACCEPTED = {
    "booleans": lambda values: [value > 0 for value in values],
    "integers": lambda values: [int(value) for value in values],
    "array": np.array,
    "half_array": lambda values: np.array(values, dtype=np.float16),
    "array_elements": lambda values: list(np.array(values)),
    "vector": torch.tensor,
    "tensor_elements": lambda values: list(torch.tensor(values)),
    "tuple": tuple,
    "generator": lambda values: (value for value in values),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_outputs_that_are_numbers_are_accepted(tiny_model, tmp_path, kind):
    def reward(completions, **kwargs):
        return ACCEPTED[kind]([float(number % 2) for number in range(len(completions))])

    trainer = run(tiny_model, tmp_path, [reward], max_steps=1)
    assert trainer.batches[0].rewards[:, 0].tolist() == [0.0, 1.0] * 8


REFUSED = {
    "one": [1.0],
    "fifteen": [1.0] * 15,
    "number": 1.0,
    "nothing": None,
    "columns": [[1.0]] * 16,
    "column_array": np.ones((16, 1)),
    "mappings": [{"a": 1.0}] * 16,
    "texts": ["1.0"] * 16,
    "one_text": "1" * 16,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_outputs_that_are_no_rewards_are_refused_by_name(tiny_model, tmp_path, kind):
    with pytest.raises((TypeError, ValueError), match="channel 'odd' returned .* Return 16 numbers"):
        run(tiny_model, tmp_path, [digest, scripted("odd", REFUSED[kind])])


def test_a_reward_for_messages_on_plain_prompts_hears_why_it_fails(tiny_model, tmp_path):
    def reads_messages(completions, **kwargs):
        return [len(completion[0]["content"]) for completion in completions if completion]

    with pytest.raises(RuntimeError, match="string indices must be integers.*the completions are strings too: read"):
        run(tiny_model, tmp_path, [reads_messages])


@pytest.mark.parametrize("kind", ["plain", "async", "generator"])
def test_a_failure_stops_the_run_with_the_channels_name(tiny_model, tmp_path, kind):
    with pytest.raises(
        RuntimeError, match="channel 'fails' failed at step 2: ZeroDivisionError.*on_reward_error='skip'"
    ):
        run(tiny_model, tmp_path, [digest, failing(kind, at=3)], max_steps=4)


def failing(kind, at):
    """A reward function that fails in one of its calls."""
    calls = 0

    def checked(completions):
        nonlocal calls
        calls += 1
        return [1 / (index if calls == at else 2 - index % 2) for index in range(len(completions))]

    def plain(completions, **kwargs):
        return checked(completions)

    async def concurrent(completions, **kwargs):
        return checked(completions)

    def lazy(completions, **kwargs):
        yield from checked(completions)

    func = {"plain": plain, "async": concurrent, "generator": lazy}[kind]
    func.__name__ = "fails"
    return func


@pytest.mark.parametrize("kind", ["plain", "async", "generator"])
def test_a_skipped_failure_leaves_the_channel_out_of_one_batch(tiny_model, tmp_path, kind):
    trainer = run(
        tiny_model, tmp_path, [digest, failing(kind, at=2)], on_reward_error="skip", max_steps=3, aggregation="gdpo"
    )
    assert [entry["channels/fails/errors"] for entry in train_logs(trainer)] == [0, 1, 0]
    assert [entry["channels/fails/coverage"] for entry in train_logs(trainer)] == [1, 0, 1]
    assert train_logs(trainer)[1]["channels/fails/density"] is None
    assert train_logs(trainer)[1]["rewards/fails/mean"] is None
    skipped = trainer.batches[1]
    assert skipped.rewards[:, 1].isnan().all()
    # The other channel goes on as if it were the only one
    alone = compute_advantages(skipped.rewards[:, :1], 4, "gdpo").advantages  # (N,)
    assert alone.any()
    torch.testing.assert_close(skipped.output["advantages"], alone, rtol=0, atol=1e-6)


def test_infinite_rewards_are_not_scored_and_warned_about_once(tiny_model, tmp_path, caplog):
    infinite = [float("inf"), -float("inf"), 1.0, 0.0] + [0.0, 1.0, 2.0, 3.0] * 3
    with caplog.at_level(logging.WARNING):
        trainer = run(tiny_model, tmp_path, [digest, scripted("loud", infinite)], max_steps=3)
    warnings = [record.getMessage() for record in caplog.records if "infinite" in record.getMessage()]
    assert len(warnings) == 1
    assert "'loud'" in warnings[0] and "2 infinite" in warnings[0]
    for entry, batch in zip(train_logs(trainer), trainer.batches, strict=True):
        assert batch.output["advantages"].isfinite().all()
        assert entry["rewards/loud/mean"] == pytest.approx(19 / 14)
        assert entry["channels/loud/coverage"] == 14 / 16


def test_a_completion_that_nobody_scored_has_no_advantage(tiny_model, tmp_path):
    rewards = [1.0, None, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0] + [0.0, 1.0, 0.0, 1.0] * 2
    trainer = run(tiny_model, tmp_path, [scripted("only", rewards)], aggregation="dara_asym")
    for batch in trainer.batches:
        assert batch.output["advantages"][1] == 0
        assert batch.output["advantages"][[0, 2, 3]].all()


def test_time_of_a_function_is_what_it_took(tiny_model, tmp_path):
    def slow(completions, **kwargs):
        total = 0.0
        for number in range(200_000):
            total += number
        return digest(completions)

    entry = train_logs(run(tiny_model, tmp_path, [slow, has_a], max_steps=1))[0]
    assert entry["channels/slow/time"] > entry["channels/has_a/time"] > 0
