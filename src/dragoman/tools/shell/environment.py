"""The environment of commands that a model writes: nothing in it is a secret of the hub."""

from __future__ import annotations

from collections.abc import Mapping

SHELL_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "TZ", "VIRTUAL_ENV", "NODE_PATH"}
)
SHELL_PREFIXES = ("LC_", "XDG_")


def shell_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a model's commands: none that could hold a secret."""
    return {
        name: value
        for name, value in environ.items()
        if name in SHELL_VARIABLES or name.startswith(SHELL_PREFIXES)
    }
