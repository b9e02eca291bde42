"""A hub for tests of runners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runners.wire_runner import PATIENT, new_session
from tests.serving import Served, serving


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Served]:
    """A hub with the session `s`. Some modules have one of their own."""
    async with serving(tmp_path, runners=PATIENT) as hub:
        await new_session(hub)
        yield hub
