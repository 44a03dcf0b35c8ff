"""The build hook, which is no part of the package."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def hook_module():
    """hatch_build.py, imported."""
    spec = importlib.util.spec_from_file_location("hatch_build", Path(__file__).parents[2] / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
