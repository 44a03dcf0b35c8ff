"""Lets the tests of this room import `tests.golden` and `tests.fuzz`, however pytest was started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
