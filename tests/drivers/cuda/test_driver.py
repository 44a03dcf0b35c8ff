"""D04: the cuda driver when things are missing, full, closed or broken, over a stand-in for NVIDIA's driver; no GPU is there."""

import ctypes
import gc
import os
import struct
import subprocess
import sys
import threading

import pytest
from tests.cuda_standin import gpu, is_standin, need_room, standin, standin_library, standin_module  # noqa: F401 - fixtures

import remora
from remora import samples
from remora.errors import (
    ClosedError,
    DeviceError,
    DeviceLostError,
    NotFoundError,
    OutOfMemoryError,
    UnsupportedError,
    UsageError,
)
from remora.hal.buffer import Access
from remora.hal.executable import BindingRule, ConstantRule, KernelInfo
from remora.hal.specialization import ExecutableInfo
from remora.hal.target import Target
from remora.hal.virtual_memory import Placement
from remora.testing.server import ServerProcess

# ruff: noqa: F811 - fixtures are taken by the names that they are imported under
LONG = 30.0
KIB, MIB = 1 << 10, 1 << 20
SM_90, PTX = Target("cuda", "sm_90"), Target("cuda", "ptx7.8")
VECTOR = samples.load("vector")
OUT_OF_MEMORY, ILLEGAL_ADDRESS, LAUNCH_FAILED, NOT_SUPPORTED, UNKNOWN = 2, 700, 719, 801, 999


def numbers(buffer):
    return buffer.read(timeout=LONG).cast("I").tolist()


def elsewhere(call):
    """Run it on a thread that has used no GPU yet; raises what it raises."""
    failures = []

    def attempt():
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(LONG)
    if failures:
        raise failures[0]


# -- which GPU -------------------------------------------------------------------------------------------------------------------


def test_d04_the_devices_are_the_drivers(standin):
    standin.reset(devices=2)
    with remora.open("cuda") as first, remora.open("cuda://1") as second:
        assert (first.info.driver, first.name, len(first.queues)) == ("cuda", "stand-in, no GPU", 4)
        assert [target.key for target in first.targets[:3]] == ["sm_90a", "sm_90", "ptx9.0"]
        with first.allocate(1000) as here, second.allocate(3000) as there:  # each on its own GPU, whichever the thread used last
            assert (standin.bytes(0), standin.bytes(1)) == (1000, 3000)
            for buffer in (here, there, here):
                buffer.write(b"abcd", timeout=LONG)
                assert bytes(buffer.read(0, 4, timeout=LONG)) == b"abcd"


@pytest.mark.parametrize(
    ("uri", "error", "told"),
    [
        ("cuda://1", NotFoundError, "there is no GPU 1, this machine has 1; write cuda://0"),
        ("cuda://first", UsageError, "'first' is no number of a GPU; write cuda or cuda://1"),
        ("cuda://?x=1", UsageError, "no option 'x'"),
    ],
)
def test_d04_other_places_are_refused(standin, uri, error, told):
    with pytest.raises(error, match=told):
        remora.open(uri)


def test_d04_without_cuda_bindings_one_hears_what_to_install(monkeypatch):
    monkeypatch.setattr("remora.drivers.cuda.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'remora\[cuda\]'"):
        remora.open("cuda")


def test_d04_without_nvidias_driver_one_hears_what_to_install(monkeypatch):
    need_room()
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    program = "import remora\ntry: remora.open('cuda')\nexcept remora.UnsupportedError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG, check=True)
    assert "needs NVIDIA's driver (libcuda.so.1), which is not here" in done.stdout
    assert "remote-tcp://host:port" in done.stdout


def test_d04_a_machine_without_a_gpu_is_unsupported(standin):
    standin.reset(devices=0)
    with pytest.raises(UnsupportedError, match=r"does not start: .*CUDA_ERROR_NO_DEVICE.*; `nvidia-smi` says more"):
        remora.open("cuda")


def test_d04_an_old_gpu_is_unsupported_and_left_alone(standin):
    standin.reset(old=True)
    with pytest.raises(UnsupportedError, match=r"no 64-bit stream memory operations .* use a GPU of 2016 or later"):
        remora.open("cuda")
    assert not standin.held()


# -- code ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "artifact", "told"),
    [
        (SM_90, VECTOR.artifact(Target("cuda", "sm_80")), "CUDA_ERROR_NO_BINARY_FOR_GPU .*: it is for another GPU"),
        (SM_90, VECTOR.artifact(Target("cpu", "x86_64")), "CUDA_ERROR_INVALID_IMAGE .*: build it as a cubin or PTX for this GPU"),
        (PTX, b".version 9.9\n.target sm_90\n", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION .*: its PTX is newer than the driver"),
        (PTX, b".version 7.8\n", "CUDA_ERROR_INVALID_PTX .*: the driver's compiler refuses its PTX: the stand-in compiles no PTX"),
    ],
)
def test_h19_why_an_artifact_does_not_load(gpu, target, artifact, told):
    told = told.replace(" .*: ", " .*; ", 1)
    with pytest.raises(UsageError, match=f"the artifact does not load: cuModuleLoadDataEx: {told}"):
        gpu.load_artifact(target, artifact, VECTOR.info)


def test_h19_ptx_is_taken_like_machine_code(gpu):
    kernels = gpu.load_artifact(PTX, VECTOR.artifact(PTX), VECTOR.info)
    assert {export.name for export in kernels.exports} == {kernel.name for kernel in VECTOR.info.kernels}
    with gpu.allocate(8) as out:
        gpu.queue.dispatch(kernels["fill_index"], (1, 1, 1), [out], (2, 5)).wait(LONG)
        assert numbers(out) == [5, 6]


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (KernelInfo("empty", workgroup=(2, 1, 1)), r"compiled for workgroups of \(1, 1, 1\)"),
        (KernelInfo("empty", (BindingRule("out"),)), "compiled with 0 bindings, its manifest has 1"),
        (
            KernelInfo("saxpy_f32", (BindingRule("x"), BindingRule("y")), (ConstantRule("n"), ConstantRule("alpha")), (512, 1, 1)),
            r"compiled for workgroups of up to 256 items, its manifest says \(512, 1, 1\)",
        ),
        (
            KernelInfo("saxpy_f32", (BindingRule("x"), BindingRule("y")), (ConstantRule("n", "u64"),), (256, 1, 1)),
            r"parameters at .*\(16, 8\)\) \(offset, bytes\), the code has .*\(16, 4\), \(20, 4\)",
        ),
    ],
)
def test_h19_a_manifest_that_lies_is_refused(gpu, kernel, told):
    with pytest.raises(UsageError, match=told):
        gpu.load_artifact(SM_90, VECTOR.artifact(SM_90), ExecutableInfo((kernel,)))


def test_h19_a_kernel_that_is_not_there_is_answered_with_those_that_are(gpu):
    with pytest.raises(NotFoundError, match="no export 'nothing'; it has: add_i32, mix_u32"):
        gpu.load_artifact(SM_90, VECTOR.artifact(SM_90), ExecutableInfo((KernelInfo("nothing"),)))


def test_h17_a_grid_that_is_too_large_is_refused(gpu):
    kernels = gpu.load(VECTOR)
    with pytest.raises(UsageError, match=r"empty: a GPU takes grids of up to .*65535"):
        gpu.queue.dispatch(kernels["empty"], (1, 1 << 16, 1), [])


def test_h27_closed_code_stays_loaded_while_it_runs(gpu, standin):
    kernels = gpu.load(VECTOR)
    with gpu.allocate(4) as out:
        standin.hold(True)
        running = gpu.queue.dispatch(kernels["fill_index"], (1, 1, 1), [out], (1, 7))
        kernels.close()
        with pytest.raises(ClosedError):
            gpu.queue.dispatch(kernels["empty"], (1, 1, 1), [])
        standin.hold(False)
        running.wait(LONG)
        assert numbers(out) == [7]


# -- memory and transfers --------------------------------------------------------------------------------------------------------


def test_h20_a_closed_buffer_lives_until_the_gpu_is_done_with_it(gpu, standin):
    standin.hold(True)
    buffer, kept = gpu.allocate(MIB), gpu.allocate(MIB)
    gpu.queue.fill(buffer, bytes([5]))
    copied = gpu.queue.copy(buffer, kept)
    buffer.close()
    standin.hold(False)
    copied.wait(LONG)
    assert bytes(kept.read(timeout=LONG)) == bytes([5]) * MIB
    with gpu.allocate(1):  # what nothing uses any more goes now
        assert standin.bytes() == MIB + 1
    kept.close()


def test_h20_more_than_the_gpu_has_says_how_much_there_is(gpu):
    told = r"asked for 104,857,600 bytes, 58,720,256 of 268,435,456 are free on the GPU: close a buffer"
    with gpu.allocate(200 * MIB), pytest.raises(OutOfMemoryError, match=told):
        gpu.allocate(100 * MIB)
    gpu.allocate(100 * MIB).close()


def test_h22_pages_get_what_the_pool_keeps(gpu):
    gpu.allocate(200 * MIB).close()
    gpu.physical(200 * MIB).close()
    told = r"asked for 104,857,600 bytes, .* of 268,435,456 are free"
    with gpu.allocate(200 * MIB), pytest.raises(OutOfMemoryError, match=told):
        gpu.physical(100 * MIB)


def test_h22_a_failed_mapping_leaves_nothing_mapped(gpu, standin):
    page = gpu.info.page_size
    with gpu.reserve(8 * page) as space, gpu.physical(4 * page) as memory:
        for name, after in (("cuMemMap", 2), ("cuMemSetAccess", 0)):
            standin.fail(name, NOT_SUPPORTED, after)
            with pytest.raises(DeviceError, match=f"{name}: CUDA_ERROR_NOT_SUPPORTED"):
                space.map(page, memory)
            assert "mappings" not in standin.held()
        space.map(page, memory)
        assert standin.held()["mappings"] == 4


def test_h22_mappings_that_fail_in_part_are_taken_back(gpu, standin):
    page = gpu.info.page_size
    with gpu.reserve(8 * page) as space, gpu.physical(2 * page) as one, gpu.physical(2 * page) as two:
        both = [Placement(0, one, 0, 2 * page), Placement(4 * page, two, 0, 2 * page)]
        standin.fail("cuMemMap", UNKNOWN, 3)
        with pytest.raises(DeviceError, match="cuMemMap: CUDA_ERROR_UNKNOWN"):
            space.map_all(both)
        assert "mappings" not in standin.held()
        space.map_all(both)
        assert standin.held()["mappings"] == 4


def test_h22_a_protection_that_fails_in_part_is_taken_back(gpu, standin):
    page = gpu.info.page_size
    with gpu.reserve(2 * page) as space, gpu.physical(2 * page) as memory:
        space.map(0, memory)
        space.protect(page, page, Access.READ)
        standin.fail("cuMemSetAccess", UNKNOWN, 1)
        with pytest.raises(DeviceError, match="cuMemSetAccess: CUDA_ERROR_UNKNOWN"):
            space.protect(0, 2 * page, Access(0))
        gpu.queue.fill(space.view(0, page), b"\7").wait(LONG)
        assert space.buffer.read(0, 2 * page, timeout=LONG)[:page] == bytes([7]) * page


def test_h22_physical_memory_that_comes_in_part_is_given_back(gpu, standin):
    standin.fail("cuMemCreate", UNKNOWN, 2)
    with pytest.raises(DeviceError, match="allocating memory: CUDA_ERROR_UNKNOWN"):
        gpu.physical(4 * gpu.info.page_size)
    assert "physical" not in standin.held()
    with gpu.physical(gpu.info.page_size):
        assert standin.held()["physical"] == 1


def test_h22_a_gpu_without_addresses_left_says_so(gpu, standin):
    standin.fail("cuMemAddressReserve", OUT_OF_MEMORY)
    with pytest.raises(OutOfMemoryError, match=r"no range of [\d,]+ addresses: close reservations"):
        gpu.reserve(gpu.info.page_size)


def test_h17_memory_may_change_once_an_update_was_submitted(gpu, standin):
    data = bytearray(b"old!" * KIB)
    with gpu.allocate(4 * KIB) as buffer:
        standin.hold(True)
        gpu.queue.update(buffer, data)
        data[:] = b"new!" * KIB
        standin.hold(False)
        assert bytes(buffer.read(timeout=LONG)) == b"old!" * KIB


@pytest.mark.parametrize("size", [4, 64 * KIB, 64 * KIB + 1, 3 * MIB])
def test_h17_who_submits_a_transfer_waits_for_no_stream(gpu, standin, size):
    """Nothing moves until `hold` ends, which a submission that waits would never see."""
    data, into = os.urandom(size), bytearray(size)
    with gpu.allocate(size) as buffer:
        standin.hold(True)
        gpu.queue.update(buffer, data)
        done = gpu.queue.read(buffer, into)
        assert not done.semaphore.query() >= done.value
        standin.hold(False)
        done.wait(LONG)
        assert into == data


def test_h17_many_small_reads_in_flight_wait_for_pinned_memory(gpu):
    with gpu.allocate(4 * 500) as buffer:
        for number in range(500):
            gpu.queue.update(buffer, struct.pack("<I", number), 4 * number)
        got = [bytearray(4) for _ in range(500)]
        for number, into in enumerate(got):
            last = gpu.queue.read(buffer, into, 4 * number)
        last.wait(LONG)
        assert [int.from_bytes(into, "little") for into in got] == list(range(500))


# -- graphs ----------------------------------------------------------------------------------------------------------------------


def recorded(device, kernels, target, count=1):
    """Fills `target`, a word each time, from 100 on; with the numbers of its records."""
    commands = device.command_buffer()
    numbers = [
        commands.dispatch(kernels["fill_index"], (1, 1, 1), [target.view(4 * place, 4)], (1, 100 + place)) for place in range(count)
    ]
    return commands.seal(), numbers


def patch(*constants):
    return remora.Patch(constants=constants)


def test_d04_a_launch_keeps_its_arguments_when_the_next_one_sets_others(gpu, standin):
    kernels, words = gpu.load(VECTOR), [gpu.allocate(4) for _ in range(4)]
    commands, (number,) = recorded(gpu, kernels, words[0])
    standin.hold(True)
    for value, word in enumerate(words):
        change = remora.Patch(constants=(1, value), bindings={0: word})
        done = gpu.queue.execute(commands, patches={number: change})
    standin.hold(False)
    done.wait(LONG)
    assert [numbers(word) for word in words] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_d04_a_graph_whose_nodes_were_set_in_part_runs_as_asked_the_next_time(gpu, standin, after):
    """The queue ends with the failure, and the recording runs on another one."""
    kernels, out = gpu.load(VECTOR), gpu.allocate(12)
    commands, places = recorded(gpu, kernels, out, 3)
    first, second, third, _ = gpu.queues
    patches = {place: patch(1, 7) for place in places}
    standin.fail("cuGraphExecKernelNodeSetParams", UNKNOWN, after)
    with pytest.raises(DeviceError, match="cuGraphExecKernelNodeSetParams: CUDA_ERROR_UNKNOWN"):
        first.execute(commands, patches=patches).wait(LONG)
    second.execute(commands).wait(LONG)
    assert numbers_on(second, out) == [100, 101, 102]
    standin.fail("cuGraphLaunch", UNKNOWN)
    with pytest.raises(DeviceError, match="cuGraphLaunch: CUDA_ERROR_UNKNOWN"):
        second.execute(commands, patches=patches).wait(LONG)
    third.execute(commands, patches={places[1]: patch(1, 8)}).wait(LONG)
    assert numbers_on(third, out) == [100, 8, 102]


def numbers_on(queue, buffer):
    into = bytearray(buffer.size)
    queue.read(buffer, into).wait(LONG)
    return memoryview(into).cast("I").tolist()


@pytest.mark.parametrize("after", [0, 1])
def test_d04_a_table_that_was_set_in_part_is_set_again(gpu, standin, after):
    kernels = gpu.load(VECTOR)
    one, two, three = (gpu.upload(struct.pack("<I", value)) for value in (1, 2, 3))
    commands = gpu.command_buffer(slots=2)
    for _ in range(2):
        commands.dispatch(kernels["add_i32"], (1, 1, 1), [remora.Slot(0), remora.Slot(1), remora.Slot(1)], (1,))
        commands.barrier()
    commands.seal()
    gpu.queue.execute(commands, [one, two]).wait(LONG)
    standin.fail("cuGraphExecKernelNodeSetParams", UNKNOWN, after)
    with pytest.raises(DeviceError):
        gpu.queue.execute(commands, [one, three]).wait(LONG)
    other = gpu.queues[1]
    other.execute(commands, [one, three]).wait(LONG)
    other.execute(commands, [one, two]).wait(LONG)
    assert [numbers_on(other, buffer) for buffer in (two, three)] == [[6], [5]]


@pytest.mark.parametrize("name", ["cuStreamBeginCapture", "cuLaunchKernel", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"])
def test_d04_a_capture_that_fails_leaves_nothing_behind(gpu, standin, name):
    kernels, out = gpu.load(VECTOR), gpu.allocate(8)
    standin.fail(name, UNKNOWN)
    with pytest.raises(DeviceError, match="CUDA_ERROR_UNKNOWN"):
        recorded(gpu, kernels, out, 2)
    commands, _ = recorded(gpu, kernels, out, 2)
    gpu.queue.execute(commands).wait(LONG)
    assert numbers(out) == [100, 101]
    assert standin.held()["graphs"] == 2  # the captured one, and the one that runs


def test_d04_a_recording_keeps_its_memory_and_its_code(gpu, standin):
    kernels, out, kept = gpu.load(VECTOR), gpu.allocate(4), gpu.allocate(4)
    commands = gpu.command_buffer()
    commands.dispatch(kernels["fill_index"], (1, 1, 1), [out], (1, 9))
    commands.barrier()
    commands.copy(out, kept, 4)
    commands.seal()
    standin.hold(True)
    done = gpu.queue.execute(commands)
    out.close()
    kernels.close()
    commands.close()
    standin.hold(False)
    done.wait(LONG)
    assert numbers(kept) == [9]


@pytest.mark.parametrize("slots", [0, 1])
@pytest.mark.parametrize("what", ["buffer", "code", "recording"])
def test_d04_what_an_execution_names_may_be_closed_before_its_turn(gpu, slots, what):
    """Also when it is its turn that captures the graph: for its table, or for its patch."""
    kernels, out, fixed, given = gpu.load(VECTOR), gpu.allocate(4), gpu.upload(bytes(4)), gpu.upload(struct.pack("<I", 2))
    commands = gpu.command_buffer(slots=slots)
    commands.fill(fixed, struct.pack("<I", 40))
    commands.barrier()
    number = commands.dispatch(kernels["add_i32"], (1, 1, 1), [fixed, remora.Slot(0) if slots else given, out], (1,))
    commands.seal()
    gate = gpu.semaphore().at(1)
    patches = {} if slots else {number: patch(1)}
    done = gpu.queue.execute(commands, [given] if slots else [], patches=patches, wait=gate)
    {"buffer": fixed, "code": kernels, "recording": commands}[what].close()
    gate.semaphore.signal(1)
    done.wait(LONG)
    assert numbers(out) == [42]


def test_d04_fixed_memory_beside_slots_lives_until_the_gpu_is_done_with_it(gpu, standin):
    kernels, out, fixed, given = gpu.load(VECTOR), gpu.allocate(4), gpu.upload(b"\1\0\0\0"), gpu.upload(b"\2\0\0\0")
    commands = gpu.command_buffer(slots=1)
    commands.dispatch(kernels["add_i32"], (1, 1, 1), [fixed, remora.Slot(0), out], (1,))
    commands.seal()
    standin.hold(True)
    done = gpu.queue.execute(commands, [given])
    for closed in (fixed, given, commands):
        closed.close()
    gpu.allocate(1).close()  # what was given back goes now
    standin.hold(False)
    done.wait(LONG)
    assert numbers(out) == [3]


# -- closing ---------------------------------------------------------------------------------------------------------------------


def test_h27_closing_gives_everything_back_at_once(standin):
    """Whatever the program still holds: the context may be another library's too, and live on."""
    device = remora.open("cuda")
    kernels, kept = device.load(VECTOR), device.allocate(2 * MIB)
    device.allocate(2000).close()
    commands, places = recorded(device, kernels, kept)
    kept.write(bytes(2 * MIB), timeout=LONG)  # through pinned pieces
    device.queues[1].execute(commands, patches={places[0]: patch(1, 3)}).wait(LONG)
    staging = device.staging.take(4 * MIB)
    staging.give_back()
    assert {"bytes", "streams", "pinned", "registered", "graphs", "events", "modules", "contexts"} == set(standin.held())
    device.close()
    assert not standin.held()
    with pytest.raises(ClosedError, match="the device of this buffer was closed"):
        _ = kept.__cuda_array_interface__
    kept.close()


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("cuDevicePrimaryCtxRetain", 0),
        ("cuCtxSetCurrent", 0),
        ("cuDeviceGetName", 0),
        ("cuMemGetInfo", 0),
        ("cuDeviceGetDefaultMemPool", 0),
        ("cuMemPoolSetAttribute", 0),
        *(("cuStreamCreate", after) for after in range(5)),
        *(("cuMemHostAlloc", after) for after in range(4)),
    ],
)
def test_h27_a_device_that_opens_in_part_leaves_nothing(standin, call, after):
    """The fixture looks what is held."""
    standin.fail(call, UNKNOWN, after)
    with pytest.raises(DeviceError, match=f"{call}: CUDA_ERROR_UNKNOWN"):
        remora.open("cuda")
    remora.open("cuda").close()


def test_h27_two_devices_share_a_context_and_close_apart(standin):
    with remora.open("cuda") as first:
        with remora.open("cuda") as second:
            kernels, out = second.load(VECTOR), second.allocate(4)
            kept = first.upload(b"kept")
        del kernels, out
        assert standin.held()["contexts"] == 1
        assert standin.bytes() == 4
        assert bytes(kept.read(timeout=LONG)) == b"kept"


def test_h27_pages_that_outlive_their_device_go_with_the_last_reference(standin):
    with remora.open("cuda") as device:
        page = device.info.page_size
        space, memory = device.reserve(4 * page), device.physical(2 * page)
        space.map(page, memory)
        device.queue.fill(space.view(page, 2 * page)).wait(LONG)
    assert standin.held() == {"bytes": 2 * page, "addresses": 1, "physical": 2, "mappings": 2}
    del space, memory
    gc.collect()
    assert not standin.held()


@pytest.fixture
def collected_at_launch(standin, monkeypatch):
    """collected_at_launch(thing): its last reference goes, as the collector may have it, just before the next launch."""
    from remora.drivers.cuda.stream import Stream

    kept = []

    def launch(self, *args):
        kept.clear()
        gc.collect()
        return real(self, *args)

    real = Stream.launch
    monkeypatch.setattr(Stream, "launch", launch)
    return kept.append


@pytest.mark.parametrize("thing", ["code", "recording"])
def test_h27_the_collector_may_come_in_the_middle_of_a_capture(gpu, collected_at_launch, thing):
    """What it gives back then calls the vendor's driver, on the thread that captures."""
    kernels, out, garbage = gpu.load(VECTOR), gpu.allocate(12), gpu.load(VECTOR)
    if thing == "recording":
        garbage, places = recorded(gpu, garbage, out, 3)
        gpu.queue.execute(garbage, patches={places[0]: patch(1, 3)}).wait(LONG)
    collected_at_launch(garbage)
    del garbage
    commands, _ = recorded(gpu, kernels, out, 3)
    gpu.queue.execute(commands).wait(LONG)
    assert numbers(out) == [100, 101, 102]


def test_h27_the_collector_may_give_back_what_is_on_another_gpu(standin, collected_at_launch):
    """The thread goes on in the context that it was in."""
    standin.reset(devices=2)
    with remora.open("cuda://0") as first, remora.open("cuda://1") as second:
        kernels, out = first.load(VECTOR), first.allocate(4)
        collected_at_launch(second.load(VECTOR))
        first.queue.dispatch(kernels["fill_index"], (1, 1, 1), [out], (1, 9)).wait(LONG)
        assert numbers(out) == [9]


def test_d04_two_gpus_in_turn_on_one_thread(standin):
    """Each call is made in the context of its own GPU."""
    standin.reset(devices=2)
    with remora.open("cuda://0") as first, remora.open("cuda://1") as second:
        pairs = [(gpu, gpu.load(VECTOR)["fill_index"], gpu.allocate(4)) for gpu in (first, second)]
        for value in range(20):
            for gpu, fill, out in pairs:
                gpu.queue.dispatch(fill, (1, 1, 1), [out], (1, value))
            assert [numbers(out) for _, _, out in pairs] == [[value], [value]]


# -- failure ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "name"), [(ILLEGAL_ADDRESS, "ILLEGAL_ADDRESS"), (LAUNCH_FAILED, "LAUNCH_FAILED")])
def test_h05_a_kernel_that_faults_loses_the_gpu_on_every_queue(gpu, standin, code, name):
    kernels = gpu.load(VECTOR)
    gpu.queue.dispatch(kernels["empty"], (1, 1, 1), []).wait(LONG)
    standin.break_at_launch(code)
    standin.hold(True)
    failed = gpu.queue.dispatch(kernels["empty"], (1, 1, 1), [])
    behind = gpu.queue.barrier()
    standin.hold(False)
    for point in (failed, behind):
        with pytest.raises(DeviceLostError, match=f"CUDA_ERROR_{name} .*the CUDA context is lost; close the device"):
            point.wait(LONG)
    for queue in gpu.queues:
        with pytest.raises(DeviceLostError):
            queue.barrier().wait(LONG)
    for attempt in (lambda: gpu.allocate(4), lambda: gpu.physical(gpu.info.page_size), lambda: gpu.load(VECTOR)):
        with pytest.raises((DeviceLostError, UsageError), match=f"CUDA_ERROR_{name}"):
            attempt()


def test_h05_a_lost_gpu_is_told_to_who_left_a_callback(gpu, standin):
    """The thread that looks has not used the GPU before."""
    standin.hold(True)
    with gpu.allocate(4) as buffer:
        stuck, told = gpu.queue.fill(buffer), threading.Event()
        stuck.on_done(told.set)
        standin.break_with(LAUNCH_FAILED)
        assert told.wait(LONG)
        with pytest.raises(DeviceLostError, match="CUDA_ERROR_LAUNCH_FAILED"):
            stuck.wait(LONG)


def test_h05_a_lost_gpu_is_closed_from_any_thread(standin):
    device = remora.open("cuda")
    kernels, out = device.load(VECTOR), device.allocate(4)
    commands, _ = recorded(device, kernels, out)
    standin.break_with(ILLEGAL_ADDRESS)
    for close in (device.close, commands.close, out.close):
        elsewhere(close)
    held = standin.held()
    assert not {"streams", "pinned", "registered", "events", "contexts"} & set(held)
    with pytest.raises((DeviceError, UnsupportedError), match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        remora.open("cuda")


# -- a server's process ----------------------------------------------------------------------------------------------------------


def test_d04_a_server_opens_it_in_its_sessions(standin, tmp_path):
    """The library is started after the fork: it would not work behind one."""
    with ServerProcess(device="cuda", bind=f"unix://{tmp_path}/server") as server, remora.open(server.uri) as device:
        kernels, data = device.load(VECTOR), os.urandom(MIB)
        with device.allocate(MIB) as x, device.allocate(MIB) as out:
            x.write(data, timeout=LONG)
            assert bytes(x.read(timeout=LONG)) == data
            add = kernels["add_i32"]
            device.queue.dispatch(add, add.grid_for(1 << 18), [x, x, out], (1 << 18,))
            words = struct.unpack(f"<{1 << 18}I", data)
            assert out.read(timeout=LONG) == struct.pack(f"<{1 << 18}I", *((2 * word) % (1 << 32) for word in words))


def test_d04_outside_of_its_tests_the_stand_in_has_no_gpu(standin):
    standin.reset(devices=0)
    assert is_standin(ctypes.CDLL("libcuda.so.1"))
    with pytest.raises(UnsupportedError):
        remora.open("cuda")
