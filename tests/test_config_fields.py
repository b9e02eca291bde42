"""Fields of a configuration and their defaults."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dragoman.config import (
    Config,
    CooldownConfig,
    KeyConfig,
    LimitsConfig,
    MetricsConfig,
    PriceConfig,
    ProviderConfig,
    TelemetryConfig,
    first_key,
    key_sources,
    master_key,
    parse_config,
    read_config,
    read_key,
)
from dragoman.errors import ConfigError
from dragoman.usage_limits import Limits

FULL = """
providers:
  openai:
    type: openai
    base_url: https://api.openai.com/v1
    keys:
      - {name: a, api_key_env: A}
      - {api_key_file: b.txt}
      - {name: c, api_key_secret: c}
    cooldown: {failures: 5, window: 10, seconds: 20}
    models: [gpt-5]
    only: true
    prices: {gpt-5: {input: 1.25, output: 10}}
  anthropic: {type: anthropic, version: 2024-01-01, beta: [x], max_tokens: 100, api_key_secret: main}
  ollama: {type: ollama, num_ctx: 8192, keep_alive: 10m, think: high}
default_provider: openai
model: fast
aliases:
  fast: openai/gpt-5
  both: [fast, anthropic/claude]
fallbacks:
  fast: [both]
  both: [fast]
  openai/gpt-5: [ollama/q]
  "*": [ollama/q]
fallback_on: [timeout, context_limit]
prices:
  anthropic/*: {input: 3, output: 15, cache_read: 0.3, cache_write: 3.75}
  openai/gpt-5: {input: 1, output: 8}
limits:
  gateway_body: 1000
  key: {requests_per_minute: 60, tokens_per_minute: 1000, parallel: 2}
  owner: {usd_per_day: 1.5}
  owners: {ada: {usd_per_month: 20, usd_total: 100}}
  unpriced: allow
  drain: 0
  spool: 0
telemetry: {otlp_endpoint: "http://127.0.0.1:4318", service_name: hub, content: true, sample: 0.5}
metrics: {public: false}
master_key_env: MASTER
master_key_file: master.txt
"""


def test_every_field_of_a_gateway_says_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "hub.yaml"
    path.write_text(FULL, encoding="utf-8")
    openai = ProviderConfig(
        type="openai",
        base_url="https://api.openai.com/v1",
        keys=(
            KeyConfig(name="a", api_key_env="A"),
            KeyConfig(api_key_file="b.txt"),
            KeyConfig(name="c", api_key_secret="c"),
        ),
        cooldown=CooldownConfig(failures=5, window=10.0, seconds=20.0),
        models=("gpt-5",),
        only=True,
        prices={"gpt-5": PriceConfig(input=1.25, output=10.0)},
    )
    anthropic = ProviderConfig(
        type="anthropic", version="2024-01-01", beta=("x",), max_tokens=100, api_key_secret="main"
    )
    ollama = ProviderConfig(type="ollama", num_ctx=8192, keep_alive="10m", think="high")
    assert read_config(path, {}) == Config(
        providers={"openai": openai, "anthropic": anthropic, "ollama": ollama},
        default_provider="openai",
        model="fast",
        aliases={"fast": "openai/gpt-5", "both": ("fast", "anthropic/claude")},
        fallbacks={
            "fast": ("both",),
            "both": ("fast",),
            "openai/gpt-5": ("ollama/q",),
            "*": ("ollama/q",),
        },
        fallback_on=("timeout", "context_limit"),
        prices={
            "anthropic/*": PriceConfig(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75),
            "openai/gpt-5": PriceConfig(input=1.0, output=8.0),
        },
        limits=LimitsConfig(
            gateway_body=1000,
            key=Limits(requests_per_minute=60, tokens_per_minute=1000, parallel=2),
            owner=Limits(usd_per_day=1.5),
            owners={"ada": Limits(usd_per_month=20.0, usd_total=100.0)},
            unpriced="allow",
            drain=0.0,
            spool=0,
        ),
        telemetry=TelemetryConfig(
            otlp_endpoint="http://127.0.0.1:4318", service_name="hub", content=True, sample=0.5
        ),
        metrics=MetricsConfig(public=False),
        master_key_env="MASTER",
        master_key_file="master.txt",
    )


def test_routes_and_prices_are_told_in_one_form() -> None:
    config = parse_config(
        {
            "providers": {
                "a": {
                    "type": "anthropic",
                    "prices": {"x": {"input": 1, "output": 2}, "y": {"input": 3, "output": 4}},
                }
            },
            "aliases": {"one": "a/x", "two": ["a/x", "one"]},
            "prices": {"a/x": {"input": 9, "output": 9}},
        }
    )
    assert config.routes == {"one": ("a/x",), "two": ("a/x", "one")}
    assert config.price_list == {
        "a/x": PriceConfig(input=9.0, output=9.0),
        "a/y": PriceConfig(input=3.0, output=4.0),
    }


def test_an_address_is_known_where_there_is_a_usual_one() -> None:
    assert [
        ProviderConfig(type="anthropic").url,
        ProviderConfig(type="ollama").url,
        ProviderConfig(type="ollama", base_url="http://gpu:1").url,
        ProviderConfig(type="local").url,
    ] == ["https://api.anthropic.com", "http://127.0.0.1:11434", "http://gpu:1", None]


def test_a_name_without_a_slash_is_good_when_somebody_answers_for_it() -> None:
    raw = {"providers": {"a": {"type": "anthropic"}}, "model": "claude"}
    with pytest.raises(ConfigError, match="neither provider/model nor an alias"):
        parse_config(raw)
    assert parse_config({**raw, "default_provider": "a"}).model == "claude"


def test_headers_options_and_addresses_are_in_no_repr() -> None:
    provider = ProviderConfig(
        type="openai",
        base_url="http://u:hunter2@h/v1",
        headers={"x-api-key": "hunter2"},
        options={"key": "hunter2"},
    )
    assert "hunter2" not in repr(Config(providers={"a": provider}))


def test_keys_lie_in_the_environment_in_files_and_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("from-file\n", encoding="utf-8")
    provider = ProviderConfig(
        type="openai",
        keys=(
            KeyConfig(name="a", api_key_env="A"),
            KeyConfig(api_key_file=str(tmp_path / "b.txt")),
            KeyConfig(api_key_secret="main"),
        ),
    )
    value = {
        name: read_key(place, name="up", environ={"A": " from-env "}, secrets={"main": "from-table"})
        for name, place in key_sources(provider).items()
    }
    assert value == {"a": "from-env", "2": "from-file", "3": "from-table"}
    assert first_key(provider, name="up", environ={}) == "from-file"


def test_a_provider_has_one_key_called_default_or_none() -> None:
    assert key_sources(ProviderConfig(type="anthropic")) == {}
    provider = ProviderConfig(type="anthropic", api_key_env="A")
    assert key_sources(provider) == {"default": KeyConfig(api_key_env="A")}
    assert first_key(provider, name="up", environ={"A": "x"}) == "x"
    assert first_key(ProviderConfig(type="anthropic"), name="up", environ={}) is None


def test_a_key_that_is_not_there_is_a_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    places = (
        KeyConfig(api_key_env="A"),
        KeyConfig(api_key_file=str(tmp_path / "empty")),
        KeyConfig(api_key_secret="main"),
    )
    with caplog.at_level(logging.WARNING):
        assert [read_key(place, name="up", environ={"A": " "}) for place in places] == [None] * 3
    without = "requests are sent without a key"
    assert [record.getMessage() for record in caplog.records] == [
        f"providers.up: the environment variable A is not set: {without}",
        f"providers.up: the key file is empty: {without}",
        f"providers.up: there is no secret main (`dragoman secrets set` stores one): {without}",
    ]


def test_a_key_that_cannot_be_read_or_sent_is_an_error_that_does_not_show_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the key file: No such file"):
        read_key(KeyConfig(api_key_file=str(tmp_path / "none")), name="up", environ={})
    with pytest.raises(ConfigError) as error:
        read_key(KeyConfig(api_key_env="A"), name="up", environ={"A": "hunter2\nx"})
    assert error.value.message == "providers.up: the key contains a character that is not allowed in a header"


def test_the_master_key_comes_from_its_file_or_its_variable_or_the_file_that_one_names(
    tmp_path: Path,
) -> None:
    file = tmp_path / "master"
    file.write_text("in-file\n", encoding="utf-8")
    assert [
        master_key(Config(), {}),
        master_key(Config(), {"DRAGOMAN_MASTER_KEY": "in-env"}),
        master_key(Config(master_key_env="M"), {"M": "in-m", "DRAGOMAN_MASTER_KEY": "in-env"}),
        master_key(Config(), {"DRAGOMAN_MASTER_KEY_FILE": str(file)}),
        master_key(Config(master_key_file=str(file)), {"DRAGOMAN_MASTER_KEY": "in-env"}),
    ] == [None, "in-env", "in-m", "in-file", "in-file"]
    with pytest.raises(ConfigError, match="cannot read the master key file: No such file"):
        master_key(Config(master_key_file=str(tmp_path / "none")), {})
