"""Fixtures of the tests of teams."""

from __future__ import annotations

import pytest

from tests.teams import gate


@pytest.fixture(autouse=True)
def closed_doors() -> None:
    """All doors of the gate are shut, whatever tests before have opened, and nobody has stood at any."""
    gate.doors.clear()
    gate.callers.clear()
    gate.stopped.clear()
