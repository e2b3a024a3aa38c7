"""What is printed while training: a table in a terminal, plain lines elsewhere, and one warning for a constant channel."""

import io
import logging

import pytest
from rich.console import Console

from trl_dara.live_view import NARROW, PATIENCE, ChannelView

from .support import build, digest, has_a


def zero(completions, **kwargs):
    return [0.0] * len(completions)


def view_of(trainer) -> ChannelView:
    (view,) = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, ChannelView)]
    return view


def test_plain_lines_say_what_was_logged(tiny_model, tmp_path, capsys):
    trainer = build(tiny_model, tmp_path, [digest, zero], aggregation="dara_asym")
    trainer.train()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert len(lines) == 4  # two steps, two channels
    first = trainer.state.log_history[0]
    assert lines[0] == (
        f"step 1  digest: mean {first['rewards/digest/mean']:.3g}, density {first['channels/digest/density']:.3g}, weight "
        f"{first['channels/digest/weight']:.3g}, share 1; active"
    )
    assert lines[1].startswith("step 1  zero: mean 0, density 0, ") and lines[1].endswith("; silent so far: always 0")


def test_terminal_gets_a_table(tiny_model, tmp_path):
    trainer = build(tiny_model, tmp_path, [digest, has_a])
    output = io.StringIO()
    view_of(trainer).console = Console(file=output, force_terminal=True, width=100)
    trainer.train()
    text = output.getvalue()
    assert text.count("verdict") == 2 and text.count("digest") == 2
    assert "step 1" in text and "step 2" in text and "┃" in text


def test_constant_channel_warns_once(tiny_model, tmp_path, caplog):
    trainer = build(tiny_model, tmp_path, [digest, zero], max_steps=PATIENCE + 2)
    with caplog.at_level(logging.WARNING, "trl_dara.live_view"):
        trainer.train()
    (record,) = [record for record in caplog.records if record.name == "trl_dara.live_view"]
    assert "Channel 'zero' has been 0 for every completion since step 1" in record.message


class Control:
    is_world_process_zero = True
    global_step = 0


def logs_of(std: float | None = None, **channels) -> dict[str, float]:
    logs = {}
    for name, (mean, density, share) in channels.items():
        logs |= {
            f"rewards/{name}/mean": mean,
            f"rewards/{name}/std": 0.5 * (density > 0) if std is None else std,
            f"channels/{name}/density": density,
            f"channels/{name}/share": share,
            f"channels/{name}/weight": 1.0,
            f"channels/{name}/coverage": 1.0,
        }
    return logs


def verdicts(view: ChannelView, *steps: dict[str, float]) -> list[str]:
    view.console = Console(file=io.StringIO(), width=400)
    state = Control()
    view.on_train_begin(None, Control(), None)
    for step, logs in enumerate(steps, start=1):
        state.global_step = step
        view.on_log(None, state, None, logs=logs)
    return [line.rpartition("; ")[2] for line in view.console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    "mean, density, share, verdict",
    [
        (0.5, 0.9, 0.6, "active"),
        (0.1, 0.1, 0.24, "starved"),  # an equal share of two channels is 0.5
        (0.1, 0.1, 0.26, "active"),
        (0.0, 0.0, 0.0, "silent so far: always 0"),
        (float("nan"), float("nan"), float("nan"), "not scored"),
    ],
)
def test_verdicts(mean, density, share, verdict):
    view = ChannelView(["a", "b"])
    assert verdicts(view, logs_of(a=(mean, density, share), b=(0.5, 1.0, 1 - share))) == [verdict, "active"]


def test_the_user_s_weights_say_what_a_fair_share_is():
    light = logs_of(a=(0.1, 0.5, 0.05), b=(0.5, 1.0, 0.95))
    assert verdicts(ChannelView(["a", "b"], [0.1, -1.0]), light) == ["active", "active"]  # a fair share is 1/11
    assert verdicts(ChannelView(["a", "b"], [1.0, 1.0]), light | {"channels/a/reward_weight": 0.1})[0] == "active"
    assert verdicts(ChannelView(["a", "b"], [0.0, 1.0]), light)[0] == "monitor"


def test_constant_monitor_is_no_reason_to_warn():
    view = ChannelView(["a", "b"], [0.0, 1.0])
    steps = [logs_of(a=(0.0, 0.0, 0.0), b=(0.0, 0.0, 0.0))] * PATIENCE
    assert verdicts(view, *steps)[-2:] == ["always 0 since step 1"] * 2 and view.warned == {"b"}


def test_a_reward_is_called_constant_when_it_has_been_for_some_steps():
    view = ChannelView(["a"])
    steps = [logs_of(a=(0.25, 0.0, 0.0))] * (PATIENCE + 1)
    assert verdicts(view, *steps) == ["silent so far: always 0.25"] * (PATIENCE - 1) + ["always 0.25 since step 1"] * 2


def test_narrow_terminal_gets_lines():
    view = ChannelView(["length"])
    view.console = Console(file=io.StringIO(), force_terminal=True, width=NARROW - 1, color_system=None)
    view.on_train_begin(None, Control(), None)
    view.on_log(None, Control(), None, logs=logs_of(length=(0.5, 1.0, 1.0)))
    assert view.console.file.getvalue() == "step 0  length: mean 0.5, density 1, weight 1, share 1; active\n"


def test_channel_that_fell_silent_was_not_always_constant():
    view = ChannelView(["a"])
    steps = [logs_of(a=(0.0, 0.0, 0.0)), logs_of(a=(0.1, 0.2, 1.0)), logs_of(a=(0.0, 0.0, 0.0))]
    assert verdicts(view, *steps) == ["silent so far: always 0", "active", "silent: equal within every group"]


def test_reward_that_is_equal_within_groups_only_is_not_constant():
    view = ChannelView(["a"])
    steps = [logs_of(a=(0.25, 0.0, 0.0)), logs_of(a=(0.5, 0.0, 0.0))]
    assert verdicts(view, *steps)[1] == "silent: equal within every group"


def test_reward_whose_mean_alone_stays_the_same_is_not_constant():
    view = ChannelView(["a"])
    steps = [logs_of(a=(0.5, 0.0, 0.0), std=0.5)] * (PATIENCE + 1)  # 0 in half of the groups, 1 in the others
    assert verdicts(view, *steps) == ["silent: equal within every group"] * (PATIENCE + 1)
    assert not view.warned


def test_evaluations_and_summaries_print_nothing():
    view = ChannelView(["a"])
    assert verdicts(view, {"eval_rewards/a/mean": 1.0, "eval_channels/a/coverage": 1.0}, {"train_runtime": 1.0}) == []


def test_names_are_shown_as_they_are():
    view = ChannelView(["length[short]"])
    view.console = Console(file=io.StringIO(), force_terminal=True, width=100)
    view.on_train_begin(None, Control(), None)
    view.on_log(None, Control(), None, logs=logs_of(**{"length[short]": (0.5, 1.0, 1.0)}))
    assert "length[short]" in view.console.file.getvalue()
