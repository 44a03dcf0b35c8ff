"""Plain values that every room may use: ids, frontiers, URIs, snapshots. No I/O, no clock, no lock."""
