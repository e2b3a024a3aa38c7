import os
import re
from dataclasses import fields

import pytest
from accelerate.commands.launch import launch_command_parser

from train_scripts import math_reasoning, tool_calling
from trl_dara.cli.options import REMOVED, SCRIPT_OPTIONS, build, check_channels, read_options, split_script_options
from trl_dara.config import MultiRewardGRPOConfig
from trl_dara.scripts.grpo import MultiRewardGRPOScriptArguments, build_script_arguments, make_parser


@pytest.fixture
def recipe(tmp_path):
    """Writes a YAML file and returns its path."""

    def write(text: str) -> str:
        (tmp_path / "recipe.yaml").write_text(text)
        return str(tmp_path / "recipe.yaml")

    return write


def read(*argv):
    return read_options(make_parser(), list(argv))


def error_of(capsys, function, *args) -> str:
    """Calls a function that must end the program with exit code 2, and returns its one sentence."""
    with pytest.raises(SystemExit) as end:
        function(*args)
    assert end.value.code == 2
    usage, sentence = capsys.readouterr().err.strip().splitlines()
    assert usage.startswith("usage: trl-dara grpo")
    return sentence.removeprefix("trl-dara grpo: error: ")


def test_unknown_options_go_to_accelerate(recipe):
    path = recipe("num_generations: 4\nnum_processes: 2\n")
    options, launch_args = read("--config", path, "--learning_rate", "1e-5", "--multi_gpu", "--main_process_port", "0")
    assert launch_args == ["--num_processes", "2", "--multi_gpu", "--main_process_port", "0"]
    assert options.num_generations == 4 and options.learning_rate == 1e-5


def test_command_line_wins_over_yaml(recipe):
    path = recipe("num_generations: 4\nlearning_rate: 1e-4\n")  # YAML reads 1e-4 as a string
    options, _ = read(f"--config={path}", "--num_generations", "6")
    assert options.num_generations == 6 and options.learning_rate == 1e-4


def test_env_block_sets_the_environment(recipe, monkeypatch):
    monkeypatch.setenv("TRL_DARA_TEST", "before")
    read("--config", recipe("env:\n  TRL_DARA_TEST: after\n"))
    assert os.environ["TRL_DARA_TEST"] == "after"


@pytest.mark.parametrize("form", [["--accelerate_config", "zero2"], ["--accelerate_config=zero2"]])
def test_predefined_accelerate_config(form):
    _, launch_args = read(*form)
    assert launch_args[0] == "--config_file" and launch_args[1].endswith("accelerate_configs/zero2.yaml")


def test_accelerate_config_by_path_from_yaml(recipe, tmp_path):
    (tmp_path / "own.yaml").write_text("num_processes: 1\n")
    _, launch_args = read("--config", recipe(f"accelerate_config: {tmp_path / 'own.yaml'}\n"))
    assert launch_args == ["--config_file", str(tmp_path / "own.yaml")]


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_removed_option_names_its_replacement(capsys, recipe, name):
    for argv in ([f"--{name}", "1"], [f"--{name.replace('_', '-')}=1"], ["--config", recipe(f"{name}: 1\n")]):
        sentence = error_of(capsys, read, *argv)
        assert sentence == f"The option `{name}` does not exist any more: {REMOVED[name]}."


def test_table_of_removed_options_is_true():
    options, _ = read()
    launch = launch_command_parser().parse_args(["script"])
    assert not set(REMOVED) & {*vars(options), *vars(launch)}
    replacements = [match[1] for remedy in REMOVED.values() if (match := re.match(r"use `(\w+)", remedy))]
    assert len(replacements) > 15
    assert set(replacements) <= set(vars(options))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--num_generation", "4"], ["`num_generation`", "Did you mean `num_generations`"]),
        (["--num-proceses", "4"], ["`num_proceses`", "`num_processes`"]),
        (["--agregation=gdpo"], ["`agregation`", "Did you mean `aggregation`"]),
        (["--zzzz"], ["no option `zzzz`"]),
        (["--num_gen", "4"], ["no option `num_gen`"]),  # no abbreviations, which a new option would change
        (["--num_generations", "four"], ["--num_generations", "'four'"]),
        (["--on_reward_error", "ignore"], ["--on_reward_error", "'ignore'", "'raise', 'skip'"]),
        (["recipe.yaml"], ["'recipe.yaml'", "`--config recipe.yaml`"]),
        (["--config"], ["`--config` needs the path"]),
        (["--config", "nowhere.yaml"], ["`--config`", "'nowhere.yaml'", "No such file"]),
        (["--accelerate_config", "zero9"], ["zero9", "fsdp1, fsdp2, multi_gpu, single_gpu, zero1, zero2, zero3"]),
        (["--num_processes", "two"], ["num_processes", "'two'"]),
    ],
)
def test_wrong_option(capsys, argv, says):
    sentence = error_of(capsys, read, *argv)
    for text in says:
        assert text in sentence


@pytest.mark.parametrize("script", [tool_calling, math_reasoning])
def test_table_of_script_options_is_true(script):
    assert SCRIPT_OPTIONS[script.__name__] == {option.name for option in fields(script.ScriptArguments)}


def test_recipe_of_a_training_script_is_refused_with_its_name(capsys, recipe):
    text = "dataset_path: train.parquet\nmax_prompt_length: 2048\nthink_length: true\nnum_generations: 4\n"
    sentence = error_of(capsys, read, "--config", recipe(text))
    assert sentence.startswith("This is a recipe for `python -m train_scripts.tool_calling`, with options that only")


@pytest.mark.parametrize(
    ("launch_args", "expected"),
    [
        (["--multi_gpu", "--num_processes", "2"], ("", ["--multi_gpu", "--num_processes", "2"])),
        (["--max_prompt_length", "512"], ("", ["--max_prompt_length", "512"])),  # of an older TRL
        (["--task", "gsm8k", "--think_length"], ("", ["--task", "gsm8k", "--think_length"])),  # of no one script
        (
            ["--num_processes", "2", "--eval_size=50", "--task", "gsm8k", "--multi_gpu"],
            ("`python -m train_scripts.math_reasoning`", ["--num_processes", "2", "--multi_gpu"]),
        ),
        (
            ["--dataset_path", "a.parquet", "--agregation", "gdpo"],
            (
                "`python -m train_scripts.tool_calling` or `python -m train_scripts.math_reasoning`",
                ["--agregation", "gdpo"],
            ),
        ),
    ],
)
def test_options_of_training_scripts_are_told_apart(launch_args, expected):
    assert split_script_options(launch_args) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num_generation: 4\n", ["`num_generation`", "Did you mean `num_generations`"]),
        ("num-generations: 4\n", ["`num_generations` with underscores"]),
        ("num_generations: four\n", ["num_generations", "'four'"]),
        ("- num_generations\n", ["must contain a YAML mapping"]),
        ("a: b: c\n", ["not valid YAML", "line 1"]),
        ("env: 3\n", ["`env`"]),
        ("3: 4\n", ["keywords must be strings"]),
    ],
)
def test_wrong_yaml(capsys, recipe, text, says):
    sentence = error_of(capsys, read, "--config", recipe(text))
    for part in says:
        assert part in sentence


REWARDS_YAML = """
reward_funcs:
- think_format_reward
- path: think_length_reward
  name: brief
  weight: 0.5
  kwargs: {max_words: 4}
"""


@pytest.mark.parametrize("source", ["yaml", "command line"])
def test_reward_funcs_as_names_and_mappings(recipe, source):
    mapping = '{"path": "think_length_reward", "name": "brief", "weight": 0.5, "kwargs": {"max_words": 4}}'
    argv = (
        ["--config", recipe(REWARDS_YAML)]
        if source == "yaml"
        else ["--reward_funcs", "think_format_reward", mapping, "--use_peft"]
    )
    options, _ = read(*argv)
    script_args = build_script_arguments(make_parser(), options)
    assert [function.__name__ for function in script_args.functions] == ["think_format_reward", "brief"]
    assert script_args.functions[1](completions=["<think> a b c d e </think>", "<think> a </think>"]) == [0.0, 1.0]
    assert options.reward_weights == [1.0, 0.5]


def test_single_reward_in_yaml_is_not_read_letter_by_letter(recipe):
    options, _ = read("--config", recipe("reward_funcs: think_format_reward\n"))
    assert len(build(make_parser(), options, MultiRewardGRPOScriptArguments).functions) == 1


def test_reward_model_is_the_first_channel(recipe):
    options, _ = read("--config", recipe(REWARDS_YAML + "reward_model_name_or_path: some/model\n"))
    build_script_arguments(make_parser(), options)
    assert options.reward_weights == [1.0, 1.0, 0.5]


def test_reward_weights_by_name_reach_the_config(recipe):
    text = "use_cpu: true\nbf16: false\nreward_weights: {brief: 0.5}\naggregation_kwargs: {w_max: 3}\n"
    options, _ = read("--config", recipe(text))
    config = build(make_parser(), options, MultiRewardGRPOConfig)
    assert config.reward_weights == {"brief": 0.5} and config.aggregation_kwargs == {"w_max": 3}


def test_weights_in_two_places(capsys, recipe):
    options, _ = read("--config", recipe(REWARDS_YAML), "--reward_weights", "1", "2")
    sentence = error_of(capsys, build_script_arguments, make_parser(), options)
    assert "`weight`" in sentence and "`reward_weights` is [1.0, 2.0]" in sentence


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "reward_bounds: {breif: [0, 1]}",
            "`reward_bounds` names ['breif'], but the channels are ['judge', 'think_for",
        ),
        ("reward_bounds: {brief: [1, 0]}", "channel 'brief' the bounds [1, 0]"),
        ("reward_bounds: '{brief}'", "`reward_bounds` is '{brief}', which is no JSON"),
        ("reward_gates: {brief: {'on': format, above: 0.5}}", "`reward_gates` names the channel 'format'"),
        ("reward_gates: {brief: {on: format, above: 0.5}}", "In YAML, write 'on' in quotes"),
        ("reward_weight_schedules: {breif: {type: constant, value: 2}}", "names the channel 'breif'"),
        ("group_filter: brief, format", "names ['format']"),
        (
            "aggregation: static_sym\naggregation_kwargs: {static_weights: {breif: 2}}",
            "`static_weights` names ['breif']",
        ),
        ("aggregation: saw", "`reward_bounds` has none for ['judge', 'think_format_reward', 'brief']"),
    ],
)
def test_what_is_said_about_channels_is_checked_without_a_model(capsys, recipe, text, says):
    options, _ = read("--config", recipe(f"{REWARDS_YAML}reward_model_name_or_path: nowhere/judge\n{text}\n"))
    script_args = build_script_arguments(make_parser(), options)
    assert says in error_of(capsys, check_channels, make_parser(), options, script_args)


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (
            "[1, 2, 3]",
            "`reward_weights` has 3 weights, but there are 2 channels: ['think_format_reward', 'think_length",
        ),
        ("[0, 0]", "0 for every channel"),
        ("{think_format: 2}", "`reward_weights` names ['think_format']"),
    ],
)
def test_weights_that_do_not_fit_the_channels(capsys, recipe, weights, says):
    text = f"reward_funcs: [think_format_reward, think_length_reward]\nreward_weights: {weights}\n"
    options, _ = read("--config", recipe(text))
    script_args = build_script_arguments(make_parser(), options)
    assert says in error_of(capsys, check_channels, make_parser(), options, script_args)


def test_settings_by_channel_that_fit(recipe):
    text = (
        f"{REWARDS_YAML}reward_bounds: {{brief: [0, 1]}}\ngroup_filter: brief\naggregation: grpo\n"
        "reward_gates: {brief: {'on': think_format_reward, above: 0.5}}\n"
    )
    options, _ = read("--config", recipe(text))
    given = vars(options).copy()
    check_channels(make_parser(), options, build_script_arguments(make_parser(), options))
    assert vars(options) == given | {"reward_weights": [1.0, 0.5]}  # nothing else is touched


@pytest.mark.parametrize(
    ("dataclass_type", "argv", "says"),
    [
        (MultiRewardGRPOScriptArguments, [], ["no reward", "`reward_funcs`"]),
        (MultiRewardGRPOScriptArguments, ["--reward_funcs", "format"], ["'format'", "think_format_reward"]),
        (MultiRewardGRPOConfig, ["--use_cpu", "--bf16", "false", "--num_generations", "3"], ["num_generations (3)"]),
    ],
)
def test_refused_value_is_one_sentence(capsys, dataclass_type, argv, says):
    options, _ = read(*argv)
    sentence = error_of(capsys, build, make_parser(), options, dataclass_type)
    for text in says:
        assert text in sentence


def test_help_lists_our_options_and_trls(capsys):
    with pytest.raises(SystemExit) as end:
        read("--help")
    assert end.value.code == 0
    text = capsys.readouterr().out
    for option in ("--aggregation", "--reward_funcs", "--num_generations", "--model_name_or_path", "--datasets"):
        assert option in text
