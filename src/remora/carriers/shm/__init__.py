"""shm: `shm:///path/to.sock`, rings in shared memory between two processes of one host (H32)."""

from remora.carriers.shm.carrier import ShmCarrier, adopt, connect, listen

__all__ = ["ShmCarrier", "adopt", "connect", "listen"]
