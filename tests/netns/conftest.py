"""Two network namespaces joined by a cable, a server in one and clients in the other."""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.processes import SOON, Program, Service

NUMBERS = itertools.count()


def run(*command):
    """Run a command; its output belongs to the error."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SOON)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def sweep():
    """Remove namespaces of test processes that were killed before they could."""
    for entry in Path("/run/netns").glob("rm*x*"):
        if not Path(f"/proc/{entry.name[2:].partition('x')[0]}").exists():
            subprocess.run(["ip", "netns", "del", entry.name], check=False, capture_output=True, timeout=SOON)


class Cable:
    """The namespaces `near` (clients, 10.77.0.2) and `far` (servers, 10.77.0.1), and what can happen to the cable."""

    def __init__(self):
        self.name = f"rm{os.getpid()}x{next(NUMBERS)}"
        self.far, self.near = f"{self.name}f", f"{self.name}n"
        self._undo = None

    def plug(self):
        """Make the namespaces; whatever fails, `unplug` removes what there is."""
        for namespace in (self.far, self.near):
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        run("ip", "link", "add", "far", "netns", self.far, "type", "veth", "peer", "name", "near", "netns", self.near)
        for namespace, device, address in ((self.far, "far", "10.77.0.1/24"), (self.near, "near", "10.77.0.2/24")):
            run("ip", "-n", namespace, "address", "add", address, "dev", device)
            run("ip", "-n", namespace, "link", "set", device, "up")

    def unplug(self):
        for namespace in (self.far, self.near):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True, timeout=SOON)

    def pull(self, how):
        """Cut the connection as `how` says: link (the far end is down), cable (both are), drop (packets vanish silently)."""
        if how == "drop":
            for chain in ("INPUT", "OUTPUT"):
                run("ip", "netns", "exec", self.far, "iptables", "-I", chain, "-j", "DROP")
            return
        run("ip", "-n", self.far, "link", "set", "far", "down")
        if how == "cable":
            run("ip", "-n", self.near, "link", "set", "near", "down")

    def mend(self, how):
        """Undo `pull`."""
        if how == "drop":
            run("ip", "netns", "exec", self.far, "iptables", "-F")
            return
        run("ip", "-n", self.far, "link", "set", "far", "up")
        run("ip", "-n", self.near, "link", "set", "near", "up")

    def serve(self, **options):
        """A server process behind the cable, not started yet."""
        return Service(prefix=("ip", "netns", "exec", self.far), bind="tcp://10.77.0.1:0", **options)

    def client(self, code, *args):
        """A client process before it."""
        return Program(code, *args, prefix=("ip", "netns", "exec", self.near))

    def remora(self, *args):
        """Run a command of the CLI on the near side: (exit code, output)."""
        command = ["ip", "netns", "exec", self.near, sys.executable, "-m", "remora.cli", *args]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=50)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def cable():
    """A Cable; its namespaces are gone afterwards."""
    if shutil.which("ip") is None or shutil.which("iptables") is None:
        pytest.skip("needs iproute2 and iptables: apt-get install iproute2 iptables")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root: run as root, or deselect with -m 'not netns'")
    sweep()
    cable = Cable()
    with contextlib.ExitStack() as stack:
        stack.callback(cable.unplug)
        try:
            cable.plug()
        except AssertionError as error:
            pytest.skip(f"this kernel or container makes no network namespaces or veth pairs: {error}")
        yield cable
