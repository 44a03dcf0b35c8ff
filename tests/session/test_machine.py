"""Client and server against each other over a stream cut anywhere, beside an oracle (H02, H05, H12, H14, H15)."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.session.pair import AXIS, OTHER_AXIS, Pair, load

from remora.base.ids import ResourceType, make_id
from remora.errors import BusyError, ClosedError, DeviceError, Error
from remora.session.events import (
    Advanced,
    AllocateReceived,
    CommandReceived,
    Failed,
    Named,
    ReleaseReceived,
    RequestReceived,
    Responded,
    ResultReceived,
    Unnamed,
)
from remora.session.state import Lane
from remora.wire import commands
from remora.wire.method import Loaded

AXES = (AXIS, OTHER_AXIS)
axes = st.sampled_from(AXES)
KERNELS = make_id(ResourceType.EXECUTABLE, 1, 1)
WINDOW = 5

rarely = st.sampled_from([*[False] * 6, True])
client_actions = st.one_of(
    st.tuples(st.just("command"), axes, st.booleans(), st.booleans()),
    st.tuples(st.just("command"), axes, st.booleans(), st.booleans()),
    st.tuples(st.just("allocate"), st.integers(0, 100)),
    st.tuples(st.just("release"), st.lists(st.integers(1, 100), min_size=1, max_size=3)),
    st.tuples(st.just("request")),
)
server_actions = st.one_of(
    st.tuples(st.just("complete"), axes, st.integers(0, 99), rarely),
    st.tuples(st.just("complete"), axes, st.integers(0, 99), rarely),
    st.tuples(st.just("report"), axes, st.booleans()),
    st.tuples(st.just("report"), axes, st.booleans()),
    st.tuples(st.just("respond"), st.booleans()),
)
#: How many bytes arrive, for each side and lane.
sizes = st.lists(st.sampled_from([1, 7, 24, 100, 1000]), min_size=4, max_size=4)


class Axis:
    """What the oracle knows of one axis."""

    def __init__(self):
        self.sent = 0  # epochs the client took
        self.come = 0  # commands the server got
        self.open = set()  # epochs the server got and has not completed
        self.failures = {}  # epoch -> message, as completed by the server
        self.done = 0  # what the client was told
        self.failed = None  # the epoch of the failing ADVANCE that the client got

    def reachable(self):
        """The contiguous prefix that is done, and the epoch right behind it if that failed."""
        epoch = 0
        while epoch + 1 <= self.come and epoch + 1 not in self.open and epoch + 1 not in self.failures:
            epoch += 1
        return epoch, epoch + 1 if epoch + 1 in self.failures else None


class Sessions(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.pair = Pair.up(WINDOW)
        self.axes = {axis: Axis() for axis in AXES}
        self.wires = {(side, lane): bytearray() for side in ("client", "server") for lane in (Lane.CONTROL, Lane.QUEUE)}
        self.expected = []  # what the server must get on its queue lane, in order
        self.requests = {}  # id -> "sent", "come" or the answer
        self.unnamed = {}  # provisional -> "sent", "come", or what it resolves to
        self.submissions = 0
        self.results = {}  # (axis, epoch) of READs -> bytes the server sent
        self.ended = {}  # side -> message of its Failed
        self.now = 0.0

    def living(self):
        return not self.ended

    # -- the client ---------------------------------------------------------------------------------------------------------------

    @precondition(living)
    @rule(actions=st.lists(client_actions, min_size=1, max_size=8), sizes=sizes)
    def client_acts(self, actions, sizes):
        for name, *arguments in actions:
            getattr(self, name)(*arguments)
        self.moves(sizes)

    def command(self, axis, wait, read):
        model = self.axes[axis]
        other = AXES[axis == AXIS]
        waits = ((other, self.axes[other].sent),) if wait and self.axes[other].sent else ()
        op, body = (commands.READ, commands.encode_range(1, 0, 8)) if read else (commands.BARRIER, b"")
        in_flight = sum(each.sent - each.done for each in self.axes.values() if each.failed is None)
        try:
            epoch = self.pair.client.command(axis, op, waits, body)
        except BusyError:
            assert in_flight >= WINDOW
            return
        except DeviceError as error:
            assert model.failures[model.failed] == error.message
            return
        assert in_flight < WINDOW
        assert model.failed is None
        model.sent += 1
        self.submissions += 1
        assert epoch == model.sent
        self.expected.append((CommandReceived, op, axis, epoch, waits))

    def allocate(self, size):
        resource = self.pair.client.allocate(0, size)
        assert resource not in self.unnamed
        self.unnamed[resource] = "sent"
        self.expected.append((AllocateReceived, 0, resource, size))

    def release(self, ids):
        self.pair.client.release(ids)
        self.expected.append((ReleaseReceived, self.submissions, tuple(ids)))

    def request(self):
        self.requests[self.pair.client.request(load(self.pair.client))] = "sent"

    # -- the server ---------------------------------------------------------------------------------------------------------------

    @precondition(living)
    @rule(actions=st.lists(server_actions, min_size=1, max_size=8), sizes=sizes)
    def server_acts(self, actions, sizes):
        for name, *arguments in actions:
            getattr(self, name)(*arguments)
        self.moves(sizes)

    def complete(self, axis, pick, fails):
        model = self.axes[axis]
        if not model.open:
            return
        epoch = sorted(model.open)[pick % len(model.open)]
        model.open.remove(epoch)
        failure = DeviceError(f"epoch {epoch} broke") if fails else None
        if (axis, epoch) in self.results and not fails:
            self.results[axis, epoch] = bytes([pick]) * 8
            self.pair.server.result(axis, epoch, bytearray(self.results[axis, epoch]))
        if fails:
            model.failures[epoch] = failure.message
        self.pair.server.completion[axis].complete(epoch, failure)

    def report(self, axis, fails):
        names = []
        for resource in [resource for resource, state in self.unnamed.items() if state == "come"]:
            if fails:
                self.unnamed[resource] = "too much"
                self.pair.server.unname(resource, DeviceError("too much"))
            else:
                self.unnamed[resource] = make_id(ResourceType.BUFFER, 1, resource & 0xFFFF)
                names.append((resource, self.unnamed[resource]))
        self.pair.server.advance(axis, names)

    def respond(self, fails):
        for number in [number for number, state in self.requests.items() if state == "come"]:
            self.requests[number] = "no such kernel" if fails else KERNELS
            self.pair.server.respond(number, DeviceError("no such kernel") if fails else Loaded(KERNELS))

    # -- between them -------------------------------------------------------------------------------------------------------------

    @rule(sizes=sizes)
    def moves(self, sizes):
        for (side, lane), size in zip(self.wires, sizes, strict=True):
            self.move(side, lane, size)

    def move(self, side, lane, size):
        """Some bytes of what a side wrote arrive at the other one."""
        source, target = (self.pair.client, "server") if side == "client" else (self.pair.server, "client")
        wire = self.wires[side, lane]
        wire += source.take(lane)
        piece = bytes(wire[:size])
        del wire[:size]
        if piece:
            for event in getattr(self.pair, target).receive(lane, memoryview(piece)):
                getattr(self, f"{target}_gets")(event)

    def server_gets(self, event):
        match event:
            case Failed():
                self.note_end("server", event)
            case RequestReceived():
                assert self.requests[event.id] == "sent"
                self.requests[event.id] = "come"
            case _:
                assert (type(event), *event)[: len(self.expected[0])] == self.expected.pop(0)
                if isinstance(event, AllocateReceived):
                    self.unnamed[event.provisional] = "come"
                if isinstance(event, CommandReceived):
                    model = self.axes[event.axis]
                    model.come = event.epoch
                    model.open.add(event.epoch)
                    if event.op == commands.READ:
                        self.results[event.axis, event.epoch] = None

    def client_gets(self, event):
        match event:
            case Failed():
                self.note_end("client", event)
            case Responded():
                answer = self.requests.pop(event.id)
                assert answer == (event.body.message if isinstance(event.body, Error) else event.body.resource)
            case Named():
                assert self.unnamed[event.provisional] == event.canonical
            case Unnamed():
                assert self.unnamed[event.provisional] == event.error.message
            case ResultReceived():
                assert self.results[event.axis, event.epoch] == bytes(event.data)
            case Advanced(axis=axis, epoch=epoch, failure=None):
                assert self.axes[axis].done < epoch <= self.axes[axis].reachable()[0]
                assert self.axes[axis].failed is None
                self.axes[axis].done = epoch
            case Advanced(axis=axis, epoch=epoch):
                model = self.axes[axis]
                assert (model.failed, model.done, epoch) == (None, epoch - 1, model.reachable()[1])
                assert event.failure.message == model.failures[epoch]
                model.failed = epoch

    @rule(seconds=st.floats(0.1, 0.5))
    def tick(self, seconds):
        """Time for a PING, and never enough to give up: what keepalive does about silence has tests of its own."""
        self.now = min(self.now + seconds, 4.0)
        self.pair.client.tick(self.now)
        self.pair.server.tick(self.now)

    @precondition(lambda self: self.living() and self.submissions > 10)
    @rule(side=st.sampled_from(["client", "server"]), closes=st.booleans())
    def end(self, side, closes):
        session = getattr(self.pair, side)
        (event,) = session.close("enough") if closes else session.fail(DeviceError("enough"))
        self.note_end(side, event)

    def note_end(self, side, event):
        assert side not in self.ended
        self.ended[side] = event.error
        assert "enough" in event.error.message or isinstance(event.error, ClosedError)

    @invariant()
    def the_window_is_the_oracles(self):
        living = [model for model in self.axes.values() if model.failed is None]
        assert self.pair.client.submission.in_flight == sum(model.sent - model.done for model in living)
        assert self.pair.client.submission.in_flight <= WINDOW

    @invariant()
    def only_what_was_ended_has_ended(self):
        assert (self.pair.client.failure is not None) == ("client" in self.ended)
        assert (self.pair.server.failure is not None) == ("server" in self.ended)


Sessions.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSessions = Sessions.TestCase
