"""H23: the files that a server offers. What is under no name, or not where its name leads, is refused, and nothing tells why."""

import argparse
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.raw import raw_client

import remora
from remora.base.ids import ResourceType
from remora.errors import BusyError, Error, Status, UnsupportedError, UsageError
from remora.hal.buffer import Access
from remora.server import beneath
from remora.server.files import open_granted
from remora.server.flags import add_flags, options_of
from remora.server.grants import FileGrant, FileGrants, parse_grant, split_name
from remora.server.options import ServeOptions, SessionLimits
from remora.server.serve import Server
from remora.session.events import Responded
from remora.session.state import Lane
from remora.wire.file_calls import FileOpen
from remora.wire.file_commands import FILE_READ, FileRange, encode_file_range

LONG = 20.0


@pytest.fixture
def tree(tmp_path):
    """A directory to offer, and one beside it to stay away from."""
    inside, outside = tmp_path / "offered", tmp_path / "secret"
    (inside / "deep" / "er").mkdir(parents=True)
    outside.mkdir()
    (inside / "a.bin").write_bytes(b"first")
    (inside / "deep" / "er" / "b.bin").write_bytes(b"second")
    (outside / "key").write_bytes(b"secret")
    (inside / "out").symlink_to(outside)
    (inside / "out.bin").symlink_to(outside / "key")
    (inside / "up.bin").symlink_to("../secret/key")
    (inside / "gone.bin").symlink_to(outside / "nothing here")
    (inside / "in.bin").symlink_to("deep/er/b.bin")
    (inside / "in").symlink_to("deep")
    os.mkfifo(inside / "pipe")
    return tmp_path


@pytest.fixture(params=["openat2", "walk"])
def way(request, monkeypatch):
    """Both ways to open beneath a directory; the kernel here has the first one."""
    if request.param == "walk":
        monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    elif not beneath.has_openat2():
        pytest.skip("needs openat2: a kernel from 5.6 on, and a sandbox that lets it through")
    return request.param


def grants(tree):
    return FileGrants(
        (
            FileGrant("data", str(tree / "offered")),
            FileGrant("data/deep", str(tree / "offered" / "deep"), True),
            FileGrant("one", str(tree / "offered" / "a.bin")),
            FileGrant("log", str(tree / "offered" / "a.bin"), True),
        )
    )


def opened(tree, name, access=Access.READ, *, fresh=False):
    """What is in the file that a name leads to, or the refusal's code."""
    try:
        fd = open_granted(grants(tree), name, access, fresh=fresh)
    except UsageError as error:
        return error.code
    try:
        return os.pread(fd, 100, 0) if access & Access.READ else b""
    finally:
        os.close(fd)


DENIED = Status.PERMISSION_DENIED


@pytest.mark.usefixtures("way")
class TestNames:
    @pytest.mark.parametrize(
        ("name", "found"),
        [
            ("one", b"first"),
            ("log", b"first"),
            ("data/a.bin", b"first"),
            ("data/deep/er/b.bin", b"second"),
        ],
    )
    def test_h23_a_name_leads_to_its_file(self, tree, name, found):
        assert opened(tree, name) == found

    @pytest.mark.parametrize(
        "name",
        [
            *("", "/", "one/", "/one", "one/more", "on", "ones", "data", "data/", "data//a.bin", "data/./a.bin", "./one", "."),
            *("..", "data/..", "data/../secret/key", "data/deep/../a.bin", "../one", "data/deep/er/../../../secret/key"),
            *("dat/a.bin", "database", "a.bin", "data/none", "data/deep", "data/deep/er", "data/pipe", "secret/key"),
            *("data/out.bin", "data/out/key", "data/up.bin", "data/gone.bin", "data\0", "data/a.bin\0", "one\0/x", "data\\a.bin"),
            *("/etc/passwd", "data//etc/passwd", "data/" + "x" * 300, "data/" + "d/" * 3000 + "x"),
        ],
    )
    def test_h23_every_other_name_is_refused_in_the_same_words(self, tree, name):
        with pytest.raises(UsageError) as caught:
            open_granted(grants(tree), name, Access.READ, fresh=False)
        assert caught.value.code is DENIED
        with pytest.raises(UsageError) as unknown:
            open_granted(FileGrants(()), name, Access.READ, fresh=False)
        assert str(caught.value) == str(unknown.value)
        assert str(tree) not in str(caught.value)

    def test_h23_a_link_that_stays_inside(self, tree, way):
        """The kernel can tell that it does; step by step no link is followed."""
        expected = b"second" if way == "openat2" else DENIED
        assert opened(tree, "data/in.bin") == expected
        assert opened(tree, "data/in/er/b.bin") == expected

    @pytest.mark.parametrize("access", [Access.WRITE, Access.READ_WRITE])
    def test_h23_what_is_offered_to_read_is_not_written(self, tree, access):
        for name in ("one", "data/a.bin", "data/new"):
            for fresh in (False, True):
                assert opened(tree, name, access, fresh=fresh) is DENIED
        assert (tree / "offered" / "a.bin").read_bytes() == b"first"
        assert not (tree / "offered" / "new").exists()

    def test_h23_what_is_offered_to_write_is_made_and_emptied_when_asked(self, tree):
        deep = tree / "offered" / "deep"
        assert opened(tree, "data/deep/er/b.bin", Access.WRITE) == b""
        assert (deep / "er" / "b.bin").read_bytes() == b"second"
        assert opened(tree, "data/deep/er/b.bin", Access.WRITE, fresh=True) == b""
        assert (deep / "er" / "b.bin").read_bytes() == b""
        assert opened(tree, "data/deep/new", Access.READ_WRITE) is DENIED
        assert opened(tree, "data/deep/new", Access.READ_WRITE, fresh=True) == b""
        assert (deep / "new").stat().st_mode & 0o111 == 0
        assert opened(tree, "data/deep/no/new", Access.WRITE, fresh=True) is DENIED

    def test_h23_nothing_is_made_or_emptied_outside(self, tree):
        (tree / "offered" / "deep" / "out").symlink_to(tree / "secret")
        (tree / "offered" / "deep" / "key").symlink_to(tree / "secret" / "key")
        (tree / "offered" / "deep" / "fresh").symlink_to(tree / "secret" / "fresh")
        for name in ("out/key", "out/new", "key", "fresh", "../../secret/key"):
            assert opened(tree, f"data/deep/{name}", Access.WRITE, fresh=True) is DENIED
        assert {path.name: path.read_bytes() for path in (tree / "secret").iterdir()} == {"key": b"secret"}

    def test_h23_an_offered_file_that_is_gone_is_not_made(self, tree):
        (tree / "offered" / "a.bin").unlink()
        assert opened(tree, "log", Access.WRITE, fresh=True) is DENIED
        assert not (tree / "offered" / "a.bin").exists()

    def test_h23_what_this_user_may_not_open(self, tree):
        if os.geteuid() == 0:
            (tree / "offered" / "a.bin").unlink()
            (tree / "offered" / "a.bin").mkdir()
        else:
            (tree / "offered" / "a.bin").chmod(0)
        assert opened(tree, "one") is DENIED

    def test_h23_nothing_stays_open(self, tree):
        before = sorted(os.listdir("/proc/self/fd"))
        for name in ("one", "data/deep/er/b.bin", "data/none", "data/out/key", "data/pipe", "data/deep/er", "nothing"):
            opened(tree, name)
            opened(tree, name, Access.READ_WRITE, fresh=True)
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_h23_too_many_open_files_are_told_apart(tree, monkeypatch):
    def full(*_, **__):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(BusyError, match="close files"):
        open_granted(grants(tree), "one", Access.READ, fresh=False)


# -- which grant a name belongs to, against an oracle that joins and compares text ---------------------------------------------

WORDS = st.sampled_from(["a", "b", "ab", "..", ".", "", "a b", "ü", "\0"])
NAMES = st.lists(WORDS, min_size=1, max_size=4).map("/".join)


def good(name):
    return bool(name) and "\0" not in name and all(word not in ("", ".", "..") for word in name.split("/"))


@given(st.lists(NAMES.filter(good), max_size=6, unique=True), NAMES)
def test_h23_the_longest_name_wins_at_the_border_of_a_component(offered, asked):
    found = FileGrants(FileGrant(name, f"/{name}") for name in offered).find(asked)
    fitting = [name for name in offered if good(asked) and (asked + "/").startswith(name + "/")]
    if not fitting:
        assert found is None
    else:
        longest = max(fitting, key=len)
        assert found is not None
        assert (found[0].name, "/".join((longest, *found[1]))) == (longest, asked)


@given(NAMES)
def test_h23_a_name_is_plain_and_relative_or_none(name):
    if good(name):
        assert "/".join(split_name(name)) == name
        assert os.path.normpath(name) == name
        assert not name.startswith("/")
    else:
        with pytest.raises(UsageError) as caught:
            split_name(name)
        assert caught.value.code is DENIED


# -- flags and options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "name", "name=", "=path", "/name=p", "a//b=p", "../a=p", "a/.=p", "a/=p"])
def test_h23_a_flag_that_names_nothing(text):
    with pytest.raises(UsageError):
        parse_grant(text, writable=False)


def flags(*words):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return options_of(parser.parse_args(words), lambda _: None).limits.files


def test_h23_flags(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert flags() == ()
    assert flags("--file", "a/b=/x=y", "--file-rw", "c=rel/../here", "--file", "d=/z") == (
        FileGrant("a/b", "/x=y"),
        FileGrant("d", "/z"),
        FileGrant("c", str(tmp_path / "here"), True),
    )


@pytest.mark.parametrize(
    ("offered", "message"),
    [
        ((FileGrant("a", "/"), FileGrant("a", "/tmp", True)), "given twice"),
        ((FileGrant("a", "/no/such/path"),), "no such file or directory"),
        ((FileGrant("a", "/dev/null"),), "no such file or directory"),
        ((FileGrant("../a", "/"),), "no name of a file"),
    ],
)
def test_h23_a_server_does_not_start_with_what_it_cannot_offer(offered, message):
    server = Server(ServeOptions(devices=("null",), bind=("loopback://",), shared=True, limits=SessionLimits(files=offered)))
    with pytest.raises(UsageError, match=message):
        server.start()


# -- through a server ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tree, serve, mode):
    offered = tree / "offered"
    return serve("--file", f"data={offered}", "--file-rw", f"work={offered / 'deep'}", "--session-resources", "8", **mode)


def test_h23_a_client_reads_and_writes_by_name(server, tree):
    with remora.open(server.uri) as device, device.allocate(6) as buffer:
        with device.server_file("data/deep/er/b.bin") as file, device.server_file("work/new", "w+") as out:
            assert (file.name, file.size, out.size) == ("data/deep/er/b.bin", 6, 0)
            device.queue.read_file(file, 0, buffer)
            device.queue.write_file(buffer, out, 4)
            device.queue.read_file(out, 4, buffer.view(0, 3)).wait(LONG)
        assert bytes(buffer.read(timeout=LONG)) == b"second"
    assert (tree / "offered" / "deep" / "new").read_bytes() == bytes(4) + b"second"


def test_h23_a_refusal_is_the_calls_and_the_session_goes_on(server):
    with remora.open(server.uri) as device:
        texts = set()
        for name in ("data/none", "data/../secret/key", "data/out.bin", "data/gone.bin", "other", "data"):
            with pytest.raises(UsageError) as caught:
                device.server_file(name)
            assert caught.value.code is DENIED
            texts.add(str(caught.value).replace(repr(name), "NAME"))
        assert len(texts) == 1
        with pytest.raises(UsageError) as caught:
            device.server_file("data/a.bin", "r+")
        assert caught.value.code is DENIED
        for name in ("", "x" * 5000, "a\0b", "\udc80"):
            with pytest.raises(UsageError):
                device.server_file(name)
        device.server_file("data/a.bin").close()


def test_h23_what_is_wrong_with_a_servers_file_fails_the_queue_and_names_it(server, tree):
    with remora.open(server.uri) as device, device.allocate(6) as buffer, device.server_file("data/a.bin") as file:
        done = device.queue.read_file(file, 0, buffer)
        with pytest.raises(UsageError, match=r"data/a\.bin ends at byte 5") as caught:
            done.wait(LONG)
        assert caught.value.code is Status.OUT_OF_RANGE
        assert str(tree) not in str(caught.value)
        device.queues[1].read_file(file, 0, buffer.view(0, 5)).wait(LONG)


def test_h23_files_are_resources_and_are_given_back(server):
    with remora.open(server.uri) as device, device.allocate(5) as buffer:
        device.queue.fill(buffer).wait(LONG)  # it is there: the calls below travel on another lane
        for _ in range(3):
            kept = []
            with pytest.raises(BusyError, match="quota of resources"):
                while len(kept) < 9:
                    kept += [device.server_file("data/a.bin")]
            for file in kept:
                device.queue.read_file(file, 0, buffer)
                file.close()
            device.queue.wait_idle(LONG)
            device.allocate(1).close()  # sends what was released before


def test_h23_a_server_offers_nothing_unless_told(serve):
    with remora.open(serve().uri) as device, pytest.raises(UsageError) as caught:
        device.server_file("etc/passwd")
    assert caught.value.code is DENIED


def test_h23_a_device_in_this_process_has_no_server():
    with remora.open("cpu") as device, pytest.raises(UnsupportedError, match="open_file"):
        device.server_file("any")


def test_h23_h25_commands_that_name_no_file(server):
    with raw_client(server.uri) as raw:

        def ask(device=0, name="data/a.bin"):
            resource = raw.session.provisional(ResourceType.FILE)
            request = raw.session.request(FileOpen(resource, device, 1, False, name))
            raw.send(Lane.CONTROL)
            return raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == request).body

        assert isinstance(ask(device=7), Error)
        file = ask()
        buffer = raw.session.allocate(0, 64)
        bodies = [FileRange(buffer, 0, 5, buffer, 0, 0), FileRange(file.resource, 0, 5, file.resource, 0, 0)]
        bodies += [FileRange(buffer, 60, 5, file.resource, 0, 0), FileRange(buffer, 0, 5, file.resource + 1, 0, 0)]
        for queue, body in enumerate(bodies):
            raw.command(queue, FILE_READ, encode_file_range(body))
            raw.send(Lane.QUEUE)
            assert isinstance(raw.advanced(queue, 1).failure, UsageError)
