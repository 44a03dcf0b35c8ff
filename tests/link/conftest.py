"""Fixtures of the link's tests."""

import pytest
from tests.link.lanes import Ends, connected, facing


@pytest.fixture
def ends():
    return Ends()


@pytest.fixture
def carriers():
    with connected() as pair:
        yield pair


@pytest.fixture
def lanes(carriers):
    with facing(carriers) as pair:
        yield pair
