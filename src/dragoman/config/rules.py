"""Rules: what must hold between the fields of a configuration, beyond their types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from urllib.parse import urlsplit

import msgspec

from dragoman.config.document import Unusable
from dragoman.config.faults import Fault, Path, listed, looks_secret, meant, shorten
from dragoman.config.sections import (
    Config,
    KeyConfig,
    LimitsConfig,
    McpServerConfig,
    ProviderConfig,
    StopConfig,
)
from dragoman.limits import Limits

# ---- Agents: that what they say of their answers can be: stop conditions, functions, a schema.

REFERENCE = re.compile(r".*[^:\s]:[A-Za-z_][\w.]*")


def broken_agents(config: Config) -> Iterator[Fault]:
    """Everything of them that cannot be, though its types fit."""
    for name, agent in config.agents.items():
        path: Path = ("agents", name)
        for at, stop in enumerate(agent.stop_when):
            yield from _stop(stop, path=(*path, "stop_when", at))
        yield from _reference(agent.on_prepare_step, path=(*path, "on_prepare_step"))
        if agent.output == {}:
            yield Fault((*path, "output"), "expected a JSON Schema, or the path of a file that holds one")


def _stop(stop: StopConfig, *, path: Path) -> Iterator[Fault]:
    said = stop.said
    if not said:
        yield Fault(path, f"says no condition; there are {listed(stop.__struct_fields__)}")
    elif len(said) > 1:
        yield Fault(path, f"says {' and '.join(said)}; one at a time, or several under `all` or `any`")
    for word in ("all", "any"):
        for at, inner in enumerate(getattr(stop, word)):
            yield from _stop(inner, path=(*path, word, at))
    if stop.matches is not None:
        try:
            re.compile(stop.matches)
        except re.error as error:
            yield Fault((*path, "matches"), f"is no regular expression: {error}")
    try:
        stop.seconds  # noqa: B018 - reading it is the check
    except Unusable as error:
        yield Fault((*path, "time"), f"{shorten(str(stop.time))} {error}")
    yield from _reference(stop.use, path=(*path, "use"))


def _reference(said: str | None, *, path: Path) -> Iterator[Fault]:
    if said is not None and not REFERENCE.fullmatch(said):
        yield Fault(path, f"expected module:name or ./file.py:name, got {shorten(said)}")


# ---- Routes: that models, aliases and fallbacks lead to providers there are, and in no circle.

ANY = "*"
_ANYTHING = re.compile(r"[*?[]")


def broken_routes(config: Config) -> Iterator[Fault]:
    """Every name of a model that leads nowhere, or back to itself."""
    if config.default_provider is not None and config.default_provider not in config.providers:
        yield Fault(("default_provider",), _nobody(config.default_provider, config))
    yield from _defaults(config)
    yield from _aliases(config)
    yield from _fallbacks(config)
    for pattern in config.prices:
        place = pattern.partition("/")[0]
        if "/" in pattern and not _ANYTHING.search(place) and place not in config.providers:
            yield Fault(("prices", pattern), _nobody(place, config))


def _defaults(config: Config) -> Iterator[Fault]:
    said: dict[Path, str | None] = {("model",): config.model}
    said |= {("agents", name, "model"): agent.model for name, agent in config.agents.items()}
    for path, model in said.items():
        if model and not _leads(model, config):
            yield Fault(path, _unled(model, config))


def _aliases(config: Config) -> Iterator[Fault]:
    for name, models in config.routes.items():
        path: Path = ("aliases", name)
        if not name or name == ANY or ("/" in name and name.partition("/")[0] in config.providers):
            yield Fault(path, "an alias has a name of its own, not that of a provider and a slash")
        for place, model in enumerate(models):
            at = path if isinstance(config.aliases[name], str) else (*path, place)
            if not _leads(model, config):
                yield Fault(at, _unled(model, config))
        circle = _circle(name, config)
        if circle:
            yield Fault(path, f"leads in a circle: {' -> '.join(circle)}")


def _circle(name: str, config: Config) -> Sequence[str]:
    """The shortest way from an alias back to itself, if there is one."""
    ways: list[Sequence[str]] = [(name,)]
    seen: set[str] = set()
    for way in ways:  # it grows
        for model in config.routes.get(way[-1], ()):
            if model == name:
                return (*way, name)
            if model not in seen:
                seen.add(model)
                ways.append((*way, model))
    return ()


def _fallbacks(config: Config) -> Iterator[Fault]:
    for name, others in config.fallbacks.items():
        path: Path = ("fallbacks", name)
        if name != ANY and not _leads(name, config):
            yield Fault(path, _unled(name, config))
        for place, model in enumerate(others):
            if not _leads(model, config):
                yield Fault((*path, place), _unled(model, config))
            elif model == name:
                yield Fault((*path, place), "falls back to itself")


def _leads(model: str, config: Config) -> bool:
    """Whether somebody answers for a model's name."""
    if model in config.aliases:
        return True
    place, slash, served = model.partition("/")
    if slash and place in config.providers:
        return bool(served)
    return config.default_provider is not None and bool(model) and not slash


def _unled(model: str, config: Config) -> str:
    place, slash, served = model.partition("/")
    if slash and served:
        return _nobody(place, config)
    return f"{shorten(model)} is neither provider/model nor an alias{meant(model, config.aliases)}"


def _nobody(name: str, config: Config) -> str:
    known = f"; there are {listed(config.providers)}" if config.providers else "; there are none"
    return f"there is no provider {shorten(name)}{meant(name, config.providers) or known}"


# ---- Rules for what can be called and by whom: the policy, MCP servers, folders.

DECISIONS = ("allow", "ask", "deny")
EFFECTS = ("read", "idempotent", "once")
NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RATE = re.compile(r"[1-9]\d*\s*(?:/|per)\s*(?:second|minute|hour|day|s|min|h|d)", re.IGNORECASE)


def broken_operations(config: Config) -> Iterator[Fault]:
    """Everything of it that cannot be, though its types fit."""
    yield from _policy(config)
    for name, server in config.mcp_servers.items():
        yield from _server(name, server)


def _policy(config: Config) -> Iterator[Fault]:
    for at, rule in enumerate(config.policy):
        path: Path = ("policy", at)
        said = [word for word in DECISIONS if getattr(rule, word)]
        if len(said) != 1:
            found = " and ".join(said) or "none"
            yield Fault(path, f"expected one of allow, ask and deny, got {found}")
        for effect in (rule.effect,) if isinstance(rule.effect, str) else rule.effect:
            if effect not in EFFECTS:
                yield Fault((*path, "effect"), f"expected read, idempotent or once, got {shorten(effect)}")
        for field in ("expires", "answerers"):
            if said != ["ask"] and getattr(rule, field):
                yield Fault((*path, field), "is for rules that `ask`")


def _server(name: str, server: McpServerConfig) -> Iterator[Fault]:
    path: Path = ("mcp_servers", name)
    if not NAMESPACE.fullmatch(name) or name.lower() == "hub":
        yield Fault(path, "a server's name is 1 to 64 letters, digits, - or _, and not `hub`")
    if bool(server.command) == bool(server.url):
        yield Fault(path, "takes either a command, such as [npx, -y, some-server], or a url")
    if server.url and not is_address(server.url):
        yield Fault((*path, "url"), "must be an address that begins with http:// or https://")
    if server.rate and not RATE.fullmatch(server.rate.strip()):
        yield Fault((*path, "rate"), "is no rate; one reads like 60/minute")
    for field in ("env", "env_from", "cwd"):
        if server.url and getattr(server, field):
            yield Fault((*path, field), "is for servers with a command")
    if server.command and server.headers:
        yield Fault((*path, "headers"), "is for servers with a url")


def is_address(url: str) -> bool:
    """Whether it is a URL of a web server."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


SOURCES = ("api_key_env", "api_key_file", "api_key_secret")
# Fields that only some types of provider know. Set for another they would do nothing, unnoticed.
_OF = {
    "script": ("scripted",),
    "model_path": ("local",),
    "version": ("anthropic",),
    "beta": ("anthropic",),
    "max_tokens": ("anthropic",),
    "num_ctx": ("ollama",),
    "keep_alive": ("ollama",),
    "think": ("ollama",),
    "reasoning_field": ("openai",),
    "lenient_finish": ("openai",),
    "thinking": ("openai",),
    "call_ids": ("openai",),
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NEEDED = {"openai": ("base_url", "such as https://api.openai.com/v1"), "scripted": ("script", "a YAML file")}


def broken_rules(config: Config) -> Iterator[Fault]:
    """Everything in a configuration that cannot be, though its types fit."""
    for name, provider in config.providers.items():
        for rule in _PROVIDER_RULES:
            yield from rule(name, provider)
    yield from _limits(config.limits)
    yield from _telemetry(config)
    yield from _variable(config.master_key_env, path=("master_key_env",))
    yield from broken_routes(config)
    yield from broken_operations(config)
    yield from broken_agents(config)


def _place(name: str, provider: ProviderConfig) -> Iterator[Fault]:
    path = ("providers", name)
    if not name or "/" in name:
        yield Fault(path, "a provider's name is a word without a slash")
    field, example = _NEEDED.get(provider.type, ("", ""))
    if field and not getattr(provider, field):
        yield Fault((*path, field), f"is missing: {example}")
    if provider.base_url is not None:
        yield from _address(provider.base_url, path=(*path, "base_url"))
    for header, value in provider.headers.items():
        if not _HEADER.fullmatch(header) or not value.isprintable():
            yield Fault((*path, "headers", header), "no header that HTTP could carry")


def _address(url: str, *, path: Path) -> Iterator[Fault]:
    """The URL itself is not shown: it may hold a password."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        yield Fault(path, "expected a URL such as https://host/v1, with http:// or https://")


def _foreign(name: str, provider: ProviderConfig) -> Iterator[Fault]:
    for field in msgspec.structs.fields(provider):
        known = _OF.get(field.name, (provider.type,))
        if provider.type not in known and getattr(provider, field.name) != field.default:
            advice = "; in options it would go along" if field.name == "max_tokens" else ""
            yield Fault(
                ("providers", name, field.name),
                f"is for type {listed(known)}, and this is {provider.type}{advice}",
            )


def _keys(name: str, provider: ProviderConfig) -> Iterator[Fault]:
    path = ("providers", name)
    yield from _sources(provider, path=path)
    if provider.keys and any(getattr(provider, source) for source in SOURCES):
        yield Fault((*path, "keys"), f"either several keys here, or one in {listed(SOURCES)}")
    seen: set[str] = set()
    for place, key in enumerate(provider.keys):
        below: Path = (*path, "keys", place)
        if not any(getattr(key, source) for source in SOURCES):
            yield Fault(below, f"expected one of {listed(SOURCES)}")
        yield from _sources(key, path=below)
        if key.name in seen:
            yield Fault((*below, "name"), "another key of this provider has this name")
        seen |= {key.name} if key.name else set()


def _sources(holder: ProviderConfig | KeyConfig, *, path: Path) -> Iterator[Fault]:
    said = [source for source in SOURCES if getattr(holder, source)]
    if len(said) > 1:
        yield Fault((*path, said[1]), f"only one of {listed(said)}")
    yield from _variable(holder.api_key_env, path=(*path, "api_key_env"))
    if holder.api_key_secret and looks_secret(holder.api_key_secret):
        yield Fault(
            (*path, "api_key_secret"), "expected a name in the table of secrets, not the secret itself"
        )


def _variable(name: str | None, *, path: Path) -> Iterator[Fault]:
    if name is not None and (not _VARIABLE.fullmatch(name) or looks_secret(name)):
        yield Fault(path, "expected the name of an environment variable, not the key itself")


def _limits(limits: LimitsConfig) -> Iterator[Fault]:
    named: dict[Path, Limits] = {("key",): limits.key, ("owner",): limits.owner}
    named |= {("owners", owner): held for owner, held in limits.owners.items()}
    yield from chain.from_iterable(_negative(held, path=("limits", *path)) for path, held in named.items())


def _negative(limits: Limits, *, path: Path) -> Iterator[Fault]:
    for field in limits.__struct_fields__:
        value = getattr(limits, field)
        if value is not None and value < 0:
            yield Fault((*path, field), f"expected a number >= 0, got {value}")


def _telemetry(config: Config) -> Iterator[Fault]:
    endpoint = config.telemetry.otlp_endpoint
    if endpoint is not None:
        yield from _address(endpoint, path=("telemetry", "otlp_endpoint"))
    for origin in config.cors.origins:
        if origin != "*" and "://" not in origin:
            place = config.cors.origins.index(origin)
            yield Fault(
                ("cors", "origins", place), f"expected an origin such as https://host, got {shorten(origin)}"
            )


_PROVIDER_RULES: tuple[Callable[[str, ProviderConfig], Iterator[Fault]], ...] = (_place, _foreign, _keys)
