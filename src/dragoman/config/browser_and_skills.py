"""The sections `browser` and `skills`: the browsers of teams, and where teams find skills."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

Text: TypeAlias = Annotated[str, Meta(min_length=1)]


class BrowserConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the browsers of teams are started: the command of the Playwright MCP server, and the browser."""

    command: tuple[Text, ...] = ()
    executable: Text | None = None
    sandbox: bool = True


class SkillsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where teams search for skills: folders and git checkouts by name, an index, and its files."""

    folders: dict[str, Text] = {}
    index: Text | None = None
    content: Text = "https://raw.githubusercontent.com"
