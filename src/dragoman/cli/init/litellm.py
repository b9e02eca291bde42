"""A LiteLLM configuration as a Dragoman configuration, with a list of what cannot be said.

Source: LiteLLM's documented `config.yaml` (`model_list`, `litellm_settings`, `router_settings`,
`general_settings`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dragoman.errors import ConfigError

ADDRESSES: Mapping[str, str] = {
    "openai": "https://api.openai.com/v1",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "together_ai": "https://api.together.xyz/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "fireworks_ai": "https://api.fireworks.ai/inference/v1",
    "perplexity": "https://api.perplexity.ai",
    "xai": "https://api.x.ai/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "nvidia_nim": "https://integrate.api.nvidia.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
}
"""Where LiteLLM's providers that speak chat.completions are; the others need an `api_base`."""
SELF_HOSTED = frozenset({"hosted_vllm", "vllm", "lm_studio", "openai_like", "custom_openai", "litellm_proxy"})
BALANCE = {
    "simple-shuffle": "round_robin",
    "least-busy": "least_busy",
    "latency-based-routing": "latency",
    "usage-based-routing": "least_busy",
    "usage-based-routing-v2": "least_busy",
    "cost-based-routing": "failover",
}
KNOWN = frozenset({"model", "api_key", "api_base", "base_url", "timeout", "weight", "max_retries"})
REPLACED = {
    "rpm": "is a limit of keys and owners here (`limits`)",
    "tpm": "is a limit of keys and owners here (`limits`)",
    "stream_timeout": "is `first_byte_timeout` and `idle_timeout` of a provider here",
}
OPTIONS = frozenset(
    {"temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "reasoning_effort", "top_k"}
)
MILLION = 1_000_000
VARIABLE = re.compile(r"os\.environ/([A-Za-z_]\w*)")
NOT_A_NAME = re.compile(r"[^a-z0-9_-]+")
BUDGETS = {"1d": "usd_per_day", "24h": "usd_per_day", "30d": "usd_per_month", "1mo": "usd_per_month"}


class ImportedConfig(msgspec.Struct, frozen=True):
    """The fields of a configuration, and a sentence for each thing of the file that it does not say."""

    fields: Mapping[str, Any]
    left_out: Sequence[str]


def import_litellm(path: Path) -> ImportedConfig:
    """Read a LiteLLM configuration. Raises ConfigError if it is none."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("model_list"), list):
        raise ConfigError(f"{path} has no model_list, so it is not a LiteLLM configuration")
    return LiteLlmImport(document).run()


class LiteLlmImport:
    """The translation of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._providers: dict[str, dict[str, Any]] = {}
        self._keys: dict[str, list[str]] = {}
        self._models: dict[str, list[str]] = {}
        self._weights: dict[str, dict[str, float]] = {}
        self._prices: dict[str, dict[str, float]] = {}
        self._left_out: list[str] = []

    def run(self) -> ImportedConfig:
        """Return the configuration."""
        for number, entry in enumerate(self._document["model_list"]):
            self._add_entry(entry, f"model_list[{number}]")
        settings, router = self._section("litellm_settings"), self._section("router_settings")
        self._apply_to_providers(settings, router)
        fields: dict[str, Any] = {"providers": self._finished_providers()}
        first = next(iter(self._models), None)
        fields |= {"model": first} if first else {}
        fields["aliases"] = self._aliases(router)
        fields["fallbacks"] = self._fallbacks(settings, router)
        fields["prices"] = self._prices
        fields["limits"] = self._limits(settings)
        self._report_others()
        return ImportedConfig({name: value for name, value in fields.items() if value}, self._left_out)

    def _section(self, name: str) -> Mapping[str, Any]:
        section = self._document.get(name)
        return section if isinstance(section, dict) else {}

    def _add_entry(self, entry: Any, place: str) -> None:
        params = entry.get("litellm_params") if isinstance(entry, dict) else None
        if not isinstance(params, dict) or not isinstance(params.get("model"), str):
            self._left_out.append(f"{place} has no litellm_params.model")
            return
        vendor, slash, model = params["model"].partition("/")
        if not slash:
            vendor, model = "openai", vendor
        provider = self._provider(vendor, params, place=place)
        if provider is None:
            return
        if "*" in model:  # all models of a provider: `provider/model` always works
            if entry.get("model_name") != f"{provider}/{model}":
                self._left_out.append(f"{place}: the pattern; its models have the names {provider}/{model}")
            self._add_options(provider, params, place=place)
            return
        target, alias = f"{provider}/{model}", str(entry.get("model_name", model))
        targets = self._models.setdefault(alias, [])
        if target not in targets:
            targets.append(target)
        if isinstance(params.get("weight"), int | float):
            self._weights.setdefault(alias, {})[target] = float(params["weight"])
        self._add_price(target, entry.get("model_info"))
        self._add_options(provider, params, place=place)

    def _provider(self, vendor: str, params: Mapping[str, Any], *, place: str) -> str | None:
        """Return the name of the provider of an entry, which is made if it is new; None if there is none."""
        base = params.get("api_base") or params.get("base_url")
        base = None if base is None else variable_reference(str(base))
        kind = {"anthropic": "anthropic", "ollama": "ollama", "ollama_chat": "ollama"}.get(vendor, "openai")
        address = base or ADDRESSES.get(vendor)
        if kind == "openai" and address is None:
            cure = "give it an api_base" if vendor in SELF_HOSTED else "the hub does not speak its protocol"
            self._left_out.append(f"{place}: {vendor}/… is left out: {cure}")
            return None
        if vendor == "azure" and address is not None and not address.rstrip("/").endswith("/openai/v1"):
            address = f"{address.rstrip('/')}/openai/v1"
            self._left_out.append(
                f"{place}: the hub speaks Azure's v1 API, so the address is {address} and models are named "
                "by their deployment; see whether your resource has it"
            )
        fields: dict[str, Any] = {"type": kind} | ({"base_url": address} if address else {})
        name = self._named(NOT_A_NAME.sub("-", vendor.lower()), fields)
        self._providers.setdefault(name, fields)
        self._add_key(name, params.get("api_key"), vendor=vendor, place=place)
        return name

    def _named(self, wanted: str, fields: Mapping[str, Any]) -> str:
        """Return the name of a provider with these fields: the wanted one, or with a number behind it."""
        name, number = wanted, 1
        while name in self._providers and any(
            self._providers[name].get(field) != fields.get(field) for field in ("type", "base_url")
        ):
            number += 1
            name = f"{wanted}-{number}"
        return name

    def _add_key(self, provider: str, key: Any, *, vendor: str, place: str) -> None:
        keys = self._keys.setdefault(provider, [])
        if key is None:
            variable = f"{vendor.upper().removesuffix('_AI')}_API_KEY" if vendor in ADDRESSES else None
            variable = "ANTHROPIC_API_KEY" if vendor == "anthropic" else variable
        elif match := VARIABLE.fullmatch(str(key)):
            variable = match[1]
        else:
            self._left_out.append(
                f"{place}: its api_key is in the file; put it into the environment, and name the variable "
                f"in providers.{provider}.api_key_env"
            )
            return
        if variable is not None and variable not in keys:
            keys.append(variable)

    def _add_price(self, target: str, info: Any) -> None:
        if not isinstance(info, dict):
            return
        names = {"input": "input_cost_per_token", "output": "output_cost_per_token"}
        costs = {name: info.get(field) for name, field in names.items()}
        if all(isinstance(cost, int | float) for cost in costs.values()):
            self._prices[target] = {
                name: round(float(cost or 0) * MILLION, 9) for name, cost in costs.items()
            }

    def _add_options(self, provider: str, params: Mapping[str, Any], *, place: str) -> None:
        fields = self._providers[provider]
        if isinstance(params.get("timeout"), int | float):
            fields["total_timeout"] = max(fields.get("total_timeout", 0), params["timeout"])
        if isinstance(params.get("max_retries"), int):
            fields["retries"] = params["max_retries"]
        options = {name: params[name] for name in params if name in OPTIONS}
        if options and fields.setdefault("options", options) != options:
            self._left_out.append(
                f"{place}: {', '.join(options)} differ from those of another model of {provider}"
            )
        for name in params:
            if name in REPLACED:
                self._left_out.append(f"{place}: {name} {REPLACED[name]}")
            elif name not in KNOWN | OPTIONS:
                self._left_out.append(f"{place}: litellm_params.{name}")

    def _apply_to_providers(self, settings: Mapping[str, Any], router: Mapping[str, Any]) -> None:
        retries = settings.get("num_retries", router.get("num_retries"))
        timeout = settings.get("request_timeout", router.get("timeout"))
        cooldown = {"failures": router.get("allowed_fails"), "seconds": router.get("cooldown_time")}
        cooldown = {name: value for name, value in cooldown.items() if value}
        for fields in self._providers.values():
            if isinstance(retries, int):
                fields.setdefault("retries", retries)
            if isinstance(timeout, int | float) and timeout > 0:
                fields.setdefault("total_timeout", timeout)
            if cooldown:
                fields["cooldown"] = dict(cooldown)

    def _finished_providers(self) -> dict[str, Any]:
        for name, fields in self._providers.items():
            keys = self._keys.get(name, [])
            if len(keys) == 1:
                fields["api_key_env"] = keys[0]
            elif keys:
                fields["keys"] = [{"name": key.lower(), "api_key_env": key} for key in keys]
        return self._providers

    def _aliases(self, router: Mapping[str, Any]) -> dict[str, Any]:
        strategy = str(router.get("routing_strategy", "simple-shuffle"))
        aliases: dict[str, Any] = {}
        for name, models in self._models.items():
            if len(models) == 1:
                aliases |= {} if models[0] == name else {name: models[0]}
                continue
            weights = self._weights.get(name)
            alias: dict[str, Any] = {"models": models, "balance": BALANCE.get(strategy, "round_robin")}
            aliases[name] = {**alias, "balance": "weighted", "weights": weights} if weights else alias
        groups = router.get("model_group_alias")
        for name, target in groups.items() if isinstance(groups, dict) else ():
            aliases[str(name)] = str(target["model"] if isinstance(target, dict) else target)
        return aliases

    def _fallbacks(self, settings: Mapping[str, Any], router: Mapping[str, Any]) -> dict[str, list[str]]:
        fallbacks: dict[str, list[str]] = {}
        for section in (router, settings):
            fallbacks |= dict(pairs(section.get("fallbacks")))
            default = section.get("default_fallbacks")
            if isinstance(default, list):
                fallbacks["*"] = list(dict.fromkeys([*fallbacks.get("*", ()), *map(str, default)]))
        aliases = {*self._models, *self._aliases(router), "*"}
        for name in [name for name in fallbacks if name not in aliases]:
            self._left_out.append(f"fallbacks of {name}, which no entry of model_list has")
            del fallbacks[name]
        return fallbacks

    def _limits(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        budget, duration = settings.get("max_budget"), str(settings.get("budget_duration", ""))
        if not isinstance(budget, int | float):
            return {}
        if duration and duration not in BUDGETS:
            self._left_out.append(
                f"litellm_settings.budget_duration {duration}: budgets are a day, a month or in all"
            )
            return {}
        self._left_out.append("litellm_settings.max_budget holds for each owner here, not for all together")
        return {"owner": {BUDGETS.get(duration, "usd_total"): float(budget)}}

    def _report_others(self) -> None:
        for section, names in TRANSLATED.items():
            self._left_out += [f"{section}.{name}" for name in self._section(section) if name not in names]
        for name in self._document:
            if name not in (*TRANSLATED, "model_list", "environment_variables"):
                self._left_out.append(str(name))
        if self._document.get("environment_variables"):
            self._left_out.append("environment_variables: set them in the environment of the hub")
        general = self._section("general_settings")
        self._left_out += [
            f"general_settings.{name}: {NEEDLESS[name]}" for name in NEEDLESS if name in general
        ]


LITELLM_SETTINGS = frozenset(
    {"num_retries", "request_timeout", "fallbacks", "default_fallbacks", "max_budget", "budget_duration"}
    | {"drop_params", "set_verbose"}
)
ROUTER_SETTINGS = frozenset(
    {"num_retries", "timeout", "allowed_fails", "cooldown_time", "routing_strategy", "model_group_alias"}
    | {"fallbacks", "default_fallbacks"}
)
NEEDLESS = {
    "master_key": "the hub has none; `dragoman keys create --owner me --scope admin` makes a key",
    "database_url": "the hub keeps SQLite in its data folder; `database: postgresql://…` for several hosts",
}
TRANSLATED = {
    "litellm_settings": LITELLM_SETTINGS,
    "router_settings": ROUTER_SETTINGS,
    "general_settings": frozenset(NEEDLESS),
}


def pairs(fallbacks: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield names with their fallbacks from LiteLLM's list of mappings."""
    for entry in fallbacks if isinstance(fallbacks, list) else ():
        for name, models in entry.items() if isinstance(entry, dict) else ():
            yield str(name), [str(model) for model in models] if isinstance(models, list) else [str(models)]


def variable_reference(text: str) -> str:
    """Return a text with LiteLLM's reference to a variable in the hub's form."""
    return VARIABLE.sub(lambda match: f"${{{match[1]}}}", text)
