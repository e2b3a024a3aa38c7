"""Where settings come from, and what is refused before the first generation."""

import logging
import math

import pytest
import torch
from datasets import IterableDataset
from trl import GRPOConfig

from trl_dara import MultiRewardGRPOConfig, MultiRewardGRPOTrainer, compute_advantages
from trl_dara.aggregation.ops import build_result, group_statistics

from .support import PROMPTS, build, digest, has_a, prompts, run, scripted, settings, train_logs


def test_the_default_rule_is_dara_asym(tiny_model, tmp_path):
    assert build(tiny_model, tmp_path, [digest]).rule_name == "dara_asym"


@pytest.mark.parametrize(
    "where", [{"aggregation": "gdpo"}, {"configured": "gdpo"}, {"aggregation": "gdpo", "configured": "gdpo"}]
)
def test_the_rule_may_be_an_argument_or_in_the_config_or_both(tiny_model, tmp_path, where):
    args = MultiRewardGRPOConfig(**settings(tmp_path, aggregation=where.get("configured")))
    trainer = MultiRewardGRPOTrainer(
        tiny_model, [digest, has_a], args, prompts(), aggregation=where.get("aggregation")
    )
    trainer.train()
    assert trainer.rule_name == "gdpo"
    assert all(entry["channels/has_a/weight"] == 1 for entry in train_logs(trainer))


def test_two_different_rules_are_refused_by_name(tiny_model, tmp_path):
    args = MultiRewardGRPOConfig(**settings(tmp_path, aggregation="gdpo"))
    with pytest.raises(ValueError, match="'dara_sym'.*'gdpo'"):
        MultiRewardGRPOTrainer(tiny_model, [digest], args, prompts(), aggregation="dara_sym")


def test_two_different_sets_of_options_are_refused(tiny_model, tmp_path):
    args = MultiRewardGRPOConfig(**settings(tmp_path, aggregation_kwargs={"w_max": 3}))
    with pytest.raises(ValueError, match=r"`aggregation_kwargs` is \{'w_max': 4\}.*\{'w_max': 3\}"):
        MultiRewardGRPOTrainer(tiny_model, [digest], args, prompts(), aggregation_kwargs={"w_max": 4})


def test_options_of_the_rule_arrive_there(tiny_model, tmp_path):
    sparse = scripted("sparse", [1, 0, 0, 0] + [0] * 12)
    capped = run(tiny_model, tmp_path, [digest, sparse], aggregation_kwargs={"w_max": 1.25}, calibration_window=None)
    assert [entry["channels/sparse/weight"] for entry in train_logs(capped)] == [1.25, 1.25]
    assert train_logs(capped)[0]["channels/sparse/density"] == 0.25


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"aggregation": "dara_asim"}, "Unknown `aggregation` 'dara_asim'. Did you mean 'dara_asym'.*'gdpo', 'grpo'"),
        ({"aggregation": 3}, "`aggregation` is 3. Pass one of"),
        ({"aggregation": "gdpo", "aggregation_kwargs": {"w_max": 5}}, r"gdpo does not take \['w_max'\].*eps=0.0001"),
        ({"aggregation": "static_sym"}, r"static_sym needs \['static_weights'\]"),
        ({"aggregation": "static_sym", "aggregation_kwargs": {"static_weights": [1.0]}}, "there are 2 channels"),
        (
            {"aggregation": "static_asym", "aggregation_kwargs": {"static_weights": {"other": 5.0}}},
            r"`static_weights` names \['other'\], but the channels are \['digest', 'has_a'\]",
        ),
        ({"aggregation_kwargs": {"w_max": 0.5}}, "`w_max` is 0.5.*>= 1"),
        ({"aggregation_kwargs": {"eps": -1.0}}, "`eps` is -1.0"),
        ({"aggregation": "grpo", "aggregation_kwargs": {"scale": "rank"}}, "`scale` of the rule `grpo` is 'rank'"),
        ({"reward_weights": [1.0]}, r"\(1\).*\(2\)"),
        ({"reward_weights": [1.0, 0.5, 0.25]}, r"\(3\).*\(2\)"),
        ({"reward_weights": [1.0, math.nan]}, "channel 'has_a' the weight nan"),
        ({"reward_weights": [math.inf, 1.0]}, "channel 'digest' the weight inf"),
        ({"reward_weights": [0.0, 0.0]}, "0 for every channel"),
        ({"reward_weights": {"hasa": 2.0}}, r"`reward_weights` names \['hasa'\].*\['digest', 'has_a'\]"),
        ({"reward_bounds": {"hasa": [0, 1]}}, r"`reward_bounds` names \['hasa'\].*\['digest', 'has_a'\]"),
        ({"reward_bounds": {"has_a": [1, 0]}}, r"'has_a' the bounds \[1, 0\]"),
        ({"reward_bounds": {"has_a": [1]}}, r"'has_a' the bounds \[1\]"),
        ({"reward_bounds": {"has_a": 1}}, "'has_a' the bounds 1"),
        ({"reward_bounds": {"has_a": [0, math.nan]}}, r"'has_a' the bounds \[0, nan\]"),
        ({"reward_bounds": {"has_a": [0, math.inf]}}, r"'has_a' the bounds \[0, inf\]"),
        ({"reward_bounds": {"has_a": ["a", "b"]}}, r"'has_a' the bounds \['a', 'b'\]"),
        ({"reward_bounds": {"has_a": [None, 1]}}, r"'has_a' the bounds \[None, 1\]"),
    ],
)
def test_refused_at_construction(tiny_model, tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        build(tiny_model, tmp_path, [digest, has_a], **given)


@pytest.mark.parametrize("name", ["step", "prompt", "completion", "advantage"])
def test_a_channel_may_not_be_named_after_a_column(tiny_model, tmp_path, name):
    with pytest.raises(ValueError, match=rf"\['{name}'\].*Rename them"):
        build(tiny_model, tmp_path, [digest, scripted(name, [0] * 16)])


def test_weights_by_name(tiny_model, tmp_path):
    args = MultiRewardGRPOConfig(**settings(tmp_path, reward_weights={"has_a": 0.25}, aggregation="gdpo"))
    trainer = MultiRewardGRPOTrainer(tiny_model, [digest, has_a], args, prompts())
    assert trainer.reward_weights.tolist() == [1.0, 0.25]
    trainer.train()
    entry = train_logs(trainer)[0]
    assert entry["reward"] == pytest.approx(
        entry["rewards/digest/mean"] + 0.25 * entry["rewards/has_a/mean"], abs=1e-5
    )
    assert args.reward_weights == {"has_a": 0.25}  # the caller's config is left alone


def test_static_weights_by_name(tiny_model, tmp_path):
    trainer = run(
        tiny_model,
        tmp_path,
        [digest, has_a],
        aggregation="static_sym",
        aggregation_kwargs={"static_weights": {"has_a": 5.0, "digest": 1.0}},
    )
    assert train_logs(trainer)[0]["channels/digest/weight"] == 1
    assert train_logs(trainer)[0]["channels/has_a/weight"] == 5


def test_a_channel_of_weight_zero_is_a_monitor(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, [digest, has_a], reward_weights=[1.0, 0.0], calibration_window=None)
    for batch in trainer.batches:
        alone = compute_advantages(batch.rewards[:, :1], 4).advantages  # (N,)
        torch.testing.assert_close(batch.result.advantages, alone, rtol=0, atol=1e-6)
        assert not batch.result.contributions[:, 1].any()
    assert 0 < train_logs(trainer)[0]["channels/has_a/density"] <= 1


def test_aggregation_and_multi_objective_aggregation_exclude_each_other(tiny_model, tmp_path):
    given = dict(multi_objective_aggregation="normalize_then_sum", aggregation="dara_sym")
    with pytest.raises(
        ValueError, match="`multi_objective_aggregation='normalize_then_sum'` and `aggregation='dara_sym'`"
    ):
        build(tiny_model, tmp_path, [digest], **given)


def test_multi_objective_aggregation_alone_is_warned_about(tiny_model, tmp_path, caplog):
    trainer = build(tiny_model, tmp_path, [digest], multi_objective_aggregation="normalize_then_sum")
    assert "no effect here" in caplog.text and "aggregation='gdpo'" in caplog.text
    assert trainer.rule_name == "dara_asym"


@pytest.mark.parametrize("aggregation", ["dara_asym", "gdpo"])
def test_scale_rewards_is_warned_about_where_it_has_no_effect(tiny_model, tmp_path, caplog, aggregation):
    build(tiny_model, tmp_path, [digest], aggregation=aggregation, scale_rewards="batch")
    assert f"`scale_rewards='batch'` has no effect with `aggregation='{aggregation}'`" in caplog.text


def test_scale_rewards_is_the_scale_of_grpo(tiny_model, tmp_path, caplog):
    trainer = run(tiny_model, tmp_path, [digest, has_a], aggregation="grpo", scale_rewards=False, max_steps=1)
    total = trainer.batches[0].rewards.sum(dim=1).view(4, 4)  # (B, G)
    torch.testing.assert_close(
        trainer.batches[0].result.advantages.view(4, 4), total - total.mean(dim=1, keepdim=True), rtol=0, atol=1e-5
    )
    assert "scale_rewards" not in caplog.text


def test_a_plain_grpo_config_is_accepted(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, [digest, has_a], config=GRPOConfig, reward_weights=[1.0, 2.0])
    assert trainer.rule_name == "dara_asym"
    assert trainer.calibration_window is None
    assert trainer.reward_weights.tolist() == [1.0, 2.0]
    assert "channels/has_a/weight" in train_logs(trainer)[0]


def centred(rewards, reward_weights, *, eps=1e-4, pull=1.0):
    """A rule of one's own."""
    groups = group_statistics(rewards, reward_weights, eps)
    scores = pull * groups.contributions.mean(dim=-1)  # (B, G)
    return build_result(groups, advantages=scores, scores=scores, contributions=groups.contributions)


def test_a_function_as_rule(tiny_model, tmp_path, capsys):
    trainer = run(tiny_model, tmp_path, [digest, has_a], aggregation=centred, aggregation_kwargs={"pull": 2.0})
    assert trainer.rule_name == "centred"
    assert "combined by centred" in capsys.readouterr().out
    for batch in trainer.batches:
        torch.testing.assert_close(batch.output["advantages"], batch.result.channel_advantages.sum(dim=1))  # (N,)


def test_a_function_as_rule_takes_only_the_keywords_it_uses(tiny_model, tmp_path):
    def plain(rewards, reward_weights):
        return centred(rewards, reward_weights)

    assert run(tiny_model, tmp_path, [digest], aggregation=plain).batches[0].output["advantages"].any()


def test_a_function_as_rule_has_its_keywords_checked(tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"does not take \['push'\].*pull=1.0"):
        build(tiny_model, tmp_path, [digest], aggregation=centred, aggregation_kwargs={"push": 2.0})


def test_a_data_set_that_does_not_fill_a_generation_batch(tiny_model, tmp_path):
    few = dict(train_dataset=prompts(PROMPTS[:7]), gradient_accumulation_steps=2)
    with pytest.raises(
        ValueError, match="has 7 prompts, but one generation batch takes 8.*`gradient_accumulation_steps`"
    ):
        build(tiny_model, tmp_path, [digest], **few)
    enough = dict(train_dataset=prompts(PROMPTS[:8]), gradient_accumulation_steps=2)
    assert run(tiny_model, tmp_path, [digest], **enough).state.global_step == 2


def test_a_streamed_data_set(tiny_model, tmp_path):
    def stream():
        yield from ({"prompt": text} for text in PROMPTS)

    trainer = run(tiny_model, tmp_path, [digest], train_dataset=IterableDataset.from_generator(stream))
    assert [len(batch.rewards) for batch in trainer.batches] == [16, 16]


def test_one_reward_function_without_a_list(tiny_model, tmp_path):
    assert run(tiny_model, tmp_path, digest).reward_func_names == ["digest"]


@pytest.mark.parametrize("container", [list, tuple])
def test_the_callers_reward_functions_are_left_alone(tiny_model, tmp_path, container):
    reward_funcs = container([digest, has_a])
    build(tiny_model, tmp_path, reward_funcs)
    assert reward_funcs == container([digest, has_a])


def test_start_up_line(tiny_model, tmp_path, capsys):
    build(
        tiny_model,
        tmp_path,
        [digest, has_a],
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        reward_weights=[1.0, 0.5],
        aggregation="dara_sym",
    )
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Generation batch"))
    assert "16 prompts x 4 completions = 64 completions" in line
    assert "2 optimiser steps each" in line
    assert "dara_sym" in line and "window of 64 groups" in line
    assert "digest 1, has_a 0.5" in line


def test_start_up_line_has_the_users_weight_of_a_scheduled_channel(tiny_model, tmp_path, capsys):
    schedules = {"has_a": {"type": "linear", "start": 0.0, "end": 1.0, "steps": 200}}
    build(tiny_model, tmp_path, [digest, has_a], reward_weights=[1.0, 0.5], reward_weight_schedules=schedules)
    assert "reward weights: digest 1, has_a 0.5 (scheduled)." in capsys.readouterr().out


def test_start_up_line_of_one_prompt_and_one_step(tiny_model, tmp_path, capsys):
    build(tiny_model, tmp_path, [digest], per_device_train_batch_size=4)
    assert "1 prompt x 4 completions = 4 completions, 1 optimiser step each" in capsys.readouterr().out


@pytest.mark.parametrize("stream", [False, True])
def test_a_data_set_without_prompts_is_refused(tiny_model, tmp_path, stream):
    dataset = prompts().rename_column("prompt", "question")
    if stream:
        dataset = dataset.to_iterable_dataset()
    with pytest.raises(ValueError, match=r"`train_dataset` has no column `prompt`, only \['question'\]"):
        build(tiny_model, tmp_path, [digest], train_dataset=dataset)


@pytest.mark.parametrize("aggregation", ["gdpo", "grpo", "mo_grpo"])
def test_start_up_line_of_a_rule_without_window_speaks_of_none(tiny_model, tmp_path, capsys, aggregation):
    build(tiny_model, tmp_path, [digest], aggregation=aggregation)
    assert "window" not in capsys.readouterr().out


def test_one_prompt_per_batch_is_warned_about_once(tiny_model, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run(tiny_model, tmp_path, [digest], per_device_train_batch_size=4, max_steps=3)
    warnings = [record.message for record in caplog.records if "One prompt per generation batch" in record.message]
    assert len(warnings) == 1
    assert "gradient_accumulation_steps" in warnings[0]


def test_two_prompts_per_batch_are_not_warned_about(tiny_model, tmp_path, caplog):
    build(tiny_model, tmp_path, [digest], per_device_train_batch_size=8)
    assert "One prompt per generation batch" not in caplog.text
