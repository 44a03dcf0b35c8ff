"""Processes of a server, stopped and let go."""

import os
import signal
import threading
from pathlib import Path
from time import monotonic


def stop(pid):
    """SIGSTOP, and wait until every thread of the process has stopped: the signal alone returns before that."""
    os.kill(pid, signal.SIGSTOP)
    deadline = monotonic() + 20
    while any(state(task) != "T" for task in Path(f"/proc/{pid}/task").iterdir()):
        assert monotonic() < deadline, f"process {pid} does not stop"
        threading.Event().wait(0.001)


def go_on(pid):
    os.kill(pid, signal.SIGCONT)


def state(task):
    """The letter for a thread's state; T is stopped."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
