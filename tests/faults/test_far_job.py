"""H02, H05, H08: the whole job over a link that is long, or that stands still again and again: right, and nothing is left."""

from time import monotonic

import pytest
from tests.faults.job import job

from remora.testing.proxy import DelayProxy
from remora.testing.stalls import RandomStalls

MIB = 1 << 20
ONE_WAY = 0.05
#: Far more than a stall of `RandomStalls` takes.
QUERY = "?keepalive=0.5&deadline=5"


@pytest.fixture
def mode(request):
    return {"shared": request.param}


both = pytest.mark.parametrize("mode", [False, True], ids=["processes", "shared"], indirect=True)


@both
@pytest.mark.parametrize("one_way", [ONE_WAY / 2, ONE_WAY])
def test_h02_the_job_over_a_long_link(serve, until, mode, one_way):
    server = serve("tcp", keepalive=0.5, deadline=5, **mode)
    with DelayProxy(server.address, one_way) as proxy:
        begin = monotonic()
        job(f"remote-{proxy.address}{QUERY}")
        print(f"{(monotonic() - begin) / (2 * one_way):.1f} round trips of {2000 * one_way:g} ms")
        server.wait_for("session 1 ended")
        until(lambda: proxy.connections() == 0)


def stalled_jobs(server, seeds, delay):
    stalls = 0
    for seed in seeds:
        with DelayProxy(server.address, delay) as proxy:
            with RandomStalls(proxy, seed) as stalling:
                job(f"remote-{proxy.address}{QUERY}", MIB)
            stalls += stalling.count
    server.wait_for(f"session {len(seeds)} ended")
    print(f"{len(seeds)} jobs, {stalls} stalls")
    assert stalls >= len(seeds)


@both
def test_h08_the_job_over_a_link_that_stalls(serve, mode):
    stalled_jobs(serve("tcp", keepalive=0.5, deadline=5, **mode), range(4), 0.0)


@pytest.mark.slow
@both
@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_h08_many_jobs_over_a_link_that_stalls(serve, mode, delay):
    stalled_jobs(serve("tcp", keepalive=0.5, deadline=5, **mode), range(10, 40), delay)
