"""The pages on command line, configuration and HTTP are complete, and their examples work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import typer
import yaml

from dragoman.cli import program
from dragoman.config import (
    AgentConfig,
    AliasConfig,
    Config,
    CooldownConfig,
    CorsConfig,
    KeyConfig,
    LimitsConfig,
    MetricsConfig,
    PriceConfig,
    ProviderConfig,
    ProviderType,
    RetentionConfig,
    StopConfig,
    TelemetryConfig,
    parse_config,
)
from dragoman.config.a2a_section import A2aConfig
from dragoman.config.runner_section import RunnersConfig
from dragoman.config.sections import (
    ContextConfig,
    HookConfig,
    McpConfig,
    McpServerConfig,
    PolicyRule,
    SearchConfig,
    SpokesConfig,
    WebConfig,
)
from dragoman.config.webhook_section import WebhooksConfig
from dragoman.errors import ConfigError
from dragoman.server.reference.openapi import build_document
from dragoman.server.reference.page import list_operations
from dragoman.usage_limits import Limits
from tests.cli.test_help import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
LINK = r"\]\(([\w./-]*\.md|(?=#))(?:#([\w-]+))?\)"
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "The hub": Config,
    "Aliases": AliasConfig,
    "Providers": ProviderConfig,
    "Keys of a provider": KeyConfig,
    "Cooldown": CooldownConfig,
    "Prices": PriceConfig,
    "Agents": AgentConfig,
    "Stop conditions": StopConfig,
    "Context": ContextConfig,
    "Hooks": HookConfig,
    "Policy": PolicyRule,
    "MCP servers": McpServerConfig,
    "The hub as an MCP server": McpConfig,
    "The web": WebConfig,
    "Webhooks": WebhooksConfig,
    "Search": SearchConfig,
    "Spokes": SpokesConfig,
    "Runners": RunnersConfig,
    "Limits": LimitsConfig,
    "Retention": RetentionConfig,
    "What a key or an owner may ask for": Limits,
    "A2A": A2aConfig,
    "CORS": CorsConfig,
    "Telemetry": TelemetryConfig,
    "Metrics": MetricsConfig,
}


def sections(page: str) -> dict[str, str]:
    """The sections of a page, by their headings."""
    pieces = re.split(r"^## (.*)$", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


@pytest.mark.parametrize("title", SECTIONS)
def test_the_page_has_every_field_of_the_configuration_and_no_other(title: str) -> None:
    described = re.findall(r"^\| `(\w+)` \|", sections("configuration.md")[title], flags=re.MULTILINE)
    assert described == list(SECTIONS[title].__struct_fields__)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_page_names_the_defaults(title: str) -> None:
    rows = dict(
        re.findall(r"^\| `(\w+)` \| ([^|]*) \|", sections("configuration.md")[title], flags=re.MULTILINE)
    )
    for field in msgspec.structs.fields(SECTIONS[title]):
        if isinstance(field.default, str | int | float):
            default = str(field.default).lower() if isinstance(field.default, bool) else field.default
            assert rows[field.name] == f"`{default}`"


@pytest.mark.parametrize(
    ("page", "examples"),
    [("configuration.md", 20), ("gateway.md", 5), ("operations.md", 2), ("structured-output.md", 1)],
)
def test_the_examples_are_configurations(page: str, examples: int) -> None:
    found = re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(found) >= examples  # fewer: the pattern does not find them any more
    for example in found:
        parse_config(yaml.safe_load(example))


def test_the_page_has_every_type_of_provider() -> None:
    text = sections("configuration.md")["Providers"]
    assert all(f"`{name}`" in text for name in get_args(ProviderType))


def options(name: str) -> list[str]:
    """The options of a command, as they are typed."""
    command: Any = typer.main.get_command(program.build_program())
    for word in name.split():
        command = command.commands[word]
    return [each.opts[0] for each in command.params if each.param_type_name == "option"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_every_command_and_option(name: str) -> None:
    text = sections("cli.md")[f"dragoman {name}"]
    for option in options(name):
        assert option in text, option


def test_the_overview_lists_every_command() -> None:
    block = (DOCS / "cli.md").read_text(encoding="utf-8").split("```\n")[1]
    entries = [entry.removeprefix("dragoman ") for entry in block.split("\ndragoman ")]
    overview = {entry.split()[0]: set(re.findall(r"[\w-]+", entry)) for entry in entries}
    assert set(overview) == {*program.COMMANDS, *program.GROUPS}
    for name in program.GROUPS:
        commands = {each.name for each in program.load_group(name).registered_commands}
        assert commands <= overview[name], name


def test_the_page_has_every_address_of_the_hub() -> None:
    text = (DOCS / "http.md").read_text(encoding="utf-8")
    for verb, path, reply in list_operations(build_document()["paths"]):
        where = f"`{path}`" if "x-same-as" in reply else f"### `{verb.upper()} {path}`\n"
        assert where in text, where


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        for target, place in re.findall(LINK, page.read_text(encoding="utf-8")):
            there = page.parent / target if target else page
            assert there.is_file(), (page.name, target)
            assert not place or place in headings(there), (page.name, target, place)


def headings(page: Path) -> set[str]:
    """The places of a page that a link can lead to."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in found}


def test_the_gateway_page_shows_what_a_gateway_is_configured_by() -> None:
    found = re.findall(r"```yaml\n(.*?)```", (DOCS / "gateway.md").read_text(encoding="utf-8"), re.DOTALL)
    shown = [parse_config(yaml.safe_load(example)) for example in found]
    assert any(config.fallbacks for config in shown)
    assert any(config.aliases for config in shown)
    assert any(config.limits.key != Limits() for config in shown)
    assert any(provider.keys for config in shown for provider in config.providers.values())


def test_the_litellm_file_on_the_gateway_page_is_told_what_it_is() -> None:
    (theirs,) = re.findall(r"```yaml litellm\n(.*?)```", (DOCS / "gateway.md").read_text(), re.DOTALL)
    with pytest.raises(ConfigError) as error:
        parse_config(yaml.safe_load(theirs))
    assert error.value.message.count("it is LiteLLM's; docs/gateway.md shows") == 4
