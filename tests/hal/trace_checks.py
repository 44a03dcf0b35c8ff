"""What every trace must keep to, whoever wrote it."""

import math
from collections import defaultdict

#: Microseconds that rounding may cost.
ROUNDING = 0.002


def spans(events, name, pid):
    return [event for event in events if event["ph"] == "X" and event["name"] == name and event["pid"] == pid]


def check_events(events):
    """Known kinds, finite numbers, one name for each process and thread, spans of a track that lie apart or inside each other, and
    at most one beginning and one end for each arrow, with a span at each."""
    tracks, flows = defaultdict(list), defaultdict(list)
    named = {
        (event["name"], event["pid"], event["tid"] * (event["name"] == "thread_name")) for event in events if event["ph"] == "M"
    }
    assert sum(event["ph"] == "M" for event in events) == len(named)
    for event in events:
        assert event["ph"] in {"M", "X", "s", "f"}
        if event["ph"] == "M":
            continue
        assert math.isfinite(event["ts"])
        assert ("process_name", event["pid"], 0) in named
        assert ("thread_name", event["pid"], event["tid"]) in named
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        else:
            flows[event["id"]].append(event)
    for track in tracks.values():
        check_nesting(sorted(track, key=lambda span: (span[0], -span[1])))
    for ends in flows.values():
        assert len({event["ph"] for event in ends}) == len(ends)
        for event in ends:
            assert any(start == event["ts"] for start, _ in tracks[event["pid"], event["tid"]])


def check_nesting(track):
    open_until = []
    for start, end in track:
        while open_until and open_until[-1] <= start + ROUNDING:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + ROUNDING, f"{start} to {end} is neither inside nor behind {open_until}"
        open_until.append(end)
