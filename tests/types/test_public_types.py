"""The public names have the types that they promise, for whoever checks their own code against them."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman

HERE = Path(__file__).parent


@pytest.mark.promise("error-exactly-when-crashed")
def test_the_public_names_have_the_types_that_they_promise() -> None:
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-warn-unused-configs",
            "--no-error-summary",
            str(HERE / "public.py"),
        ],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout + checked.stderr


def test_the_public_list_is_flat_and_every_name_says_what_it_is() -> None:
    tree = ast.parse(inspect.getsource(dragoman))
    imported = {name.asname for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert imported == set(dragoman.__all__)
    assert list(dragoman.__all__) == sorted(dragoman.__all__)
    for name in dragoman.__all__:
        thing = getattr(dragoman, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name} says nothing of itself"
