import subprocess
import sys

import pytest

import trl_dara
from trl_dara.cli.main import SUBCOMMANDS, main


def test_help_lists_every_subcommand_and_does_not_import_torch():
    program = (
        "import sys\n"
        "from trl_dara.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    commands = result.stdout.partition("commands:\n")[2].splitlines()
    assert [line.split()[0] for line in commands] == list(SUBCOMMANDS)
    assert all(len(line.split()) > 3 for line in commands)  # each says what it does


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert "commands:" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"trl-dara {trl_dara.__version__}\n"


@pytest.mark.parametrize("argv", [["train"], ["--grpo"]])
def test_unknown_command_lists_what_exists(capsys, argv):
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert argv[0] in error
    if argv == ["train"]:
        assert all(command in error for command in SUBCOMMANDS)
