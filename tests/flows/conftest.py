"""A gate for the answers of models, so that what has to happen meanwhile can take its time."""

from __future__ import annotations

import pytest

from dragoman.providers import scripted
from tests.answer_gate import Gate


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Stops answers behind "word3 "."""
    gate = Gate(behind="word3 ")
    monkeypatch.setattr(scripted, "play", gate.play)
    return gate
