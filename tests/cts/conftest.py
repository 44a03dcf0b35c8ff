"""Failures inside the suites are shown like those of any test."""

import pytest

pytest.register_assert_rewrite("remora.testing.cts")
