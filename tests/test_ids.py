"""Ids are unique, also after a fork."""

from __future__ import annotations

import subprocess
import sys

FORK = """
import os, sys
from dragoman.ids import new_id, sortable_id
new_id("a")
if os.fork():
    os.wait()
print(new_id("a"), sortable_id("a")[12:], flush=True)
"""


def test_a_forked_process_makes_ids_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    ids = done.stdout.split()
    assert len(ids) == len(set(ids)) == 4
