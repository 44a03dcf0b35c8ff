"""remora.testing.server: the way that programs, the demo and the bench start a server of their own."""

import os
import select
import signal
import subprocess
import sys

import pytest

from remora.errors import BrokenError
from remora.testing.server import ServerProcess

PARENT = """
from remora.testing.server import ServerProcess
with ServerProcess() as server:
    print(server.pid, flush=True)
    input()
"""


def ended(watch):
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(poll.poll(30_000))


def test_a_server_that_does_not_start_is_an_error_with_its_reason():
    with pytest.raises(BrokenError, match=r"the server ended before it said 'ready'.*\n.*is no port"):
        ServerProcess(bind="tcp://127.0.0.1:99999").start()


def test_flags_that_make_no_sense_are_its_error_too():
    with pytest.raises(BrokenError, match="the deadline must be the longer one"):
        ServerProcess(keepalive=3.0, deadline=2.0).start()


def test_the_server_ends_with_the_process_that_started_it():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        watch = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert ended(watch), "the server outlived its parent"
    finally:
        os.close(watch)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(number):
    with ServerProcess() as server:
        server.signal(number)
        assert server.wait() == 0
