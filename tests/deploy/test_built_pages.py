"""What `pip install .` builds of pages before it makes a wheel."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.build_pages import CONSOLE, SITE, BuiltPages

NPM = """#!/bin/sh
[ "$1" = ci ] && exit 0
mkdir -p ../src/dragoman/server/console/static && echo page >../src/dragoman/server/console/static/index.html
"""


def make_hook(root: Path, warnings: list[str]) -> BuiltPages:
    app: Any = SimpleNamespace(display_warning=warnings.append)
    config: Any = None
    return BuiltPages(str(root), {}, config, config, str(root / "dist"), "wheel", app)


def test_a_wheel_of_a_checkout_has_the_console_and_one_of_a_source_distribution_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, page = tmp_path / "console/src/main.tsx", tmp_path / CONSOLE / "index.html"
    source.parent.mkdir(parents=True)
    source.touch()
    warnings: list[str] = []
    hook = make_hook(tmp_path, warnings)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    hook.initialize("standard", {})
    assert (page.exists(), len(warnings)) == (False, 1)
    assert "npm is missing" in warnings[0]

    npm = tmp_path / "bin/npm"
    npm.parent.mkdir()
    npm.write_text(NPM)
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:{os.defpath}")
    hook.initialize("standard", {})
    assert (page.read_text(), len(warnings)) == ("page\n", 1)

    page.write_text("built already")
    hook.initialize("standard", {})
    assert page.read_text() == "built already"
    os.utime(source, (later := time.time() + 60, later))
    hook.initialize("standard", {})
    assert page.read_text() == "page\n"

    source.unlink()
    hook.initialize("standard", {})
    assert page.exists()
    assert hook.dependencies() == []


def test_the_site_is_built_by_mkdocs_which_a_build_asks_for(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Home")
    (tmp_path / "mkdocs.yml").write_text("site_name: Here\n")
    hook = make_hook(tmp_path, [])
    assert hook.dependencies() == ["mkdocs-material"]
    hook.initialize("standard", {})
    assert "Home" in (tmp_path / SITE / "index.html").read_text()
    assert hook.dependencies() == []
