"""Small graphs that several tests submit."""

import threading

from remora.hal.buffer import Access

SOON = 20.0


def filling(runtime, view, value=1):
    """A prepared graph of one fill, on the compute lane."""
    graph = runtime.graph()
    graph.fill(view, bytes([value]))
    return graph.prepare()


def failing(runtime, view):
    """(a prepared graph whose callback raises ValueError, the event that it waits for before)."""
    event = threading.Event()

    def fail(memory):
        event.wait(SOON)
        raise ValueError("not today")

    graph = runtime.graph()
    graph.call(fail, [(view, Access.WRITE)])
    return graph.prepare(), event
