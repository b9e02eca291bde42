"""Builds the hooks of a configuration: Python functions, built-in hooks and HTTP endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from dragoman.agent.hooks.events import HookName
from dragoman.agent.hooks.guards.audit import audit_log
from dragoman.agent.hooks.guards.destructive_commands import confirm_destructive
from dragoman.agent.hooks.guards.paths import path_guard
from dragoman.agent.hooks.guards.rate_limit import rate_limit
from dragoman.agent.hooks.guards.redaction import redact
from dragoman.agent.hooks.guards.secrets import secret_scan
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.hooks.http import http_hook
from dragoman.agent.hooks.runner import TOOL_HOOKS, Hook, HookFunction, OnError
from dragoman.errors import ConfigError
from dragoman.http.transport import Transport
from dragoman.http.webhook import Webhook
from dragoman.operations.loader import load_object

BUILTIN_HOOKS: Mapping[str, Callable[..., Any]] = {
    "path_guard": path_guard,
    "confirm_destructive": confirm_destructive,
    "rate_limit": rate_limit,
    "audit_log": audit_log,
    "secret_scan": secret_scan,
    "redact": redact,
}


class HookEntry(Protocol):
    """One entry of `hooks` in a configuration; `config.sections.HookConfig` is one."""

    @property
    def event(self) -> HookName | None: ...
    @property
    def use(self) -> str | None: ...
    @property
    def url(self) -> str | None: ...
    @property
    def secret_env(self) -> str | None: ...
    @property
    def match(self) -> str | tuple[str, ...]: ...
    @property
    def timeout(self) -> float: ...
    @property
    def on_error(self) -> OnError | None: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def name(self) -> str | None: ...
    @property
    def watches(self) -> bool: ...


def build_hooks(entries: Sequence[HookEntry], *, environ: Mapping[str, str], transport: Transport) -> Hooks:
    """Build the hooks in the order of the entries. ConfigError names the invalid entry."""
    hooks = Hooks()
    for number, entry in enumerate(entries):
        try:
            hooks = hooks + build_entry(entry, environ=environ, transport=transport)
        except ConfigError as error:
            raise ConfigError(f"hooks[{number}]: {error.message}", hint=error.hint) from None
        except (TypeError, ValueError, OSError) as error:  # options that a built-in hook does not accept
            raise ConfigError(f"hooks[{number}]: {error}") from None
    return hooks


def build_entry(entry: HookEntry, *, environ: Mapping[str, str], transport: Transport) -> Hooks:
    """Build the hooks of one entry."""
    if bool(entry.use) == bool(entry.url):
        raise ConfigError("takes either `use`, a function, or `url`, an address")
    if entry.url:
        webhook = Webhook(entry.url, transport, secret=signing_secret(entry, environ), timeout=entry.timeout)
        return build_hook(entry, http_hook(webhook), name=entry.name or webhook.host)
    loaded = load_hook(entry.use or "", entry.options)
    if isinstance(loaded, Hooks):
        return Hooks(*(apply_entry(hook, entry) for hook in loaded))
    return build_hook(entry, loaded, name=entry.name)


def build_hook(entry: HookEntry, function: HookFunction, *, name: str | None) -> Hooks:
    """Build one hook from a function, with the options of its entry."""
    if entry.use in BUILTIN_HOOKS and entry.event not in (None, "pre_tool_use"):
        raise ConfigError(f"{entry.use} is for pre_tool_use, not for {entry.event}")
    event = entry.event or ("pre_tool_use" if entry.use in BUILTIN_HOOKS else None)
    if event is None:
        raise ConfigError("does not name an `event`")
    hooks = Hooks().on(
        event,
        function,
        match=entry.match,
        timeout=entry.timeout,
        on_error=entry.on_error,
        watches=entry.watches,
    )
    return hooks if name is None else Hooks(*(replace(each, name=name) for each in hooks))


def apply_entry(hook: Hook, entry: HookEntry) -> Hook:
    """Restrict a hook to the operations of its entry, if it names any."""
    match = (entry.match,) if isinstance(entry.match, str) else tuple(entry.match)
    return replace(
        hook,
        name=entry.name or hook.name,
        match=match if match and hook.event in TOOL_HOOKS else hook.match,
        timeout=entry.timeout,
        on_error=entry.on_error or hook.on_error,
    )


def signing_secret(entry: HookEntry, environ: Mapping[str, str]) -> str | None:
    """Return the secret that signs the hook's requests; None without one. ConfigError."""
    if entry.secret_env is None:
        return None
    secret = environ.get(entry.secret_env)
    if not secret:
        raise ConfigError(
            f"the environment variable {entry.secret_env} is not set; it holds the hook's secret"
        )
    return secret


def load_hook(reference: str, options: Mapping[str, Any]) -> Any:
    """Load what `use` names: a built-in hook, `module:name` or `file.py:name`, with its options."""
    if reference in BUILTIN_HOOKS:
        return build_builtin_hook(reference, dict(options))
    if ":" not in reference.lstrip(":"):
        names = ", ".join(BUILTIN_HOOKS)
        raise ConfigError(
            f"{reference!r} is not a hook", hint=f"use one of {names}, or write module:function"
        )
    thing = load_object(reference, "function or Hooks")
    if not isinstance(thing, Hooks) and not callable(thing):
        raise ConfigError(f"{reference} is neither a function nor Hooks")
    return thing(**options) if options else thing


def build_builtin_hook(name: str, options: dict[str, Any]) -> Any:
    """Build a built-in hook from its options, which name the first, positional parameter too."""
    first = {"redact": "names", "rate_limit": "rate", "path_guard": "roots", "audit_log": "path"}.get(name)
    if name == "redact":
        return redact(*options.pop("names", ()), **options)
    if first is not None and first not in options:
        raise ConfigError(f"{name} needs the option {first!r}")
    return BUILTIN_HOOKS[name](**options)
