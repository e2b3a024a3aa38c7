"""The notebooks run from top to bottom, and what they name exists."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell
from peft import LoraConfig
from trl import GRPOTrainer, SFTConfig

from trl_dara import AGGREGATIONS, MultiRewardGRPOConfig, MultiRewardGRPOTrainer, compute_advantages
from trl_dara.cli.main import SUBCOMMANDS


ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAPER, TOOL_CALLING, MATH = NOTEBOOKS
NOT_RUN = "skip-execution"  # nbclient's tag, of the cells that install


def read(path: Path):
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list[str]:
    """The Python of the code cells, without the commands of IPython."""
    cells = [cell.source for cell in read(path).cells if cell.cell_type == "code"]
    return ["\n".join(line for line in cell.splitlines() if line[:1] not in ("%", "!")) for cell in cells]


def text(path: Path) -> str:
    return "\n".join(cell.source for cell in read(path).cells)


def each_notebook(test):
    return pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)(test)


# What they look like


@each_notebook
def test_is_valid_and_without_outputs(path):
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, cell.source
    assert "widgets" not in notebook.metadata


@each_notebook
def test_begins_with_a_colab_badge_of_its_own(path):
    first = read(path).cells[0].source
    link = r"\(https://colab\.research\.google\.com/github/([\w.-]+/[\w.-]+)/blob/main/(\S+)\)"
    ((_, own_path),) = re.findall(r"\[!\[Open In Colab\]\(\S+colab-badge\.svg\)\]" + link, first)
    assert own_path == f"notebooks/{path.name}"


def test_badges_and_install_cells_agree():
    repositories = {re.search(r"github/([\w.-]+/[\w.-]+)/blob", text(path))[1] for path in NOTEBOOKS}
    installs = {
        cell.source for path in NOTEBOOKS for cell in read(path).cells if NOT_RUN in cell.metadata.get("tags", [])
    }
    (repository,) = repositories
    assert installs == {f"%pip install -q git+https://github.com/{repository}"}


@each_notebook
def test_is_in_the_readme_and_names_notebooks_that_exist(path):
    assert f"(notebooks/{path.name})" in (ROOT / "README.md").read_text()
    assert set(re.findall(r"\d\d_\w+\.ipynb", text(path))) <= {path.name for path in NOTEBOOKS}


def test_measured_numbers_are_those_of_the_readme():
    prose = "\n".join(cell.source for cell in read(PAPER).cells if cell.cell_type == "markdown")
    numbers = set(re.findall(r"\d\.\d{3}", prose))
    readme = (ROOT / "README.md").read_text()
    assert len(numbers) == 6 and all(number in readme for number in numbers)


# What they name


def imported_names(tree: ast.AST) -> dict[str, object]:
    """What the names stand for that are imported from a module."""
    return {
        alias.asname or alias.name: getattr(importlib.import_module(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.module.startswith("tests")
        for alias in node.names
    }


def accepted_keywords(called) -> set[str] | None:
    """Names of the arguments, or `None` where any is taken."""
    if called is MultiRewardGRPOTrainer:  # hands the others on
        return accepted_keywords(GRPOTrainer) | {"aggregation", "aggregation_kwargs"}
    parameters = set(inspect.signature(called).parameters)
    if called is compute_advantages:  # hands the others on
        return parameters.union(*(inspect.signature(rule).parameters for rule in AGGREGATIONS.values()))
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(called).parameters.values())
    return None if takes_any else parameters


def unknown_options(source: str) -> list[str]:
    """Keyword arguments, also those in dict literals, that an imported function or class does not take."""
    tree = ast.parse(source)
    names = imported_names(tree)
    dicts = {}  # keys of the dict literals assigned to a name, alone or in a tuple
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, values = (
                [side.elts if isinstance(side, ast.Tuple) else [side]][0] for side in (node.targets[0], node.value)
            )
            for target, value in zip(targets, values, strict=False):
                if isinstance(value, ast.Dict) and isinstance(target, ast.Name):
                    keys = {key.value for key in value.keys if isinstance(key, ast.Constant)}
                    dicts.setdefault(target.id, set()).update(keys)
    unknown = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names):
            continue
        accepted = accepted_keywords(names[node.func.id])
        for keyword in node.keywords:
            given = {keyword.arg} if keyword.arg else dicts.get(ast.unparse(keyword.value), set())
            unknown += [
                f"{node.func.id}({name})" for name in sorted(given) if accepted is not None and name not in accepted
            ]
    return unknown


@each_notebook
def test_options_exist(path):
    assert unknown_options("\n".join(code_cells(path))) == []


def test_an_option_that_does_not_exist_is_found():
    source = """
from peft import LoraConfig
from trl_dara import MultiRewardGRPOConfig, MultiRewardGRPOTrainer
MODEL, HARDWARE = "a", {"fp16": True, "fp17": True}
MultiRewardGRPOConfig("out", max_prompt_length=3, **HARDWARE)
MultiRewardGRPOTrainer("a", [], peft_config=LoraConfig(rank=3), aggregaton="gdpo")
"""
    assert sorted(unknown_options(source)) == [
        "LoraConfig(rank)",
        "MultiRewardGRPOConfig(fp17)",
        "MultiRewardGRPOConfig(max_prompt_length)",
        "MultiRewardGRPOTrainer(aggregaton)",
    ]


@each_notebook
def test_commands_and_their_options_exist(path, capsys):
    for command, options in re.findall(r"trl-dara ([a-z][\w-]*)([^`\n]*)", text(path)):
        with pytest.raises(SystemExit):
            importlib.import_module(SUBCOMMANDS[command]).run(["--help"])
        help_text = capsys.readouterr().out
        for option in re.findall(r"--[\w-]+", options):
            assert re.search(rf"{option}\b", help_text), f"trl-dara {command} has no {option}"


@pytest.mark.parametrize("path", [TOOL_CALLING, MATH], ids=lambda path: path.stem)
def test_settings_for_a_gpu_are_accepted(path):
    """The settings that the smoke mode replaces: they can be built anywhere."""
    cells = code_cells(path)
    (settings,) = [cell for cell in cells if cell.startswith("MODEL = ")]
    values = {
        name: value for name, value in vars(importlib.import_module("trl_dara.rewards")).items() if name in text(path)
    }
    values |= {"MultiRewardGRPOConfig": MultiRewardGRPOConfig, "LoraConfig": LoraConfig, "SFTConfig": SFTConfig}
    exec(settings, values)
    for node in ast.walk(ast.parse("\n".join(cells))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("REWARDS", "BOUNDS", "names"):
            exec(ast.unparse(node), values)
    built = {}
    for node in ast.walk(ast.parse("\n".join(cells))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "MultiRewardGRPOConfig",
            "LoraConfig",
            "SFTConfig",
        ):
            built[ast.unparse(node.func)] = eval(ast.unparse(node), values)
    args = built["MultiRewardGRPOConfig"]
    assert args.fp16 and not args.bf16 and not args.use_cpu  # a T4 has no bfloat16
    assert args.aggregation == "dara_asym" and "LoraConfig" in built
    prompts = args.generation_batch_size // args.num_generations
    assert 1 < prompts < args.calibration_window
    # The sentence on the generation batch says what the configuration says
    assert f"= {args.generation_batch_size} completions" in text(path).replace("\n", " ")


# What they do


def run(path: Path, folder: Path, monkeypatch, checks: dict[str, str]) -> None:
    """
    Run a notebook in smoke mode, with checks after the first cells that contain a text.

    Args:
        path (`Path`):
            The notebook.
        folder (`Path`):
            Where it runs.
        monkeypatch:
            For the environment of its process.
        checks (`dict[str, str]`):
            Code, by the text.
    """
    notebook = read(path)
    for place, check in checks.items():
        index = next(i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code" and place in cell.source)
        notebook.cells.insert(index + 1, new_code_cell(check))
    for name, value in {
        "SMOKE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # with `trl-dara`
        "IPYTHONDIR": str(folder / "ipython"),
    }.items():
        monkeypatch.setenv(name, value)
    work = folder / "work"
    os.mkdir(work)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(work)}}).execute()
    assert not list(ROOT.glob("notebooks/outputs"))


@pytest.mark.parametrize("path, folder", [(TOOL_CALLING, "notebooks"), (MATH, "notebooks"), (MATH, ".")])
def test_smoke_mode_finds_its_model_from_the_root_and_from_notebooks_and_leaves_nothing(path, folder, tmp_path):
    (smoke_cell,) = [cell for cell in code_cells(path) if "SMOKE" in cell]
    check = "\nassert os.path.isfile(DATA) and os.path.isdir(MODEL); print(smoke_folder.name)"
    before = set(os.listdir(ROOT / folder))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SMOKE": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-P", "-c", smoke_cell + check]
    done = subprocess.run(command, cwd=ROOT / folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == tmp_path and not os.path.exists(done.stdout.strip())
    assert not {name for name in set(os.listdir(ROOT / folder)) - before if name.startswith("tiny")}


def test_rewards_on_paper_runs(tmp_path, monkeypatch):
    final = """
assert weighted[1].weights[1].round(decimals=2) == 4.47 and weighted[12].weights[1] < 1.1  # as in the demo's log
assert set(compare(rewards[40]).index) == set(AGGREGATIONS)
table = compare(rewards[1])["share of format"]
assert table["grpo"] < table["gdpo"] < table["dara_asym"] < table["dara_sym"]
assert abs(advantages["gdpo"][1] - advantages["gdpo"][2]) < 1e-3
assert advantages["dara_sym"][2] < 0 < advantages["dara_asym"][2] < advantages["dara_asym"][1]
assert set(weights["one group"]) == {1.0} and max(weights["window of 64"]) == 5
assert _exit_code == 0  # of the command
"""
    run(PAPER, tmp_path, monkeypatch, {"!trl-dara replay": final})


def test_tool_calling_runs_and_trains(tmp_path, monkeypatch):
    warmed_up = """
before = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}
assert all("lora" in name and weight.dtype is torch.float32 for name, weight in before.items())
assert next(weight for weight in model.parameters() if not weight.requires_grad).dtype is torch.float16
"""
    trained = """
moved = [name for name, weight in trainer.model.named_parameters() if name in before and not weight.equal(before[name])]
assert len(moved) == len(before) and trainer.state.global_step == MAX_STEPS
assert (log["channels/tool_format_reward/density"] > 0).any()  # the warm-up has brought the sparse reward to life
"""
    reloaded = """
assert scores.loc["tuned"].equals(scores.loc["reloaded"]) and not scores.loc["tuned"].equals(scores.loc["base"])
"""
    checks = {"model = warm_up.model": warmed_up, "log = pd.DataFrame": trained, 'scores.loc["reloaded"]': reloaded}
    run(TOOL_CALLING, tmp_path, monkeypatch, checks)


def test_math_runs_and_trains(tmp_path, monkeypatch):
    trained = """
assert trainer.state.global_step == MAX_STEPS and (log["channels/gsm8k_integer_reward/density"] > 0).any()
still = [name for name, weight in trainer.model.named_parameters() if "lora_B" in name and not weight.any()]
assert still == []  # it is 0 in a fresh adapter
"""
    reloaded = """
assert scores.loc["tuned"].equals(scores.loc["reloaded"])
"""
    checks = {
        "log = pd.DataFrame": trained,
        "!trl-dara replay": "assert _exit_code == 0",
        'scores.loc["reloaded"]': reloaded,
    }
    run(MATH, tmp_path, monkeypatch, checks)
