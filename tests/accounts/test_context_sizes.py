"""Context sizes of models, from the configuration first and the price library second."""

from __future__ import annotations

from dragoman.accounts.context_sizes import Contexts


def test_the_library_knows_the_context_of_well_known_models() -> None:
    contexts = Contexts()
    assert contexts.find("anthropic", "claude-3-5-sonnet-20241022") == 200_000
    assert contexts.find("openai", "gpt-4o") == 128_000
    assert contexts.find("mine", "gpt-4o", base_url="https://api.openai.com/v1", type="openai") == 128_000


def test_what_nobody_says_is_unknown_and_so_is_what_runs_on_machines_of_our_own() -> None:
    contexts = Contexts()
    assert contexts.find("openai", "gpt-4o-of-tomorrow") is None
    assert contexts.find("ollama", "qwen3") is None


def test_the_configuration_comes_first() -> None:
    contexts = Contexts({"ollama/qwen3*": 32_000, "gpt-4o": 1_000})
    assert contexts.find("ollama", "qwen3:8b") == 32_000
    assert contexts.find("openai", "gpt-4o") == 1_000
