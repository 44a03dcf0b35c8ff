"""The conformance suites as a stranger runs them (D10, H30): one pytest command, from any folder, against any device or carrier."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from remora import samples
from remora.testing.server import ServerProcess

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SAMPLES = Path(samples.__file__).parent
#: Each test starts a pytest of its own, which a loaded machine makes slow.
pytestmark = pytest.mark.timeout(240)
ENTRY_POINTS = """
[remora.drivers]
faulty = faulty
bare = faulty
[remora.carriers]
faulty = faulty
"""


@pytest.fixture
def suite(tmp_path):
    """suite(*args) -> the finished pytest, run in an empty folder with the stranger's package installed."""
    site = tmp_path / "site"
    info = site / "faulty-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (site / "faulty.py").symlink_to(HERE / "strangers/faulty.py")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "COV"))}
    environment["CI"] = "1"  # pytest shortens nothing then

    def run(*args, path=(), what=("--pyargs", "remora.testing.cts")):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *what, *args]
        environment["PYTHONPATH"] = os.pathsep.join([*map(str, path), str(site)])
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False)

    return run


def counts(done):
    """{"passed": 7, ...} of the last line."""
    last = done.stdout.strip().splitlines()[-1]
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last.partition(" in ")[0])}


SOME = ("-k", "TestFill or TestDispatch or TestFacts or TestFailedKernels")


def test_d10_the_cpu_device_is_named_and_passes(suite):
    done = suite("--remora-device=cpu", *SOME)
    assert done.returncode == 0, done.stdout
    assert re.search(r"remora: HAL suite against cpu: .*driver cpu.*targets: cpu:.*memory: host .*queues: \d", done.stdout)
    assert counts(done).keys() == {"passed", "deselected"}
    assert counts(done)["passed"] > 30


def test_d10_a_server_in_another_process_passes(suite):
    with ServerProcess() as server:
        done = suite(f"--remora-device={server.uri}", *SOME)
        sessions = server.log.count("session")
    assert done.returncode == 0, done.stdout
    assert server.uri in done.stdout
    assert counts(done)["passed"] > 30
    assert sessions >= counts(done)["passed"]


def test_d10_what_the_null_driver_cannot_prove_is_listed_with_its_reason(suite):
    done = suite("--remora-device=null", *SOME)
    assert done.returncode == 0, done.stdout
    assert counts(done)["passed"] > 20
    assert re.search(
        r"= not proved =[\s\S]* \d+ skipped: this device's kernels do not compute \(HalFactory\.executes\)", done.stdout
    )
    listed = sum(map(int, re.findall(r"^ *(\d+) skipped: ", done.stdout, re.MULTILINE)))
    assert listed == counts(done)["skipped"]


def test_d10_a_device_that_takes_no_code_and_has_one_queue_proves_the_rest(suite):
    done = suite("--remora-device=bare://", "-k", "TestFacts or TestLoading or TestOrder or TestFill")
    assert done.returncode == 0, done.stdout
    assert "targets: none" in done.stdout
    assert re.search(r"skipped: there is no code that this device takes \(HalFactory\.vector\)", done.stdout)
    assert "skipped: this device has one queue" in done.stdout
    assert counts(done)["passed"] > 20


@pytest.mark.parametrize(("defect", "found"), [("fill", "TestFill"), ("wait", "TestDependencies"), ("leak", "TestStatistics")])
def test_d10_a_driver_with_a_defect_fails(suite, defect, found):
    done = suite(f"--remora-device=faulty://{defect}", "-k", found)
    assert done.returncode == 1, done.stdout
    assert counts(done)["failed"] >= 1
    assert re.search(rf"FAILED \S*test_hal\.py::{found}::", done.stdout)
    assert "\nE  " in done.stdout


def test_h30_a_carrier_passes_and_is_named(suite, tmp_path):
    done = suite(f"--remora-carrier=unix://{tmp_path}/{{n}}", "-k", "TestFactory or TestDescriptors")
    assert done.returncode == 0, done.stdout
    assert re.search(r"remora: carrier suite at unix://\S+: RELIABLE, ORDERED, POSIX_FD, HANDOVER", done.stdout)
    assert counts(done)["passed"] > 5


def test_h30_a_carrier_with_a_defect_fails(suite):
    done = suite("--remora-carrier=faulty://", "-k", "TestReliability", "-x")
    assert done.returncode == 1, done.stdout
    assert re.search(r"FAILED \S*test_carrier\.py::TestReliability::", done.stdout)


def test_a_run_that_asks_for_nothing_is_refused(suite):
    done = suite()
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--remora-device=URI" in done.stderr


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--remora-device=remote-tcp://127.0.0.1:1", "server running"),
        ("--remora-device=nothing", "no driver for 'nothing'"),
        ("--remora-carrier=nothing://", "no carrier for 'nothing'"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_the_reason(suite, option, reason):
    done = suite(option)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert reason in done.stderr


def test_h19_the_bundle_of_special_code_is_the_one_that_was_given(suite):
    some = ("-k", "the_code_sees_what_was_given or a_global_is_a_buffer")
    done = suite("--remora-device=cpu", f"--remora-special={SAMPLES / 'special.rbundle'}", *some)
    assert done.returncode == 0, done.stdout
    assert counts(done).keys() == {"passed", "deselected"}
    other = suite("--remora-device=cpu", f"--remora-special={SAMPLES / 'vector.rbundle'}", *some)
    assert other.returncode == 1, other.stdout
    assert "no specialization constant" in other.stdout


@pytest.mark.parametrize("sample", ["vector", "faults", "special"])
def test_a_bundle_that_is_none_is_refused(suite, sample):
    done = suite("--remora-device=cpu", f"--remora-{sample}=nowhere.rbundle")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "there is no bundle nowhere.rbundle" in done.stderr


def test_other_pytest_runs_import_nothing_of_remora(suite, tmp_path):
    (tmp_path / "test_other.py").write_text("import sys\n\n\ndef test_other():\n    assert 'remora' not in sys.modules\n")
    done = suite("-p", "no:hypothesispytest", what=("test_other.py",))
    assert done.returncode == 0, done.stdout
    assert counts(done) == {"passed": 1}
    assert "remora-" in done.stdout  # the plugin is there


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with remora installed from its wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=200,
    )
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["cpu", "null", "server"])
def test_d10_the_whole_suite_runs_from_the_installed_wheel(suite, installed, tmp_path, subject):
    (tmp_path / "site/place.py").write_text("def pytest_report_header():\n    import remora\n    return remora.__file__\n")
    with ServerProcess() as server:
        uri = server.uri if subject == "server" else subject
        done = suite(f"--remora-device={uri}", "-p", "place", path=[installed])
    assert done.returncode == 0, done.stdout
    assert counts(done)["passed"] > 300
    assert f"{installed}/remora/__init__.py" in done.stdout
