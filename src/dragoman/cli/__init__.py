"""The command line: serve a hub, talk to it, look into it."""

from dragoman.cli.program import main as main
