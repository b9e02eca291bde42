"""Rules: what must hold between the fields of a configuration, beyond their types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from urllib.parse import urlsplit

import msgspec

from dragoman.config.problems import ConfigProblem, FieldPath, join_names, looks_secret, quote, suggest
from dragoman.config.sections import (
    Config,
    KeyConfig,
    LimitsConfig,
    McpServerConfig,
    ProviderConfig,
    StopConfig,
)
from dragoman.config.yaml_document import InvalidScalar
from dragoman.limits import Limits

# ---- Agents: that what they say of their answers can be: stop conditions, functions, a schema.

REFERENCE_PATTERN = re.compile(r".*[^:\s]:[A-Za-z_][\w.]*")


def agent_problems(config: Config) -> Iterator[ConfigProblem]:
    """Everything of them that cannot be, though its types fit."""
    for name, agent in config.agents.items():
        path: FieldPath = ("agents", name)
        for at, stop in enumerate(agent.stop_when):
            yield from _stop_problems(stop, path=(*path, "stop_when", at))
        yield from _reference_problems(agent.on_prepare_step, path=(*path, "on_prepare_step"))
        if agent.output == {}:
            yield ConfigProblem(
                (*path, "output"), "expected a JSON Schema, or the path of a file that holds one"
            )


def _stop_problems(stop: StopConfig, *, path: FieldPath) -> Iterator[ConfigProblem]:
    said = stop.conditions
    if not said:
        yield ConfigProblem(path, f"says no condition; there are {join_names(stop.__struct_fields__)}")
    elif len(said) > 1:
        yield ConfigProblem(
            path, f"says {' and '.join(said)}; one at a time, or several under `all` or `any`"
        )
    for word in ("all", "any"):
        for at, inner in enumerate(getattr(stop, word)):
            yield from _stop_problems(inner, path=(*path, word, at))
    if stop.matches is not None:
        try:
            re.compile(stop.matches)
        except re.error as error:
            yield ConfigProblem((*path, "matches"), f"is no regular expression: {error}")
    try:
        stop.seconds  # noqa: B018 - reading it is the check
    except InvalidScalar as error:
        yield ConfigProblem((*path, "time"), f"{quote(str(stop.time))} {error}")
    yield from _reference_problems(stop.use, path=(*path, "use"))


def _reference_problems(reference: str | None, *, path: FieldPath) -> Iterator[ConfigProblem]:
    if reference is not None and not REFERENCE_PATTERN.fullmatch(reference):
        yield ConfigProblem(path, f"expected module:name or ./file.py:name, got {quote(reference)}")


# ---- Routes: that models, aliases and fallbacks lead to providers there are, and in no circle.

WILDCARD = "*"
_GLOB = re.compile(r"[*?[]")


def route_problems(config: Config) -> Iterator[ConfigProblem]:
    """Every name of a model that leads nowhere, or back to itself."""
    if config.default_provider is not None and config.default_provider not in config.providers:
        yield ConfigProblem(("default_provider",), _unknown_provider_text(config.default_provider, config))
    yield from _default_model_problems(config)
    yield from _alias_problems(config)
    yield from _fallback_problems(config)
    for pattern in config.prices:
        place = pattern.partition("/")[0]
        if "/" in pattern and not _GLOB.search(place) and place not in config.providers:
            yield ConfigProblem(("prices", pattern), _unknown_provider_text(place, config))


def _default_model_problems(config: Config) -> Iterator[ConfigProblem]:
    said: dict[FieldPath, str | None] = {("model",): config.model}
    said |= {("agents", name, "model"): agent.model for name, agent in config.agents.items()}
    for path, model in said.items():
        if model and not _resolves(model, config):
            yield ConfigProblem(path, _unresolved_text(model, config))


def _alias_problems(config: Config) -> Iterator[ConfigProblem]:
    for name, models in config.routes.items():
        path: FieldPath = ("aliases", name)
        if not name or name == WILDCARD or ("/" in name and name.partition("/")[0] in config.providers):
            yield ConfigProblem(path, "an alias has a name of its own, not that of a provider and a slash")
        for place, model in enumerate(models):
            at = path if isinstance(config.aliases[name], str) else (*path, place)
            if not _resolves(model, config):
                yield ConfigProblem(at, _unresolved_text(model, config))
        circle = _alias_cycle(name, config)
        if circle:
            yield ConfigProblem(path, f"leads in a circle: {' -> '.join(circle)}")


def _alias_cycle(name: str, config: Config) -> Sequence[str]:
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


def _fallback_problems(config: Config) -> Iterator[ConfigProblem]:
    for name, others in config.fallbacks.items():
        path: FieldPath = ("fallbacks", name)
        if name != WILDCARD and not _resolves(name, config):
            yield ConfigProblem(path, _unresolved_text(name, config))
        for place, model in enumerate(others):
            if not _resolves(model, config):
                yield ConfigProblem((*path, place), _unresolved_text(model, config))
            elif model == name:
                yield ConfigProblem((*path, place), "falls back to itself")


def _resolves(model: str, config: Config) -> bool:
    """Whether somebody answers for a model's name."""
    if model in config.aliases:
        return True
    place, slash, served = model.partition("/")
    if slash and place in config.providers:
        return bool(served)
    return config.default_provider is not None and bool(model) and not slash


def _unresolved_text(model: str, config: Config) -> str:
    place, slash, served = model.partition("/")
    if slash and served:
        return _unknown_provider_text(place, config)
    return f"{quote(model)} is neither provider/model nor an alias{suggest(model, config.aliases)}"


def _unknown_provider_text(name: str, config: Config) -> str:
    known = f"; there are {join_names(config.providers)}" if config.providers else "; there are none"
    return f"there is no provider {quote(name)}{suggest(name, config.providers) or known}"


# ---- Rules for what can be called and by whom: the policy, MCP servers, folders.

DECISIONS = ("allow", "ask", "deny")
EFFECTS = ("read", "idempotent", "once")
NAMESPACE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RATE_PATTERN = re.compile(r"[1-9]\d*\s*(?:/|per)\s*(?:second|minute|hour|day|s|min|h|d)", re.IGNORECASE)


def operation_problems(config: Config) -> Iterator[ConfigProblem]:
    """Everything of it that cannot be, though its types fit."""
    yield from _policy_problems(config)
    for name, server in config.mcp_servers.items():
        yield from _mcp_server_problems(name, server)


def _policy_problems(config: Config) -> Iterator[ConfigProblem]:
    for at, rule in enumerate(config.policy):
        path: FieldPath = ("policy", at)
        said = [word for word in DECISIONS if getattr(rule, word)]
        if len(said) != 1:
            found = " and ".join(said) or "none"
            yield ConfigProblem(path, f"expected one of allow, ask and deny, got {found}")
        for effect in (rule.effect,) if isinstance(rule.effect, str) else rule.effect:
            if effect not in EFFECTS:
                yield ConfigProblem(
                    (*path, "effect"), f"expected read, idempotent or once, got {quote(effect)}"
                )
        for field in ("expires", "answerers"):
            if said != ["ask"] and getattr(rule, field):
                yield ConfigProblem((*path, field), "is for rules that `ask`")


def _mcp_server_problems(name: str, server: McpServerConfig) -> Iterator[ConfigProblem]:
    path: FieldPath = ("mcp_servers", name)
    if not NAMESPACE_PATTERN.fullmatch(name) or name.lower() == "hub":
        yield ConfigProblem(path, "a server's name is 1 to 64 letters, digits, - or _, and not `hub`")
    if bool(server.command) == bool(server.url):
        yield ConfigProblem(path, "takes either a command, such as [npx, -y, some-server], or a url")
    if server.url and not is_http_url(server.url):
        yield ConfigProblem((*path, "url"), "must be an address that begins with http:// or https://")
    if server.rate and not RATE_PATTERN.fullmatch(server.rate.strip()):
        yield ConfigProblem((*path, "rate"), "is no rate; one reads like 60/minute")
    for field in ("env", "env_from", "cwd"):
        if server.url and getattr(server, field):
            yield ConfigProblem((*path, field), "is for servers with a command")
    if server.command and server.headers:
        yield ConfigProblem((*path, "headers"), "is for servers with a url")


def is_http_url(url: str) -> bool:
    """Whether it is a URL of a web server."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


KEY_FIELDS = ("api_key_env", "api_key_file", "api_key_secret")
# Fields that only some types of provider know. Set for another they would do nothing, unnoticed.
_TYPES_OF_FIELD = {
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
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_PATTERN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_REQUIRED = {
    "openai": ("base_url", "such as https://api.openai.com/v1"),
    "scripted": ("script", "a YAML file"),
}


def config_problems(config: Config) -> Iterator[ConfigProblem]:
    """Everything in a configuration that cannot be, though its types fit."""
    for name, provider in config.providers.items():
        for rule in _PROVIDER_RULES:
            yield from rule(name, provider)
    yield from _limit_problems(config.limits)
    yield from _telemetry_problems(config)
    yield from _variable_problems(config.master_key_env, path=("master_key_env",))
    yield from route_problems(config)
    yield from operation_problems(config)
    yield from agent_problems(config)


def _provider_problems(name: str, provider: ProviderConfig) -> Iterator[ConfigProblem]:
    path = ("providers", name)
    if not name or "/" in name:
        yield ConfigProblem(path, "a provider's name is a word without a slash")
    field, example = _REQUIRED.get(provider.type, ("", ""))
    if field and not getattr(provider, field):
        yield ConfigProblem((*path, field), f"is missing: {example}")
    if provider.base_url is not None:
        yield from _url_problems(provider.base_url, path=(*path, "base_url"))
    for header, value in provider.headers.items():
        if not _HEADER_PATTERN.fullmatch(header) or not value.isprintable():
            yield ConfigProblem((*path, "headers", header), "no header that HTTP could carry")


def _url_problems(url: str, *, path: FieldPath) -> Iterator[ConfigProblem]:
    """The URL itself is not shown: it may hold a password."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        yield ConfigProblem(path, "expected a URL such as https://host/v1, with http:// or https://")


def _type_problems(name: str, provider: ProviderConfig) -> Iterator[ConfigProblem]:
    for field in msgspec.structs.fields(provider):
        known = _TYPES_OF_FIELD.get(field.name, (provider.type,))
        if provider.type not in known and getattr(provider, field.name) != field.default:
            advice = "; in options it would go along" if field.name == "max_tokens" else ""
            yield ConfigProblem(
                ("providers", name, field.name),
                f"is for type {join_names(known)}, and this is {provider.type}{advice}",
            )


def _key_problems(name: str, provider: ProviderConfig) -> Iterator[ConfigProblem]:
    path = ("providers", name)
    yield from _key_source_problems(provider, path=path)
    if provider.keys and any(getattr(provider, source) for source in KEY_FIELDS):
        yield ConfigProblem((*path, "keys"), f"either several keys here, or one in {join_names(KEY_FIELDS)}")
    seen: set[str] = set()
    for place, key in enumerate(provider.keys):
        below: FieldPath = (*path, "keys", place)
        if not any(getattr(key, source) for source in KEY_FIELDS):
            yield ConfigProblem(below, f"expected one of {join_names(KEY_FIELDS)}")
        yield from _key_source_problems(key, path=below)
        if key.name in seen:
            yield ConfigProblem((*below, "name"), "another key of this provider has this name")
        seen |= {key.name} if key.name else set()


def _key_source_problems(section: ProviderConfig | KeyConfig, *, path: FieldPath) -> Iterator[ConfigProblem]:
    said = [source for source in KEY_FIELDS if getattr(section, source)]
    if len(said) > 1:
        yield ConfigProblem((*path, said[1]), f"only one of {join_names(said)}")
    yield from _variable_problems(section.api_key_env, path=(*path, "api_key_env"))
    if section.api_key_secret and looks_secret(section.api_key_secret):
        yield ConfigProblem(
            (*path, "api_key_secret"), "expected a name in the table of secrets, not the secret itself"
        )


def _variable_problems(name: str | None, *, path: FieldPath) -> Iterator[ConfigProblem]:
    if name is not None and (not _VARIABLE_PATTERN.fullmatch(name) or looks_secret(name)):
        yield ConfigProblem(path, "expected the name of an environment variable, not the key itself")


def _limit_problems(limits: LimitsConfig) -> Iterator[ConfigProblem]:
    named: dict[FieldPath, Limits] = {("key",): limits.key, ("owner",): limits.owner}
    named |= {("owners", owner): held for owner, held in limits.owners.items()}
    yield from chain.from_iterable(
        _negative_limit_problems(held, path=("limits", *path)) for path, held in named.items()
    )


def _negative_limit_problems(limits: Limits, *, path: FieldPath) -> Iterator[ConfigProblem]:
    for field in limits.__struct_fields__:
        value = getattr(limits, field)
        if value is not None and value < 0:
            yield ConfigProblem((*path, field), f"expected a number >= 0, got {value}")


def _telemetry_problems(config: Config) -> Iterator[ConfigProblem]:
    endpoint = config.telemetry.otlp_endpoint
    if endpoint is not None:
        yield from _url_problems(endpoint, path=("telemetry", "otlp_endpoint"))
    for origin in config.cors.origins:
        if origin != "*" and "://" not in origin:
            place = config.cors.origins.index(origin)
            yield ConfigProblem(
                ("cors", "origins", place), f"expected an origin such as https://host, got {quote(origin)}"
            )


_PROVIDER_RULES: tuple[Callable[[str, ProviderConfig], Iterator[ConfigProblem]], ...] = (
    _provider_problems,
    _type_problems,
    _key_problems,
)
