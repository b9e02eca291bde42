"""The translation of a whole LiteLLM configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.cli.init.litellm.deployments import Deployment, EntryReader, NamedProvider, group_providers
from dragoman.cli.init.litellm.document import ImportedConfig, number_of, read_document, variable_reference

BALANCE = {
    "simple-shuffle": "round_robin",
    "least-busy": "least_busy",
    "latency-based-routing": "latency",
    "usage-based-routing": "least_busy",
    "usage-based-routing-v2": "least_busy",
    "cost-based-routing": "failover",
}
LIKENESS = {
    "usage-based-routing": "by the requests in progress, not by tokens a minute",
    "usage-based-routing-v2": "by the requests in progress, not by tokens a minute",
    "cost-based-routing": "in the order of the file, so put the cheapest model first",
}
BUDGETS = {"1d": "usd_per_day", "24h": "usd_per_day", "30d": "usd_per_month", "1mo": "usd_per_month"}
OTHER_FALLBACKS = (
    "fallbacks for one reason; put the models into `fallbacks`, and the reason (`context_limit`, "
    "`content_filter`) into `fallback_on`"
)
NEEDLESS = {
    "master_key": "the hub has none; `dragoman keys create --owner me --scope admin` makes a key",
    "database_url": "the hub keeps SQLite in its data folder; `database: postgresql://…` for several hosts",
}
TRANSLATED = {
    "litellm_settings": frozenset(
        {"num_retries", "request_timeout", "fallbacks", "default_fallbacks", "max_budget", "budget_duration"}
        | {"drop_params", "set_verbose"}
    ),
    "router_settings": frozenset(
        {"num_retries", "timeout", "allowed_fails", "cooldown_time", "routing_strategy", "model_group_alias"}
        | {"fallbacks", "default_fallbacks"}
    ),
    "general_settings": frozenset(NEEDLESS),
}
HINTS = {
    "context_window_fallbacks": OTHER_FALLBACKS,
    "content_policy_fallbacks": OTHER_FALLBACKS,
    "max_parallel_requests": "is `limits.key.parallel` here",
    "success_callback": "see `tracing`, `/metrics` and `events` for what is told to whom",
    "callbacks": "see `tracing`, `/metrics` and `hooks` for what is told to whom",
    "guardrails": "are hooks here (`hooks`)",
}


def import_litellm(path: Path) -> ImportedConfig:
    """Read a LiteLLM configuration. Raises ConfigError if it is none."""
    left_out: list[str] = []
    document = read_document(path, left_out)
    return LiteLlmImport(document, left_out).run()


class LiteLlmImport:
    """The translation of one document."""

    def __init__(self, document: Mapping[str, Any], left_out: list[str]) -> None:
        self._document = document
        self._left_out = left_out
        self._settings = self._section("litellm_settings")
        self._router = self._section("router_settings")
        self._general = self._section("general_settings")

    def run(self) -> ImportedConfig:
        """Return the configuration."""
        reader = EntryReader(self._left_out)
        entries = enumerate(self._document["model_list"])
        read = (reader.read(entry, f"model_list[{number}]") for number, entry in entries)
        providers = group_providers(each for each in read if each is not None)
        default_provider = self._default_provider(providers)
        aliases, groups = self._aliases(providers)
        names = Names({each.name for each in providers}, {*aliases}, default_provider=default_provider)
        names.lost = self._entry_names() - {*groups}
        self._add_group_aliases(aliases, names)
        first = next((name for name in groups if names.resolve(name)), None)
        fields: dict[str, Any] = {
            "providers": self._provider_fields(providers),
            "model": first,
            "default_provider": default_provider,
            "aliases": aliases,
            "fallbacks": self._fallbacks(names),
            "prices": prices(providers),
            "limits": self._limits(),
            "mcp_servers": self._mcp_servers(),
        }
        self._report_others()
        return ImportedConfig({name: value for name, value in fields.items() if value}, self._left_out)

    def _entry_names(self) -> set[str]:
        """Return all names of models that the file has, also of entries that are left out."""
        entries = [entry for entry in self._document["model_list"] if isinstance(entry, dict)]
        return {str(entry.get("model_name")) for entry in entries} | self._group_names()

    def _group_names(self) -> set[str]:
        groups = self._router.get("model_group_alias")
        return set(map(str, groups)) if isinstance(groups, dict) else set()

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self._document.get(name)
        if section is not None and not isinstance(section, dict):
            self._left_out.append(f"{name} is not a mapping")
        return section if isinstance(section, dict) else {}

    def _number(self, *places: tuple[str, Mapping[str, Any], str], least: float = 0) -> float | int | None:
        """Return the first of these settings that is there, if it is a number and not below `least`."""
        for section, fields, name in places:
            if fields.get(name) is None:
                continue
            number = number_of(fields[name])
            if number is not None and number >= least:
                return number
            self._left_out.append(f"{section}.{name}: {str(fields[name])[:80]!r} is not a valid number here")
        return None

    def _provider_fields(self, providers: Sequence[NamedProvider]) -> dict[str, Any]:
        litellm, router = ("litellm_settings", self._settings), ("router_settings", self._router)
        retries = self._number((*litellm, "num_retries"), (*router, "num_retries"))
        timeout = self._number((*litellm, "request_timeout"), (*router, "timeout"), least=0.001)
        failures = self._number((*router, "allowed_fails"))
        seconds = self._number((*router, "cooldown_time"), least=0.001)
        cooldown: dict[str, Any] = {} if failures is None else {"failures": max(1, int(failures))}
        cooldown |= {} if seconds is None else {"seconds": seconds}
        shared: dict[str, Any] = {} if retries is None else {"retries": int(retries)}
        shared |= {} if timeout is None else {"total_timeout": timeout}
        return {
            each.name: each.fields
            | {name: value for name, value in shared.items() if name not in each.fields}
            | ({"cooldown": dict(cooldown)} if cooldown else {})
            for each in providers
        }

    def _default_provider(self, providers: Sequence[NamedProvider]) -> str | None:
        """Return what serves names without a provider, and report the patterns that lead elsewhere."""
        default = None
        for provider in providers:
            for each in provider.deployments:
                if each.name == each.model == "*" and default is None:
                    default = provider.name
                    self._left_out.append(
                        f"{each.place}: names without a vendor go to {default}; each other vendor needs an "
                        "entry under `providers`"
                    )
                elif each.is_pattern and (each.name, each.model) != (f"{provider.name}/*", "*"):
                    self._left_out.append(
                        f"{each.place}: the pattern; its models have the names {provider.name}/{each.model}"
                    )
        return default

    def _aliases(self, providers: Sequence[NamedProvider]) -> tuple[dict[str, Any], list[str]]:
        """Return aliases for the names of entries, and these names in their order."""
        names: dict[str, dict[str, Deployment]] = {}
        entries = [(provider.name, each) for provider in providers for each in provider.deployments]
        for provider_name, each in sorted(entries, key=lambda entry: place_of(entry[1])):
            if not each.is_pattern:
                names.setdefault(each.name, {}).setdefault(f"{provider_name}/{each.model}", each)
        existing = {provider.name for provider in providers}
        aliases: dict[str, Any] = {}
        for name, targets in names.items():
            if [name] == [*targets]:
                continue  # provider/model works without an alias
            if "/" in name and name.partition("/")[0] in existing:
                self._left_out.append(
                    f"the model_name {name}: its models have the names {', '.join(targets)}"
                )
            else:
                aliases[name] = self._alias(targets)
        return aliases, [next(iter(names[name])) if name == "*" else name for name in names]

    def _alias(self, targets: Mapping[str, Deployment]) -> Any:
        models = [*targets]
        if len(models) == 1:
            return models[0]
        if any(each.order is not None for each in targets.values()):
            models.sort(key=lambda model: (targets[model].order is None, targets[model].order or 0))
            return {"models": models, "balance": "failover"}
        weights = {model: each.weight for model, each in targets.items() if each.weight is not None}
        if any(weights.get(model, 1) for model in models) and weights:
            return {"models": models, "balance": "weighted", "weights": weights}
        strategy = str(self._router.get("routing_strategy", "simple-shuffle"))
        return {"models": models, "balance": BALANCE.get(strategy, "round_robin")}

    def _add_group_aliases(self, aliases: dict[str, Any], names: Names) -> None:
        groups = self._router.get("model_group_alias")
        waiting = {
            str(name): target.get("model") if isinstance(target, dict) else target
            for name, target in (groups.items() if isinstance(groups, dict) else ())
        }
        while added := [name for name, target in waiting.items() if names.may_add(name, target)]:
            for name in added:
                aliases[name] = waiting.pop(name)
                names.aliases.add(name)
                names.lost.discard(name)
        self._left_out += [
            f"router_settings.model_group_alias.{name}: {str(target)[:80]!r} leads to no model of this file, "
            "or the name is taken"
            for name, target in waiting.items()
        ]

    def _fallbacks(self, names: Names) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for section, fields in (("router_settings", self._router), ("litellm_settings", self._settings)):
            found |= dict(self._pairs(section, fields.get("fallbacks")))
            default = fields.get("default_fallbacks")
            if default:
                others = default if isinstance(default, list) else [default]
                found["*"] = list(dict.fromkeys([*found.get("*", ()), *map(str, others)]))
        fallbacks: dict[str, list[str]] = {}
        for name, models in found.items():
            if name != "*" and not names.resolve(name):
                self._left_out.append(f"fallbacks of {name}, which no entry of model_list has")
                continue
            gone = [model for model in models if not names.resolve(model) or model == name]
            self._left_out += [f"the fallback {model} of {name}, which is not a model here" for model in gone]
            if served := [model for model in models if model not in gone]:
                fallbacks[name] = served
        return fallbacks

    def _pairs(self, section: str, fallbacks: Any) -> Iterator[tuple[str, list[str]]]:
        """Yield names with their fallbacks from LiteLLM's list of mappings."""
        for entry in fallbacks if isinstance(fallbacks, list) else [fallbacks] if fallbacks else ():
            if not isinstance(entry, dict):
                self._left_out.append(f"{section}.fallbacks: {str(entry)[:80]!r} is not a mapping")
                continue
            for name, models in entry.items():
                chosen = models if isinstance(models, list) else [models]
                if any(isinstance(model, dict) and set(model) - {"model"} for model in chosen):
                    self._left_out.append(f"{section}.fallbacks of {name}: parameters of a fallback")
                yield (
                    str(name),
                    [str(model.get("model") if isinstance(model, dict) else model) for model in chosen],
                )

    def _limits(self) -> dict[str, Any]:
        budget = self._number(("litellm_settings", self._settings, "max_budget"))
        duration = str(self._settings.get("budget_duration", ""))
        if budget is None:
            return {}
        if duration and duration not in BUDGETS:
            self._left_out.append(
                f"litellm_settings.budget_duration {duration}: budgets are a day, a month or in all"
            )
            return {}
        self._left_out.append("litellm_settings.max_budget holds for each owner here, not for all together")
        return {"owner": {BUDGETS.get(duration, "usd_total"): float(budget)}}

    def _mcp_servers(self) -> dict[str, Any]:
        """Return the MCP servers that need neither credentials nor rules of LiteLLM's own."""
        servers: dict[str, Any] = {}
        for name, fields in self._section("mcp_servers").items():
            read = mcp_server(fields)
            others = sorted(set(map(str, fields)) - MCP_FIELDS) if isinstance(fields, dict) else []
            if read is None or not str(name).replace("-", "").replace("_", "").isalnum():
                self._left_out.append(f"mcp_servers.{name}: write it anew, with its credentials")
                continue
            self._left_out += [f"mcp_servers.{name}.{field}" for field in others]
            servers[str(name)] = read
        return servers

    def _report_others(self) -> None:
        strategy = str(self._router.get("routing_strategy", "simple-shuffle"))
        if strategy not in BALANCE or strategy in LIKENESS:
            likeness = LIKENESS.get(strategy, "there is none of this name; models are used in turn")
            self._left_out.append(f"router_settings.routing_strategy {strategy}: {likeness}")
        sections = {
            "litellm_settings": self._settings,
            "router_settings": self._router,
            "general_settings": self._general,
        }
        for section, fields in sections.items():
            for name in fields:
                if name not in TRANSLATED[section]:
                    self._left_out.append(f"{section}.{name}" + hint(name))
        for name in self._document:
            if name not in (*TRANSLATED, "model_list", "environment_variables", "mcp_servers"):
                self._left_out.append(f"{name}{hint(name)}")
        if self._document.get("environment_variables"):
            self._left_out.append("environment_variables: set them in the environment of the hub")
        self._left_out += [
            f"general_settings.{name}: {NEEDLESS[name]}" for name in NEEDLESS if name in self._general
        ]


class Names:
    """What the name of a model may be: an alias, or the model of a provider."""

    def __init__(self, providers: set[str], aliases: set[str], *, default_provider: str | None) -> None:
        self.aliases = aliases
        self._providers = providers
        self._default = default_provider
        self.lost: set[str] = set()
        """Names of the file that lead nowhere here, so that no default provider is asked for them."""

    def resolve(self, name: str) -> bool:
        """Return whether a name leads to a model."""
        provider, slash, model = name.partition("/")
        if name in self.aliases or (slash and provider in self._providers and model):
            return True
        return self._default is not None and not slash and bool(name) and name not in self.lost

    def may_add(self, name: str, target: Any) -> bool:
        """Return whether a further name is free, and its target leads to a model."""
        is_free = bool(name) and name not in ("*", target) and name not in self.aliases
        return (
            is_free
            and not ("/" in name and name.partition("/")[0] in self._providers)
            and isinstance(target, str)
            and self.resolve(target)
        )


MCP_FIELDS = frozenset({"url", "transport", "command", "args", "env", "auth_type", "description"})


def mcp_server(fields: Any) -> dict[str, Any] | None:
    """Return the hub's fields of an MCP server; None if LiteLLM's say how to sign in."""
    if not isinstance(fields, dict) or str(fields.get("auth_type") or "none") != "none":
        return None
    if isinstance(fields.get("command"), str):
        arguments = fields.get("args")
        command = [fields["command"], *map(str, arguments if isinstance(arguments, list) else ())]
        env = fields.get("env")
        names = {str(name): variable_reference(str(value)) for name, value in env.items()} if env else {}
        return {"command": command} | ({"env": names} if names else {})
    url = variable_reference(str(fields.get("url") or ""))
    return {"url": url} if url.startswith(("http://", "https://", "${")) else None


def prices(providers: Sequence[NamedProvider]) -> dict[str, Any]:
    """Return the prices of models, by provider and model."""
    return {
        f"{provider.name}/{each.model}": each.price
        for provider in providers
        for each in provider.deployments
        if each.price
    }


def place_of(deployment: Deployment) -> int:
    """Return the position of an entry in the file."""
    return int("".join(filter(str.isdigit, deployment.place)))


def hint(name: str) -> str:
    """Return what to use instead of a setting, if there is something."""
    return f": {HINTS[name]}" if name in HINTS else ""
