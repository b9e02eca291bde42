"""The command line: serve a hub, chat with it, inspect and administer it."""

from dragoman.cli.main import main as main
