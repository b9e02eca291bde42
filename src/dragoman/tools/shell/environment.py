"""The environment of commands that a model writes: only variables that hold no secrets."""

from __future__ import annotations

from collections.abc import Mapping

SHELL_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "TZ", "VIRTUAL_ENV", "NODE_PATH"}
)
SHELL_PREFIXES = ("LC_", "XDG_")


def shell_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a model's commands get: an allowlist, since any other may hold a secret."""
    return {
        name: value
        for name, value in environ.items()
        if name in SHELL_VARIABLES or name.startswith(SHELL_PREFIXES)
    }
