"""A fuzz target for every decoder and for the session in either role; `python -m tests.fuzz.run --help`."""
