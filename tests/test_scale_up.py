"""The recipes of the README's "Scale up": read by the real parsers, started by the real scripts on make-believe hardware."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from trl_dara import MultiRewardGRPOConfig
from trl_dara.cli.main import main
from trl_dara.cli.options import build, read_options
from trl_dara.cli.plan import plan_batches
from trl_dara.rewards.contract import check_reward_contract
from trl_dara.scripts.grpo import build_script_arguments, make_parser


ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "train_scripts" / "recipes" / "scale_up").glob("*.yaml"))
NODES = ["gpu-3", "gpu-7", "gpu-8", "gpu-9", "gpu-12"]

# Writes down how it was started. The server runs until it is stopped, and says so; training fails with exit code 5.
TRL_DARA = """
python - "$@" <<'END' > "$RECORDS/call-$$"
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}))
END
if [ "$1" = vllm-serve ]; then
    trap 'echo stopped > "$RECORDS/server"; exit 143' TERM
    echo running > "$RECORDS/server"
    while true; do sleep 0.1; done
fi
until [ -e "$RECORDS/server" ]; do sleep 0.1; done
exit 5
"""

# Runs the command once per task, and hands the signal that stops it on, as SLURM's does
SRUN = """
while [ "${1#--}" != "$1" ]; do
    case $1 in --ntasks=*) tasks=${1#*=} ;; --nodelist=*) echo "$1" >> "$RECORDS/nodelists" ;; esac
    shift
done
trap 'kill $(jobs -p); wait' TERM
for ((task = 0; task < tasks; task++)); do SLURM_PROCID=$task "$@" & done
code=0
for job in $(jobs -p); do wait "$job" || code=$?; done
exit $code
"""


@pytest.fixture
def start(tmp_path):
    """Starts one of the scripts where these programs exist, and returns its exit code and all calls of `trl-dara`."""

    def run(script: str, *argv: str, nodes: list[str] = NODES, gpus: int | None = 4) -> tuple[int, list[dict]]:
        programs = {
            "trl-dara": TRL_DARA,
            "srun": SRUN,
            "scontrol": f"printf '%s\\n' {' '.join(nodes)}",
            "nvidia-smi": "exit 127" if gpus is None else f"seq {gpus}",  # that of a command that does not exist
        }
        for name, body in programs.items():
            (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
            (tmp_path / name).chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        environment |= {
            "PATH": os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "RECORDS": str(tmp_path),
            "SLURM_JOB_NODELIST": "gpu-[3,7-9,12]",
        }
        result = subprocess.run(["bash", script, *argv], cwd=ROOT, env=environment, timeout=60)
        return result.returncode, [json.loads(call.read_text()) for call in tmp_path.glob("call-*")]

    return run


def read(argv: list[str]):
    """The options of a `trl-dara grpo` command, built, and those of its `accelerate launch`."""
    parser = make_parser()
    namespace, launch_args = read_options(parser, argv)
    plan = plan_batches(namespace, num_processes=1, num_prompts=None)
    assert plan.prompts >= 1 and plan.total_steps == namespace.max_steps
    namespace.use_cpu, namespace.bf16 = True, False
    script_args = build_script_arguments(parser, namespace)
    config = build(parser, namespace, MultiRewardGRPOConfig)
    launch, _, _ = _validate_launch_command(launch_command_parser().parse_args([*launch_args, "script.py"]))
    return script_args, config, launch


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_recipe_is_read_by_the_real_parsers(recipe, monkeypatch):
    monkeypatch.chdir(ROOT)
    script_args, config, launch = read(["--config", str(recipe)])
    assert len(script_args.functions) == 2
    assert config.use_vllm and config.vllm_mode == ("colocate" if "colocate" in recipe.stem else "server")
    assert config.aggregation == "dara_asym"
    assert config.ddp_timeout > config.vllm_server_timeout  # the other processes wait for the one that waits
    kind = {"one_gpu_colocate": "NO", "server_ddp": "MULTI_GPU"}.get(recipe.stem, "DEEPSPEED")
    assert launch.use_deepspeed == (kind == "DEEPSPEED")
    assert launch.multi_gpu == (kind == "MULTI_GPU")
    assert recipe.name in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_rewards_need_no_column_that_the_data_does_not_have(recipe):
    functions = read(["--config", str(recipe)])[0].functions
    check_reward_contract(functions, ["accuracy", "overlong"], {"DeepMath-103K": ["prompt", "solution"]})


@pytest.mark.parametrize("recipe", ["server_ddp", "server_zero3"])
def test_first_gpu_serves_and_the_others_train(start, recipe, tmp_path):
    path = f"train_scripts/recipes/scale_up/{recipe}.yaml"
    code, calls = start("train_scripts/recipes/scale_up/server.sh", path, "--max_steps", "7")
    assert code == 5  # that of the training
    assert (tmp_path / "server").read_text() == "stopped\n"
    by_command = {call["argv"][0]: call for call in calls}
    server, training = by_command["vllm-serve"], by_command["grpo"]
    assert (server["gpus"], training["gpus"]) == ("0", "1,2,3")
    _, config, launch = read(training["argv"][1:])
    assert launch.num_processes == 3 and config.max_steps == 7
    options = dict(zip(server["argv"][1::2], server["argv"][2::2], strict=True))
    assert options["--model"] == recipe_value(path, "model_name_or_path")
    assert options["--host"] == config.vllm_server_host
    assert int(options["--max-model-len"]) > config.max_completion_length


def test_last_node_serves_and_the_others_train(start, tmp_path):
    code, calls = start("train_scripts/slurm/multi_node.sh")
    assert code == 5
    assert (tmp_path / "server").read_text() == "stopped\n"
    (server,) = [call["argv"] for call in calls if call["argv"][0] == "vllm-serve"]
    assert server[server.index("--model") + 1] == "Qwen/Qwen2.5-72B-Instruct"
    nodelists = sorted((tmp_path / "nodelists").read_text().splitlines())
    assert nodelists == ["--nodelist=gpu-12", "--nodelist=gpu-3,gpu-7,gpu-8,gpu-9"]
    launches = []
    for call in calls:
        if call["argv"][0] == "grpo":
            _, config, launch = read(call["argv"][1:])
            assert config.vllm_server_host == "gpu-12"
            assert (launch.num_machines, launch.num_processes, launch.main_process_ip) == (4, 32, "gpu-3")
            assert launch.use_deepspeed and launch.zero_stage == 3
            assert launch.deepspeed_multinode_launcher == "standard"  # the others start the nodes themselves
            launches.append(launch)
    assert sorted(int(launch.machine_rank) for launch in launches) == [0, 1, 2, 3]


def test_too_little_hardware_is_one_sentence(start, capfd):
    recipe = "train_scripts/recipes/scale_up/server_ddp.yaml"
    assert start("train_scripts/recipes/scale_up/server.sh", recipe, gpus=1) == (2, [])
    assert "with one, use one_gpu_colocate.yaml" in capfd.readouterr().err
    assert start("train_scripts/recipes/scale_up/server.sh", recipe, gpus=None) == (2, [])
    assert "There is no GPU here" in capfd.readouterr().err
    assert start("train_scripts/slurm/multi_node.sh", nodes=NODES[:1]) == (2, [])
    assert "sbatch --nodes=2 or more" in capfd.readouterr().err


def test_plan_takes_a_recipe_and_the_number_of_gpus(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    path = "train_scripts/recipes/scale_up/server_zero3.yaml"
    assert main(["plan", "--config", path, "--num_processes", "7", "--num_prompts", "1000"]) == 0
    assert "56" in capsys.readouterr().out  # 7 processes x 8 completions x 8 steps / 8 completions a prompt


def recipe_value(path: str, key: str) -> str:
    namespace, _ = read_options(make_parser(), ["--config", path])
    return vars(namespace)[key]
