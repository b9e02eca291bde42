"""Validation of a configuration beyond its types: rules between fields, names that must resolve, syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from itertools import chain
from urllib.parse import urlsplit

from dragoman.config.fixes import variable_fix
from dragoman.config.problems import ConfigProblem, FieldPath, join_names, looks_secret, quote
from dragoman.config.retention_section import RetentionConfig
from dragoman.config.sections import (
    AliasConfig,
    Config,
    HostsConfig,
    KeyConfig,
    LimitsConfig,
    McpServerConfig,
    ProviderConfig,
    StopConfig,
)
from dragoman.config.type_check import struct_fields
from dragoman.config.yaml_document import InvalidScalar
from dragoman.suggestions import suggest
from dragoman.usage_limits import Limits, limit_problems

# Agents: stop conditions, functions, output schemas.

MAX_PORT = 65_535
REFERENCE_PATTERN = re.compile(r".*[^:\s]:[A-Za-z_][\w.]*")


def agent_problems(config: Config) -> Iterator[ConfigProblem]:
    """Yield the problems of the agents."""
    for name, agent in config.agents.items():
        path: FieldPath = ("agents", name)
        for index, stop in enumerate(agent.stop_when):
            yield from _stop_problems(stop, path=(*path, "stop_when", index))
        yield from _reference_problems(agent.on_prepare_step, path=(*path, "on_prepare_step"))
        if agent.output == {}:
            yield ConfigProblem(
                (*path, "output"), "expected a JSON Schema, or the path of a file that holds one"
            )


def _stop_problems(stop: StopConfig, *, path: FieldPath) -> Iterator[ConfigProblem]:
    names = stop.conditions
    if not names:
        yield ConfigProblem(path, f"expected a condition: {join_names(stop.__struct_fields__)}")
    elif len(names) > 1:
        yield ConfigProblem(path, f"has {' and '.join(names)}; write one, or several under `all` or `any`")
    for name in ("all", "any"):
        for index, inner in enumerate(getattr(stop, name)):
            yield from _stop_problems(inner, path=(*path, name, index))
    if stop.matches is not None:
        try:
            re.compile(stop.matches)
        except re.error as error:
            yield ConfigProblem((*path, "matches"), f"is not a valid regular expression: {error}")
    try:
        stop.seconds  # noqa: B018 - reading it is the check
    except InvalidScalar as error:
        yield ConfigProblem((*path, "time"), f"{quote(str(stop.time))} {error}")
    yield from _reference_problems(stop.use, path=(*path, "use"))


def _reference_problems(reference: str | None, *, path: FieldPath) -> Iterator[ConfigProblem]:
    if reference is not None and not REFERENCE_PATTERN.fullmatch(reference):
        yield ConfigProblem(path, f"expected module:name or ./file.py:name, got {quote(reference)}")


# Routes: models, aliases and fallbacks must resolve to configured providers, without cycles.

WILDCARD = "*"
_GLOB = re.compile(r"[*?[]")


def route_problems(config: Config) -> Iterator[ConfigProblem]:
    """Yield the problems of model names: unknown providers and cycles."""
    if config.default_provider is not None and config.default_provider not in config.providers:
        yield ConfigProblem(("default_provider",), _unknown_provider_text(config.default_provider, config))
    yield from _default_model_problems(config)
    yield from _alias_problems(config)
    yield from _fallback_problems(config)
    for pattern in config.prices:
        provider = pattern.partition("/")[0]
        if "/" in pattern and not _GLOB.search(provider) and provider not in config.providers:
            yield ConfigProblem(("prices", pattern), _unknown_provider_text(provider, config))


def _default_model_problems(config: Config) -> Iterator[ConfigProblem]:
    models: dict[FieldPath, str | None] = {("model",): config.model, ("title_model",): config.title_model}
    models |= {("agents", name, "model"): agent.model for name, agent in config.agents.items()}
    for path, model in models.items():
        if model and not _resolves(model, config):
            yield ConfigProblem(path, _unresolved_text(model, config))


def _alias_problems(config: Config) -> Iterator[ConfigProblem]:
    for name, models in config.routes.items():
        path: FieldPath = ("aliases", name)
        if not name or ("/" in name and name.partition("/")[0] in config.providers):
            yield ConfigProblem(path, "an alias must not be empty, or begin with a provider's name and slash")
        for index, model in enumerate(models):
            if not _resolves(model, config):
                field = _alias_field(path, config.aliases[name], index=index)
                yield ConfigProblem(field, _unresolved_text(model, config))
        alias = config.aliases[name]
        if isinstance(alias, AliasConfig):
            yield from _weight_problems(path, alias)
        cycle = _alias_cycle(name, config)
        if cycle:
            yield ConfigProblem(path, f"is a cycle: {' -> '.join(cycle)}")


def _alias_field(path: FieldPath, alias: str | Sequence[str] | AliasConfig, *, index: int) -> FieldPath:
    """Return where a model of an alias is written."""
    if isinstance(alias, str):
        return path
    return (*path, "models", index) if isinstance(alias, AliasConfig) else (*path, index)


def _weight_problems(path: FieldPath, alias: AliasConfig) -> Iterator[ConfigProblem]:
    if alias.weights and alias.balance != "weighted":
        yield ConfigProblem((*path, "weights"), f"is for balance: weighted, and this is {alias.balance}")
    for model in alias.weights:
        if model not in alias.models:
            near = suggest(model, alias.models) or f"; there are {join_names(alias.models)}"
            yield ConfigProblem((*path, "weights", model), f"{quote(model)} is not one of the models{near}")
    if alias.weights and not any(alias.weights.get(model, 1) for model in alias.models):
        yield ConfigProblem((*path, "weights"), "at least one model needs a weight above 0")


def _alias_cycle(name: str, config: Config) -> Sequence[str]:
    """Return the shortest chain of aliases from an alias back to itself, if there is one."""
    paths: list[Sequence[str]] = [(name,)]
    seen: set[str] = set()
    for aliases in paths:  # grows while it is read
        for model in config.routes.get(aliases[-1], ()):
            if model == name:
                return (*aliases, name)
            if model not in seen:
                seen.add(model)
                paths.append((*aliases, model))
    return ()


def _fallback_problems(config: Config) -> Iterator[ConfigProblem]:
    for name, others in config.fallbacks.items():
        path: FieldPath = ("fallbacks", name)
        if name != WILDCARD and not _resolves(name, config):
            yield ConfigProblem(path, _unresolved_text(name, config))
        for index, model in enumerate(others):
            if not _resolves(model, config):
                yield ConfigProblem((*path, index), _unresolved_text(model, config))
            elif model == name:
                yield ConfigProblem((*path, index), "falls back to itself")


def _resolves(model: str, config: Config) -> bool:
    """Whether a model's name is an alias or leads to a configured provider."""
    if model in config.aliases:
        return True
    provider, slash, provider_model = model.partition("/")
    if slash and provider in config.providers:
        return bool(provider_model)
    return config.default_provider is not None and bool(model) and not slash


def _unresolved_text(model: str, config: Config) -> str:
    provider, slash, provider_model = model.partition("/")
    if slash and provider_model:
        return _unknown_provider_text(provider, config)
    providers = [f"{name}/..." for name in config.providers]
    suggestion = variable_fix(model) or suggest(model, config.aliases) or suggest(model, providers)
    is_bare = not suggestion and config.providers and not slash
    fix = f"; write it with its provider, such as {next(iter(config.providers))}/{model}" if is_bare else ""
    names = [*config.aliases, *providers]
    existing = f"; there are {join_names(names)}" if names else ""
    return f"{quote(model)} is neither provider/model nor an alias{suggestion or existing}{fix}"


def _unknown_provider_text(name: str, config: Config) -> str:
    providers = f"; there are {join_names(config.providers)}" if config.providers else "; there are none"
    return f"there is no provider {quote(name)}{suggest(name, config.providers) or providers}"


# Operations: the policy and MCP servers.

DECISIONS = ("allow", "ask", "deny")
EFFECTS = ("read", "idempotent", "once")
NAMESPACE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RATE_PATTERN = re.compile(r"[1-9]\d{0,8}\s*(?:/|per)\s*(?:second|minute|hour|day|s|min|h|d)", re.IGNORECASE)


def operation_problems(config: Config) -> Iterator[ConfigProblem]:
    """Yield the problems of the policy and the MCP servers."""
    yield from _policy_problems(config)
    for name, server in config.mcp_servers.items():
        yield from _mcp_server_problems(name, server)


def _policy_problems(config: Config) -> Iterator[ConfigProblem]:
    for index, rule in enumerate(config.policy):
        path: FieldPath = ("policy", index)
        decisions = [name for name in DECISIONS if getattr(rule, name)]
        if len(decisions) != 1:
            names = " and ".join(decisions) or "none"
            yield ConfigProblem(path, f"expected one of allow, ask and deny, got {names}")
        for effect in (rule.effect,) if isinstance(rule.effect, str) else rule.effect:
            if effect not in EFFECTS:
                yield ConfigProblem(
                    (*path, "effect"), f"expected read, idempotent or once, got {quote(effect)}"
                )
        for field in ("expires", "answerers"):
            if decisions != ["ask"] and getattr(rule, field):
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
        yield ConfigProblem(
            (*path, "rate"), f"{quote(server.rate)} is not a valid rate; write it like 60/minute"
        )
    yield from _connection_problems(server, path=path)


def _connection_problems(server: McpServerConfig, *, path: FieldPath) -> Iterator[ConfigProblem]:
    """Yield the problems of how a server is started or asked."""
    for field in ("env", "env_from", "cwd"):
        if server.url and getattr(server, field):
            yield ConfigProblem((*path, field), "is for servers with a command")
    if server.command and server.headers:
        yield ConfigProblem((*path, "headers"), "is for servers with a url")
    yield from _header_problems(server.headers, path=(*path, "headers"))
    yield from _environment_problems(server.env, path=(*path, "env"))
    secret_problems = _header_problems if server.url else _environment_problems
    yield from secret_problems(server.secrets, path=(*path, "secrets"))
    for at, argument in enumerate(server.command):
        if "\0" in argument:
            yield ConfigProblem((*path, "command", at), "contains a NUL character")


def _header_problems(headers: Mapping[str, str], *, path: FieldPath) -> Iterator[ConfigProblem]:
    """Yield a problem for each header that cannot be sent: another name, or a value that is not ASCII."""
    for header, value in headers.items():
        if not _HEADER_PATTERN.fullmatch(header) or not (value.isprintable() and value.isascii()):
            yield ConfigProblem((*path, header), "is not a valid HTTP header")


def _environment_problems(variables: Mapping[str, str], *, path: FieldPath) -> Iterator[ConfigProblem]:
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            yield ConfigProblem((*path, name), "is not a valid environment variable")


def is_http_url(url: str) -> bool:
    """Return whether the text is a URL with http:// or https://, a host and a valid port."""
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_http and url.isprintable() and " " not in url  # `urlsplit` leaves line breaks and tabs out


DATABASE_SCHEMES = ("postgresql://", "postgres://")


def _database_problems(config: Config) -> Iterator[ConfigProblem]:
    if config.database is not None and not config.database.startswith(DATABASE_SCHEMES):
        text = "must be a URL that begins with postgresql://; without it, SQLite keeps the data in the folder"
        yield ConfigProblem(("database",), text)  # without its value, which may hold a password


KEY_FIELDS = ("api_key_env", "api_key_file", "api_key_secret")
# Fields of some types of provider only. Set for another type, they would have no effect, unnoticed.
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
_LISTEN_PATTERN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):[0-9]{1,5}")
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDPOINT = re.compile(r"/(chat/completions|completions|messages|responses|embeddings|api/chat)/?$")
_HEADER_PATTERN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_REQUIRED = {
    "openai": ("base_url", "such as https://api.openai.com/v1"),
    "responses": ("base_url", "such as https://api.openai.com/v1"),
    "scripted": ("script", "a YAML file"),
}


def config_problems(config: Config) -> Iterator[ConfigProblem]:
    """Yield every problem of a configuration whose types are right."""
    for name, provider in config.providers.items():
        for rule in _PROVIDER_RULES:
            yield from rule(name, provider)
    yield from _database_problems(config)
    yield from _limit_problems(config.limits)
    yield from _retention_problems(config.retention)
    yield from _network_problems(config.http.shared_addresses, path=("http", "shared_addresses"))
    yield from _host_problems(config.hosts)
    yield from _telemetry_problems(config)
    yield from _search_problems(config)
    yield from _variable_problems(config.master_key_env, path=("master_key_env",))
    yield from route_problems(config)
    yield from operation_problems(config)
    yield from agent_problems(config)


def _search_problems(config: Config) -> Iterator[ConfigProblem]:
    search = config.search
    if search.model_path is not None and search.embeddings != "minilm":
        text = f"is for `embeddings: minilm`, and search.embeddings is {quote(search.embeddings)}"
        yield ConfigProblem(("search", "model_path"), text)


def _provider_problems(name: str, provider: ProviderConfig) -> Iterator[ConfigProblem]:
    path = ("providers", name)
    if not name or "/" in name:
        yield ConfigProblem(path, "a provider's name is a word without a slash")
    field, example = _REQUIRED.get(provider.type, ("", ""))
    if field and not getattr(provider, field):
        yield ConfigProblem((*path, field), f"is missing: {example}")
    if provider.base_url is not None:
        yield from _url_problems(provider.base_url, path=(*path, "base_url"))
    yield from _header_problems(provider.headers, path=(*path, "headers"))


def _url_problems(url: str, *, path: FieldPath) -> Iterator[ConfigProblem]:
    """Yield a problem for an invalid URL. The message does not show it: it may contain a password."""
    if not is_http_url(url):
        fix = variable_fix(url)
        yield ConfigProblem(path, f"expected a URL such as https://host/v1, with http:// or https://{fix}")
    elif path[-1] == "base_url" and (found := _ENDPOINT.search(url)):
        yield ConfigProblem(path, f"ends in {found[0]}, which the hub adds itself; leave that out")


def _type_problems(name: str, provider: ProviderConfig) -> Iterator[ConfigProblem]:
    for field in struct_fields(type(provider)):
        types = _TYPES_OF_FIELD.get(field.name, (provider.type,))
        if provider.type not in types and getattr(provider, field.name) != field.default:
            advice = "; `options` can set it for each request" if field.name == "max_tokens" else ""
            yield ConfigProblem(
                ("providers", name, field.name),
                f"is for type {join_names(types)}, and this is {provider.type}{advice}",
            )


def _key_problems(name: str, provider: ProviderConfig) -> Iterator[ConfigProblem]:
    path = ("providers", name)
    yield from _key_source_problems(provider, path=path)
    if provider.keys and any(getattr(provider, source) for source in KEY_FIELDS):
        yield ConfigProblem((*path, "keys"), f"either several keys here, or one in {join_names(KEY_FIELDS)}")
    seen: set[str] = set()
    for index, key in enumerate(provider.keys):
        below: FieldPath = (*path, "keys", index)
        if not any(getattr(key, source) for source in KEY_FIELDS):
            yield ConfigProblem(below, f"expected one of {join_names(KEY_FIELDS)}")
        yield from _key_source_problems(key, path=below)
        if key.name in seen:
            yield ConfigProblem((*below, "name"), "another key of this provider has this name")
        seen |= {key.name} if key.name else set()


def _key_source_problems(section: ProviderConfig | KeyConfig, *, path: FieldPath) -> Iterator[ConfigProblem]:
    sources = [field for field in KEY_FIELDS if getattr(section, field)]
    if len(sources) > 1:
        yield ConfigProblem((*path, sources[1]), f"only one of {join_names(sources)}")
    yield from _variable_problems(section.api_key_env, path=(*path, "api_key_env"))
    if section.api_key_secret and looks_secret(section.api_key_secret):
        yield ConfigProblem(
            (*path, "api_key_secret"), "expected a name in the table of secrets, not the secret itself"
        )


def _variable_problems(name: str | None, *, path: FieldPath) -> Iterator[ConfigProblem]:
    if name is not None and (not _VARIABLE_PATTERN.fullmatch(name) or looks_secret(name)):
        without = f"; write {name[1:]}, without the $" if variable_fix(name) else ""
        yield ConfigProblem(
            path, f"expected the name of an environment variable, not the key itself{without}"
        )


def _limit_problems(limits: LimitsConfig) -> Iterator[ConfigProblem]:
    fields: dict[FieldPath, Limits] = {("key",): limits.key, ("owner",): limits.owner}
    fields |= {("owners", owner): owner_limits for owner, owner_limits in limits.owners.items()}
    yield from chain.from_iterable(
        (ConfigProblem(("limits", *path, field), problem) for field, problem in limit_problems(scope_limits))
        for path, scope_limits in fields.items()
    )


MIN_USAGE_SECONDS = 31 * 86_400.0


def _retention_problems(retention: RetentionConfig) -> Iterator[ConfigProblem]:
    for field in retention.__struct_fields__:
        path: FieldPath = ("retention", field)
        value = getattr(retention, field)
        try:
            seconds = retention.seconds(field)
        except InvalidScalar:
            yield ConfigProblem(
                path, f"{quote(str(value))} is not a valid duration; write it like 90d or 12h, or `off`"
            )
            continue
        if field == "usage" and seconds is not None and seconds < MIN_USAGE_SECONDS:
            yield ConfigProblem(
                path, f"expected at least 31d, since budgets of a month count usage, got {quote(str(value))}"
            )


def _network_problems(networks: Sequence[str], *, path: FieldPath) -> Iterator[ConfigProblem]:
    for index, network in enumerate(networks):
        try:
            ip_network(network, strict=False)
        except ValueError:
            yield ConfigProblem((*path, index), f"expected an address or a network, got {quote(network)}")


def _host_problems(hosts: HostsConfig) -> Iterator[ConfigProblem]:
    if not _LISTEN_PATTERN.fullmatch(hosts.listen) or int(hosts.listen.rpartition(":")[2]) > MAX_PORT:
        text = f"expected an address and a port, such as 0.0.0.0:8100, got {quote(hosts.listen)}"
        yield ConfigProblem(("hosts", "listen"), text)
    if hosts.url is not None:
        yield from _url_problems(hosts.url, path=("hosts", "url"))


def _telemetry_problems(config: Config) -> Iterator[ConfigProblem]:
    endpoint = config.telemetry.otlp_endpoint
    if endpoint is not None:
        yield from _url_problems(endpoint, path=("telemetry", "otlp_endpoint"))
    for index, origin in enumerate(config.cors.origins):
        if origin != "*" and "://" not in origin:
            yield ConfigProblem(
                ("cors", "origins", index), f"expected an origin such as https://host, got {quote(origin)}"
            )
        elif origin != "*" and "/" in origin.partition("://")[2]:
            scheme, _, rest = origin.partition("://")
            fix = f"{scheme}://{rest.partition('/')[0]}"
            yield ConfigProblem(
                ("cors", "origins", index), f"an origin ends with its host and port; write {quote(fix)}"
            )


_PROVIDER_RULES: tuple[Callable[[str, ProviderConfig], Iterator[ConfigProblem]], ...] = (
    _provider_problems,
    _type_problems,
    _key_problems,
)
