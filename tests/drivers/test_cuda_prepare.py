"""D04: what the cuda driver tells a function before its first launch, and what it refuses. A table stands for the GPU's answers."""

from types import SimpleNamespace

import pytest

from remora.errors import UnsupportedError, UsageError

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed: pip install 'remora[cuda]'")

from remora.drivers.cuda import launch

KIB = 1024


def program_of(shared_bytes=0, cluster=None, workgroup=(128, 1, 1)):
    return SimpleNamespace(name="k", function=object(), shared_bytes=shared_bytes, cluster=cluster, workgroup=workgroup)


@pytest.fixture
def gpu(monkeypatch):
    """An H200's answers, about a function that declares nothing; what it is told is collected in `told`."""
    gpu = SimpleNamespace(told={}, clusters=66)
    gpu.device = {"MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 * KIB, "CLUSTER_LAUNCH": 1}
    gpu.function = {"MAX_DYNAMIC_SHARED_SIZE_BYTES": 48 * KIB}
    monkeypatch.setattr(launch, "attribute", lambda device, name: gpu.device[name])
    monkeypatch.setattr(launch, "told", lambda function, name: gpu.function.get(name, 0))
    monkeypatch.setattr(launch, "tell", lambda function, name, value: gpu.told.update({name: value}))
    monkeypatch.setattr(launch, "call", lambda function, *args: gpu.clusters)
    return gpu


@pytest.mark.parametrize(("size", "told"), [(0, {}), (48 * KIB, {}), (100 * KIB, {"MAX_DYNAMIC_SHARED_SIZE_BYTES": 100 * KIB})])
def test_d04_a_function_is_told_of_more_shared_memory_than_is_usual(gpu, size, told):
    launch.prepare(None, program_of(size))
    assert gpu.told == told


def test_d04_a_function_that_has_more_keeps_it(gpu):
    gpu.function["MAX_DYNAMIC_SHARED_SIZE_BYTES"] = 100 * KIB
    launch.prepare(None, program_of(64 * KIB))
    assert gpu.told == {}


@pytest.mark.parametrize(("static", "said"), [(0, "a workgroup 232448: build"), (KIB, "a workgroup 231424, beside 1024 that the")])
def test_d04_more_shared_memory_than_there_is_is_refused_with_both_numbers(gpu, static, said):
    gpu.function["SHARED_SIZE_BYTES"] = static
    launch.prepare(None, program_of(227 * KIB - static))
    with pytest.raises(UsageError, match=rf"k asks for {227 * KIB - static + 1} bytes of dynamic.*{said}"):
        launch.prepare(None, program_of(227 * KIB - static + 1))


@pytest.mark.parametrize(("cluster", "told"), [((4, 2, 1), {}), ((16, 1, 1), {"NON_PORTABLE_CLUSTER_SIZE_ALLOWED": 1})])
def test_d04_a_function_is_told_of_more_workgroups_than_every_gpu_runs(gpu, cluster, told):
    launch.prepare(None, program_of(cluster=cluster))
    assert gpu.told == told


def test_d04_a_gpu_without_clusters_refuses_them(gpu):
    gpu.device["CLUSTER_LAUNCH"] = 0
    with pytest.raises(UnsupportedError, match=r"k runs in clusters of \(2, 1, 1\) workgroups, which this GPU does not have"):
        launch.prepare(None, program_of(cluster=(2, 1, 1)))
    launch.prepare(None, program_of())


def test_d04_a_cluster_without_room_is_refused(gpu):
    gpu.clusters = 0
    with pytest.raises(UsageError, match=r"clusters of \(16, 1, 1\) workgroups of 128 items and 204800 bytes.*no room for one"):
        launch.prepare(None, program_of(200 * KIB, (16, 1, 1)))


@pytest.mark.parametrize("cluster", [None, (2, 1, 1), (4, 2, 1)])
def test_d04_the_clusters_of_the_code_are_the_manifests(gpu, cluster):
    gpu.function |= {"REQUIRED_CLUSTER_WIDTH": 4, "CLUSTER_SIZE_MUST_BE_SET": 1}
    with pytest.raises(UsageError, match=r"compiled for clusters of \(4, 1, 1\), its manifest says \(.*build the bundle again"):
        launch.prepare(None, program_of(cluster=cluster))
    launch.prepare(None, program_of(cluster=(4, 1, 1)))


def test_d04_code_that_needs_clusters_has_some_in_its_manifest(gpu):
    gpu.function["CLUSTER_SIZE_MUST_BE_SET"] = 1
    with pytest.raises(UsageError, match="k was compiled to run in clusters, its manifest gives none"):
        launch.prepare(None, program_of())
    launch.prepare(None, program_of(cluster=(2, 1, 1)))


def test_d04_a_launch_in_clusters_has_all_of_it():
    config = launch.cluster_config(program_of(1000, workgroup=(64, 2, 1)), (2, 4, 1))
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (2, 4, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes) == (64, 2, 1, 1000)
    (attribute,) = config.attrs
    place = attribute.value.clusterDim
    assert (config.numAttrs, attribute.id.name) == (1, "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")
    assert (place.x, place.y, place.z) == (2, 4, 1)
