"""What the tests of the README and of the pages in `docs/` share: finding code and commands in Markdown, and parsing them."""

import re
import shlex
from pathlib import Path

from accelerate.commands.launch import launch_command_parser
from trl import TrlParser

from train_scripts import math_reasoning, tool_calling
from trl_dara.cli import check, demo, eval_bfcl, eval_math, plan, replay, report, vllm_serve
from trl_dara.cli.generation import GenerationArguments
from trl_dara.cli.main import SUBCOMMANDS
from trl_dara.cli.options import read_options
from trl_dara.scripts.grpo import make_parser


ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}


def squeezed(text: str) -> str:
    """The text as one line."""
    return " ".join(text.split())


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def inline_code(text: str) -> list[str]:
    """What is in backticks outside of code blocks, each on one line."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


def commands(text: str) -> list[str]:
    """The commands of this library, in bash blocks and, where they have arguments, in backticks."""
    lines = [line for block in code_blocks(text, "bash") for line in block.replace("\\\n", " ").splitlines()]
    lines += [code for code in inline_code(text) if len(code.split()) > 2]
    return sorted(
        {shlex.join(shlex.split(line, comments=True)) for line in lines if re.match("(trl-dara|accelerate) ", line)}
    )


def parse(command: str) -> None:
    """
    Parse a command as the program that it names would; ends with a `SystemExit` when that refuses it. Recipes of this
    repository may be read from any folder.
    """
    program, *argv = [str(ROOT / part) if (ROOT / part).is_file() else part for part in shlex.split(command)]
    if program == "accelerate":
        parse_launch(argv)
        return
    name, *argv = argv
    assert name in SUBCOMMANDS, command
    if "--help" in argv:
        return
    if name == "eval":
        task, *argv = argv
        arguments = {"math": eval_math.MathArguments, "bfcl": eval_bfcl.BFCLArguments}[task]
        TrlParser((arguments, GenerationArguments)).parse_args_and_config(argv)
    elif name == "demo":
        TrlParser(demo.DemoArguments).parse_args_and_config(argv)
    elif name == "vllm-serve":
        vllm_serve.make_parser().parse_known_args(argv)  # the rest is vLLM's
    elif name in ("replay", "report"):
        {"replay": replay, "report": report}[name].make_parser().parse_args(argv)
    else:
        own = {"grpo": (), "plan": (plan.PlanArguments,), "check": (check.CheckArguments,)}[name]
        read_options(make_parser(f"trl-dara {name}", *own), argv)


def parse_launch(argv: list[str]) -> None:
    launch = launch_command_parser().parse_args(argv[1:])
    assert Path(launch.config_file).is_file()
    script = {"train_scripts.tool_calling": tool_calling, "train_scripts.math_reasoning": math_reasoning}
    script[launch.training_script].parse([*launch.training_script_args, "--use_cpu", "--bf16", "False"])
