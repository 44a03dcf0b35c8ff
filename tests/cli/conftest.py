"""The command line as users have it: in a process of its own."""

import contextlib
import subprocess
import sys

import pytest

TIMEOUT = 50


@pytest.fixture
def remora_command():
    """remora_command(*args) -> the finished process, with text output."""

    def run(*args):
        return subprocess.run(
            [sys.executable, "-m", "remora.cli", *args], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )

    return run


class Server:
    """A running `remora serve`: what it printed up to its last line of readiness."""

    def __init__(self, process):
        self.process = process
        self.lines = []
        while not self.lines or not self.lines[-1].startswith("stop"):
            line = process.stdout.readline()
            assert line, f"the server ended early: {process.communicate(timeout=TIMEOUT)[1]}"
            self.lines.append(line.rstrip("\n"))

    def facts(self, label):
        return [line[len(label) :].strip() for line in self.lines if line.startswith(label)]

    @property
    def uri(self):
        """The first client URI that it printed."""
        return self.facts("connect")[0]

    def end(self, number):
        """(exit code, stderr) after a signal."""
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, stderr


@pytest.fixture
def serve():
    """serve(*args) -> a Server, on any free loopback port unless --bind says otherwise."""
    with contextlib.ExitStack() as stack:

        def run(*args):
            bind = () if "--bind" in args else ("--bind", "tcp://127.0.0.1:0")
            command = [sys.executable, "-m", "remora.cli", "serve", "--until-eof", *bind, *args]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            return Server(process)

        yield run
