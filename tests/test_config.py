"""The configuration: defaults, checks, and its way from a command line or a YAML file."""

import dataclasses
import json
import re

import pytest
from datasets import Dataset
from trl import GRPOConfig, TrlParser

from trl_dara import MultiRewardGRPOConfig, MultiRewardGRPOTrainer


OWN = [
    field for field in dataclasses.fields(MultiRewardGRPOConfig) if field.name not in GRPOConfig.__dataclass_fields__
]


def config(tmp_path, **given) -> MultiRewardGRPOConfig:
    return MultiRewardGRPOConfig(**{"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, **given})


def test_defaults(tmp_path):
    args = config(tmp_path)
    assert args.aggregation is None and args.aggregation_kwargs is None
    assert args.reward_weights is None and args.reward_bounds is None
    assert args.calibration_window is None
    assert args.on_reward_error == "raise"


def test_every_own_field_has_help_and_is_documented():
    documented = re.findall(r"^        (\w+) \(", MultiRewardGRPOConfig.__doc__, re.MULTILINE)
    assert {field.name for field in OWN} <= set(documented)
    assert set(documented) <= set(MultiRewardGRPOConfig.__dataclass_fields__)
    for field in OWN:
        assert len(field.metadata["help"]) > 20, field.name


def test_documented_defaults_are_the_defaults():
    for field in OWN:
        entry = re.search(rf"^        {field.name} \((.*)\):$", MultiRewardGRPOConfig.__doc__, re.MULTILINE).group(1)
        stated = re.search(r"defaults to `(.*)`", entry)
        assert (None if stated is None else stated.group(1).strip('"')) == (
            None if field.default is None else str(field.default)
        ), field.name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on_reward_error": "ignore"}, "`on_reward_error` is 'ignore'. Pass 'raise' or 'skip'"),
        ({"calibration_window": 0}, "`calibration_window` is 0.*at least 1, or None"),
        ({"calibration_window": -3}, "`calibration_window` is -3"),
    ],
)
def test_refused(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **given)


def test_mappings_may_be_json(tmp_path):
    args = config(tmp_path, aggregation_kwargs='{"w_max": 10}', reward_bounds='{"correct": [-3, 3]}')
    assert args.aggregation_kwargs == {"w_max": 10}
    assert args.reward_bounds == {"correct": [-3, 3]}


def test_from_a_command_line(tmp_path):
    (args,) = TrlParser(MultiRewardGRPOConfig).parse_args_and_config(
        [
            *f"--output_dir {tmp_path} --use_cpu true --bf16 false".split(),
            *"--aggregation dara_sym --calibration_window 16 --reward_weights 1.0 0.5 --on_reward_error skip".split(),
            *["--aggregation_kwargs", '{"w_max": 3}', "--reward_bounds", '{"correct": [-3, 3]}'],
        ]
    )
    assert args.aggregation == "dara_sym" and args.aggregation_kwargs == {"w_max": 3}
    assert args.calibration_window == 16 and args.on_reward_error == "skip"
    assert args.reward_weights == [1.0, 0.5] and args.reward_bounds == {"correct": [-3, 3]}


def test_from_yaml(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"output_dir: {tmp_path}\nuse_cpu: true\nbf16: false\n"
        "aggregation: dara_asym\naggregation_kwargs:\n  w_max: 10\ncalibration_window: null\n"
        "reward_weights:\n  correct: 1.0\n  fmt: 0.5\nreward_bounds:\n  correct: [-3, 3]\n"
    )
    (args,) = TrlParser(MultiRewardGRPOConfig).parse_args_and_config(["--config", str(recipe)])
    assert args.aggregation_kwargs == {"w_max": 10}
    assert args.calibration_window is None
    assert args.reward_weights == {"correct": 1.0, "fmt": 0.5}
    assert args.reward_bounds == {"correct": [-3, 3]}


def test_it_is_written_as_json(tmp_path):
    written = json.loads(config(tmp_path, reward_weights={"fmt": 0.5}, reward_bounds={"fmt": [0, 1]}).to_json_string())
    assert written["reward_weights"] == {"fmt": 0.5} and written["reward_bounds"] == {"fmt": [0, 1]}


@pytest.fixture
def no_bfloat16(monkeypatch):
    """A machine without a GPU, wherever the test runs."""
    monkeypatch.setattr("trl_dara.config.is_torch_bf16_gpu_available", lambda: False)


@pytest.mark.parametrize("given", [{}, {"bf16": True}, {"use_cpu": False}])
def test_a_machine_without_bfloat16_is_told_what_to_set(tmp_path, no_bfloat16, given):
    with pytest.raises(ValueError, match="`bf16` is on.*fp16=True.*pass `use_cpu=True` and `bf16=False`") as error:
        MultiRewardGRPOConfig(str(tmp_path), **given)
    assert "(`--use_cpu --bf16 false`)" in str(error.value)


def test_so_is_who_passes_no_config(tiny_model, no_bfloat16):
    def reward(completions, **kwargs):
        return [0.0] * len(completions)

    with pytest.raises(ValueError, match="pass `use_cpu=True` and `bf16=False`"):
        MultiRewardGRPOTrainer(tiny_model, [reward], train_dataset=Dataset.from_dict({"prompt": ["a"] * 8}))


@pytest.mark.parametrize("given", [{"bf16": False}, {"use_cpu": True}, {"use_cpu": True, "bf16": False}])
def test_who_has_set_it_is_left_alone(tmp_path, no_bfloat16, given):
    assert MultiRewardGRPOConfig(str(tmp_path), **given).output_dir == str(tmp_path)
