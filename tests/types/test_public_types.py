"""The public names have their documented types."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.public_names import MODULES

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
NAMES = re.compile(r"`(\w+)`")
LINK = re.compile(r"\]\(([\w-]+)\.md[)#]")


@pytest.mark.thorough  # `make check` holds the same file against the source
@pytest.mark.promise("error-exactly-when-crashed")
@pytest.mark.promise("types-tell-apart")
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
        timeout=600,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout + checked.stderr


def test_the_public_list_is_flat_and_every_name_says_what_it_is() -> None:
    tree = ast.parse(inspect.getsource(dragoman))
    [typed] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = [
        (node.module, node.names[0].asname) for node in typed.body if isinstance(node, ast.ImportFrom)
    ]
    # What a type checker reads and what is imported at run time are the same.
    assert sorted(imported) == sorted((f"dragoman.{module}", name) for name, module in MODULES.items())
    assert {name for _, name in imported} == set(dragoman.__all__)
    assert list(dragoman.__all__) == sorted(dragoman.__all__)
    for name in dragoman.__all__:
        thing = getattr(dragoman, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name} says nothing of itself"


def rows() -> list[tuple[list[str], list[str]]]:
    """The rows of the page that lists all names: the names in the first cell, the pages that tell of them."""
    cells = [
        line.split("|")[1:-1] for line in (DOCS / "names.md").read_text("utf-8").splitlines() if "| `" in line
    ]
    return [(NAMES.findall(first), LINK.findall(last)) for first, *_, last in cells]


def test_the_page_of_names_lists_all_of_them_once() -> None:
    listed = [name for names, _ in rows() for name in names]
    assert sorted(listed) == sorted(dragoman.__all__)


@pytest.mark.parametrize("name", dragoman.__all__)
def test_a_name_is_told_of_on_the_page_that_it_is_said_to_be_on(name: str) -> None:
    (pages,) = [pages for names, pages in rows() if name in names]
    assert pages, f"{name} has no page"
    message = "\n".join((DOCS / f"{page}.md").read_text("utf-8") for page in pages)
    assert re.search(rf"\b{name}\b", message), f"{name} is not on {pages}"
