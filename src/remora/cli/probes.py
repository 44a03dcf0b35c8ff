"""The probes of `remora doctor`. Each runs in a process of its own, since loading a vendor's library may crash or hang.

`python -m remora.cli.probes NAME` prints the findings of one probe as JSON, as the last thing it does.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from remora.base.compiled import is_compiled
from remora.cli.finding import Finding, as_json
from remora.cli.show import amount

__all__ = ["names", "run"]

#: Package -> (what it is for, extra or package to install).
PACKAGES = {
    "numpy": ("demo, bench", "numpy"),
    "ml_dtypes": ("bf16 and fp8 arrays", "ml_dtypes"),
    "pyopencl": ("the opencl driver", "pyopencl"),
    "cuda-bindings": ("the cuda driver", "cuda-bindings"),
    "ziglang": ("remora build, every processor", "ziglang"),
    "iree-base-compiler": ("remora build --iree", "iree-base-compiler"),
    "pytest": ("the conformance suites", "'remora[cts]'"),
}
#: Program -> (what it is for, command that installs it).
PROGRAMS = {
    "cc": ("remora build, this processor", "apt-get install gcc libc6-dev"),
    "clang": ("checks OpenCL C", "apt-get install clang"),
    "ld.lld": ("links code for HIP", "apt-get install lld"),
    "nvcc": ("CUDA kernels", "install the CUDA toolkit 12 or 13"),
    "iree-compile": ("remora build --iree", "pip install iree-base-compiler"),
}
#: Library -> (what it is for, command that installs it).
LIBRARIES = {
    "libOpenCL.so.1": ("OpenCL loader", "apt-get install ocl-icd-libopencl1 pocl-opencl-icd"),
    "libvulkan.so.1": ("Vulkan loader", "apt-get install libvulkan1 mesa-vulkan-drivers"),
    "libcuda.so.1": ("NVIDIA driver", "install NVIDIA's driver; nothing to do without such a GPU"),
    "libamdhip64.so": ("HIP runtime", "install AMD's hip-runtime-amd; nothing to do without such a GPU"),
    "libibverbs.so.1": ("RDMA verbs", "apt-get install libibverbs1 ibverbs-providers"),
    "librdmacm.so.1": ("RDMA connections", "apt-get install librdmacm1"),
}
#: Library -> other names under which it may be installed.
OTHER_NAMES = {"libamdhip64.so": ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "/opt/rocm/lib/libamdhip64.so")}
#: What makes a driver's device appear, where its own error does not say it.
DEVICE_NODES = {"nvidia": "/dev/nvidia*", "amd": "/dev/kfd", "gpu": "/dev/dri/renderD*", "rdma": "/dev/infiniband/uverbs*"}
#: Targets of a device that are named.
SHOWN = 4
LEAST_FILES = 4096
LEAST_LOCKED = 64 << 20
LEAST_SHARED = 1 << 30
LEAST_SOCKET = 4 << 20


def system() -> Iterator[Finding]:
    """This machine and this Python."""
    kind = "compiled" if is_compiled() else "not compiled"
    told = f"{metadata.version('remora')}, {kind}, Python {platform.python_version()}, {sys.executable}"
    yield Finding("system", "remora", "fact", told)
    told = f"{platform.system()} {platform.release()} on {platform.machine()}, {len(os.sched_getaffinity(0))} cores usable"
    fits = sys.platform == "linux" and platform.machine() in {"x86_64", "aarch64"}
    mend = "" if fits else "open devices of a Linux host: remote-tcp://host:port"
    yield Finding("system", "platform", "ok" if fits else "limit", told, mend)


def packages() -> Iterator[Finding]:
    """Optional Python packages."""
    for name, (purpose, extra) in PACKAGES.items():
        try:
            yield Finding("packages", name, "ok", f"{metadata.version(name)} ({purpose})")
        except metadata.PackageNotFoundError:
            yield Finding("packages", name, "absent", purpose, f"pip install {extra}")


def programs() -> Iterator[Finding]:
    """Compilers, for `remora build`."""
    for name, (purpose, mend) in PROGRAMS.items():
        found = shutil.which(name)
        yield Finding(
            "compilers", name, "ok" if found else "absent", f"{found or 'not on PATH'} ({purpose})", "" if found else mend
        )


def library(name: str) -> Iterator[Finding]:
    """One vendor library: does the loader take it?"""
    purpose, mend = LIBRARIES[name]
    errors = []
    for each in (name, *OTHER_NAMES.get(name, ())):
        try:
            ctypes.CDLL(each)
        except OSError as error:
            absent = "cannot open shared object file" in str(error) and str(error).startswith(each)
            errors += [] if absent else [error]
        else:
            yield Finding("libraries", name, "ok", f"{purpose}: loads")
            return
    told = f"{purpose}: does not load: {errors[0]}" if errors else f"{purpose}: not installed"
    yield Finding("libraries", name, "broken" if errors else "absent", told, mend)


def schemes() -> list[str]:
    """Every driver of this installation, the entry points of other packages included."""
    from remora.hal.registry import DRIVERS, ENTRY_POINTS

    return list(dict.fromkeys([*DRIVERS, *(entry.name for entry in metadata.entry_points(group=ENTRY_POINTS))]))


def driver(scheme: str) -> Iterator[Finding]:
    """One driver: its devices, or why there are none."""
    import remora
    from remora.errors import Error

    try:
        with remora.connect(scheme) as host:
            for number, device in enumerate(host.devices):
                memory = amount(sum(heap.size for heap in device.info.heaps), "B")
                first = [
                    *map(str, device.targets[:SHOWN]),
                    *([f"and {more} others"] if (more := len(device.targets) - SHOWN) > 0 else []),
                ]
                told = f"{device.name}, {memory}, {' '.join(first) or 'no targets'}"
                yield Finding("drivers", f"{scheme}:{number}" if number else scheme, "ok", told)
    except (Error, ImportError) as error:
        yield Finding("drivers", scheme, "absent", str(error), f"remora check {scheme}   # after mending, to see that it computes")


def nodes() -> Iterator[Finding]:
    """Device files of accelerators, and whether this user may open them."""
    for name, pattern in DEVICE_NODES.items():
        found = sorted(Path("/dev").glob(pattern.removeprefix("/dev/")))
        closed = [str(path) for path in found if path.is_char_device() and not os.access(path, os.R_OK | os.W_OK)]
        if not found:
            yield Finding("devices", name, "absent", f"no {pattern}")
        elif closed:
            told = f"this user may not open {', '.join(closed)}"
            yield Finding("devices", name, "broken", told, f"usermod -aG $(stat -c %G {closed[0]}) $USER   # then log in again")
        else:
            yield Finding("devices", name, "ok", ", ".join(map(str, found)))


def limits() -> Iterator[Finding]:
    """What the system grants a process."""
    yield limit(
        "open files",
        resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        LEAST_FILES,
        "",
        "ulimit -Hn 65536   # as root, or LimitNOFILE=",
    )
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    mend = (
        "ulimit -l unlimited   # or 'memlock' in /etc/security/limits.d, or LimitMEMLOCK=infinity: RDMA and pinned memory need it"
    )
    yield limit("locked memory", locked, LEAST_LOCKED, "B", mend)
    shm = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None
    size = shm.f_blocks * shm.f_frsize if shm else 0
    yield limit("/dev/shm", size, LEAST_SHARED, "B", "mount -o remount,size=4G /dev/shm   # docker run --shm-size=4g")
    for name in ("rmem_max", "wmem_max"):
        value = read_number(f"/proc/sys/net/core/{name}")
        yield limit(f"net.core.{name}", value, LEAST_SOCKET, "B", f"sysctl -w net.core.{name}=16777216   # for long links")
    yield huge_pages()


def limit(name: str, value: int, least: int, unit: str, mend: str) -> Finding:
    """One limit against what is enough; -1 is none."""
    told = "unlimited" if value in {-1, resource.RLIM_INFINITY} else amount(value, unit).strip()
    enough = value in {-1, resource.RLIM_INFINITY} or value >= least
    return Finding("limits", name, "ok" if enough else "limit", told, "" if enough else mend)


def read_number(path: str) -> int:
    """A number of the kernel's; -1 when it does not tell."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return -1


def huge_pages() -> Finding:
    """Whether memory files, which buffers of the cpu driver are, get huge pages."""
    place = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    try:
        text = place.read_text().strip()
    except OSError:
        return Finding(
            "limits", "huge pages", "limit", "this kernel has none for memory files", "a kernel with transparent huge pages"
        )
    chosen = next((word.strip("[]") for word in text.split() if word.startswith("[")), text)
    good = chosen in {"advise", "always", "within_size", "force"}
    mend = "" if good else f"echo advise > {place}   # as root: large buffers are touched faster"
    return Finding("limits", "huge pages", "ok" if good else "limit", f"for memory files: {chosen}", mend)


def rdma() -> Iterator[Finding]:
    """RDMA devices and the state of their ports."""
    devices = sorted(Path("/sys/class/infiniband").glob("*")) if Path("/sys/class/infiniband").is_dir() else []
    if not devices:
        mend = "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0   # RDMA over ethernet in software"
        yield Finding("rdma", "devices", "absent", "the kernel has none", mend)
    for device in devices:
        for port in sorted(device.glob("ports/*")):
            state = (port / "state").read_text().strip()
            active = "ACTIVE" in state
            mend = "" if active else f"rdma link show {device.name}/{port.name}   # is the cable in, the link up?"
            yield Finding("rdma", f"{device.name}/{port.name}", "ok" if active else "limit", state, mend)


#: Probe -> what it does. Those of drivers and libraries take a name behind a colon.
PROBES: dict[str, Callable[[], Iterator[Finding]]] = {
    "system": system,
    "packages": packages,
    "compilers": programs,
    "devices": nodes,
    "limits": limits,
    "rdma": rdma,
}


def names() -> list[str]:
    """All probes, in the order of the report."""
    first, *others = PROBES
    loaded = [f"driver:{scheme}" for scheme in schemes()] + [f"library:{name}" for name in LIBRARIES]
    return [first, *loaded, *others]


def run(name: str) -> list[Finding]:
    """The findings of one probe, in this process."""
    kind, _, which = name.partition(":")
    found = driver(which) if kind == "driver" else library(which) if kind == "library" else PROBES[kind]()
    return list(found)


def main() -> None:
    """One probe, its findings on the standard output that this process was started with; what libraries print goes elsewhere."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        json.dump([as_json(finding) for finding in run(sys.argv[1])], answer)


if __name__ == "__main__":
    main()
