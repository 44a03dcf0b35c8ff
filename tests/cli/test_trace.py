"""`remora trace` (H24): the program runs as ever, and its trace is whole however it ends."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.hal.trace_checks import check_events, spans

from remora.testing.server import ServerProcess

TIMEOUT = 50
PROGRAM = """
import sys
import remora
from remora import samples

def main():
    print(__name__, sys.argv, sep="|")
    with remora.open(sys.argv[1]) as device:
        kernel = device.load(samples.load("vector"))["fill_index"]
        with device.allocate(4096) as buffer:
            for _ in range(20):
                device.queue.dispatch(kernel, (1, 1, 1), [buffer], (4, 7)).wait(20)
        {end}

main()
"""


@pytest.fixture
def program(tmp_path):
    """program(what it does last) -> its path"""

    def write(end="pass"):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.replace("{end}", end))
        return str(path)

    return write


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.json"


def kernels(out):
    told = json.loads(out.read_text())
    check_events(told["traceEvents"])
    return len(spans(told["traceEvents"], "fill_index", pid=2))


def test_a_program_is_traced_and_keeps_its_arguments_and_output(remora_command, program, out):
    path = program()
    done = remora_command("trace", "-o", str(out), "--", path, "cpu", "--flag", "-o")
    assert done.returncode == 0
    assert done.stdout == f"__main__|['{path}', 'cpu', '--flag', '-o']\n"
    assert kernels(out) == 20
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"trace     {out}: ")
    assert "ui.perfetto.dev" in lines[0]
    assert "on the program's own clock" in lines[1]
    assert any(line.split()[:2] == ["fill_index", "20"] for line in lines)


def test_a_server_in_another_process_is_on_the_programs_clock(remora_command, program, out):
    with ServerProcess() as server:
        done = remora_command("trace", "-o", str(out), program(), server.uri)
    assert done.returncode == 0
    assert kernels(out) == 20
    assert f"{server.uri}: 20 records, on the program's own clock" in done.stderr


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('enough')", 1, "enough"),
        ("raise remora.UsageError('the program is wrong')", 1, "remora.errors.UsageError: the program is wrong"),
        ("1 / 0", 1, "ZeroDivisionError"),
    ],
)
def test_its_exit_code_and_its_exceptions_are_the_programs(remora_command, program, out, end, code, said):
    path = program(end)
    done = remora_command("trace", "-o", str(out), "--", path, "cpu")
    assert done.returncode == code
    assert said in done.stderr
    assert "runpy" not in done.stderr
    assert kernels(out) == 20


def test_a_device_that_is_left_open_is_traced_to_the_end(remora_command, tmp_path, out):
    path = tmp_path / "open.py"
    path.write_text("import remora\ndevice = remora.open('null')\ndevice.queue.barrier().wait(20)\n")
    assert remora_command("trace", "-o", str(out), str(path)).returncode == 0
    assert len(spans(json.loads(out.read_text())["traceEvents"], "barrier", pid=2)) == 1


def started(out, path, *args):
    """A traced program that has said that it is ready."""
    command = [sys.executable, "-m", "remora.cli", "trace", "-o", str(out), "--", path, *args]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # whoever runs the tests in the background of a shell has them ignore SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - it takes no lock
    )
    assert process.stdout.readline().startswith("__main__")
    assert process.stdout.readline() == "ready\n"
    return process


WAIT = "print('ready', flush=True); device.semaphore().at(1).wait(20)"


def test_ctrl_c_ends_it_with_a_whole_trace(program, out):
    with started(out, program(WAIT), "cpu") as process:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert "trace     " in said
    assert kernels(out) == 20


def test_a_program_that_is_killed_leaves_a_valid_trace(program, out):
    with started(out, program(WAIT), "cpu") as process:
        process.kill()
        process.communicate(timeout=TIMEOUT)
    assert kernels(out) <= 20


def test_a_server_that_is_killed_leaves_a_whole_trace_that_says_so(program, out):
    end = "print('ready', flush=True); sys.stdin.read(); device.queue.barrier().wait(20)"
    with ServerProcess() as server:
        command = [sys.executable, "-m", "remora.cli", "trace", "-o", str(out), "--", program(end), server.uri]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline().startswith("__main__")
            assert process.stdout.readline() == "ready\n"
            (session,) = server.session_pids()
            os.kill(session, signal.SIGKILL)
            _, said = process.communicate("", timeout=TIMEOUT)
    assert process.returncode == 1
    assert "SIGKILL" in said
    assert "it ended early" in said
    assert kernels(out) <= 20


def test_only_devices_of_some_uris(remora_command, program, out):
    done = remora_command("trace", "-o", str(out), "--device", "null", "--", program(), "cpu")
    assert done.returncode == 0
    assert "the program opened no device" in done.stderr
    assert json.loads(out.read_text())["otherData"]["devices"] == []


def test_wrong_usage(remora_command, program, tmp_path, out):
    done = remora_command("trace", "-o", str(out), "--", "nowhere.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no program nowhere.py" in done.stderr
    done = remora_command("trace", "-o", str(tmp_path), "--", program(), "cpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot write a trace" in done.stderr
    assert remora_command("trace").returncode == 2
