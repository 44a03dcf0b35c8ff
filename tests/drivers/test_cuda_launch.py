"""D04, D11, H19: cubins and PTX with launch attributes, and code that a GPU does not take, on a GPU here and behind a server.

`kernels/launch.py` and `kernels/triton_scale.py` say how the bundles were made.
"""

import re
import threading
from array import array
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cuda_device import RETRY, need_cuda

import remora
from remora import Bundle, GridRule, KernelVariant
from remora.errors import NotFoundError, UsageError
from remora.hal.target import Target
from remora.testing.server import ServerProcess

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(300)]
KERNELS = Path(__file__).parent / "kernels"
LAUNCH = Bundle.load(KERNELS / "launch.rbundle")
INFO = {kernel.name: kernel for kernel in LAUNCH.kernels}
CUBIN, PTX = (LAUNCH.artifact(Target("cuda", key)) for key in ("sm_90", "ptx8.0"))
LONG = 30.0
N = 100_003
#: More than any GPU gives a workgroup.
HUGE = 1 << 20


@contextmanager
def opened(place):
    need_cuda()
    if place == "cuda":
        with remora.open("cuda", retry=RETRY) as device:
            yield device
    else:
        with ServerProcess(device="cuda", bind="tcp://127.0.0.1:0") as server, remora.open(server.uri, retry=RETRY) as device:
            yield device


@pytest.fixture(scope="module", params=["cuda", "tcp"])
def gpu(request):
    """A GPU here, and one behind a server."""
    with opened(request.param) as device:
        yield device


@pytest.fixture(scope="module")
def local():
    """A GPU here."""
    with opened("cuda") as device:
        yield device


def bundle_of(*kernels, key="sm_90", code=None):
    return Bundle.from_parts("one", kernels, {f"cuda:{key}": code or {"sm_90": CUBIN, "ptx8.0": PTX}[key]})


def turned(words, size):
    """What the kernel `turn` makes of words, with tiles of `size` words."""
    tiles = [words[first : first + size] for first in range(0, len(words), size)]
    return [word for tile in tiles for word in (tile + [0] * (size - len(tile)))[::-1][: len(tile)]]


def run_turn(device, kernel):
    """Run it, and compare."""
    words = list(range(1, N + 1))
    x, out = device.upload(array("I", words)), device.allocate(4 * N)
    device.queue.dispatch(kernel, kernel.grid_for(N), [x, out], (N,))
    assert out.read(timeout=LONG).cast("I").tolist() == turned(words, kernel.info.shared_bytes // 4)


def told_ranks(out, grid):
    """(workgroups of the cluster, rank, number of the cluster in x, neighbour) by workgroup."""
    x, y, z = grid
    words = out.read(0, 16 * x * y * z, timeout=LONG).cast("I").tolist()
    return [tuple(words[4 * block : 4 * block + 4]) for block in range(x * y * z)]


def expected_ranks(grid, cluster):
    """The same, computed."""
    (x, y, z), (cx, cy, cz) = grid, cluster
    size, expected = cx * cy * cz, []
    for block in range(x * y * z):
        at = block % x, block // x % y, block // (x * y)
        rank = at[0] % cx + cx * (at[1] % cy + cy * (at[2] % cz))
        other = (rank + 1) % size
        begin = [place - place % side for place, side in zip(at, cluster, strict=True)]
        place = begin[0] + other % cx, begin[1] + other // cx % cy, begin[2] + other // (cx * cy)
        expected.append((size, rank, at[0] // cx, (place[2] * y + place[1]) * x + place[0]))
    return expected


# -- dynamic shared memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["turn", "turn_beside", "turn_small"])
@pytest.mark.parametrize("key", ["sm_90", "ptx8.0"])
def test_d04_a_kernel_gets_its_dynamic_shared_memory(gpu, key, name):
    run_turn(gpu, gpu.load(Bundle.from_parts("one", LAUNCH.info, {f"cuda:{key}": LAUNCH.artifact(Target("cuda", key))}))[name])


def test_d04_a_variant_gets_its_own(gpu):
    bundle = Bundle.from_parts(
        "one",
        [replace(INFO["turn"], shared_bytes=HUGE)],
        {"cuda:sm_90": CUBIN, "cuda:sm_10": CUBIN},
        variants={"cuda:sm_90": {"turn": KernelVariant(shared_bytes=4096, grid=GridRule((1024, 1, 1)))}},
    )
    run_turn(gpu, gpu.load(bundle)["turn"])


def test_d04_too_much_shared_memory_is_refused_with_what_there_is(gpu):
    """What is left for `turn_beside` is 4 KiB less, and all of it can be used."""
    most = {}
    for name in ("turn", "turn_beside"):
        with pytest.raises(UsageError, match=rf"{name} asks for {HUGE} bytes of dynamic shared memory.*a workgroup (\d+)") as told:
            gpu.load(bundle_of(replace(INFO[name], shared_bytes=HUGE)))
        most[name] = int(re.search(r"a workgroup (\d+)", str(told.value))[1])
    assert "beside 4096 that the code declares" in str(told.value)
    assert most["turn"] - 4096 == most["turn_beside"]
    for name, size in most.items():
        whole = replace(INFO[name], shared_bytes=size, grid=GridRule((size // 4, 1, 1)))
        run_turn(gpu, gpu.load(bundle_of(whole))[name])
        with pytest.raises(UsageError, match=f"asks for {size + 1} bytes"):
            gpu.load(bundle_of(replace(whole, shared_bytes=size + 1)))


# -- clusters ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("ranks_2x1x1", (6, 1, 1)),
        ("ranks_2x1x1", (4, 3, 2)),
        ("ranks_4x1x1", (8, 2, 1)),
        ("ranks_2x2x1", (4, 6, 1)),
        ("pairs", (10, 1, 1)),
        ("pairs", (0, 1, 1)),
    ],
)
@pytest.mark.parametrize("key", ["sm_90", "ptx8.0"])
def test_d04_workgroups_run_in_clusters(gpu, key, name, grid):
    kernel = gpu.load(bundle_of(INFO[name], key=key))[name]
    out = gpu.allocate(16 * 64)
    gpu.queue.dispatch(kernel, grid, [out])
    assert told_ranks(out, grid) == expected_ranks(grid, kernel.info.cluster)


def test_d04_sixteen_workgroups_are_a_cluster_where_the_gpu_has_room(gpu):
    try:
        kernel = gpu.load(bundle_of(replace(INFO["ranks_2x1x1"], name="ranks", cluster=(16, 1, 1))))["ranks"]
    except UsageError as error:
        assert "no room for one" in str(error)
        pytest.skip(str(error))
    out = gpu.allocate(16 * 32)
    gpu.queue.dispatch(kernel, (32, 1, 1), [out])
    assert told_ranks(out, (32, 1, 1)) == expected_ranks((32, 1, 1), (16, 1, 1))


def test_d04_a_grid_that_is_no_multiple_of_the_cluster_is_refused(gpu):
    kernels = gpu.load(LAUNCH)
    four, square = kernels["ranks_4x1x1"], kernels["ranks_2x2x1"]
    assert (four.grid_for(5), square.grid_for(3, 3)) == ((8, 1, 1), (4, 4, 1))
    out = gpu.allocate(16 * 64)
    with pytest.raises(UsageError, match=r"in clusters of \(4, 1, 1\) workgroups; the grid \(6, 1, 1\) is no multiple"):
        gpu.queue.dispatch(four, (6, 1, 1), [out])
    with pytest.raises(UsageError, match=r"in clusters of \(2, 2, 1\) workgroups; the grid \(2, 1, 1\) is no multiple"):
        gpu.queue.dispatch(square, (2, 1, 1), [out])
    gpu.queue.dispatch(four, (4, 1, 1), [out])
    assert told_ranks(out, (4, 1, 1)) == expected_ranks((4, 1, 1), (4, 1, 1))


def test_d04_the_grid_of_an_indirect_dispatch_is_checked_at_its_turn(gpu):
    four, out = gpu.load(LAUNCH)["ranks_4x1x1"], gpu.allocate(16 * 8)
    gpu.queue.dispatch_indirect(four, gpu.upload(array("I", [8, 1, 1])), [out])
    assert told_ranks(out, (8, 1, 1)) == expected_ranks((8, 1, 1), (4, 1, 1))
    with pytest.raises(UsageError, match=r"the grid \(6, 1, 1\) is no multiple"):
        gpu.queues[-1].dispatch_indirect(four, gpu.upload(array("I", [6, 1, 1])), [out]).wait(timeout=LONG)


def test_d04_code_that_was_compiled_for_other_clusters_is_refused(gpu):
    for cluster in ((1, 1, 1), (4, 1, 1)):
        with pytest.raises(
            UsageError, match=rf"pairs was compiled for clusters of \(2, 1, 1\), its manifest says \({cluster[0]}, 1, 1\)"
        ):
            gpu.load(bundle_of(replace(INFO["pairs"], cluster=cluster)))


def test_d04_several_queues_launch_one_kernel_with_clusters_at_a_time(local):
    """Each over a grid of its own."""
    kernel, wrong = local.load(LAUNCH)["ranks_2x1x1"], []

    def work(number, queue):
        grid, out = (2 * number + 2, 1, 1), local.allocate(16 * 64)
        for _ in range(200):
            queue.fill(out, b"\xff")
            queue.dispatch(kernel, grid, [out]).wait(timeout=LONG)
            words = out.read(timeout=LONG).cast("I").tolist()
            if told_ranks(out, grid) != expected_ranks(grid, (2, 1, 1)) or words[4 * grid[0]] != 0xFFFFFFFF:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=each) for each in enumerate(local.queues)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- recordings -------------------------------------------------------------------------------------------------------------------


def test_d04_a_recording_keeps_launch_attributes(gpu):
    kernels = gpu.load(LAUNCH)
    words = list(range(1, N + 1))
    x, out, ranks = gpu.upload(array("I", words)), gpu.allocate(4 * N), gpu.allocate(16 * 8)
    with gpu.command_buffer() as commands:
        commands.dispatch(kernels["turn"], kernels["turn"].grid_for(N), [x, out], (N,))
        commands.barrier()
        commands.dispatch(kernels["turn_small"], kernels["turn_small"].grid_for(N), [out, x], (N,))
        commands.dispatch(kernels["ranks_4x1x1"], (8, 1, 1), [ranks])
        commands.seal()
        for _ in range(2):
            gpu.queue.execute(commands)
            words = turned(turned(words, 25600), 256)
            assert x.read(timeout=LONG).cast("I").tolist() == words
            assert told_ranks(ranks, (8, 1, 1)) == expected_ranks((8, 1, 1), (4, 1, 1))


def test_d04_such_a_recording_is_a_graph(local):
    kernels, ranks = local.load(LAUNCH), local.allocate(16 * 8)
    with local.command_buffer() as commands:
        commands.dispatch(kernels["pairs"], (8, 1, 1), [ranks])
        with pytest.raises(UsageError, match="no multiple"):
            commands.dispatch(kernels["pairs"], (7, 1, 1), [ranks])
        commands.seal()
        assert commands.prepared._graph is not None
        local.queue.execute(commands)
        assert told_ranks(ranks, (8, 1, 1)) == expected_ranks((8, 1, 1), (2, 1, 1))


def test_d04_a_node_that_is_set_anew_keeps_launch_attributes(local):
    """Other memory, another grid: the shared memory and the clusters stay."""
    kernels, words = local.load(LAUNCH), list(range(1, N + 1))
    x, y, z = local.upload(array("I", words)), local.allocate(4 * N), local.allocate(4 * N)
    first, second = local.allocate(16 * 8), local.allocate(16 * 8)
    with local.command_buffer(slots=2) as commands:
        commands.dispatch(kernels["turn"], kernels["turn"].grid_for(N), [x, remora.Slot(0)], (N,))
        ranks = commands.dispatch(kernels["ranks_4x1x1"], (8, 1, 1), [remora.Slot(1)])
        commands.seal()
        for out, told in ((y, first), (z, second), (y, first)):
            local.queue.fill(out, b"\0")
            local.queue.execute(commands, [out, told])
            assert out.read(timeout=LONG).cast("I").tolist() == turned(words, 25600)
            assert told_ranks(told, (8, 1, 1)) == expected_ranks((8, 1, 1), (4, 1, 1))
        local.queue.fill(first, b"\0")
        local.queue.execute(commands, [y, first], patches={ranks: remora.Patch(grid=(4, 1, 1))})
        assert told_ranks(first, (4, 1, 1)) == expected_ranks((4, 1, 1), (4, 1, 1))
        assert not any(first.read(16 * 4, timeout=LONG))


# -- Triton -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["triton_scale", "triton_scale_pairs"])
def test_d04_a_cubin_of_tritons(gpu, name):
    """With the two addresses of scratch memory that Triton adds, which are 0; in pairs each block is two workgroups' work."""
    kernel, n = gpu.load(Bundle.load(KERNELS / f"{name}.rbundle"))["scale"], 5000
    values = [float(index % 7) for index in range(n)]
    x, out = gpu.upload(array("f", values)), gpu.allocate(4 * n)
    gpu.queue.dispatch(kernel, kernel.grid_for(n), [x, out], (n, 2.0, 0, 0))
    sums = [sum(values[first : first + 1024]) for first in range(0, n, 1024)]
    assert out.read(timeout=LONG).cast("f").tolist() == [value + 2.0 * sums[at // 1024] for at, value in enumerate(values)]


def test_d04_a_matrix_product_of_tritons(gpu):
    """On the matrix units, with 144 KiB of shared memory. Small whole numbers: their sums are exact in bf16."""
    kernel, size = gpu.load(Bundle.load(KERNELS / "triton_matmul.rbundle"))["matmul"], 512
    a = gpu.upload(bf16((row + column) % 3 == 0 for row in range(size) for column in range(size)))
    b = gpu.upload(bf16(row == (5 * column) % size for row in range(size) for column in range(size)))
    c = gpu.allocate(2 * size * size)
    gpu.queue.dispatch(kernel, kernel.grid_for(size, size), [a, b, c], (size, size, size, 0, 0))
    expected = bf16((row + 5 * column % size) % 3 == 0 for row in range(size) for column in range(size))
    assert c.read(timeout=LONG).cast("H") == expected


def bf16(truths):
    """1.0 or 0.0 each: the upper half of a float's bits."""
    return array("H", (0x3F80 if truth else 0 for truth in truths))


# -- code that the GPU does not take ----------------------------------------------------------------------------------------------


def test_h19_ptx_that_is_newer_than_the_driver_does_not_fit(gpu):
    """No driver of this CUDA generation lists PTX 9.9: nothing is sent."""
    if Target("cuda", "ptx9.9") in gpu.targets:
        pytest.skip("this driver takes PTX 9.9")
    newer = re.sub(rb"^\.version 8\.0$", b".version 9.9", PTX, count=1, flags=re.MULTILINE)
    with pytest.raises(NotFoundError, match=r"it takes cuda:sm_.*cuda:ptx8\.0.*; the bundle has cuda:ptx9\.9"):
        gpu.load(bundle_of(INFO["turn"], key="ptx9.9", code=newer))


def test_h19_ptx_that_says_it_is_newer_than_its_manifest_says_is_refused(gpu):
    newer = re.sub(rb"^\.version 8\.0$", b".version 9.9", PTX, count=1, flags=re.MULTILINE)
    assert newer != PTX
    with pytest.raises(UsageError, match="its PTX is newer than the driver: build it as an older PTX, or as machine code"):
        gpu.load(bundle_of(INFO["turn"], key="ptx8.0", code=newer))


def test_h19_code_for_another_gpu_alone_does_not_fit(gpu):
    if Target("cuda", "sm_100") in gpu.targets:
        pytest.skip("this GPU takes sm_100")
    with pytest.raises(
        NotFoundError, match=r"no artifact fits the device: it takes cuda:sm_.*; the bundle has cuda:sm_100\. Build"
    ):
        gpu.load(bundle_of(INFO["turn"], key="sm_100", code=CUBIN))
