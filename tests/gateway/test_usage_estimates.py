"""An answer without usage gets the same marked estimate at every endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, OpenAIProvider, PriceOverride
from dragoman.events import Usage

from .metered_hub import PRICE, Desk, Site, completion, desk, tokens

TEXT = "eight ch" * 5  # 40 characters: 10 tokens


async def ask_chat_stream(at: Desk) -> None:
    assert (await at.chat("up/m", stream=True)).status_code == 200


async def ask_chat_document(at: Desk) -> None:
    assert (await at.chat("up/m")).status_code == 200


async def ask_messages_stream(at: Desk) -> None:
    assert (await at.message("up/m", stream=True)).status_code == 200


async def ask_messages_document(at: Desk) -> None:
    assert (await at.message("up/m")).status_code == 200


async def ask_run(at: Desk) -> None:
    assert (await at.run("hi"))[-1]["type"] == "finish"


@pytest.mark.parametrize(
    ("ask", "endpoint", "reply"),
    [
        pytest.param(ask_chat_stream, "openai", tokens(TEXT), id="completions stream"),
        pytest.param(ask_chat_document, "openai", completion(TEXT, usage=None), id="completions document"),
        pytest.param(ask_messages_stream, "anthropic", tokens(TEXT), id="messages stream"),
        pytest.param(ask_messages_document, "anthropic", tokens(TEXT), id="messages document"),
        pytest.param(ask_run, "chat", tokens(TEXT), id="run"),
    ],
)
async def test_an_answer_without_usage_is_estimated_at_every_endpoint(
    tmp_path: Path, ask: Callable[[Desk], Awaitable[None]], endpoint: str, reply: bytes
) -> None:
    async with desk(tmp_path, up=Site(reply), model="up/m", prices={"*": PRICE}) as at:
        await ask(at)
        row = await at.row()
        prompt = row.tokens.input_tokens or 0
        assert prompt > 0
        assert row.tokens == Usage(prompt, 10, prompt + 10, estimated=True)
        assert (row.door, row.status) == (endpoint, "finished")
        assert row.cost == pytest.approx(prompt * 1e-6 + 10 * 2e-6)


async def test_an_answer_without_usage_is_estimated_in_the_library(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens(TEXT))) as at:
        url: Any = at.sites["up"].provider["base_url"]
        async with OpenAIProvider(base_url=url, api_key="sk-1") as provider:
            prices = {"*": PriceOverride(input=1, output=2)}
            result = await Agent(provider.model("m"), prices=prices).spawn("hi").result
    prompt = result.usage.input_tokens or 0
    assert (result.usage.output_tokens, result.usage.estimated) == (10, True)
    assert result.cost == pytest.approx(prompt * 1e-6 + 10 * 2e-6)
