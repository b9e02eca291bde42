"""`dragoman init --from litellm`: what becomes of a LiteLLM configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dragoman.cli.init.litellm import import_litellm
from dragoman.config import DATABASE_VARIABLE, read_config
from dragoman.errors import ConfigError
from tests.cli.conftest import Run
from tests.cli.program import Said


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys and no database in the environment."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "VLLM_BASE", DATABASE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


LITELLM = """
model_list:
  - model_name: fast
    litellm_params: {model: openai/gpt-5-mini, api_key: os.environ/OPENAI_KEY_A, rpm: 5}
  - model_name: fast
    litellm_params: {model: openai/gpt-5-mini, api_key: os.environ/OPENAI_KEY_B}
  - model_name: both
    litellm_params: {model: groq/llama, weight: 3}
  - model_name: both
    litellm_params: {model: hosted_vllm/llama, api_base: os.environ/VLLM_BASE, api_key: none-of-yours}
  - model_name: claude
    litellm_params: {model: anthropic/claude-opus-4-5, timeout: 600, temperature: 0.5}
    model_info: {input_cost_per_token: 0.000005, output_cost_per_token: 0.000025}
  - model_name: bedrock
    litellm_params: {model: bedrock/claude}
  - model_name: mistral/*
    litellm_params: {model: mistral/*}
  - model_name: my-*
    litellm_params: {model: mistral/open-*}
litellm_settings:
  num_retries: 2
  fallbacks: [{claude: [fast]}, {nobody: [fast]}]
  callbacks: [langfuse]
  max_budget: 10
  budget_duration: 30d
router_settings:
  routing_strategy: least-busy
  allowed_fails: 3
  cooldown_time: 30
  model_group_alias: {gpt-4o: fast}
general_settings: {master_key: os.environ/M}
"""
TRANSLATED = {
    "providers": {
        "openai": {
            "type": "openai",
            "base_url": "https://api.openai.com/v1",
            "retries": 2,
            "cooldown": {"failures": 3, "seconds": 30},
            "keys": [
                {"name": "openai_key_a", "api_key_env": "OPENAI_KEY_A"},
                {"name": "openai_key_b", "api_key_env": "OPENAI_KEY_B"},
            ],
        },
        "groq": {
            "type": "openai",
            "base_url": "https://api.groq.com/openai/v1",
            "retries": 2,
            "cooldown": {"failures": 3, "seconds": 30},
            "api_key_env": "GROQ_API_KEY",
        },
        "hosted_vllm": {
            "type": "openai",
            "base_url": "${VLLM_BASE}",
            "retries": 2,
            "cooldown": {"failures": 3, "seconds": 30},
            "api_key_env": "HOSTED_VLLM_API_KEY",
        },
        "anthropic": {
            "type": "anthropic",
            "total_timeout": 600,
            "options": {"temperature": 0.5},
            "retries": 2,
            "cooldown": {"failures": 3, "seconds": 30},
            "api_key_env": "ANTHROPIC_API_KEY",
        },
        "mistral": {
            "type": "openai",
            "base_url": "https://api.mistral.ai/v1",
            "retries": 2,
            "cooldown": {"failures": 3, "seconds": 30},
            "api_key_env": "MISTRAL_API_KEY",
        },
    },
    "model": "fast",
    "aliases": {
        "fast": "openai/gpt-5-mini",
        "both": {
            "models": ["groq/llama", "hosted_vllm/llama"],
            "balance": "weighted",
            "weights": {"groq/llama": 3.0},
        },
        "claude": "anthropic/claude-opus-4-5",
        "gpt-4o": "fast",
    },
    "fallbacks": {"claude": ["fast"]},
    "prices": {"anthropic/claude-opus-4-5": {"input": 5.0, "output": 25.0}},
    "limits": {"owner": {"usd_per_month": 10.0}},
}


DEFAULT = (
    "model_list[0]: names without a vendor go to openai; each other vendor needs an entry under `providers`"
)
PATTERNS = """
model_list:
  - {model_name: "*", litellm_params: {model: "*", organization: mine, stream_timeout: 60}}
  - {model_name: a, litellm_params: {model: groq/a}}
  - {model_name: b, litellm_params: {model: groq/b}}
litellm_settings:
  fallbacks: [{"*": [a]}]
  default_fallbacks: [b, a]
"""


def test_patterns_and_fallbacks_of_all_models_of_a_litellm_configuration_are_not_lost(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(PATTERNS)
    imported = import_litellm(tmp_path / "config.yaml")
    assert imported.fields["fallbacks"] == {"*": ["a", "b"]}
    assert imported.left_out == [
        "model_list[0]: litellm_params.organization",
        "model_list[0]: stream_timeout is `first_byte_timeout` and `idle_timeout` of a provider here",
        DEFAULT,
    ]


ANY = """
model_list:
  - {model_name: "*", litellm_params: {model: openai/gpt-5}}
  - {model_name: a, litellm_params: {model: groq/a}}
"""


def test_a_model_for_all_other_names_is_the_alias_of_all_names(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(ANY)
    imported = import_litellm(tmp_path / "config.yaml")
    assert imported.fields["aliases"] == {"*": "openai/gpt-5", "a": "groq/a"}
    assert (imported.fields["model"], imported.left_out) == ("openai/gpt-5", [])
    assert run("init", "--from", "litellm", "config.yaml").code == 0
    assert run("check").code in (0, 1)  # its keys may be missing
    assert "aliases" not in run("check").err


def test_a_litellm_configuration_is_translated_and_what_cannot_be_said_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(LITELLM)
    imported = import_litellm(tmp_path / "config.yaml")
    assert imported.fields == TRANSLATED
    left_out = "\n".join(imported.left_out)
    for words in (
        "rpm is a limit",
        "the pattern; its models have the names mistral/open-*",
        "api_key is in the file",
        "bedrock/…",
        "nobody",
        "callbacks",
        "master_key",
    ):
        assert words in left_out
    monkeypatch.setenv("VLLM_BASE", "http://127.0.0.1:8001/v1")
    result: Said = run("init", "--from", "litellm", "config.yaml")
    assert (result.code, "not translated: " in result.err) == (0, True)
    text = (tmp_path / "dragoman.yaml").read_text()
    assert "none-of-yours" not in text
    assert yaml.safe_load(text) == TRANSLATED
    assert run("check").code == 0


def test_a_translation_is_written_where_its_variables_are_not_set(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(LITELLM)
    result = run("init", "--from", "litellm", "config.yaml")
    assert (result.code, "VLLM_BASE is not set" in result.err) == (0, True)
    assert yaml.safe_load((tmp_path / "dragoman.yaml").read_text()) == TRANSLATED


@pytest.mark.parametrize("text", ["", "a: [", "[]", "model_list: 5", "model: x"])
def test_a_file_that_is_no_litellm_configuration_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError):
        import_litellm(tmp_path / "config.yaml")
    assert run("init", "--from", "litellm", "config.yaml").code == 1
    assert not (tmp_path / "dragoman.yaml").exists()


ODD = """
include: [more.yaml, missing.yaml]
model_list:
  - model_name: env
    litellm_params: {model: azure/gpt, api_version: "2024-07-01"}
    model_info: {mode: chat, team: a}
  - {model_name: openai/gpt-5, litellm_params: {model: azure/gpt}}
  - {model_name: bare, litellm_params: {model: gpt-5, order: 2, num_retries: "2", timeout: soon}}
  - model_name: bare
    litellm_params: {model: claude-opus-4-5, order: 1, temperature: hot, api_key: sk-hunter2}
  - {model_name: cool, litellm_params: {model: claude-opus-4-5, temperature: 0.2, api_key: sk-hunter3}}
  - {model_name: pro, litellm_params: {model: openai/responses/gpt-5-pro, api_key: os.environ/A}}
  - {model_name: "my/*", litellm_params: {model: hosted_vllm/*, api_base: "http://127.0.0.1:1/v1/"}}
  - {model_name: "*", litellm_params: {model: groq/*}}
  - model_name: headers
    litellm_params: {model: xai/x, extra_headers: {X-Team: a, Authorization: sk-hunter2}}
  - model_name: price
    litellm_params: {model: xai/y, input_cost_per_token: 1e-6, output_cost_per_token: "2e-6"}
  - {model_name: secret, litellm_params: {model: openai/z, api_base: "https://me:hunter2@127.0.0.1/v1"}}
  - {model_name: inf, litellm_params: {model: xai/y, max_retries: .inf}, tags: [a]}
  - {model_name: [a], litellm_params: {model: openai/z}}
  - {model_name: bedrock, litellm_params: {model: bedrock/x}}
  - null
litellm_settings:
  fallbacks: [{pro: [bare, bedrock]}, bare, {cool: [{model: pro, messages: []}]}]
  context_window_fallbacks: [{pro: [bare]}]
router_settings:
  routing_strategy: mine
  allowed_fails: 0
  cooldown_time: never
  model_group_alias: {a: b, b: {model: pro, hidden: true}, c: d, d: c, pro: env, bad: [1]}
general_settings: none
mcp_servers:
  notes: {transport: stdio, command: npx, args: [-y, notes], env: {T: os.environ/T}, allowed_tools: [a]}
  wiki: {url: "https://127.0.0.1/mcp", auth_type: bearer_token, authentication_token: hunter2}
"""
AZURE = {"type": "openai", "base_url": "${AZURE_API_BASE}/openai/v1", "api_key_env": "AZURE_API_KEY"}
ODD_TRANSLATED: dict[str, Any] = {
    "providers": {
        "azure": AZURE,
        "openai-2": {"base_url": "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY", "retries": 2},
        "anthropic": {"type": "anthropic", "api_key_env": "ANTHROPIC_API_KEY"},
        "anthropic-2": {
            "type": "anthropic",
            "api_key_env": "ANTHROPIC_API_KEY_2",
            "options": {"temperature": 0.2},
        },
        "openai-3": {"type": "responses", "base_url": "https://api.openai.com/v1", "api_key_env": "A"},
        "my": {"base_url": "http://127.0.0.1:1/v1"},
        "groq": {"base_url": "https://api.groq.com/openai/v1", "api_key_env": "GROQ_API_KEY"},
        "xai": {
            "base_url": "https://api.x.ai/v1",
            "api_key_env": "XAI_API_KEY",
            "headers": {"X-Team": "a"},
        },
        "xai-2": {"base_url": "https://api.x.ai/v1", "api_key_env": "XAI_API_KEY"},
    },
    "model": "env",
    "default_provider": "groq",
    "aliases": {
        "env": "azure/gpt",
        "openai/gpt-5": "azure/gpt",
        "bare": {"models": ["anthropic/claude-opus-4-5", "openai-2/gpt-5"], "balance": "failover"},
        "cool": "anthropic-2/claude-opus-4-5",
        "pro": "openai-3/gpt-5-pro",
        "headers": "xai/x",
        "price": "xai-2/y",
        "inf": "xai-2/y",
        "included": "groq/other",
        "b": "pro",
        "a": "b",
    },
    "fallbacks": {"pro": ["bare"], "cool": ["pro"]},
    "prices": {"xai-2/y": {"input": 1.0, "output": 2.0}},
    "mcp_servers": {"notes": {"command": ["npx", "-y", "notes"], "env": {"T": "${T}"}}},
}
ODD_LEFT_OUT = """
missing.yaml cannot be read
general_settings is not a mapping
model_list[0]: litellm_params.api_version
model_list[0]: model_info.team
the hub speaks Azure's v1 API
model_list[2]: timeout: 'soon' is not a valid number here
model_list[3]: temperature: 'hot' is not a valid number here
model_list[3]: its api_key is in the file; set ANTHROPIC_API_KEY
model_list[7]: names without a vendor go to groq
model_list[8]: extra_headers.Authorization may be secret
model_list[10]: openai/… is left out: its api_base is not a plain http address
model_list[11]: max_retries: 'inf' is not a valid number here
model_list[11]: tags
model_list[12] needs a model_name
model_list[13]: bedrock/… is left out: the hub does not speak its protocol
model_list[14] has no litellm_params.model
the fallback bedrock of pro, which is not a model here
litellm_settings.fallbacks: 'bare' is not a mapping
fallbacks of cool: parameters of a fallback
context_window_fallbacks: fallbacks for one reason
routing_strategy mine: there is none of this name
router_settings.cooldown_time: 'never' is not a valid number here
model_group_alias.c
model_group_alias.d
model_group_alias.pro
model_group_alias.bad
mcp_servers.notes.allowed_tools
mcp_servers.wiki: write it anew, with its credentials
"""


def test_every_entry_of_an_odd_litellm_configuration_is_translated_or_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(ODD)
    more = {"model_list": [{"model_name": "included", "litellm_params": {"model": "groq/other"}}]}
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(more))
    imported = import_litellm(tmp_path / "config.yaml")
    once = {"type": "openai", "cooldown": {"failures": 1}}
    providers = {name: {**once, **fields} for name, fields in ODD_TRANSLATED["providers"].items()}
    assert imported.fields == {**ODD_TRANSLATED, "providers": providers}
    left_out = "\n".join(imported.left_out)
    assert [words for words in ODD_LEFT_OUT.strip().splitlines() if words not in left_out] == []
    assert "hunter" not in left_out + str(imported.fields)
    monkeypatch.setenv("AZURE_API_BASE", "http://127.0.0.1:1")
    monkeypatch.setenv("T", "t")
    assert run("init", "--from", "litellm", "config.yaml").code == 0
    assert set(read_config(tmp_path / "dragoman.yaml").providers) == set(providers)


def test_a_litellm_configuration_without_a_model_that_can_be_served_is_refused(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("model_list: [{model_name: a, litellm_params: {model: bedrock/x}}]")
    result = run("init", "--from", "litellm", "config.yaml")
    assert (result.code, "bedrock/… is left out" in result.err) == (1, True)
    assert not (tmp_path / "dragoman.yaml").exists()
