"""The trickiest invariants of a remote HAL, and that each has a test named after it in this folder.

 1  an epoch is taken only after admission              12  a slot is free only when its transfers are over
 2  waiter, then mapping, then the command              13  a command and its bytes come in either order
 3  every signal of a failed operation fails, once      14  reservations may be settled in any order
 4  ADVANCE is contiguous and fails once                15  readiness is an edge: look again after arming
 5  a release follows submission                        16  what comes too early is bounded
 6  done is satisfied, never submitted is an error      17  a stream is checked whole before any of it runs
 7  parking takes the bytes last                        18  no silent downgrade of what is required
 8  an id names one thing ever                          19  a wait holds up no lane
 9  the first cause wins, and no call is lost           20  virtual memory has a way out of its own
10  credit is cumulative, idempotent and stays owed     21  flush and end answer after the sink
11  chunks lie on a grid, each once                     22  detach: refuse, wait, let go
"""

import re
from pathlib import Path


def test_each_of_the_22_invariants_has_a_test_named_after_it():
    named = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        named |= set(map(int, re.findall(r"^def test_invariant_(\d\d)_", file.read_text(), re.MULTILINE)))
    assert named == set(range(1, 23))
