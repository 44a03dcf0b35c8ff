"""G05, G06: what a graph computes is what its nodes say in their order, whatever lanes and threads run it."""

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remora
from remora.errors import UnsupportedError, UsageError
from remora.graph import DEVICE, HOST_VISIBLE, LaneName, Runtime, RuntimeOptions
from remora.hal.buffer import Access

SOON = 30.0
N = 1000


def words(*values):
    return b"".join(value.to_bytes(4, "little") for value in values)


def test_g05_a_pipeline_of_every_kind_of_node(runtime, vector):
    left, right, out = runtime.allocate(4 * N), runtime.allocate(4 * N, HOST_VISIBLE), runtime.allocate(4 * N)
    seen, result = [], bytearray(4 * N)
    graph = runtime.graph("all")
    graph.upload(left, words(*range(N)))
    graph.fill(right, words(7))
    graph.kernel(vector["add_i32"], [left, right, out], (N,))
    graph.copy(out, left)
    graph.kernel(vector["add_i32"], [left, right, out], (N,))
    graph.call(lambda memory: seen.append(bytes(memory[:4])), [(out, Access.READ)])
    graph.download(out, result)
    replay = graph.prepare()
    assert replay.regions == (
        "upload: upload",
        "compute: fill add_i32 copy add_i32",
        "host: <lambda>",
        "download: download",
    )
    for _ in range(3):
        replay.submit().wait(SOON)
        assert bytes(result) == words(*(value + 14 for value in range(N)))
    assert seen == [words(14)] * 3


def test_g06_lanes_follow_placement_and_a_word_of_the_caller(runtime):
    near, far, other = runtime.allocate(64, HOST_VISIBLE), runtime.allocate(64, DEVICE), runtime.allocate(64, DEVICE)
    graph = runtime.graph()
    graph.copy(near, far)
    graph.copy(far, other)
    graph.copy(far, near)
    graph.copy(far, other, LaneName.DOWNLOAD)
    assert graph.prepare().regions == ("upload: copy", "compute: copy", "download: copy copy")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (lambda g, a, b: g.fill(a, b"123"), "patterns of 3 bytes"),
        (lambda g, a, b: g.fill(a.view(1), b"12"), "patterns of 2"),
        (lambda g, a, b: g.copy(a, b.view(1)), "source has 64 bytes, the target 63"),
        (lambda g, a, b: g.copy(a.view(0, 32), a.view(31, 32)), "overlap"),
        (lambda g, a, b: g.upload(a, b"short"), "5 bytes, the view 64"),
        (lambda g, a, b: g.download(a, bytearray(65)), "65 bytes, the view 64"),
    ],
)
def test_g05_r34_a_refused_node_appends_nothing(runtime, record, why):
    graph = runtime.graph()
    with pytest.raises(UsageError, match=why):
        record(graph, runtime.allocate(64), runtime.allocate(64))
    assert len(graph) == 0
    with pytest.raises(UsageError, match="empty"):
        graph.prepare()


def test_g05_a_prepared_graph_takes_nothing_more(runtime):
    buffer = runtime.allocate(64)
    graph = runtime.graph()
    graph.fill(buffer)
    graph.prepare()
    for more in (lambda: graph.fill(buffer), graph.prepare):
        with pytest.raises(UsageError, match="prepared already"):
            more()


def test_g05_edges_are_for_people_and_regions_for_lanes(runtime):
    a, b = runtime.allocate(64), runtime.allocate(64)
    graph = runtime.graph()
    for buffer in (a, b):
        graph.fill(buffer)
    graph.copy(a, b)
    plan = graph.prepare().shape.plan
    assert plan.edges == ((), (), (0, 1))
    assert len(plan.regions) == 1


def test_g06_submissions_that_share_bytes_are_ordered_and_others_are_not(domain, stepped):
    runtime = domain()
    a, b, c = runtime.allocate(64), runtime.allocate(64, HOST_VISIBLE), runtime.allocate(4)
    stepped.run()

    def made(record):
        graph = runtime.graph()
        record(graph)
        return graph.prepare()

    first = made(lambda graph: graph.fill(a, b"\1")).submit()
    second = made(lambda graph: graph.copy(a, b)).submit()  # on the download lane
    third = made(lambda graph: graph.upload(c, b"abcd")).submit()  # on the upload lane
    assert not stepped.lanes[LaneName.DOWNLOAD].step()
    stepped.step(LaneName.UPLOAD)
    assert third.done
    assert not first.done
    stepped.step(LaneName.COMPUTE)
    assert first.done
    stepped.step(LaneName.DOWNLOAD)
    assert second.done


def test_g06_regions_of_two_submissions_overlap_where_graphs_as_a_whole_would_not(domain, stepped):
    """Upload then compute, twice, into different halves: the second upload need not wait for the first compute."""
    overlapping = []
    for whole in (False, True):
        runtime = domain(whole_graph=whole)
        inputs, out = [runtime.allocate(64), runtime.allocate(64)], runtime.allocate(64)
        stepped.run()
        graphs = []
        for source in inputs:
            graph = runtime.graph()
            graph.upload(source, bytes(64))
            graph.copy(source, out)
            graphs.append(graph.prepare())
        for graph in graphs:
            graph.submit()
        stepped.step(LaneName.UPLOAD)
        overlapping.append(stepped.lanes[LaneName.UPLOAD].step())
        stepped.run()
    assert overlapping == [True, False]


operations = st.lists(
    st.tuples(
        st.sampled_from(["fill", "copy", "upload", "call"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 7),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(st.lists(operations, min_size=1, max_size=4), st.integers(0, 2**32), st.booleans())
def test_g05_what_runs_at_once_gives_what_running_in_order_gives(graphs, seed, whole):
    """Random graphs over three buffers, submitted one after another without waiting, on every lane and the host's."""
    dice, size = random.Random(seed), 16
    with Runtime("cpu", options=RuntimeOptions(whole_graph=whole)) as runtime:
        buffers = [runtime.allocate(size, dice.choice((DEVICE, HOST_VISIBLE))) for _ in range(3)]
        expected = [bytearray(size) for _ in buffers]
        done = []
        for operations in graphs:
            graph = runtime.graph()
            for number, (kind, first, second, start, length) in enumerate(operations):
                value = dice.randrange(1, 256)
                target, view = expected[first], buffers[first].view(start, length)
                if kind == "fill":
                    graph.fill(view, bytes([value]))
                    target[start : start + length] = bytes([value]) * length
                elif kind == "upload":
                    graph.upload(view, bytes([value]) * length)
                    target[start : start + length] = bytes([value]) * length
                elif kind == "call":
                    graph.call(
                        lambda memory, value=value: memory.__setitem__(slice(None), bytes([value]) * len(memory)),
                        [(view, Access.WRITE)],
                    )
                    target[start : start + length] = bytes([value]) * length
                elif first != second:
                    graph.copy(buffers[second].view(start, length), view, dice.choice((None, *LaneName)))
                    target[start : start + length] = expected[second][start : start + length]
                elif number == 0:
                    graph.fill(view)
                    target[start : start + length] = bytes(length)
            if len(graph):
                done.append(graph.prepare().submit())
        for each in done:
            each.wait(SOON)
        graph = runtime.graph()
        results = [bytearray(size) for _ in buffers]
        for buffer, result in zip(buffers, results, strict=True):
            graph.download(buffer, result)
        graph.prepare().submit().wait(SOON)
    assert results == expected


def test_g06_lanes_run_beside_each_other(runtime):
    """A callback that waits for another lane's work ends, because that work is not behind it."""
    here, there = runtime.allocate(64), runtime.allocate(64)
    passed, result = threading.Event(), bytearray(64)
    graph = runtime.graph()
    graph.call(lambda memory: passed.wait(SOON) or 1 / 0, [(here, Access.WRITE)])
    waits = graph.prepare().submit()
    graph = runtime.graph()
    graph.fill(there, b"\3")
    graph.download(there, result)
    graph.prepare().submit().wait(SOON)
    assert not waits.done
    passed.set()
    waits.wait(SOON)
    assert bytes(result) == b"\3" * 64


def test_g06_independent_regions_of_one_graph_go_on_beside_one_that_waits(runtime):
    here, there = runtime.allocate(64), runtime.allocate(64)
    reached, result = threading.Event(), bytearray(64)
    graph = runtime.graph()
    graph.call(lambda memory: reached.wait(SOON) or 1 / 0, [(here, Access.WRITE)], name="waits")
    graph.fill(there, b"\5")
    graph.call(lambda memory: reached.set(), [(there, Access.READ)], name="never first on the host lane")
    graph.download(there, result)
    done = graph.prepare().submit()
    assert not done.done
    deadline = threading.Timer(SOON, reached.set)
    deadline.start()
    while bytes(result) != b"\5" * 64 and not reached.is_set():
        reached.wait(0.001)
    assert bytes(result) == b"\5" * 64
    reached.set()
    deadline.cancel()
    done.wait(SOON)


def test_g05_r15_a_large_graph(runtime):
    buffer = runtime.allocate(4 * 4096)
    graph = runtime.graph()
    for number in range(4096):
        graph.fill(buffer.view(4 * number, 4), words(number))
    result = bytearray(4 * 4096)
    graph.download(buffer, result)
    graph.prepare().submit().wait(SOON)
    assert bytes(result) == words(*range(4096))


def test_r13_r33_a_graph_keeps_what_it_names_alive(runtime):
    result = bytearray(16)

    def made():
        graph = runtime.graph()
        buffer = runtime.allocate(16)
        graph.fill(buffer, b"\4")
        graph.download(buffer.view(0, 16), result)
        return graph.prepare()

    replay = made()
    for _ in range(3):
        replay.submit().wait(SOON)
    assert bytes(result) == b"\4" * 16
    replay.close()
    replay.close()
    with pytest.raises(remora.ClosedError, match="prepare it again"):
        replay.submit()


def test_g02_callbacks_and_transfers_take_buffers_of_the_first_engine():
    with Runtime("cpu", "cpu") as runtime:
        far = runtime.allocate(16, remora.graph.local_to(1))
        graph = runtime.graph()
        with pytest.raises(UnsupportedError, match="first engine"):
            graph.upload(far, bytes(16))
        slot = graph.slot(16)
        for refused in (lambda: graph.upload(slot, bytes(16)), lambda: graph.call(print, [(slot, Access.READ)])):
            with pytest.raises(UnsupportedError):
                refused()


def test_the_picture_names_lanes_nodes_and_edges(runtime, tmp_path):
    a, b = runtime.allocate(64, HOST_VISIBLE), runtime.allocate(64)
    graph = runtime.graph("a < b")
    graph.copy(a, b)
    for _ in range(20):
        graph.fill(b)
    picture = graph.prepare().show(tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").read_text() == picture
    assert picture.startswith("<svg")
    for word in ("a &lt; b", ">upload<", ">compute<", "0 copy", "2 fill after 1", "and 12 more", "<path d="):
        assert word in picture, word
