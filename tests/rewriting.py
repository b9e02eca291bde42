"""Rewrite the assertions of all test modules once, before several processes load them.

In a new clone each of them would do it for itself: 16 s of processor time, more than all else of a start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

CONFTEST = "conftest.py"


def rewrite_assertions(config: pytest.Config, folder: Path) -> None:
    """Write what pytest would, where its own look for it, as far as it is not there or out of date."""
    if sys.dont_write_bytecode:
        return
    state = config.stash[rewrite.assertstate_key]
    for source in modules_of(folder):
        cache = rewrite.get_cache_dir(source)
        pyc = cache / f"{source.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(source, pyc) is None and rewrite.try_makedirs(cache):
            source_hash, code = rewrite._rewrite_test(source, config)
            rewrite._write_pyc(state, code, source_hash, pyc)


def modules_of(folder: Path) -> Iterator[Path]:
    """Yield the modules whose assertions are rewritten."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name != "node_modules":
            yield from modules_of(entry)
        elif entry.name == CONFTEST or (entry.name.startswith("test_") and entry.suffix == ".py"):
            yield entry
