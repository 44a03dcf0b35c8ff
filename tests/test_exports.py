"""The public names: `remora.__all__` is all of them, and each explains itself with an example."""

import inspect
import types

import pytest

import remora

NAMES = remora.__all__


def test_what_the_package_imports_is_what_it_exports():
    """A name that is imported and not listed would be public all the same; one that is listed twice or misspelt helps nobody."""
    public = {name for name, value in vars(remora).items() if not name.startswith("_") and not isinstance(value, types.ModuleType)}
    assert sorted(NAMES) == NAMES == sorted(public)


def test_the_names_of_users_come_from_public_modules():
    """What a user catches or annotates is found where its class says that it is, under the same name."""
    for name in NAMES:
        value = getattr(remora, name)
        home = inspect.getmodule(value)
        assert home.__name__.startswith(("remora.hal.", "remora.base.", "remora.errors"))
        assert getattr(home, name) is value
        assert name in home.__all__


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring_with_an_example(name):
    told = getattr(remora, name).__doc__
    assert told
    assert "Example:" in told
    example = inspect.cleandoc(told).split("Example:", 1)[1]
    assert "`" in example or "\n    " in example


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isclass(getattr(remora, name))])
def test_every_public_method_has_a_docstring(name):
    kind = getattr(remora, name)
    own = {key: value for key, value in vars(kind).items() if not key.startswith("_") and kind.__module__.startswith("remora.")}
    callables = {key: value for key, value in own.items() if callable(value) or isinstance(value, property | classmethod)}
    assert [key for key, value in callables.items() if not inspect.getdoc(value)] == []
