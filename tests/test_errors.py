"""The tree of errors: what a program may do with any of them."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import dragoman.errors
from dragoman.errors import DragomanError

VALUES: dict[str, Any] = {"problems": [{"path": "a", "expected": "b"}], "category": "rate_limit"}


def kinds(root: type[DragomanError] = DragomanError) -> Iterator[type[DragomanError]]:
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == dragoman.errors.__name__:
            yield from kinds(kind)


def error_of(kind: type[DragomanError]) -> DragomanError:
    """An error with a value for each of its parameters that needs one, and a hint where it has one."""
    parameters = inspect.signature(kind).parameters.values()
    values = {
        each.name: VALUES.get(each.name, each.name)
        for each in parameters
        if each.default is each.empty or each.name in ("hint", "field")
    }
    return kind(**values)


@pytest.mark.parametrize("kind", [*kinds()], ids=lambda kind: kind.__name__)
def test_an_error_can_be_pickled_and_copied_whole(kind: type[DragomanError]) -> None:
    error = error_of(kind)
    error.retry_after = 2.0
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is kind
        assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))
        assert other.to_json() == error.to_json()
