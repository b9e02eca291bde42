"""The Python examples of the library's pages run as printed, in one namespace a page.

Tests among them run as well, after what makes their recordings.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
COUNTS = {
    "agent": 6,
    "context": 2,
    "errors": 1,
    "events": 1,
    "hooks": 3,
    "messages": 1,
    "multimodal": 3,
    "parity": 1,
    "policy": 1,
    "providers-library": 2,
    "results": 2,
    "structured-output": 2,
    "subagents": 2,
    "testing": 3,
    "tool-builder": 1,
}
LIMIT = 120
TESTS = """
import asyncio
import inspect

for name, function in list(globals().items()):
    if name.startswith(("make_", "test_")):
        found = function()
        if inspect.iscoroutine(found):
            asyncio.run(found)
        print(name)
"""
KEY = {"OPENAI_API_KEY": "sk-example"}  # no page asks anybody who would take it


def blocks(page: str) -> list[str]:
    """The Python blocks of a page."""
    return BLOCK.findall((DOCS / f"{page}.md").read_text("utf-8"))


def environ() -> dict[str, str]:
    """That of this process; the paths of modules are absolute."""
    paths = os.environ.get("PYTHONPATH", "")
    absolute = [str(Path(path).absolute()) for path in paths.split(os.pathsep) if path]
    own = {**os.environ, **KEY}
    return {**own, "PYTHONPATH": os.pathsep.join(absolute)} if absolute else own


@pytest.mark.parametrize("page", sorted(COUNTS))
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    script = tmp_path / f"page_{page.replace('-', '_')}.py"
    script.write_text("\n\n".join([*blocks(page), TESTS]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{page}: {done.stderr}"


def test_the_package_loads_without_a_warning() -> None:
    """The pages may be run in forks of a process that has loaded the package: tests/zygote.py."""
    load = "import dragoman; [getattr(dragoman, name) for name in dragoman.__all__]"
    command = [sys.executable, "-W", "error", "-c", load]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", sorted(COUNTS))
def test_no_page_has_lost_an_example(page: str) -> None:
    assert len(blocks(page)) == COUNTS[page]
