"""The error tree: whose fault, which status, and the same class on the other side."""

from __future__ import annotations

import pytest

from remora import errors
from remora.errors import CLASS_OF_STATUS, DeviceError, Error, Status, UsageError, error_from_status

CLASSES = [getattr(errors, name) for name in errors.__all__ if name not in ("Status", "error_from_status")]


def test_every_class_is_listed_and_in_one_tree():
    defined = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert defined == set(CLASSES)
    assert all(issubclass(each, Error) for each in CLASSES)


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        (errors.UsageError, ValueError),
        (errors.NotFoundError, LookupError),
        (errors.DeadlineError, TimeoutError),
        (errors.BrokenError, ConnectionError),
        (errors.OutOfMemoryError, MemoryError),
    ],
)
def test_builtin_handlers_catch_ours(ours, builtin):
    with pytest.raises(builtin, match="cure"):
        raise ours("the cure")


@pytest.mark.parametrize("status", [each for each in Status if each is not Status.OK])
def test_status_arrives_with_its_class_code_message_and_origin(status):
    error = error_from_status(int(status), "what happened", "tcp://there")
    assert type(error) is CLASS_OF_STATUS.get(status, Error)
    assert (error.code, error.message, error.origin) == (status, "what happened", "tcp://there")
    assert str(error) == "what happened [tcp://there]"


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_crosses_the_wire_as_its_own_class(kind):
    sent = kind("message")
    assert type(error_from_status(sent.code, sent.message)) is kind


@pytest.mark.parametrize("code", [17, 63, 67, 1 << 31])
def test_an_unknown_status_is_named(code):
    error = error_from_status(code, "odd")
    assert type(error) is Error
    assert error.code is Status.UNKNOWN
    assert str(error) == f"odd (status {code})"


def test_codes_are_the_canonical_numbers():
    assert [int(each) for each in Status] == [*range(17), 64, 65, 66]


def test_a_copy_has_the_content_and_its_own_traceback():
    cause = KeyError("x")
    first = DeviceError("failed", code=Status.DATA_LOSS, origin="queue 0")
    first.__cause__ = cause
    with pytest.raises(DeviceError):
        raise first
    copy = first.copy()
    assert copy is not first
    assert (type(copy), copy.message, copy.code, copy.origin) == (DeviceError, "failed", Status.DATA_LOSS, "queue 0")
    assert copy.__cause__ is cause
    assert copy.__traceback__ is None


def test_retryable_is_only_what_may_succeed_later():
    assert {each for each in CLASSES if each.retryable} == {errors.BusyError, errors.DeadlineError}


def test_an_own_code_overrides_the_default():
    assert UsageError("x").code is Status.INVALID_ARGUMENT
    assert UsageError("x", code=Status.OUT_OF_RANGE).code is Status.OUT_OF_RANGE
    assert str(UsageError("plain")) == "plain"
