"""The primitives of the standard library under the control of an injector, for the time of a `with`.

Only calls that come from remora itself are touched. `python -m remora.testing.injected PATH ...` is `python -m remora.server ...`
under the injector whose state lies in PATH; the session processes that it forks are under it too.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from remora.testing.injection import END, PACKAGE, Injector, exception

__all__ = ["injected"]

#: Allocations smaller than this, in bytes, do not fail.
LARGE = 4096


@contextmanager
def injected(injector: Injector) -> Iterator[None]:
    """Have every primitive ask the injector. One at a time in a process."""
    with ExitStack() as stack:
        for owner, name, primitive in (
            (os, "eventfd", "eventfd"),
            (os, "pipe2", "pipe2"),
            (os, "fork", "fork"),
            (os, "pidfd_open", "pidfd_open"),
            (os, "dup", "dup"),
            (os, "memfd_create", "memfd_create"),
            (mmap, "mmap", "mmap"),
            (socket, "socketpair", "socketpair"),
            (socket.socket, "connect", "connect"),
            (socket.socket, "accept", "accept"),
            (socket.socket, "setsockopt", "setsockopt"),
            (socket.socket, "shutdown", "shutdown"),
            (threading.Thread, "start", "thread"),
        ):
            _replace(stack, owner, name, _failing(injector, primitive, getattr(owner, name)))
        for name, moving in (("send", _sending), ("sendmsg", _sending_many), ("recv", _receiving), ("recvmsg", _receiving_fds)):
            _replace(stack, socket.socket, name, moving(injector, getattr(socket.socket, name)))
        _replace(stack, socket.socket, "recv_into", _receiving_into(injector, socket.socket.recv_into))
        _replace(stack, socket.socket, "__init__", _opening(injector, socket.socket.__init__))
        _replace(stack, select, "poll", _polling(injector, select.poll))
        _replace_bytearray(stack, injector)
        yield


def _replace(stack: ExitStack, owner: Any, name: str, new: Any) -> None:
    own = name in vars(owner)
    old = getattr(owner, name)
    setattr(owner, name, new)
    if own:
        stack.callback(setattr, owner, name, old)
    else:
        stack.callback(delattr, owner, name)


def _replace_bytearray(stack: ExitStack, injector: Injector) -> None:
    """In the modules of remora that are loaded: a large bytearray may fail."""
    made = type("bytearray", (bytearray,), {"__new__": _allocating(injector)})
    for name, module in tuple(sys.modules.items()):
        if name.startswith("remora.") and not name.startswith("remora.testing"):
            _replace_global(stack, vars(module), made)


def _replace_global(stack: ExitStack, names: dict[str, Any], made: type) -> None:
    names["bytearray"] = made
    stack.callback(names.pop, "bytearray")


def _check(injector: Injector, primitive: str) -> str | None:
    """Raise what the call fails with; END is returned."""
    failure = injector.strike(primitive)
    if failure is not None and failure != END:
        raise exception(failure)
    return failure


def _failing(injector: Injector, primitive: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        _check(injector, primitive)
        return original(*args, **options)

    return call


def _opening(injector: Injector, original: Callable[..., None]) -> Callable[..., None]:
    """A socket made by remora itself: what the standard library makes on the way is not asked for."""

    def call(*args: Any, **options: Any) -> None:
        if sys._getframe(1).f_code.co_filename.startswith(PACKAGE):
            _check(injector, "socket")
        original(*args, **options)

    return call


def _sending(injector: Injector, original: Callable[..., int]) -> Callable[..., int]:
    def send(sock: socket.socket, data: Any, *flags: int) -> int:
        _check(injector, "send")
        view = memoryview(data).cast("B")
        count = original(sock, view[: injector.most(len(view))], *flags)
        injector.moved(count)
        return count

    return send


def _sending_many(injector: Injector, original: Callable[..., int]) -> Callable[..., int]:
    def sendmsg(sock: socket.socket, spans: Any, ancillary: Any = (), *rest: Any) -> int:
        _check(injector, "sendmsg")
        parts = [memoryview(span).cast("B") for span in spans]
        size = sum(map(len, parts))
        if not ancillary and (most := injector.most(size)) < size:
            parts = [next(part for part in parts if len(part))[:most]]
        count = original(sock, parts, ancillary, *rest)
        injector.moved(count)
        return count

    return sendmsg


def _receiving(injector: Injector, original: Callable[..., bytes]) -> Callable[..., bytes]:
    def recv(sock: socket.socket, size: int, *flags: int) -> bytes:
        if _check(injector, "recv") == END:
            return b""
        return original(sock, size, *flags)

    return recv


def _receiving_fds(injector: Injector, original: Callable[..., Any]) -> Callable[..., Any]:
    def recvmsg(sock: socket.socket, *args: Any) -> Any:
        if _check(injector, "recvmsg") == END:
            return b"", [], 0, None
        return original(sock, *args)

    return recvmsg


def _receiving_into(injector: Injector, original: Callable[..., int]) -> Callable[..., int]:
    def recv_into(sock: socket.socket, room: Any, size: int = 0, *flags: int) -> int:
        if _check(injector, "recv_into") == END:
            return 0
        count = original(sock, room, injector.most(size or len(room)), *flags)
        injector.moved(count)
        return count

    return recv_into


def _allocating(injector: Injector) -> Callable[..., bytearray]:
    def new(cls: type[bytearray], *args: Any) -> bytearray:
        if args and isinstance(args[0], int) and args[0] >= LARGE:
            _check(injector, "bytearray")
        return bytearray.__new__(cls, *args)

    return new


def _polling(injector: Injector, original: Callable[[], Any]) -> Callable[[], Any]:
    class Poll:
        """A poll object that may fail."""

        def __init__(self) -> None:
            poll = original()
            self.register, self.modify, self.unregister = poll.register, poll.modify, poll.unregister
            self._poll = poll.poll

        def poll(self, *timeout: Any) -> Any:
            _check(injector, "poll")
            return self._poll(*timeout)

    return Poll


def main(words: list[str]) -> int:
    """Run a server under an injector."""
    from remora.hal.registry import find_driver
    from remora.server.__main__ import main as serve

    find_driver("cpu").preload()  # its modules are under control too
    injector = Injector(words[0])
    with injected(injector):
        return serve(words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
