"""The names that OpenHive gives its tools, and the operations that do the same here."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

NAMES: dict[str, str] = {
    # organisation
    "spawn_team": "teams.create",
    "delegate_task": "teams.delegate",
    "enqueue_parent_task": "teams.hand_up",
    "escalate": "teams.escalate",
    "send_message": "teams.tell",
    "query_team": "teams.ask",
    "query_teams": "teams.ask",
    "get_status": "teams.status",
    "list_teams": "teams.list",
    "list_completed_tasks": "teams.history",
    "update_team": "teams.update",
    "shutdown_team": "teams.remove",
    # triggers
    "create_trigger": "triggers.create",
    "update_trigger": "triggers.update",
    "enable_trigger": "triggers.enable",
    "disable_trigger": "triggers.disable",
    "list_triggers": "triggers.list",
    "test_trigger": "triggers.test",
    # memory and vault
    "memory_save": "memory.save",
    "memory_search": "memory.search",
    "memory_list": "memory.list",
    "memory_delete": "memory.delete",
    "vault_set": "vault.set",
    "vault_get": "vault.get",
    "vault_list": "vault.list",
    "vault_delete": "vault.delete",
    # skills and plugins
    "use_skill": "skills.load",
    "search_skill_repository": "skills.search",
    "register_plugin_tool": "plugins.propose",
    # built in
    "read": "files.read",
    "write": "files.write",
    "edit": "files.edit",
    "glob": "files.glob",
    "grep": "files.grep",
    "bash": "shell.run",
    "web_fetch": "web.fetch",
    "browser_navigate": "browser.navigate",
    "browser_click": "browser.click",
    "browser_type": "browser.type",
    "browser_snapshot": "browser.snapshot",
    "browser_screenshot": "browser.screenshot",
    "browser_go_back": "browser.go_back",
    "browser_go_forward": "browser.go_forward",
    "browser_close": "browser.close",
}
MCP_PREFIX = "mcp__"


def translate_pattern(pattern: str) -> Iterator[str]:
    """Yield the patterns of operations that a pattern of OpenHive's `allowed_tools` stands for; maybe none.

    `*` stays. A name or glob of its tools becomes the ids of those that it matches. `mcp__SERVER__TOOL`
    becomes `SERVER.TOOL`. What has a dot is a tool of a team (`TEAM.TOOL`) and stays.
    """
    name = pattern.strip().lower()
    server, _, tool = name.removeprefix(MCP_PREFIX).partition("__")
    if name == "*" or "." in name:
        yield name
    elif name.startswith(MCP_PREFIX):
        yield f"{server}.{tool or '*'}"
    else:
        yield from dict.fromkeys(id for other, id in NAMES.items() if fnmatchcase(other, name))
