"""A hook of Hatchling: what a wheel has of built pages, the web console and the documentation's site.

`pip install .` in a checkout builds them with it, as `make wheel` does beforehand. Where npm is missing, or a
registry cannot be reached, the wheel has no console, and its hub says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CONSOLE = Path("src/dragoman/server/console/static")
SITE = Path("src/dragoman/server/reference/site")
CONSOLE_SOURCES = ("console/src", "console/package-lock.json", "console/index.html", "console/vite.config.ts")
SITE_SOURCES = ("docs", "mkdocs.yml")


class BuiltPages(BuildHookInterface[Any]):
    """Build the pages that are missing or older than their sources. A source distribution has them."""

    def dependencies(self) -> list[str]:
        """Return what builds the site, where it is to be built."""
        return ["mkdocs-material"] if is_stale(Path(self.root), SITE, SITE_SOURCES) else []

    def initialize(self, version: str, _build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if is_stale(root, CONSOLE, CONSOLE_SOURCES):
            self._try("the web console", root / CONSOLE, self._build_console)
        if is_stale(root, SITE, SITE_SOURCES):
            self._try("the documentation's site", root / SITE, self._build_site)

    def _try(self, name: str, folder: Path, build: Any) -> None:
        try:
            build()
        except (OSError, subprocess.CalledProcessError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            self.app.display_warning(f"this wheel has not got {name}: {error}")

    def _build_console(self) -> None:
        folder = Path(self.root) / "console"
        npm = shutil.which("npm")
        if npm is None:
            raise FileNotFoundError("npm is missing; install Node.js 20 or newer")
        run([npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], folder)
        run([npm, "run", "--silent", "bundle"], folder)

    def _build_site(self) -> None:
        command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(SITE)]
        run(command, Path(self.root))


def run(command: list[str], folder: Path) -> None:
    """Run a command, its output to stderr. CalledProcessError."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr, env=environment)


def is_stale(root: Path, built: Path, sources: tuple[str, ...]) -> bool:
    """Tell whether a built page is missing or older than one of its sources. Without sources it never is."""
    newest = max((file.stat().st_mtime for file in walk(root, sources)), default=None)
    index = root / built / "index.html"
    return newest is not None and (not index.exists() or index.stat().st_mtime < newest)


def walk(root: Path, sources: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files that exist of the sources, and those in their folders."""
    for source in sources:
        path = root / source
        if path.is_dir():
            yield from (each for each in path.rglob("*") if each.is_file())
        elif path.exists():
            yield path
