"""OpenHive's tools by their own names and parameters, as aliases of the operations that do the same."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dragoman.operations.call_aliases import CallAlias, Translate, rename
from dragoman.teams.openhive_tool_names import NAMES

DAY = 86_400.0
MAX_DAYS = 365.0
OVERLAP = {"always-skip": "skip", "always-replace": "replace", "skip-then-replace": "skip_then_replace"}
HANDLE = "secret:"
OVERLAP_FIELD = "overlap_policy"


def delegate(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `delegate_task`."""
    return rename(input, {OVERLAP_FIELD: "overlap"})


def create(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `spawn_team`: `credentials` name secrets by their handles, never by values."""
    found = rename(input, {"scope_accepts": "accepts", "init_context": "instructions"})
    credentials = found.get("credentials")
    if isinstance(credentials, Mapping) and all(map(is_handle, credentials.values())):
        found["secrets"] = [value.removeprefix(HANDLE) for value in found.pop("credentials").values()]
    return found


def is_handle(value: Any) -> bool:
    """Return whether a value is the handle of a secret."""
    return isinstance(value, str) and value.startswith(HANDLE)


def update(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `update_team`."""
    return rename(input, {"scope_add": "accepts_add", "scope_remove": "accepts_remove"})


def remove(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `shutdown_team`."""
    return rename(input, {"name": "team"})


def tell(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `send_message`."""
    return rename(input, {"target": "team"})


def ask(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `query_team` and `query_teams`."""
    found = rename(input, {"team": "teams", "query": "question"})
    if isinstance(found.get("teams"), str):
        found["teams"] = [found["teams"]]
    if "timeout_ms" in found:
        found["seconds"] = found.pop("timeout_ms") / 1_000
    return found


def hand_up(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `enqueue_parent_task`: what it says besides becomes a part of the task."""
    found = rename(input, {})
    notes = [str(found.pop(name)) for name in ("context", "message_for_user") if name in found]
    return {**found, "task": "\n\n".join([found["task"], *notes])} if notes and "task" in found else found


def history(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `list_completed_tasks`: `since` is a time, ISO 8601 or milliseconds since 1970."""
    found = rename(input, {})
    since = found.pop("since", None)
    if isinstance(since, str):
        then = datetime.fromisoformat(since)
        since = (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp() * 1_000
    if since is not None:
        found["days"] = min(max((time.time() - since / 1_000) / DAY, 0.001), MAX_DAYS)
    return found


def trigger(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the tools of triggers."""
    found = rename(input, {"trigger_name": "name", OVERLAP_FIELD: "overlap"})
    if "overlap" in found:
        found["overlap"] = OVERLAP.get(found["overlap"], found["overlap"])
    return found


def tested_trigger(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `test_trigger`: the trigger itself says how many steps it takes."""
    found = trigger(input)
    found.pop("max_steps", None)
    return found


def changed_trigger(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate `update_trigger`: what is not its name or team is a change."""
    found = trigger(input)
    outside: dict[str, Any] = {name: found.pop(name) for name in ("name", "team") if name in found}
    return {**outside, "changes": found.pop("changes", found)}


def vault(input: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the tools of the vault."""
    return rename(input, {"key": "name"})


DIFFERENT: Mapping[str, Translate] = {
    "spawn_team": create,
    "update_team": update,
    "shutdown_team": remove,
    "delegate_task": delegate,
    "send_message": tell,
    "query_team": ask,
    "query_teams": ask,
    "enqueue_parent_task": hand_up,
    "list_completed_tasks": history,
    "create_trigger": trigger,
    "update_trigger": changed_trigger,
    "enable_trigger": trigger,
    "disable_trigger": trigger,
    "list_triggers": trigger,
    "test_trigger": tested_trigger,
    "vault_set": vault,
    "vault_get": vault,
    "vault_list": vault,
    "vault_delete": vault,
}
ALIASES: Mapping[str, CallAlias] = {
    name: CallAlias(target, DIFFERENT.get(name, dict)) for name, target in NAMES.items()
}
"""The aliases by name. Those of files, shell, web and browser have the parameters of the operations."""
