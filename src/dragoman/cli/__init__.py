"""The command line: serve a hub, talk to it, look into it."""

from dragoman.cli.main import main as main
