"""Real servers and clients to break, and a check that what they leave behind in this process is nothing."""

import contextlib
import gc
import threading

import pytest
from tests.faults.processes import SOON, Program, Service, open_files, wait_gone, wait_until

import remora


@pytest.fixture(autouse=True)
def leaves_nothing():
    """No thread, descriptor or memory file of a client is left behind when its devices are closed."""
    threads, files = set(threading.enumerate()), open_files()
    yield
    gc.collect()
    wait_until(lambda: not set(threading.enumerate()) - threads, lambda: f"threads left: {set(threading.enumerate()) - threads}")
    left = {fd: name for fd, name in open_files().items() if files.get(fd) != name}
    assert not left


@pytest.fixture
def until():
    """until(predicate): wait for a fact outside this process."""
    return wait_until


@pytest.fixture
def gone():
    """gone(pid): wait for the end of a process."""
    return wait_gone


@pytest.fixture(params=["tcp", pytest.param("unix", marks=pytest.mark.slow)])
def scheme(request):
    return request.param


@pytest.fixture
def serve(tmp_path, leaves_nothing):
    """serve(scheme="tcp", **options) -> a running Service; options are those of ServerProcess."""
    with contextlib.ExitStack() as stack:

        def run(scheme="tcp", **options):
            bind = "tcp://127.0.0.1:0" if scheme == "tcp" else f"{scheme}://{tmp_path}/s"
            return stack.enter_context(Service(bind=bind, **options))

        yield run


@pytest.fixture
def few_objects():
    """The collector looks at what the test makes, not each time at all that this process has imported and kept."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def client(leaves_nothing):
    """client(code, *args) -> a Program, for clients that are to be stopped or killed."""
    with contextlib.ExitStack() as stack:

        def run(code, *args):
            program = Program(code, *args)
            stack.callback(program.close)
            return program

        yield run


@pytest.fixture
def works():
    """works(uri): a fresh client gets a right answer there."""

    def check(uri):
        with remora.open(uri) as device:
            buffer = device.allocate(4096)
            device.queue.fill(buffer, b"\x5a")
            assert bytes(buffer.read(timeout=SOON)) == b"\x5a" * 4096
            buffer.close()

    return check
