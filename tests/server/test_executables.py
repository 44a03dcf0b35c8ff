"""H19, H25: what a client may ask about executables, and what it gets when it asks for nonsense."""

from types import SimpleNamespace

import pytest
from tests.remote.raw import raw_client

import remora
from remora import samples
from remora.base.ids import ResourceType, make_id
from remora.drivers.remote.executable import RemoteExecutable
from remora.errors import BusyError, NotFoundError, PeerError, UsageError
from remora.hal.executable import KernelInfo
from remora.hal.exports import Export
from remora.hal.manifest import encode_info
from remora.hal.specialization import ExecutableInfo
from remora.session.events import Responded, ResultReceived
from remora.session.state import Lane
from remora.testing.server import ServerProcess
from remora.wire import commands
from remora.wire.executable_calls import Absent, ExecutableGlobal, ExecutableLoad
from remora.wire.export_calls import ExecutableExports, ExportEntry, Exports
from remora.wire.method import Loaded

LONG = 20.0
MIB = 1 << 20
SPECIAL = samples.load("special")
WORDS = (1, 2, 3, 4, 5)


@pytest.fixture(scope="module")
def server():
    with ServerProcess() as server:
        yield server


@pytest.fixture
def raw(server):
    with raw_client(server.uri) as client:
        yield client


def ask(raw, body):
    number = raw.session.request(body)
    raw.send(Lane.CONTROL)
    return raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == number).body


def load(raw, resource=None, **changes):
    """The answer to a request to load the sample; `changes` replace fields of it."""
    target = next(target for target in SPECIAL.targets if tuple(target) in raw.target)
    artifact = SPECIAL.artifact(target)
    fields = {"manifest": encode_info(SPECIAL.info), "size": len(artifact), "artifact": artifact, "constants": WORDS} | changes
    return ask(raw, ExecutableLoad(resource or raw.session.provisional(ResourceType.EXECUTABLE), 0, tuple(target), **fields))


def test_h19_content_that_the_server_lacks_is_absent_and_what_waited_for_it_fails(raw):
    resource = raw.session.provisional(ResourceType.EXECUTABLE)
    assert load(raw, resource, artifact=b"", digest=bytes(32)) == Absent()
    epoch = raw.command(0, commands.DISPATCH, commands.encode_dispatch(resource, 0, (1, 1, 1), [], b""))
    other = raw.command(1, commands.BARRIER)
    raw.send(Lane.QUEUE)
    failed = raw.advanced(0, epoch)
    assert isinstance(failed.failure, NotFoundError)
    assert "did not have this artifact; load it again" in str(failed.failure)
    assert raw.advanced(1, other).failure is None
    assert isinstance(load(raw), Loaded)


@pytest.mark.parametrize("constants", [(), WORDS[:4], (*WORDS, 6)])
def test_h25_a_table_of_another_size_is_refused(raw, constants):
    answer = load(raw, constants=constants)
    assert isinstance(answer, UsageError)
    assert f"takes 20 bytes of specialization constants, got {4 * len(constants)}" in str(answer)
    assert isinstance(load(raw), Loaded)


def test_h25_a_manifest_from_the_wire_is_checked_like_any_other(raw):
    answer = load(raw, manifest=b'{"kernels": [{"name": "reveal"}], "globals": [{"name": "total"}]}')
    assert isinstance(answer, UsageError)
    assert "globals[0].size is missing" in str(answer)


def test_h25_globals_of_what_is_not_there(raw):
    loaded = load(raw).resource
    for executable, name, error in (
        (loaded, "sum", "no global 'sum'; this executable has: total, table"),
        (loaded, "", "no global ''"),
        (make_id(ResourceType.EXECUTABLE, 7, 7), "total", "no executable 7.7"),
    ):
        answer = ask(raw, ExecutableGlobal(executable, name))
        assert isinstance(answer, NotFoundError)
        assert error in str(answer)
    raw.session.release([loaded])
    raw.send(Lane.QUEUE)
    barrier = raw.command(0, commands.BARRIER)
    raw.send(Lane.QUEUE)
    raw.advanced(0, barrier)
    assert isinstance(ask(raw, ExecutableGlobal(loaded, "total")), NotFoundError)


def test_h19_each_request_for_a_global_gives_a_buffer_of_its_own(raw):
    loaded = load(raw).resource
    first, second = (ask(raw, ExecutableGlobal(loaded, "total")).resource for _ in range(2))
    assert first != second
    raw.command(0, commands.FILL, commands.encode_fill(first, 0, 4, b"\x07"))
    raw.session.release([first, loaded])
    epoch = raw.command(0, commands.READ, commands.encode_range(second, 0, 4))
    late = raw.command(1, commands.FILL, commands.encode_fill(first, 0, 4, b"\x08"))
    raw.send(Lane.QUEUE)
    read = []  # while the bytes are there
    raw.until(Lane.QUEUE, lambda event: isinstance(event, ResultReceived) and not read.append(bytes(event.data)))
    assert read == [b"\x07" * 4]
    assert raw.advanced(0, epoch).failure is None
    assert "was released, or never made" in str(raw.advanced(1, late).failure)


def test_h07_a_global_counts_as_a_resource(serve):
    server = serve("--session-resources", "2")
    with remora.open(server.uri) as device:
        executable = device.load(SPECIAL, {"FACTOR": 1})
        total = executable.globals["total"]
        with pytest.raises(BusyError, match=r"quota of resources: asked for 1, 2 of 2"):
            executable.globals["table"]
        total.close()
        device.queue.barrier().wait(LONG)
        device.host.flush_garbage()
        device.queue.barrier().wait(LONG)
        assert executable.globals["table"].read(0, 8, timeout=LONG).cast("I").tolist() == [0, 1]


def test_h19_loads_of_the_same_content_have_globals_of_their_own(serve, mode):
    """Also where the server's cache gives all of them the same file, in one session and in several."""
    server = serve(**mode)
    with remora.open(server.uri) as first, remora.open(server.uri) as second:
        target, artifact = SPECIAL.select(first.targets)
        artifact += bytes(MIB)
        loaded = [
            device.load_artifact(target, artifact, SPECIAL.info, {"FACTOR": number})
            for number, device in enumerate((first, first, second, first, second))
        ]
        assert second.link_statistics().bytes_sent < MIB
        for number, executable in enumerate(loaded):
            executable.device.queue.dispatch(executable["tally"], (1, 1, 1), [], (number + 1,))
        totals = [executable.globals["total"].read(timeout=LONG).cast("I")[0] for executable in loaded]
        assert totals == [1, 2, 3, 4, 5]
        assert [executable.constants["FACTOR"] for executable in loaded] == [0, 1, 2, 3, 4]


MANY = 600
SOURCE = """
#include "remora_executable.h"
static int nothing(const iree_hal_executable_environment_v0_t *e, const iree_hal_executable_dispatch_state_v0_t *d,
                   const iree_hal_executable_workgroup_state_v0_t *w) { return 0; }
static const iree_hal_executable_library_header_t header = {6, "many", 0, 0};
static const iree_hal_executable_dispatch_v0_t ptrs[] = {POINTERS};
static const char *const names[] = {NAMES};
static const iree_hal_executable_library_v0_t library = {&header, {0}, {COUNT, ptrs, 0, 0, 0, names}, 0};
const iree_hal_executable_library_header_t **iree_hal_executable_library_query(
    uint32_t version, const iree_hal_executable_environment_v0_t *environment) {
  return (const iree_hal_executable_library_header_t **)&library;
}
"""


@pytest.fixture(scope="module")
def many(compile_library, tmp_path_factory):
    """(artifact with many exports, their names)"""
    names = [f"kernel_{number}_{'x' * 100}" for number in range(MANY)]
    text = SOURCE.replace("POINTERS", ", ".join(["nothing"] * MANY)).replace("COUNT", str(MANY))
    source = tmp_path_factory.mktemp("many") / "many.c"
    source.write_text(text.replace("NAMES", ", ".join(f'"{name}"' for name in names)))
    return compile_library(source), names


def test_h19_a_long_list_of_exports_comes_in_pieces(server, many):
    artifact, names = many
    with remora.open(server.uri) as device:
        executable = device.load_artifact(device.targets[-1], artifact, [KernelInfo("k", export=names[-1])])
        before = device.link_statistics().round_trips
        assert executable.exports == tuple(Export(name) for name in names)
        assert device.link_statistics().round_trips - before == 3
        assert executable.exports[0].name == names[0]
        assert device.link_statistics().round_trips - before == 3
        device.queue.dispatch(executable["k"], (1, 1, 1), []).wait(LONG)


def test_h25_exports_from_anywhere(raw):
    loaded = load(raw).resource
    assert [entry.name for entry in ask(raw, ExecutableExports(loaded, 3)).entries] == ["look_up"]
    assert ask(raw, ExecutableExports(loaded, 4)) == Exports(4, ())
    assert "there is no export 5; the executable has 4" in str(ask(raw, ExecutableExports(loaded, 5)))
    answer = ask(raw, ExecutableExports(make_id(ResourceType.EXECUTABLE, 7, 7)))
    assert isinstance(answer, NotFoundError)


def test_h25_a_server_that_stops_telling_is_found_out():
    answers = [Exports(3, (ExportEntry("a", 0, 0, (0, 0, 0)),)), Exports(3, ())]
    calls = SimpleNamespace(ask=lambda body, what: answers.pop(0))
    host = SimpleNamespace(calls=calls, forget=lambda resource: None)
    executable = RemoteExecutable(SimpleNamespace(host=host), SPECIAL.targets[0], ExecutableInfo(()), (), 1)
    with pytest.raises(PeerError, match="told 1 of 3 exports and stopped"):
        executable.exports  # noqa: B018
