"""The command itself: help, version, unknown commands, and light imports."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from remora.base.compiled import is_compiled
from remora.cli import main, show


def test_without_arguments_it_prints_help(remora_command):
    done = remora_command()
    assert done.returncode == 0
    for command in main.COMMANDS:
        assert f"\n    {command}" in done.stdout


def test_version(remora_command):
    done = remora_command("--version")
    assert (done.returncode, done.stdout) == (0, f"remora {version('remora')}{', compiled' if is_compiled() else ''}\n")


def test_an_unknown_command_is_wrong_usage(remora_command):
    done = remora_command("dance")
    assert done.returncode == 2
    assert "dance" in done.stderr


@pytest.mark.parametrize("command", main.COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main([command, "--help"])
    assert ended.value.code == 0
    assert "--verbose" in capsys.readouterr().out


def test_help_imports_no_command_and_no_rich():
    code = "import sys; from remora.cli.main import main; main([]); print('rich' in sys.modules, 'remora.cli.serve' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.splitlines()[-1] == "False False"


def test_a_reader_that_leaves_early_is_no_crash():
    command = f"{sys.executable} -m remora.cli check cpu | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=50)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_numbers_have_units():
    assert show.amount(67_108_864, "B") == "67.1 MB"
    assert show.amount(999, "B") == "999 B"
    assert show.amount(0, "B") == "0 B"
    assert show.amount(2.5e12, "FLOP/s") == "2.5 TFLOP/s"
    assert [show.duration(seconds) for seconds in (1.234, 0.01, 45.6e-6, 1500)] == ["1.23 s", "10 ms", "45.6 us", "1500 s"]
