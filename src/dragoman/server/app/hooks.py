"""The hooks of a hub, as its configuration says them: Python functions, ready-made ones, HTTP addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from dragoman.agent.hooks.events import HookName
from dragoman.agent.hooks.guards.audit import audit_log
from dragoman.agent.hooks.guards.commands import confirm_destructive
from dragoman.agent.hooks.guards.paths import path_guard
from dragoman.agent.hooks.guards.rates import rate_limit
from dragoman.agent.hooks.guards.redaction import redact
from dragoman.agent.hooks.guards.secrets import secret_scan
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.hooks.http import http_hook
from dragoman.agent.hooks.runner import OF_TOOLS, Hook, HookFunction, OnError
from dragoman.errors import ConfigError
from dragoman.http.transport import Transport
from dragoman.http.webhook import Webhook
from dragoman.operations.loading import find

READY: Mapping[str, Callable[..., Any]] = {
    "path_guard": path_guard,
    "confirm_destructive": confirm_destructive,
    "rate_limit": rate_limit,
    "audit_log": audit_log,
    "secret_scan": secret_scan,
    "redact": redact,
}


class HookSaid(Protocol):
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


def hooks_of(said: Sequence[HookSaid], *, environ: Mapping[str, str], transport: Transport) -> Hooks:
    """The hooks in the order in which they stand. ConfigError names the entry that cannot be used."""
    hooks = Hooks()
    for number, entry in enumerate(said):
        try:
            hooks = hooks + entry_of(entry, environ=environ, transport=transport)
        except ConfigError as error:
            raise ConfigError(f"hooks[{number}]: {error.message}", hint=error.hint) from None
        except (TypeError, ValueError, OSError) as error:  # options that a ready-made hook does not take
            raise ConfigError(f"hooks[{number}]: {error}") from None
    return hooks


def entry_of(said: HookSaid, *, environ: Mapping[str, str], transport: Transport) -> Hooks:
    """What one entry stands for: a hook, or several."""
    if bool(said.use) == bool(said.url):
        raise ConfigError("takes either `use`, a function, or `url`, an address")
    if said.url:
        place = Webhook(said.url, transport, secret=secret_of(said, environ), timeout=said.timeout)
        return one(said, http_hook(place), name=said.name or place.host)
    made = found(said.use or "", said.options)
    if isinstance(made, Hooks):
        return Hooks(*(fitted(each, said) for each in made))
    return one(said, made, name=said.name)


def one(said: HookSaid, function: HookFunction, *, name: str | None) -> Hooks:
    """One hook as the entry wants it."""
    if said.use in READY and said.event not in (None, "pre_tool_use"):
        raise ConfigError(f"{said.use} is for pre_tool_use, not for {said.event}")
    event = said.event or ("pre_tool_use" if said.use in READY else None)
    if event is None:
        raise ConfigError("says no `event`")
    hooks = Hooks().on(
        event,
        function,
        match=said.match,
        timeout=said.timeout,
        on_error=said.on_error,
        watches=said.watches,
    )
    return hooks if name is None else Hooks(*(replace(each, name=name) for each in hooks))


def fitted(hook: Hook, said: HookSaid) -> Hook:
    """One of several hooks, narrowed to the entry's operations where it has any."""
    match = (said.match,) if isinstance(said.match, str) else tuple(said.match)
    return replace(
        hook,
        name=said.name or hook.name,
        match=match if match and hook.event in OF_TOOLS else hook.match,
        timeout=said.timeout,
        on_error=said.on_error or hook.on_error,
    )


def secret_of(said: HookSaid, environ: Mapping[str, str]) -> str | None:
    """What signs the requests."""
    if said.secret_env is None:
        return None
    held = environ.get(said.secret_env)
    if not held:
        raise ConfigError(
            f"the environment variable {said.secret_env} is not set; it holds the hook's secret"
        )
    return held


def found(use: str, options: Mapping[str, Any]) -> Any:
    """What `use` names: one that is ready-made, or `module:name` or `file.py:name`, made with the options."""
    if use in READY:
        return ready(use, dict(options))
    if ":" not in use.lstrip(":"):
        known = ", ".join(READY)
        raise ConfigError(f"{use!r} is no hook", hint=f"there are {known}; or say module:function")
    thing = find(use, "function or Hooks")
    if not isinstance(thing, Hooks) and not callable(thing):
        raise ConfigError(f"{use} is no function and no Hooks")
    return thing(**options) if options else thing


def ready(name: str, options: dict[str, Any]) -> Any:
    """A ready-made hook. What stands first in its signature is given by name here."""
    first = {"redact": "names", "rate_limit": "rate", "path_guard": "roots", "audit_log": "path"}.get(name)
    if name == "redact":
        return redact(*options.pop("names", ()), **options)
    if first is not None and first not in options:
        raise ConfigError(f"{name} wants the option {first!r}")
    return READY[name](**options)
