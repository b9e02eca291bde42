"""`serve` without a configuration: what the keys of providers in the environment stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dragoman.cli import config_discovery
from dragoman.cli.config_discovery import PINNED, config_from_sources
from dragoman.cli.init import discovery
from dragoman.cli.init.discovery import find_sources
from dragoman.config import Config
from dragoman.errors import ConfigError
from dragoman.server.app import Hub
from tests.cli.conftest import Run

GPT = "openai/gpt-5-mini"
SECRET = "sk-" + "x" * 40
OPENAI, ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com"
GEMINI, OPENROUTER = "https://generativelanguage.googleapis.com/v1beta/openai", "https://openrouter.ai/api/v1"
# What each key gives: the provider, its type and address, and the default model.
PROVIDERS = {
    "OPENAI_API_KEY": ("openai", "openai", OPENAI, "openai/gpt-5-mini"),
    "ANTHROPIC_API_KEY": ("anthropic", "anthropic", ANTHROPIC, "anthropic/claude-haiku-4-5"),
    "GEMINI_API_KEY": ("gemini", "openai", GEMINI, "gemini/gemini-3.5-flash"),
    "OPENROUTER_API_KEY": ("openrouter", "openai", OPENROUTER, "openrouter/openai/gpt-5-mini"),
}
NAMES = (*PROVIDERS, *(name.replace("_API_KEY", "_BASE_URL") for name in PROVIDERS))


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(discovery, "is_installed", lambda: False)
    monkeypatch.setattr(discovery, "SERVERS", {})


def config_from_environment(environ: Mapping[str, str]) -> tuple[Config, str] | None:
    return config_from_sources(find_sources(environ))


@pytest.mark.parametrize("variable", PROVIDERS)
async def test_a_key_gives_its_provider_with_address_and_default_model(variable: str, tmp_path: Path) -> None:
    name, type, address, model = PROVIDERS[variable]
    found = config_from_environment({variable: f" {SECRET}\n"})
    assert found is not None
    config, source = found
    [(provider_name, provider)] = config.providers.items()
    assert (provider_name, provider.type, provider.base_url) == (name, type, address)
    assert (provider.api_key_env, config.model, config.default_provider) == (variable, model, name)
    assert (tuple(config.pinned), source) == (PINNED, f"no configuration; keys from {variable}")
    async with Hub.open(config, tmp_path, environ={variable: SECRET}) as hub:  # the hub starts with it
        assert [*hub.cooldowns()] == [name]


@pytest.mark.parametrize(
    ("environ", "providers", "model"),
    [
        (dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), SECRET), ["openai", "anthropic"], GPT),
        (dict.fromkeys(reversed(PROVIDERS), SECRET), [row[0] for row in PROVIDERS.values()], GPT),
        ({"OPENAI_API_KEY": "  ", "GEMINI_API_KEY": SECRET}, ["gemini"], "gemini/gemini-3.5-flash"),
    ],
)
def test_several_keys_give_several_providers_and_the_first_answers(
    environ: Mapping[str, str], providers: list[str], model: str
) -> None:
    found = config_from_environment(environ)
    assert found is not None
    assert ([*found[0].providers], found[0].model) == (providers, model)


@pytest.mark.parametrize("variable", PROVIDERS)
def test_a_base_url_in_the_environment_names_another_server(variable: str) -> None:
    base = variable.replace("_API_KEY", "_BASE_URL")
    found = config_from_environment({variable: SECRET, base: "http://127.0.0.1:9/v1"})
    assert found is not None
    [provider] = found[0].providers.values()
    assert provider.base_url == "http://127.0.0.1:9/v1"
    empty = config_from_environment({variable: SECRET, base: ""})
    assert empty is not None
    assert next(iter(empty[0].providers.values())).base_url == PROVIDERS[variable][2]


@pytest.mark.parametrize(
    "environ", [{}, {"OPENAI_API_KEY": ""}, {"OPENAI_API_KEY": " \n"}, {"OTHER_API_KEY": "x"}]
)
def test_without_a_key_there_is_no_configuration(environ: Mapping[str, str]) -> None:
    assert config_from_environment(environ) is None


def test_check_explains_what_serve_would_use_and_shows_no_key(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    result = run("check")
    assert result.code == 0
    assert result.out.splitlines()[0] == "no configuration; keys from ANTHROPIC_API_KEY"
    assert "anthropic/claude-haiku-4-5" in result.out
    assert "$ANTHROPIC_API_KEY present" in result.out
    assert SECRET not in result.out + result.err


def test_a_configuration_file_goes_before_the_keys(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    Path("dragoman.yaml").write_text("providers: {small: {type: local}}\n")
    result = run("check")
    assert result.out.splitlines()[0] == "dragoman.yaml is valid"
    assert "openai" not in result.out


def test_without_keys_the_error_names_the_variables(run: Run) -> None:
    result = run("serve")
    assert result.code == 1
    assert "No configuration was found" in result.err
    assert "OPENAI_API_KEY or ANTHROPIC_API_KEY" in result.err
    with pytest.raises(ConfigError):
        config_discovery.choose_config(None)
