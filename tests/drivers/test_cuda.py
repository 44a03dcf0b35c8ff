"""D04: what the cuda driver does beside what every driver does: graphs with new arguments, pinned pieces, pages, lost contexts.

On a GPU, and over the stand-in for NVIDIA's driver where there is none.
"""

import random
import subprocess
import sys
import threading
from array import array
from pathlib import Path

import pytest
from tests.cuda_device import RETRY, need_cuda
from tests.cuda_standin import standin_library, standin_module  # noqa: F401 - fixtures

import remora
from remora import samples
from remora.hal.buffer import Access
from remora.hal.executable import BindingRule, KernelInfo
from remora.hal.target import Target
from remora.testing.server import ServerProcess

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[2]
SOON = 30.0
N = 10_000
PTX, WILD = Target("cuda", "ptx7.0"), (Path(__file__).parent / "kernels/wild.ptx").read_bytes()
CONTRACTS = (KernelInfo("wild"), KernelInfo("stop"), KernelInfo("spin", (BindingRule("flag", Access.READ, 4),)))
MIB = 1 << 20


@pytest.fixture(scope="module", params=[pytest.param("gpu", marks=pytest.mark.cuda), "stand-in"])
def cuda(request):
    """`remora.open("cuda")` works, here and in other programs."""
    if request.param == "gpu":
        need_cuda()
    else:
        request.getfixturevalue("standin_module")


@pytest.fixture(scope="module")
def device(cuda):
    with remora.open("cuda", retry=RETRY) as opened:
        yield opened


@pytest.fixture(scope="module")
def vector(device):
    return device.load(samples.load("vector"))


def numbers(buffer):
    return buffer.read(timeout=SOON).cast("I").tolist()


# -- which GPU -------------------------------------------------------------------------------------------------------------------


def test_d04_the_facts_are_the_gpus(device):
    info = device.info
    assert (info.driver, len(device.queues)) == ("cuda", 4)
    assert info.heaps[0].size >= info.heaps[0].max_allocation > 0
    assert info.page_size >= 64 << 10


def test_d04_a_gpu_that_is_not_there_is_answered_with_how_many_there_are(cuda):
    with pytest.raises(remora.NotFoundError, match=r"there is no GPU 99, this machine has \d+; write cuda://0"):
        remora.open("cuda://99")


@pytest.mark.cuda
def test_d04_two_gpus_in_turn_on_one_thread():
    """Each call is made in the context of its own GPU."""
    need_cuda()
    first = remora.open("cuda://0", retry=RETRY)
    with first:
        try:
            second = remora.open("cuda://1", retry=RETRY)
        except remora.NotFoundError:
            pytest.skip("needs two GPUs; this machine has one")
        with second:
            fills = [gpu.load(samples.load("vector"))["fill_index"] for gpu in (first, second)]
            buffers = [gpu.allocate(4 * N) for gpu in (first, second)]
            for seed in range(20):
                for gpu, fill, buffer in zip((first, second), fills, buffers, strict=True):
                    gpu.queue.dispatch(fill, fill.grid_for(N), [buffer], (N, seed))
                assert numbers(buffers[0]) == numbers(buffers[1])
            second.close()
            assert numbers(buffers[0])[:1] == [19]


# -- recordings as graphs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def buffers(device):
    made = [device.upload(array("I", range(seed, seed + N))) for seed in range(4)]
    yield made
    for buffer in made:
        buffer.close()


def sums(device, vector, count=3):
    """Adds what is in slot 0, again and again, to what slot 1 has."""
    add = vector["add_i32"]
    commands = device.command_buffer(slots=2)
    for _ in range(count):
        commands.dispatch(add, add.grid_for(N), [remora.Slot(0), remora.Slot(1), remora.Slot(1)], (N,))
        commands.barrier()
    return commands.seal()


def test_d04_a_graph_runs_with_the_table_of_each_execution(device, vector, buffers):
    commands = sums(device, vector)
    one, two, three, four = buffers
    for source, target, first in ((one, two, 1), (three, four, 9), (one, two, 1)):
        device.queue.execute(commands, [source, target]).wait(SOON)
        assert numbers(target)[:2] == [first, first + 4]
        target.write(array("I", range(first, first + N)) if first == 9 else array("I", range(1, 1 + N)))
    assert commands.prepared._graph.patchable


def test_d04_only_what_a_table_changes_is_set(device, vector, buffers, monkeypatch):
    commands = sums(device, vector)
    device.queue.execute(commands, buffers[:2]).wait(SOON)
    graph, made = commands.prepared._graph, []
    setting = graph._set
    monkeypatch.setattr(graph, "_set", lambda *args: made.append(args) or setting(*args))
    device.queue.execute(commands, buffers[:2]).wait(SOON)
    assert not made
    device.queue.execute(commands, buffers[2:]).wait(SOON)
    assert len(made) == 3


def test_d04_a_patch_holds_for_one_execution(device, vector, buffers):
    fill, target = vector["fill_index"], buffers[0]
    commands = device.command_buffer()
    number = commands.dispatch(fill, fill.grid_for(N), [target], (N, 5))
    commands.seal()
    plain = commands.prepared._graph
    for seed in (5, 77, 5, 78):
        patches = {} if seed == 5 else {number: remora.Patch(constants=(N, seed))}
        device.queue.execute(commands, patches=patches).wait(SOON)
        got = numbers(target)
        device.queue.dispatch(fill, fill.grid_for(N), [target], (N, seed)).wait(SOON)
        assert got == numbers(target)
    assert not plain.patchable
    assert commands.prepared._graph.patchable


def test_d04_a_patched_grid_and_a_patched_buffer(device, vector):
    fill, many = vector["fill_index"], 100_000
    with device.command_buffer() as commands, device.allocate(4 * many) as x, device.allocate(4 * many) as y:
        number = commands.dispatch(fill, fill.grid_for(many), [x], (many, 0))
        commands.seal()
        for buffer in (x, y):
            device.queue.fill(buffer, b"\0").wait(SOON)
        patch = remora.Patch(grid=fill.grid_for(1), constants=(many, 0), bindings={0: y})
        device.queue.execute(commands, patches={number: patch}).wait(SOON)
        covered, got = fill.info.grid.elements[0], numbers(y)
        assert not any(numbers(x))
        assert got == [*range(covered), *[0] * (many - covered)]
        device.queue.execute(commands, patches={number: remora.Patch(grid=(0, 1, 1))}).wait(SOON)
        assert not any(numbers(x))
        device.queue.execute(commands).wait(SOON)
        assert numbers(x) == [*range(many)]


def test_d04_several_queues_run_one_recording_with_tables_of_their_own(device, vector, buffers):
    """Setting the nodes and launching are one step."""
    commands = sums(device, vector, count=8)
    sources = buffers[:3]
    targets = [device.upload(array("I", [0] * N)) for _ in sources]

    def run(queue, source, target):
        for _ in range(50):
            queue.execute(commands, [source, target])
        queue.wait_idle(SOON)

    threads = [threading.Thread(target=run, args=args) for args in zip(device.queues, sources, targets, strict=False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, target in enumerate(targets):
        assert numbers(target) == [400 * value for value in range(seed, seed + N)]
        target.close()


def test_d04_records_of_all_kinds_beside_slots(device, vector, buffers):
    """Fills, copies and updates of fixed memory are nodes; the dispatch takes the table's."""
    add, (x, y, z, _) = vector["add_i32"], buffers
    with device.command_buffer(slots=1) as commands:
        commands.fill(x, b"\x01\0\0\0")
        commands.update(x, array("I", [41]))
        commands.copy(x, y, 4 * N)
        commands.barrier()
        commands.dispatch(add, add.grid_for(N), [x, y, remora.Slot(0)], (N,))
        commands.seal()
        for target in (z, buffers[3], z):
            device.queue.fill(target, b"\0").wait(SOON)
            device.queue.execute(commands, [target]).wait(SOON)
            assert numbers(target)[:3] == [82, 2, 2]


# -- pinned pieces ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [MIB - 1, MIB, 8 * MIB, 8 * MIB + 1, 24 * MIB, 24 * MIB + 3, 100 * MIB + 7])
def test_d04_large_pageable_memory_comes_and_goes_whole(device, size):
    data = random.Random(size).randbytes(size)
    into = bytearray(size)
    with device.allocate(size) as buffer:
        buffer.write(data)
        buffer.read_into(into)
    assert into == data


def test_d04_pinned_memory_needs_no_pieces(device):
    staging = device.staging.take(4 * MIB)
    staging.view[:] = random.Random(1).randbytes(4 * MIB)
    with device.allocate(4 * MIB) as buffer:
        queue = device.queues[3]
        queue.update(buffer, staging.view).wait(SOON)
        assert buffer.read() == staging.view
        assert not queue._ferry._pieces
    staging.give_back()


# -- memory ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["allocate", "physical"])
def test_d04_memory_that_is_not_there_is_told_with_numbers(device, make):
    asked = device.info.heaps[0].size * 2 // device.info.page_size * device.info.page_size
    with pytest.raises(remora.OutOfMemoryError, match=f"asked for {asked:,} bytes.* [0-9,]{{9,}}"):
        getattr(device, make)(asked)


def test_d04_a_growing_range_is_one_buffer_for_a_kernel(device, vector):
    page, fill = device.info.page_size, vector["fill_index"]
    count = 3 * page // 4
    with device.reserve(8 * page) as space, device.physical(2 * page) as memory, device.physical(page) as more:
        space.map(page, memory)
        space.map(3 * page, more)
        device.queue.dispatch(fill, fill.grid_for(count), [space.view(page, 3 * page)], (count, 0)).wait(SOON)
        got = space.buffer.read(page, 3 * page, timeout=SOON).cast("I")
        assert (got[1], got[page // 4], got[count - 1]) == (1, page // 4, count - 1)


def test_d04_cupy_sees_the_memory(device):
    cupy = pytest.importorskip("cupy", reason="cupy is not installed: pip install cupy-cuda13x")
    with device.array(dtype="f4", shape=(3, 5)) as ours:
        theirs = cupy.asarray(ours)
        theirs[:] = 7
        theirs[1, 2] = -1
        cupy.cuda.Device().synchronize()
        values = ours.buffer.read(timeout=SOON).cast("f").tolist()
    assert values == [7.0] * 7 + [-1.0] + [7.0] * 7


# -- kernels that go wrong -------------------------------------------------------------------------------------------------------

ALONE = """
import sys, remora
from tests.drivers.test_cuda import CONTRACTS, PTX, WILD
with remora.open(sys.argv[1], retry=30) as device:
    kernel = device.load_artifact(PTX, WILD, CONTRACTS)[sys.argv[2]]
    kept = device.upload(bytes(64))
    fault = lambda: device.queue.dispatch(kernel, (1, 1, 1), []).wait(30)
    for attempt in (fault, lambda: kept.read(timeout=30), lambda: device.upload(b"1234")):
        try:
            attempt()
        except remora.DeviceLostError as error:
            print("lost:", error)
"""


@pytest.mark.parametrize(("kernel", "code"), [("wild", "CUDA_ERROR_ILLEGAL_ADDRESS"), ("stop", "CUDA_ERROR_")])
def test_d04_a_fault_is_told_by_everything_that_follows(cuda, kernel, code):
    done = subprocess.run(
        [sys.executable, "-c", ALONE, "cuda", kernel], capture_output=True, text=True, timeout=100, check=False, cwd=ROOT
    )
    lines = done.stdout.splitlines()
    assert (len(lines), done.stderr) == (3, "")
    assert all(line.startswith("lost: ") and code in line for line in lines)


@pytest.fixture
def server(cuda):
    with ServerProcess(device="cuda", bind="tcp://127.0.0.1:0", timeout=60) as running:
        yield running


def works(uri):
    with remora.open(uri, retry=RETRY) as device:
        vector = device.load(samples.load("vector"))
        with device.allocate(4 * N) as buffer:
            device.queue.dispatch(vector["fill_index"], vector["fill_index"].grid_for(N), [buffer], (N, 0)).wait(SOON)
            assert numbers(buffer)[N - 1] == N - 1


@pytest.mark.parametrize("kernel", ["wild", "stop"])
def test_h26_a_fault_of_one_session_leaves_the_others_untouched(server, kernel):
    with remora.open(server.uri, retry=RETRY) as bystander, remora.open(server.uri, retry=RETRY) as victim:
        kept = bystander.upload(b"kept" * 1000)
        bad = victim.load_artifact(PTX, WILD, CONTRACTS)[kernel]
        done = victim.queue.dispatch(bad, (1, 1, 1), [])
        with pytest.raises(remora.DeviceLostError, match="CUDA_ERROR_"):
            done.wait(SOON)
        with pytest.raises(remora.DeviceLostError, match="CUDA_ERROR_"):
            victim.upload(b"x" * 64)
        assert bytes(kept.read(timeout=SOON)) == b"kept" * 1000
        works(server.uri)


def test_h26_an_endless_kernel_is_left_behind_by_its_client(server):
    with remora.open(server.uri, retry=RETRY) as bystander:
        with remora.open(server.uri, retry=RETRY) as device:
            spin = device.load_artifact(PTX, WILD, CONTRACTS)["spin"]
            flag = device.upload(bytes(4))
            done = device.queue.dispatch(spin, (1, 1, 1), [flag])
            with pytest.raises(remora.DeadlineError):
                done.wait(0.2)
            assert bytes(bystander.upload(b"beside").read(timeout=SOON)) == b"beside"
        works(server.uri)


def test_d04_queues_run_beside_an_endless_kernel(device):
    spin = device.load_artifact(PTX, WILD, CONTRACTS)["spin"]
    with device.upload(bytes(4)) as flag:
        done = device.queue.dispatch(spin, (1, 1, 1), [flag])
        with pytest.raises(remora.DeadlineError):
            done.wait(0.1)
        device.queues[1].update(flag, b"\1\0\0\0").wait(SOON)
        done.wait(SOON)
