"""D05: what the hip driver does beside what every driver does. A stand-in for ROCm's runtime is driven; no GPU is there."""

import os
import struct
import threading
from dataclasses import replace

import pytest
from tests.hip_standin import Standin, built, gpu, standin, standin_library  # noqa: F401 - fixtures

import remora
from remora import samples
from remora.drivers.hip import memory
from remora.errors import ClosedError, DeviceLostError, NotFoundError, OutOfMemoryError, UnsupportedError, UsageError
from remora.hal.executable import BindingRule, ConstantRule, KernelInfo
from remora.hal.late import NotMadeError
from remora.hal.specialization import ExecutableInfo
from remora.hal.target import Target
from remora.testing.server import ServerProcess

# ruff: noqa: F811 - fixtures are taken by the names that they are imported under
LONG = 30.0
GFX90A = Target("amdgpu", "gfx90a")
VECTOR = samples.load("vector")


def test_d05_the_devices_are_the_runtimes(standin):
    standin.reset(devices=2)
    with remora.open("hip") as first, remora.open("hip://1") as second:
        assert (first.info.driver, first.name, len(first.queues)) == ("hip", "stand-in, no GPU", 4)
        assert [target.key for target in first.targets] == [
            "gfx90a:sramecc+:xnack-", "gfx90a:sramecc+", "gfx90a:xnack-", "gfx90a"]  # fmt: skip
        assert first.staging is not None
        with first.allocate(1000) as here, second.allocate(3000) as there:  # each on its own GPU, whichever the thread used last
            assert (standin.bytes(0), standin.bytes(1)) == (1000, 3000)
            with first.allocate(50):
                assert (standin.bytes(0), standin.bytes(1)) == (1050, 3000)
            for buffer in (here, there, here):
                buffer.write(b"abcd", timeout=LONG)
                assert bytes(buffer.read(0, 4, timeout=LONG)) == b"abcd"


@pytest.mark.parametrize(
    ("uri", "error", "told"),
    [
        ("hip://1", NotFoundError, "there is no AMD GPU 1, ROCm's runtime finds 1; write hip://0, .* /dev/kfd"),
        ("hip://first", UsageError, "'first' is no number of a GPU; write hip or hip://1"),
        ("hip://?x=1", UsageError, "no option 'x'"),
    ],
)
def test_d05_other_places_are_refused(standin, uri, error, told):
    with pytest.raises(error, match=told):
        remora.open(uri)


@pytest.mark.parametrize("devices", [0, -1])
def test_d05_no_gpu_is_not_found(standin, devices):
    """None is there, or the runtime may open none and does not start."""
    standin.reset(devices=devices)
    with pytest.raises(NotFoundError, match="no AMD GPU 0, ROCm's runtime finds 0"):
        remora.open("hip")


def test_d05_without_the_runtime_one_hears_what_to_install(monkeypatch):
    monkeypatch.setenv("REMORA_HIP_LIBRARY", "/nowhere/libamdhip64.so")
    with pytest.raises(UnsupportedError, match=r"REMORA_HIP_LIBRARY names /nowhere.*hip-runtime-amd.*remote-tcp://host:port"):
        remora.open("hip")


def test_d05_a_library_that_is_another_is_refused(monkeypatch):
    monkeypatch.setenv("REMORA_HIP_LIBRARY", "libc.so.6")
    with pytest.raises(UnsupportedError, match=r"libc.so.6 has no hipInit: install ROCm 5 or newer"):
        remora.open("hip")


def test_d05_the_properties_of_older_runtimes_are_read_too(compile_library, tmp_path, monkeypatch):
    library = Standin(built(compile_library, tmp_path, "-DOLD_RUNTIME"))
    library.reset(arch="gfx1100")
    monkeypatch.setenv("REMORA_HIP_LIBRARY", str(library.path))
    with remora.open("hip") as device:
        assert device.targets == (Target("amdgpu", "gfx1100"),)


@pytest.mark.parametrize(
    ("arch", "writes_values", "told"),
    [("", True, "does not say which processor GPU 0 is"), ("gfx90a", False, "its streams write no values")],
)
def test_d05_a_gpu_that_cannot_be_driven_is_unsupported(standin, arch, writes_values, told):
    standin.reset(arch=arch, writes_values=writes_values)
    with pytest.raises(UnsupportedError, match=told):
        remora.open("hip")


# -- code -------------------------------------------------------------------------------------------------------------------------


def test_h19_code_for_another_gpu_does_not_reach_the_runtime(standin):
    standin.reset(arch="gfx1100")
    with remora.open("hip") as device:
        device.load(VECTOR).close()
        with pytest.raises(UsageError, match=r"built for gfx90a, this GPU is gfx1100: .* --target amdgpu:gfx1100"):
            device.load_artifact(Target("amdgpu", "gfx1100"), VECTOR.artifact(GFX90A), VECTOR.info)


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (KernelInfo("empty", workgroup=(2, 1, 1)), r"compiled for workgroups of \(1, 1, 1\)"),
        (KernelInfo("empty", (BindingRule("out"),)), "compiled with 0 bindings, its manifest has 1"),
        (KernelInfo("saxpy_f32", (BindingRule("x"), BindingRule("y")), (ConstantRule("n"),), (256, 1, 1)), "2 constants"),
        (
            KernelInfo("saxpy_f32", (BindingRule("x"), BindingRule("y")), (ConstantRule("n", "u64"),), (256, 1, 1)),
            r"arguments at .*\(16, 8, 'by_value'\).*the code has .*\(20, 4, 'by_value'\)",
        ),
    ],
)
def test_h19_a_manifest_that_lies_is_refused(gpu, kernel, told):
    with pytest.raises(UsageError, match=told):
        gpu.load_artifact(GFX90A, VECTOR.artifact(GFX90A), ExecutableInfo((kernel,)))


def test_d04_shared_memory_is_what_the_gpu_has_and_clusters_are_refused(gpu):
    """The stand-in gives a workgroup 64 KiB, of which matmul's own code takes 8."""
    matmul = samples.load("matmul")
    info = replace(matmul.info_for(GFX90A).kernels[0], shared_bytes=57345)
    with pytest.raises(UsageError, match="gives a workgroup 57344, beside 8192 that the code declares: build it for smaller"):
        gpu.load_artifact(GFX90A, matmul.artifact(GFX90A), (info,))
    kernel = next(kernel for kernel in VECTOR.kernels if kernel.name == "saxpy_f32")
    info = replace(kernel, workgroup=(256, 1, 1), shared_bytes=64 << 10)
    saxpy = gpu.load_artifact(GFX90A, VECTOR.artifact(GFX90A), (info,))["saxpy_f32"]
    assert saxpy.program.shared_bytes == 64 << 10
    with pytest.raises(UsageError, match="asks for 65537 bytes of dynamic shared memory; this GPU gives a workgroup 65536: build"):
        gpu.load_artifact(GFX90A, VECTOR.artifact(GFX90A), (replace(info, shared_bytes=65537),))
    with pytest.raises(UnsupportedError, match=r"clusters of \(2, 1, 1\) workgroups, which the hip driver does not have"):
        gpu.load_artifact(GFX90A, VECTOR.artifact(GFX90A), (replace(info, cluster=(2, 1, 1)),))


def test_h19_a_kernel_that_is_not_there_is_answered_with_those_that_are(gpu):
    with pytest.raises(NotFoundError, match="no export 'nothing'; it has: add_i32, mix_u32"):
        gpu.load_artifact(GFX90A, VECTOR.artifact(GFX90A), ExecutableInfo((KernelInfo("nothing"),)))


def test_h19_every_bit_of_a_constant_arrives(gpu):
    """The bits of a signalling NaN, which a float of Python would not keep."""
    info = KernelInfo("fill_index", (BindingRule("out"),), (ConstantRule("n"), ConstantRule("first", "f32")), (256, 1, 1))
    kernels = gpu.load_artifact(GFX90A, VECTOR.artifact(GFX90A), ExecutableInfo((info,)))
    with gpu.allocate(4) as out:
        gpu.queue.dispatch(kernels["fill_index"], (1, 1, 1), [out], struct.pack("<II", 1, 0x7FA00001))
        assert out.read(timeout=LONG) == struct.pack("<I", 0x7FA00001)


def test_h17_a_grid_that_is_too_large_is_refused(gpu):
    kernels = gpu.load(VECTOR)
    with gpu.allocate(4) as out, pytest.raises(UsageError, match=r"grids of up to .* items in one dimension"):
        gpu.queue.dispatch(kernels["fill_index"], (1 << 24, 1, 1), [out], (1, 0))  # 2**32 items


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
        assert out.read(timeout=LONG) == struct.pack("<I", 7)


# -- memory and transfers ---------------------------------------------------------------------------------------------------------


def test_h20_a_closed_buffer_lives_until_the_gpu_is_done_with_it(gpu, standin):
    standin.hold(True)
    buffer, kept = gpu.allocate(1 << 20), gpu.allocate(1 << 20)
    gpu.queue.fill(buffer, bytes([5]))
    copied = gpu.queue.copy(buffer, kept)
    buffer.close()
    standin.hold(False)
    copied.wait(LONG)
    assert bytes(kept.read(timeout=LONG)) == bytes([5]) * (1 << 20)
    with gpu.allocate(1):  # what nothing uses any more goes now
        assert standin.bytes() == (1 << 20) + 1
    kept.close()


def test_h20_more_than_the_gpu_has_says_how_much_there_is(gpu):
    told = r"asked for 104,857,600 bytes, [\d,]+ of 268,435,456 are free"
    with gpu.allocate(200 << 20), pytest.raises(OutOfMemoryError, match=told):
        gpu.allocate(100 << 20)
    gpu.allocate(100 << 20).close()


@pytest.mark.parametrize("size", [memory.SLOT_BYTES - 1, memory.SLOT_BYTES, 3 * memory.SLOT_BYTES + 1, 9 << 20])
def test_h20_bytes_go_through_pinned_memory_whatever_their_size(gpu, size):
    """The stand-in refuses any other, and 9 MiB is more than a queue has of it."""
    data = os.urandom(size)
    with gpu.allocate(size) as buffer:
        gpu.queue.update(buffer, data)
        into = bytearray(size)
        gpu.queue.read(buffer, into).wait(LONG)
        assert into == data


def test_h17_many_small_transfers_in_flight_wait_for_pinned_memory(gpu):
    with gpu.allocate(4 * 500) as buffer:
        for number in range(500):
            gpu.queue.update(buffer, struct.pack("<I", number), 4 * number)
        got = [bytearray(4) for _ in range(500)]
        for number, into in enumerate(got):
            last = gpu.queue.read(buffer, into, 4 * number)
        last.wait(LONG)
        assert [int.from_bytes(into, "little") for into in got] == list(range(500))


def test_h27_closing_gives_everything_back(standin):
    device = remora.open("hip")
    kept = device.allocate(1000)
    device.allocate(2000).close()
    device.queues[1].fill(kept).wait(LONG)
    kept.write(bytes(1000), timeout=LONG)
    device.close()
    assert (standin.streams, standin.pinned) == (0, 0)
    kept.close()
    del kept
    assert standin.bytes() == 0


# -- failure ----------------------------------------------------------------------------------------------------------------------


def test_h05_a_kernel_that_faults_loses_the_gpu_on_every_queue(gpu, standin):
    kernels = gpu.load(VECTOR)
    fine = gpu.queue.dispatch(kernels["empty"], (1, 1, 1), [])
    fine.wait(LONG)
    standin.break_at_launch(700)
    standin.hold(True)
    failed = gpu.queue.dispatch(kernels["empty"], (1, 1, 1), [])
    behind = gpu.queue.barrier()
    standin.hold(False)
    for point in (failed, behind):
        with pytest.raises(DeviceLostError, match="the GPU is lost to this process"):
            point.wait(LONG)
    with pytest.raises(DeviceLostError):
        gpu.queues[1].barrier().wait(LONG)
    with pytest.raises(DeviceLostError):
        gpu.allocate(4)


def test_h05_a_gpu_that_stops_wakes_who_waits(gpu, standin):
    standin.hold(True)
    with gpu.allocate(4) as buffer:
        stuck = gpu.queue.fill(buffer)
        told = threading.Event()
        stuck.on_done(told.set)
        standin.break_with(719)
        with pytest.raises(DeviceLostError, match="719"):
            stuck.wait(LONG)
        assert told.wait(LONG)


def test_h17_late_memory_that_does_not_come_fails_its_queue(gpu):
    late, made = gpu.queue.allocate(200 << 20)
    made.wait(LONG)
    other, never = gpu.queue.allocate(200 << 20)
    with pytest.raises(OutOfMemoryError):
        never.wait(LONG)
    late.close()
    with pytest.raises((OutOfMemoryError, NotMadeError)):
        other.read(timeout=LONG)


# -- a server's process -----------------------------------------------------------------------------------------------------------


def test_d05_a_server_opens_it_in_its_sessions(standin, tmp_path):
    """The library is loaded after the fork; the parent never does."""
    with ServerProcess(device="hip", bind=f"unix://{tmp_path}/server") as server, remora.open(server.uri) as device:
        assert device.targets[-1] == GFX90A
        kernels, data = device.load(VECTOR), os.urandom(1 << 20)
        with device.allocate(1 << 20) as x, device.allocate(1 << 20) as out:
            x.write(data, timeout=LONG)
            assert bytes(x.read(timeout=LONG)) == data
            add = kernels["add_i32"]
            device.queue.dispatch(add, add.grid_for(1 << 18), [x, x, out], (1 << 18,))
            words = struct.unpack(f"<{1 << 18}I", data)
            assert out.read(timeout=LONG) == struct.pack(f"<{1 << 18}I", *((2 * word) % (1 << 32) for word in words))
