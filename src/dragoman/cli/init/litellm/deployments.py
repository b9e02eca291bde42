"""Entries of `model_list`, and the providers that they need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dragoman.cli.init.litellm.document import VARIABLE, number_of, variable_reference
from dragoman.cli.init.litellm.vendors import ADDRESSES, NATIVE, SELF_HOSTED, key_variable, split_model

MILLION = 1_000_000
PRICES = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cache_read": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
}
NUMBERS = frozenset({"temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "top_k"})
READ = frozenset({"model", "api_key", "api_base", "base_url", "weight", "order", *PRICES.values()})
REPLACED = {
    "rpm": "is a limit of keys and owners here (`limits`)",
    "tpm": "is a limit of keys and owners here (`limits`)",
    "stream_timeout": "is `first_byte_timeout` and `idle_timeout` of a provider here",
}
NEEDLESS = frozenset({"mode", "id", "db_model"})
NAME = re.compile(r"[a-z0-9_-]+")
SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)
RESPONSES = "responses/"


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that the hub can serve. `fields` are those of its provider, without keys."""

    place: str
    name: str
    vendor: str
    model: str
    fields: dict[str, Any]
    key: str | None
    weight: float | None = None
    order: float | None = None
    price: Mapping[str, float] = {}
    context: int | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for many models."""
        return "*" in self.model


class NamedProvider(msgspec.Struct, frozen=True):
    """A provider, and the entries that it serves."""

    name: str
    fields: dict[str, Any]
    deployments: Sequence[Deployment]


class EntryReader:
    """Reads entries; what the hub has no field for goes into `left_out`."""

    def __init__(self, left_out: list[str]) -> None:
        self._left_out = left_out
        self._variables: dict[str, str] = {}  # for keys that are in the file

    def read(self, entry: Any, place: str) -> Deployment | None:
        """Return an entry, or None if the hub cannot serve it."""
        params = entry.get("litellm_params") if isinstance(entry, dict) else None
        if not isinstance(params, dict) or not isinstance(params.get("model"), str):
            self._left_out.append(f"{place} has no litellm_params.model")
            return None
        vendor, model = split_model(params["model"])
        name = entry.get("model_name", params["model"])
        if not model or isinstance(name, dict | list | None) or not str(name):
            self._left_out.append(f"{place} needs a model_name and a model with a name")
            return None
        kind = NATIVE.get(vendor, "openai")
        if kind == "openai" and model.startswith(RESPONSES):
            kind, model = "responses", model.removeprefix(RESPONSES)
        address = self._address(vendor, params, place=place)
        if address is None and kind not in NATIVE.values():
            return None
        info = entry.get("model_info")
        info = info if isinstance(info, dict) else {}
        self._note_unread(entry, params=params, info=info, place=place)
        context = number_of(info.get("max_input_tokens"))
        return Deployment(
            place=place,
            name=str(name),
            vendor=vendor,
            model=model,
            fields={"type": kind, **({"base_url": address} if address else {})}
            | self._settings(params, place=place),
            key=self._key(vendor, params.get("api_key"), place=place),
            weight=self._number(params, "weight", place=place, least=0),
            order=self._number(params, "order", place=place, least=0),
            price=self._price(params, info, place=place),
            context=int(context) if context and context >= 1 else None,
        )

    def _address(self, vendor: str, params: Mapping[str, Any], *, place: str) -> str | None:
        """Return the address of an entry's provider; None for its type's default, or if there is none."""
        base = params.get("api_base") or params.get("base_url") or ADDRESSES.get(vendor)
        if not base and vendor == "azure":
            base = "os.environ/AZURE_API_BASE"
        if not base:
            if vendor not in NATIVE:
                fix = (
                    "give it an api_base" if vendor in SELF_HOSTED else "the hub does not speak its protocol"
                )
                self._left_out.append(f"{place}: {vendor}/… is left out: {fix}")
            return None
        address = variable_reference(str(base))
        if not address.startswith(("http://", "https://", "${")) or "@" in urlsplit(address).netloc:
            self._left_out.append(
                f"{place}: {vendor}/… is left out: its api_base is not a plain http address"
            )
            return None
        for ending in ("/", "/chat/completions", "/v1/messages" if vendor == "anthropic" else "/"):
            address = address.removesuffix(ending)
        host = urlsplit(address).hostname or ""
        is_azure = vendor == "azure" or (vendor == "azure_ai" and host.endswith(".services.ai.azure.com"))
        if is_azure and not address.endswith("/openai/v1"):
            address = f"{address}/openai/v1"
            self._left_out.append(
                f"{place}: the hub speaks Azure's v1 API, so the address is {address} and models are named "
                "by their deployment; see whether your resource has it"
            )
        return address

    def _settings(self, params: Mapping[str, Any], *, place: str) -> dict[str, Any]:
        """Return the fields of a provider that come from its entries."""
        fields: dict[str, Any] = {}
        timeout = self._number(params, "timeout", place=place, least=0.001)
        fields |= {} if timeout is None else {"total_timeout": timeout}
        for name in ("max_retries", "num_retries"):
            retries = self._number(params, name, place=place, least=0)
            fields |= {} if retries is None else {"retries": int(retries)}
        options: dict[str, Any] = {
            name: number
            for name in params
            if name in NUMBERS and (number := self._number(params, name, place=place)) is not None
        }
        if isinstance(effort := params.get("reasoning_effort"), str):
            options["reasoning_effort"] = effort
        headers = self._headers(params, place=place)
        return fields | ({"options": options} if options else {}) | ({"headers": headers} if headers else {})

    def _headers(self, params: Mapping[str, Any], *, place: str) -> dict[str, str]:
        headers: dict[str, str] = {}
        for field in ("headers", "extra_headers"):
            source = params.get(field)
            for name, value in source.items() if isinstance(source, dict) else ():
                text = str(value)
                if SECRET_HEADER.search(str(name)) and not VARIABLE.search(text):
                    self._left_out.append(
                        f"{place}: {field}.{name} may be secret; write it as ${{VARIABLE}} under `headers`"
                    )
                else:
                    headers[str(name)] = variable_reference(text)
        return headers

    def _key(self, vendor: str, key: Any, *, place: str) -> str | None:
        """Return the variable that holds the key of an entry."""
        default = key_variable(vendor)
        if not key:
            return default
        if match := VARIABLE.fullmatch(str(key)):
            return match[1]
        wanted = default or f"{re.sub(r'[^A-Z0-9]+', '_', vendor.upper())}_API_KEY"
        if str(key) not in self._variables:
            number = sum(name.startswith(wanted) for name in self._variables.values()) + 1
            self._variables[str(key)] = wanted if number == 1 else f"{wanted}_{number}"
        variable = self._variables[str(key)]
        self._left_out.append(f"{place}: its api_key is in the file; set {variable} in the environment")
        return variable

    def _price(self, params: Mapping[str, Any], info: Mapping[str, Any], *, place: str) -> dict[str, float]:
        price: dict[str, float] = {}
        for name, field in PRICES.items():
            source = params if field in params else info
            cost = self._number(source, field, place=place, least=0)
            if cost is not None:
                price[name] = round(cost * MILLION, 9)
        if price and not {"input", "output"} <= price.keys():
            self._left_out.append(f"{place}: its price needs both {PRICES['input']} and {PRICES['output']}")
            return {}
        return price

    def _number(
        self, source: Mapping[str, Any], name: str, *, place: str, least: float = float("-inf")
    ) -> float | int | None:
        """Return a number of an entry; one that is not, or is too small, is left out."""
        if source.get(name) is None:
            return None
        number = number_of(source[name])
        if number is None or number < least:
            self._left_out.append(f"{place}: {name}: {str(source[name])[:80]!r} is not a valid number here")
            return None
        return number

    def _note_unread(
        self, entry: Mapping[str, Any], *, params: Mapping[str, Any], info: Mapping[str, Any], place: str
    ) -> None:
        """Name what an entry has that the hub has no field for."""
        settings = {"timeout", "max_retries", "num_retries", "headers", "extra_headers", "reasoning_effort"}
        for name in params:
            if name in REPLACED:
                self._left_out.append(f"{place}: {name} {REPLACED[name]}")
            elif name not in READ | NUMBERS | settings:
                self._left_out.append(f"{place}: litellm_params.{name}")
        read_info = NEEDLESS | {"max_input_tokens", *PRICES.values()}
        self._left_out += [f"{place}: model_info.{name}" for name in info if name not in read_info]
        others = entry.keys() - {"model_name", "litellm_params", "model_info"}
        self._left_out += [f"{place}: {name}" for name in sorted(map(str, others))]


def group_providers(deployments: Iterable[Deployment]) -> list[NamedProvider]:
    """Return a provider for each set of fields: keys that serve the same models are used in turn.

    A name is the vendor's, or what the entries' pattern `name/*` says. No name begins an alias that leads
    elsewhere, for `name/model` is a model of the provider.
    """
    same: dict[str, list[Deployment]] = {}
    for each in deployments:
        fields = msgspec.json.encode([each.vendor, each.fields], order="deterministic").decode()
        same.setdefault(fields, []).append(each)
    groups = [group for each in same.values() for group in split_by_key(each)]
    groups.sort(key=lambda group: pattern_name(group) is None)  # stable
    elsewhere = {
        each.name.partition("/")[0]
        for group in groups
        for each in group
        if "/" in each.name and not each.is_pattern and each.name != f"{each.vendor}/{each.model}"
    }
    providers: dict[str, NamedProvider] = {}
    for group in groups:
        wanted = pattern_name(group)
        base = re.sub(r"[^a-z0-9_-]+", "-", group[0].vendor.lower()) or "provider"
        name, number = wanted or base, 1
        while name in providers or (name in elsewhere and name != wanted):
            number += 1
            name = f"{base}-{number}"
        providers[name] = NamedProvider(name, provider_fields(group), group)
    return sorted(providers.values(), key=lambda provider: place_number(provider.deployments[0]))


def split_by_key(group: Sequence[Deployment]) -> list[list[Deployment]]:
    """Return entries of the same fields as one provider, or one for each key if these serve other models."""
    models: dict[str | None, set[str]] = {}
    for each in group:
        models.setdefault(each.key, set()).add(each.model)
    if len({frozenset(names) for names in models.values()}) == 1:
        return [list(group)]
    return [[each for each in group if each.key == key] for key in models]


def pattern_name(group: Sequence[Deployment]) -> str | None:
    """Return the name of a provider that makes the pattern `name/*` of one of its entries true."""
    for each in group:
        name, _, rest = each.name.partition("/")
        if rest == "*" and each.model == "*" and NAME.fullmatch(name):
            return name
    return None


def provider_fields(group: Sequence[Deployment]) -> dict[str, Any]:
    """Return the fields of a provider with its keys."""
    fields = dict(group[0].fields)
    contexts = {each.model: each.context for each in group if each.context}
    keys = list(dict.fromkeys(each.key for each in group if each.key))
    if len(keys) == 1:
        fields["api_key_env"] = keys[0]
    elif keys:
        fields["keys"] = [{"name": key.lower(), "api_key_env": key} for key in keys]
    return fields | ({"contexts": contexts} if contexts else {})


def place_number(deployment: Deployment) -> int:
    """Return the position of an entry in the file."""
    return int(re.sub(r"\D", "", deployment.place))
