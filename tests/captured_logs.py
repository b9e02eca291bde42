"""Captures logs without looking through all loggers.

pytest does that six times a test, for those that keep their records from the root. With all libraries loaded
there are some thousand, and it takes 0.9 ms a test; here they are found once, with all tests collected.
"""

from __future__ import annotations

import logging
from typing import Any

from _pytest.logging import catching_logs

_loggers: list[logging.Logger] = []


def find_loggers() -> None:
    """Find the loggers whose records are captured: the root, and those that keep their records from it."""
    root = logging.getLogger()
    others = (each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))
    _loggers[:] = [root, *(each for each in others if not each.propagate)]
    catching_logs.__enter__ = attach_handler  # type: ignore[method-assign]


def attach_handler(capture: catching_logs[Any]) -> Any:
    """In place of `catching_logs.__enter__`, which this is but for the search."""
    if capture.level is not None:
        capture.handler.setLevel(capture.level)
    for logger in _loggers:
        logger.addHandler(capture.handler)
        capture.attached_loggers.append(logger)
    if capture.level is not None:
        capture.orig_level = _loggers[0].level
        _loggers[0].setLevel(min(capture.orig_level, capture.level))
    return capture.handler
