"""The Python examples of the context pages run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("context", "structured-output", "multimodal")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def examples() -> list[tuple[str, str]]:
    return [
        (page, code) for page in PAGES for code in BLOCK.findall((DOCS / f"{page}.md").read_text("utf-8"))
    ]


@pytest.mark.parametrize(("page", "code"), examples())
def test_an_example_of_the_documentation_runs(page: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{page}: {done.stderr}"


def test_every_page_has_examples() -> None:
    assert {page for page, _ in examples()} == set(PAGES)
