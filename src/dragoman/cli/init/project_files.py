"""The files of a new project: a commented configuration, a first operation, and what git leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dragoman.cli.init.discovery import ModelSource

CONFIG_FILE, OPERATIONS_FILE, IGNORE_FILE = Path("dragoman.yaml"), Path("operations.py"), Path(".gitignore")
IGNORED = (".dragoman/", ".env")
HEADER = """\
# The configuration of a Dragoman hub. `dragoman check` explains it; `dragoman serve` reads it.
# Every field is in the page "Configuration" of the documentation.
"""
EXTRAS = """\
# Further names for models, so that clients need not change when you do:
# aliases:
#   fast: {model}
#
# What to try when a model fails before its first word:
# fallbacks:
#   fast: [other/model]
#
# Ask a person before anything that changes the world:
# policy:
#   - ask: "*"
#     effect: once
#
# Tools of MCP servers become operations:
# mcp_servers:
#   time: {{command: [uvx, mcp-server-time]}}
#
# Limits of each key:
# limits:
#   key: {{usd_per_day: 5, requests_per_minute: 60}}
"""
OPERATION = '''\
"""Operations of this hub: functions that its models find and call, and MCP clients too.

Restart the hub after a change; `dragoman ops list` shows what there is.
"""

from datetime import date

from dragoman import operation


@operation("days", effect="read")
async def until(day: date) -> int:
    """Count the days from today until another day.

    Args:
        day: The other day, such as 2030-01-31.
    """
    return (day - date.today()).days
'''


def config_text(sources: Sequence[ModelSource], chosen: ModelSource, *, operation: bool) -> str:
    """Return the text of dragoman.yaml: the sources as providers, the chosen one's model as the default."""
    lines = [HEADER, "providers:"]
    for source in sources:
        lines.append(f"  # {source.found}")
        lines.append(indent(yaml_text({source.name: dict(source.fields)}), 2))
    lines += ["", "# Answers where a request names no model.", f"model: {quoted(chosen.default_model)}", ""]
    lines += ["# A name of a model without a provider goes here, such as `gpt-5` of a stock client."]
    lines += [f"default_provider: {chosen.name}", ""]
    if operation:
        lines += ["# Functions of your own that models can call.", f"operations: [./{OPERATIONS_FILE}]", ""]
        lines += ["# These are shown to the model as they are; it searches for all others."]
        lines += ["pinned: [days.until, time.now, math.calculate]", ""]
    lines.append(EXTRAS.format(model=chosen.default_model))
    return "\n".join(lines)


def ignore_text(existing: str) -> str | None:
    """Return what .gitignore should say, None if it says so already."""
    present = {line.strip() for line in existing.splitlines()}
    missing = [line for line in IGNORED if line not in present]
    if not missing:
        return None
    start = existing if not existing or existing.endswith("\n") else f"{existing}\n"
    return start + "".join(f"{line}\n" for line in missing)


def yaml_text(value: Mapping[str, Any]) -> str:
    """Return a value as YAML, in the order of its fields."""
    return yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=100).rstrip()


def quoted(text: str) -> str:
    """Return a text as a YAML scalar."""
    return yaml.safe_dump(text, allow_unicode=True, width=1000).removesuffix("\n").removesuffix("\n...")


def indent(text: str, spaces: int) -> str:
    """Return a text with its lines indented."""
    return "\n".join(f"{' ' * spaces}{line}" for line in text.splitlines())
