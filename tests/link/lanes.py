"""A pair of connected carriers, and of bulk lanes over one or several of them."""

import itertools
import threading
from contextlib import ExitStack, contextmanager

from remora.carriers import registry
from remora.errors import BrokenError
from remora.link.bulk import BulkLane

_names = itertools.count()


class Ends:
    """What the transfers of a lane ended with, and how to wait for them."""

    def __init__(self):
        self.results = {}
        self._changed = threading.Condition()

    def of(self, key):
        """A `done` callback that records under `key`; a second call is an error that shows."""

        def done(error):
            with self._changed:
                self.results.setdefault(key, []).append(error)
                self._changed.notify_all()

        return done

    def wait(self, *keys, timeout=20):
        """The results of these keys, once each has one."""
        with self._changed:
            assert self._changed.wait_for(lambda: all(key in self.results for key in keys), timeout), (keys, self.results)
        return [self.results[key] for key in keys]


@contextmanager
def connected():
    """Two ends of one loopback connection, active."""
    with ExitStack() as stack:
        listener = stack.enter_context(registry.listen(f"loopback://link-tests-{next(_names)}"))
        near = stack.enter_context(registry.connect(listener.address))
        far = stack.enter_context(listener.accept(5))
        near.activate()
        far.activate()
        yield near, far


@contextmanager
def facing(carriers, activity=lambda: 0, **budgets):
    """Two bulk lanes that face each other, and the list of causes that they failed of by themselves."""
    with facing_strands([carriers], activity, **budgets) as (near, far, broken):
        yield near, far, broken


@contextmanager
def facing_strands(pairs, activity=lambda: 0, **budgets):
    """The same over several connections; as the link does, a lane that breaks fails all its carriers if there are several."""
    broken, lanes = [], []
    for carriers, name in zip(zip(*pairs, strict=True), ("near", "far"), strict=True):

        def fail(error, carriers=carriers):
            broken.append(error)
            for carrier in carriers if len(carriers) > 1 else ():
                carrier.fail(error)

        lanes.append(BulkLane(carriers, fail, name, activity, **budgets))
    for lane in lanes:
        lane.start()
    yield (*lanes, broken)
    over = BrokenError("the test is over")
    for carriers in pairs:
        for carrier in carriers:
            carrier.fail(over)
    for lane in lanes:
        lane.fail(over)
    for lane in lanes:
        lane.join()
