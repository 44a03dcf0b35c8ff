"""H19: what one session uploaded, others load without uploading it again; the store is bounded and cannot be fooled."""

import fcntl
import hashlib
import os
import socket
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults.processes import wait_until

import remora
from remora import samples
from remora.errors import UsageError
from remora.server.content import MAX_ENTRIES, Content, ContentStore, seal
from remora.server.content_line import FIND, FOUND, KEEP, MESSAGE, ContentLine, ParentContents, StoreContents, content_pair
from remora.testing.server import SharedServer

LONG = 20.0
MIB = 1 << 20
VECTOR = samples.load("vector")
NAME = "/memfd:remora-content (deleted)"


def padded(device, size, mark=b""):
    """(target, the vector artifact grown to this size): a loader reads only the part that its headers name."""
    target, artifact = VECTOR.select(device.targets)
    return target, artifact + mark + bytes(size - len(artifact) - len(mark))


def load_and_run(device, target, artifact, least=0):
    """Load it, see that it computes, and return what was sent for it, once that is so much: a send is counted when it ends."""
    before = device.link_statistics().bytes_sent
    kernels = device.load_artifact(target, artifact, VECTOR.kernels)
    wait_until(lambda: device.link_statistics().bytes_sent - before >= least)
    sent = device.link_statistics().bytes_sent - before
    with device.upload(bytes(8)) as out:
        device.queue.dispatch(kernels["fill_index"], (1, 1, 1), [out], (2, 7))
        assert out.read(timeout=LONG).cast("I").tolist() == [7, 8]
    return sent


def kept(pid):
    """How many files the store of the server's parent holds."""
    return sum(str(fd.readlink()) == NAME for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink())


def test_h19_a_second_client_does_not_upload_again(serve, mode):
    server = serve(**mode)
    with remora.open(server.uri) as first, remora.open(server.uri) as second:
        target, artifact = padded(first, 3 * MIB)
        load_and_run(first, target, artifact, least=3 * MIB)
        for device in (second, first, second):
            before = device.link_statistics().round_trips
            kernels = device.load_artifact(target, artifact, VECTOR.kernels)
            assert device.link_statistics().round_trips - before == 1
            kernels.close()
            assert load_and_run(device, target, artifact) < 32 << 10


def test_h19_what_the_first_client_leaves_behind_serves_the_next(serve, mode):
    server = serve(**mode)
    with remora.open(server.uri) as device:
        target, artifact = padded(device, MIB)
        load_and_run(device, target, artifact)
    with remora.open(server.uri) as device:
        assert load_and_run(device, target, artifact) < 32 << 10
    server.stop()


@pytest.mark.parametrize(("size", "kept_files"), [("0", 0), ("1MiB", 1), ("2MiB", 2), ("8MiB", 3)])
def test_h19_the_cache_is_bounded(serve, size, kept_files):
    server = serve("--cache", size)
    with remora.open(server.uri) as device:
        for mark in (b"one", b"two", b"three"):
            load_and_run(device, *padded(device, MIB, mark))
        device.load_artifact(*padded(device, MIB, b"three"), VECTOR.kernels)  # asks: the parent has heard of all before
        wait_until(lambda: kept(server.pid) == kept_files)  # a file that is on its way is the parent's for a moment
        sent = load_and_run(device, *padded(device, MIB, b"one"), least=0 if kept_files == 3 else MIB)
        assert (sent < MIB) == (kept_files == 3)


def test_h19_what_does_not_load_is_not_kept(serve):
    server = serve()
    with remora.open(server.uri) as device:
        for _ in range(2):
            with pytest.raises(UsageError, match="is no ELF shared library"):
                device.load_artifact(device.targets[0], bytes(MIB), VECTOR.kernels)
        load_and_run(device, *padded(device, MIB))
        device.load_artifact(*padded(device, MIB), VECTOR.kernels)
        wait_until(lambda: kept(server.pid) == 1)


def test_h25_a_wrong_entry_is_a_miss_and_is_replaced():
    with SharedServer() as server, remora.open(server.uri) as device:
        target, artifact = padded(device, MIB)
        digest = hashlib.sha256(artifact).digest()
        for wrong in (seal(memoryview(bytes(MIB))), seal(memoryview(artifact[:-1]))):
            server.server.contents.keep(digest, wrong)
            load_and_run(device, target, artifact, least=MIB)
            assert load_and_run(device, target, artifact) < 32 << 10


def test_h25_the_flag_for_the_cache(capsys):
    from remora.server.__main__ import main

    assert main(["--cache", "many", "--bind", "tcp://127.0.0.1:0"]) != 0
    assert "--cache: 'many' is no size" in capsys.readouterr().err


# -- content ------------------------------------------------------------------------------------------------------------------


def plain_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return os.open(path, os.O_RDWR)


def half_sealed(_):
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(descriptor, b"content")
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def nothing(_):
    content = seal(memoryview(b""))
    return content.descriptor


@pytest.mark.parametrize("make", [plain_file, half_sealed, lambda _: os.eventfd(0)])
def test_h25_what_can_still_change_is_no_content(tmp_path, make):
    descriptor = make(tmp_path)
    with pytest.raises(UsageError, match="sealed memory file"):
        Content(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_sealed_content_cannot_be_changed():
    with seal(memoryview(b"hello")) as content:
        assert (bytes(content.view()), content.size) == (b"hello", 5)
        assert content.digest() == hashlib.sha256(b"hello").digest()
        for change in (lambda: os.pwrite(content.descriptor, b"x", 0), lambda: os.ftruncate(content.descriptor, 3)):
            with pytest.raises(PermissionError):
                change()
    content.close()


# -- the store ----------------------------------------------------------------------------------------------------------------

actions = st.lists(st.tuples(st.sampled_from(["keep", "find"]), st.integers(0, 5), st.integers(1, 40)), max_size=40)


@given(actions, st.integers(0, 100))
def test_h19_the_store_keeps_what_was_used_last(steps, limit):
    before = len(os.listdir("/proc/self/fd"))
    store, oracle, hits = ContentStore(limit), OrderedDict(), 0
    for action, key, size in steps:
        digest = bytes([key]) * 32
        if action == "keep":
            store.keep(digest, seal(memoryview(bytes([key]) * size)))
            oracle.pop(key, None)
            if size <= limit:
                oracle[key] = size
            while sum(oracle.values()) > limit:
                oracle.popitem(last=False)
        else:
            found = store.find(digest)
            assert (found is not None) == (key in oracle)
            if found is not None:
                hits += 1
                oracle.move_to_end(key)
                with found:
                    assert bytes(found.view()) == bytes([key]) * oracle[key]
        facts = store.statistics()
        assert (facts.entries, facts.bytes, facts.hits) == (len(oracle), sum(oracle.values()), hits)
        assert len(os.listdir("/proc/self/fd")) == before + len(oracle)
    store.close()
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_h07_the_store_holds_a_bounded_number_of_descriptors():
    store = ContentStore(1 << 30)
    try:
        for number in range(MAX_ENTRIES + 10):
            store.keep(number.to_bytes(32, "big"), seal(memoryview(b"x")))
        assert store.statistics().entries == MAX_ENTRIES
        assert store.find((0).to_bytes(32, "big")) is None
    finally:
        store.close()


# -- the line to the parent ---------------------------------------------------------------------------------------------------


class StubLink:
    """The part of a link that a line asks for, turned by hand."""

    def __init__(self):
        self.watched, self.chores, self.wakes = {}, [], 0

    def watch(self, fd, ready):
        self.watched[fd] = ready

    def chore(self, run):
        self.chores.append(run)

    def wake(self):
        self.wakes += 1


@pytest.fixture
def pair():
    """(the parent's line, its store, the session's contents, the session's socket, its link)"""
    ours, theirs = content_pair()
    store, link = ContentStore(MIB), StubLink()
    line, contents = ContentLine(ours, store), ParentContents(theirs)
    contents.attach(link)
    yield line, store, contents, theirs, link
    line.close()
    theirs.close()
    store.close()


def test_h19_content_travels_to_the_parent_and_to_another_session(pair):
    line, store, contents, theirs, link = pair
    found = []
    with seal(memoryview(b"code")) as content:
        digest = content.digest()
        contents.find(digest, found.append)
        contents.keep(digest, content)
    contents.find(digest, found.append)
    for _ in range(3):
        line.serve()
    assert found == []
    for _ in range(2):
        link.watched[theirs.fileno()]()
    assert found[0] is None
    with found[1] as taken:
        assert bytes(taken.view()) == b"code"
    assert link.wakes == 2
    assert store.statistics().entries == 1


def test_h19_a_parent_that_does_not_answer_is_a_miss(pair):
    line, _, contents, theirs, link = pair
    found = []
    (give_up,) = link.chores
    contents.find(bytes(32), found.append)
    when = give_up(0.0)
    assert found == []
    assert give_up(when) > when
    assert found == [None]
    line.serve()
    link.watched[theirs.fileno()]()  # the answer that came too late
    assert found == [None]


def test_h19_a_line_that_ended_is_a_miss(pair):
    line, _, contents, theirs, link = pair
    found = []
    contents.find(bytes(32), found.append)
    line.close()
    link.watched[theirs.fileno()]()
    assert found == [None]
    assert link.watched[theirs.fileno()] is None
    contents.find(bytes(32), found.append)
    assert found == [None, None]
    with seal(memoryview(b"code")) as content:
        contents.keep(bytes(32), content)


BAD = [
    (b"", False),
    (b"x", False),
    (MESSAGE.pack(FIND, 1, bytes(32)) + b"x", False),
    (MESSAGE.pack(FOUND, 1, bytes(32)), False),
    (MESSAGE.pack(9, 1, bytes(32)), False),
    (MESSAGE.pack(KEEP, 0, bytes(32)), False),
    (MESSAGE.pack(FIND, 1, bytes(32)), True),
    (MESSAGE.pack(KEEP, 0, bytes(32)), True),
]


@pytest.mark.parametrize(("message", "with_file"), BAD)
def test_h25_a_session_that_breaks_the_rules_loses_its_line(pair, tmp_path, message, with_file):
    line, store, _, theirs, _ = pair
    before = len(os.listdir("/proc/self/fd"))
    if with_file:
        descriptor = plain_file(tmp_path)
        theirs.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor.to_bytes(4, "little"))])
        os.close(descriptor)
    else:
        theirs.send(message)
    line.serve()
    assert line.fileno() == -1
    line.serve()
    assert store.statistics().entries == 0
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_session_that_does_not_read_does_not_hold_up_the_parent(pair):
    line, _, contents, theirs, _ = pair
    theirs.setblocking(False)
    found = []
    for _ in range(5000):
        contents.find(bytes(32), found.append)
        line.serve()
    assert line.fileno() >= 0
    assert found.count(None) < 5000


def test_h19_what_a_session_handed_over_before_it_died_is_kept(pair):
    line, store, contents, theirs, _ = pair
    for number in range(3):
        with seal(memoryview(b"code")) as content:
            contents.keep(bytes([number]) * 32, content)
    theirs.close()
    line.finish()
    line.finish()
    assert line.fileno() == -1
    assert store.statistics().entries == 3


def test_a_store_in_the_same_process_answers_at_once():
    store = ContentStore(MIB)
    contents, found = StoreContents(store), []
    with seal(memoryview(b"code")) as content:
        contents.keep(bytes(32), content)
    contents.find(bytes(32), found.append)
    with found[0] as taken:
        assert bytes(taken.view()) == b"code"
    store.close()
