"""What remora costs on an NVIDIA GPU, beside plain cuda-bindings and plain sockets in the same run: `python tools/measure_cuda.py`.

Prints a table of medians. Needs a GPU, cuda-bindings and about 4 GiB of memory on both sides.
"""

import ctypes
import random
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter_ns

from cuda.bindings import driver

import remora
from remora import samples
from remora.bench.floors import RawEcho, RawMemory, RawStream
from remora.bench.processes import Companion
from remora.testing.server import ServerProcess

TRITON = Path(__file__).parents[1] / "tests/drivers/kernels/triton_matmul.rbundle"
ROUNDS, COPIES, RECORDED = 2000, 5, 1000
GIB = 1 << 30
#: Bytes of the smallest dispatch and of its answer on the wire.
MESSAGE, REPLY = 96, 24


def checked(function, *args):
    code, *values = function(*args)
    if code:
        raise RuntimeError(f"{function.__name__}: {code}")
    return values[0] if len(values) == 1 else values


def micros(call, rounds=ROUNDS):
    """The median of one call, in microseconds, after a tenth as many to warm up."""
    for _ in range(rounds // 10 + 1):
        call()
    times = []
    for _ in range(rounds):
        start = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - start)
    return median(times) / 1e3


def warm(run, seconds=0.5):
    """A GPU that had nothing to do runs slowly at first."""
    end = perf_counter_ns() + seconds * 1e9
    while perf_counter_ns() < end:
        run()


def row(name, value, unit, beside=""):
    print(f"{name:<58}{value:>10.2f} {unit:<6}{beside}", flush=True)
    return value


class Native:
    """The same work by the driver's own calls."""

    def __init__(self):
        checked(driver.cuInit, 0)
        device = checked(driver.cuDeviceGet, 0)
        checked(driver.cuCtxSetCurrent, checked(driver.cuDevicePrimaryCtxRetain, device))
        name = checked(driver.cuDeviceGetName, 128, device).partition(b"\0")[0].decode()
        print(f"{name}, CUDA {checked(driver.cuDriverGetVersion)}")
        targets = [target for target in samples.load("vector").targets if target.family == "cuda" and target.key.startswith("sm_")]
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        major = checked(driver.cuDeviceGetAttribute, attribute, device)
        artifact = samples.load("vector").artifact(next(target for target in targets if target.key == f"sm_{major}0"))
        self.module = checked(driver.cuModuleLoadData, bytes(artifact))
        self.empty = checked(driver.cuModuleGetFunction, self.module, b"empty")
        self.stream = checked(driver.cuStreamCreate, 1)

    def launch(self):
        driver.cuLaunchKernel(self.empty, 1, 1, 1, 1, 1, 1, 0, self.stream, 0, 0)

    def step(self):
        self.launch()
        driver.cuStreamSynchronize(self.stream)

    def graph(self):
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver.cuStreamBeginCapture, self.stream, mode)
        for _ in range(RECORDED):
            self.launch()
        graph = checked(driver.cuGraphInstantiate, checked(driver.cuStreamEndCapture, self.stream), 0)

        def run():
            driver.cuGraphLaunch(graph, self.stream)
            driver.cuStreamSynchronize(self.stream)

        return run

    def copy(self):
        """One GiB from pinned memory."""
        host = checked(driver.cuMemHostAlloc, GIB, 0)
        ctypes.memset(int(host), 1, GIB)
        there = checked(driver.cuMemAlloc, GIB)

        def run():
            driver.cuMemcpyHtoDAsync(there, host, GIB, self.stream)
            driver.cuStreamSynchronize(self.stream)

        gbps = GIB / micros(run, COPIES) / 1e3
        driver.cuMemFree(there)
        driver.cuMemFreeHost(host)
        return gbps


def measure_device(uri, native, native_us, echo_us=0.0):
    """Rows of remora on the device behind a URI."""
    scheme = uri.partition(":")[0]
    with remora.open(uri) as device:
        graph = native.graph()
        warm(graph)
        vector, queue = device.load(samples.load("vector")), device.queue
        empty, fill = vector["empty"], vector["fill_index"]
        floor = native_us + echo_us
        step = micros(lambda: queue.dispatch(empty, (1, 1, 1), ()).wait())
        row(f"{scheme}: dispatch + wait", step, "us", f"{step / floor:.2f}x of {floor:.1f} us, launch + sync and the raw echo")
        with device.allocate(1 << 20) as buffer:
            many = micros(lambda: queue.dispatch(fill, fill.grid_for(1 << 18), [buffer], (1 << 18, 0)).wait(), 500)
            row(f"{scheme}: fill_index, 262,144 elements + wait", many, "us")
        measure_recordings(device, scheme, empty, fill, graph)
        measure_products(device, scheme)


def measure_recordings(device, scheme, empty, fill, graph):
    """A recording beside the same native graph; one whose dispatches all take their memory from a table."""
    queue, commands = device.queue, device.command_buffer()
    for _ in range(RECORDED):
        commands.dispatch(empty, (1, 1, 1), ())
    commands.seal()
    warm(graph)
    recorded, graph_us = micros(lambda: queue.execute(commands).wait(), 200), micros(graph, 200)
    beside = f"{recorded / graph_us:.2f}x of {graph_us:.0f} us, a native CUDA graph in this process"
    row(f"{scheme}: a recording of {RECORDED} dispatches", recorded, "us", beside)
    with device.command_buffer(slots=1) as commands, device.allocate(4096) as x, device.allocate(4096) as y:
        for number in range(RECORDED):
            commands.dispatch(fill, (1, 1, 1), [remora.Slot(0)], (16, number))
        commands.seal()
        tables = [[x], [y]]
        row(f"{scheme}: as many with slots, the same table", micros(lambda: queue.execute(commands, tables[0]).wait(), 50), "us")

        def turn():
            tables.reverse()
            queue.execute(commands, tables[0]).wait()

        row(f"{scheme}: as many with slots, another table", micros(turn, 50), "us")


def numbers(size, item):
    """Random floats between 0.5 and 2: a GPU multiplies zeros faster."""
    data = bytearray(random.Random(item).randbytes(size))
    data[item - 1 :: item] = b"\x3f" * (size // item)
    return data


def measure_products(device, scheme):
    """Matrix products, submitted without a wait between: float32 in plain C, and bf16 on the matrix units by Triton."""
    queue = device.queue

    def rate(kernel, size, item, count, constants=()):
        buffers = [device.upload(numbers(item * size * size, item)) for _ in range(3)]

        def run():
            for _ in range(count):
                queue.dispatch(kernel, kernel.grid_for(size, size), buffers, constants)
            queue.wait_idle()

        teraflops = 2 * size**3 * count / micros(run, 10) / 1e6
        for buffer in buffers:
            buffer.close()
        return teraflops

    plain = device.load(samples.load("matmul"))["matmul"]
    row(f"{scheme}: products, float32, 512 x 512", rate(plain, 512, 4, 200), "TF/s")
    if "cuda:sm_90a" in map(str, device.targets):
        tritons = device.load(remora.Bundle.load(TRITON))["matmul"]
        row(f"{scheme}: products, bf16, 4096 x 4096", rate(tritons, 4096, 2, 50, (4096, 4096, 4096, 0, 0)), "TF/s")


def measure_copies(uri, floors):
    scheme = uri.partition(":")[0]
    data = bytearray(GIB)
    with remora.open(uri) as device, device.allocate(GIB) as buffer:
        up = GIB / micros(lambda: buffer.write(data), COPIES) / 1e3
        down = GIB / micros(lambda: buffer.read_into(data), COPIES) / 1e3
    beside = ", ".join(f"{up / value:.2f}x of {name} {value:.1f}" for name, value in floors.items())
    row(f"{scheme}: upload of 1 GiB", up, "GB/s", beside)
    row(f"{scheme}: download of 1 GiB", down, "GB/s")


def binds_in(folder):
    return ["tcp://127.0.0.1:0", f"shm://{Path(folder)}/s", f"unix://{Path(folder)}/u"]


def stream_gbps(raw):
    value = GIB / micros(raw.upload, COPIES) / 1e3
    raw.close()
    return value


def main():
    native = Native()
    warm(native.step)
    native_us = row("native: launch + sync", micros(native.step), "us")
    with tempfile.TemporaryDirectory() as folder, Companion("floor", folder) as floor:
        addresses = {each.partition(":")[0]: each for each in floor.ready.split()}
        echo = {scheme: micros(RawEcho(addresses[scheme], MESSAGE, REPLY).round_trip) for scheme in ("tcp", "unix")}
        for scheme, value in echo.items():
            row(f"raw echo, {scheme}", value, "us")
        measure_device("cuda://0", native, native_us)
        with ServerProcess(device="cuda", bind=binds_in(folder)) as server:
            for uri in server.uris:
                measure_device(uri, native, native_us, echo["tcp" if "tcp" in uri.partition(":")[0] else "unix"])
        pinned = row("native: 1 GiB from pinned memory", native.copy(), "GB/s")
        tcp = row("raw stream of 1 GiB, tcp", stream_gbps(RawStream(addresses["tcp"], GIB)), "GB/s")
        memcpy = row("memcpy of 1 GiB into shared memory", stream_gbps(RawMemory(addresses["shm"], GIB)), "GB/s")
        measure_copies("cuda://0", {"pinned": pinned})
        with ServerProcess(device="cuda", bind=binds_in(folder)) as server:
            for uri in server.uris:
                beside = {"the raw stream": tcp} if "tcp" in uri.partition(":")[0] else {"pinned": pinned, "memcpy": memcpy}
                measure_copies(uri, beside)


if __name__ == "__main__":
    main()
