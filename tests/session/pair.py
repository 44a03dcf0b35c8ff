"""A client session and a server session with nothing between them but bytes that the test moves."""

import dataclasses

from tests.golden.frames import ACCEPT, AXIS, MANIFEST, OTHER_AXIS

from remora.base.ids import ResourceType
from remora.errors import Error
from remora.session.events import Failed
from remora.session.session import Session
from remora.session.state import Lane, Role, State
from remora.wire import commands
from remora.wire.bootstrap import Hello
from remora.wire.executable_calls import ExecutableLoad

__all__ = ["AXIS", "OTHER_AXIS", "Pair", "load", "plain_failure"]


class Pair:
    """`client` and `server`; `up()` takes them through the bootstrap."""

    def __init__(self, window=256):
        self.accept = dataclasses.replace(ACCEPT, command_window=window)
        self.client = Session(Role.CLIENT, "tcp://server:5000", 0.0)
        self.server = Session(Role.SERVER, "the client", 0.0)

    @classmethod
    def up(cls, window=256):
        pair = cls(window)
        pair.client.greet(Hello())
        pair.move(pair.client)
        pair.server.accept(pair.accept)
        pair.move(pair.server)
        for session in (pair.client, pair.server):
            session.lane_joined(Lane.QUEUE)
            session.lane_joined(Lane.BULK)
            assert session.state is State.OPERATIONAL
        return pair

    def other(self, session):
        return self.server if session is self.client else self.client

    def move(self, source, lane=Lane.CONTROL):
        """What the source wrote on a lane arrives; the other side's events."""
        data = source.take(lane)
        return self.other(source).receive(lane, memoryview(data)) if data else []

    def move_queue(self, source):
        return self.move(source, Lane.QUEUE)

    def submit(self, count=1, axis=AXIS, waits=()):
        """The epochs of BARRIERs that the client sent and the server received."""
        epochs = [self.client.command(axis, commands.BARRIER, waits, b"") for _ in range(count)]
        events = self.move_queue(self.client)
        assert [event.epoch for event in events] == epochs
        return epochs

    def complete(self, epoch, failure=None, axis=AXIS):
        """The server finishes a command and reports; the client's events."""
        if self.server.completion[axis].complete(epoch, failure):
            self.server.advance(axis)
        return self.move_queue(self.server)


def load(session, **changes):
    fields = {"device": 0, "target": ("cpu", "x86_64"), "manifest": MANIFEST, "size": 1, "artifact": b"x"} | changes
    return ExecutableLoad(session.provisional(ResourceType.EXECUTABLE), **fields)


def plain_failure(events):
    """The class and message of the one Failed at the end of the events."""
    assert [type(event) for event in events].count(Failed) == 1
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, Error)
    return type(events[-1].error), events[-1].error.message
