"""One upstream and one hub for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.upstream import Stage, staged


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A hub, and the model server behind it."""
    with staged(tmp_path_factory.mktemp("stage")) as played:
        yield played
