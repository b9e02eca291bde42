"""Fixtures of the tests of MCP through a whole hub."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
