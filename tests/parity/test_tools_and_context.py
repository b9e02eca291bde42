"""Tool builder, context policies, images."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from dragoman import (
    Agent,
    AnthropicProvider,
    ContextPolicy,
    OllamaProvider,
    OpenAIProvider,
    estimate_tokens,
    image,
    is_approaching_limit,
    operation,
    tool,
    tool_output,
    truncate_messages,
    user_message,
)
from dragoman import events as e
from tests.parity.upstream import call, claude, ollama, openai_model, text, upstream

PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
ADDRESS = "https://example.org/cat.png"


async def test_a_tool_is_built_of_its_parameters_and_a_closure() -> None:
    async def summed(args: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"result": args["a"] + args["b"]}

    add = tool("add", "Add two numbers").param("a", "number").param("b", "number").build(summed)
    async with openai_model(call("tools_add", {"a": 1, "b": 2.5}), text("3.5")) as (up, model):
        await Agent(model, operations=[add]).spawn("1 + 2.5?").result
    shown = up.bodies[0]["tools"][0]["function"]
    assert (shown["name"], shown["description"]) == ("tools_add", "Add two numbers")
    assert shown["parameters"]["properties"] == {"a": {"type": "number"}, "b": {"type": "number"}}
    assert shown["parameters"]["required"] == ["a", "b"]
    assert up.bodies[1]["messages"][-1]["content"] == '{"result":3.5}'


async def test_a_built_tool_checks_what_it_is_given() -> None:
    add = tool("add", "Add.").param("a", "number").build(lambda a: a)
    async with openai_model(call("tools_add", {"a": "many"}), text("Sorry.")) as (up, model):
        await Agent(model, operations=[add]).spawn("Add many.").result
    assert "many" in up.bodies[1]["messages"][-1]["content"]


def conversation(turns: int) -> list[dict[str, Any]]:
    """A system prompt and so many turns, the last with a call that was made in it."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}]
    for number in range(turns):
        messages += [
            {"role": "user", "content": f"Question {number}"},
            {"role": "assistant", "content": "An answer of some length. " * 20},
        ]
    made = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    return [
        *messages,
        {"role": "user", "content": "The last question"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]


def test_tokens_are_estimated() -> None:
    assert estimate_tokens([]) == 0
    few, many = estimate_tokens(conversation(1)), estimate_tokens(conversation(50))
    assert 100 < few < 300
    assert 30 * few < many < 50 * few


def test_a_conversation_near_its_limit_is_noticed() -> None:
    history = conversation(10)
    size = estimate_tokens(history)
    assert is_approaching_limit(history, size)
    assert is_approaching_limit(history, size, margin=0.99)
    assert not is_approaching_limit(history, size * 2)


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 4, 10])
async def test_a_truncated_conversation_keeps_the_system_prompt_and_calls_with_their_results(
    keep: int,
) -> None:
    cut = truncate_messages(conversation(20), keep)
    assert cut[0]["role"] == "system"
    roles = [message["role"] for message in cut[-3:]]
    assert roles == ["user", "assistant", "tool"]
    assert len(cut) <= 1 + max(keep, 3)
    assert truncate_messages(conversation(20), keep, preserve_system=False)[0]["role"] == "user"
    async with openai_model(text("Found.")) as (up, model):
        assert (await Agent(model).spawn(cut).result).text == "Found."
    assert [message["role"] for message in up.bodies[0]["messages"]][-3:] == roles


async def test_a_conversation_that_grows_too_long_is_cut_by_itself_if_that_is_wanted() -> None:
    async with openai_model(text("Fine.")) as (up, model):
        agent = Agent(model, context=ContextPolicy("truncate", limit=2000))
        run = agent.spawn([*conversation(30), {"role": "user", "content": "And now?"}])
        cuts = [event.data async for event in run.events() if isinstance(event, e.Data)]
        result = await run.result
        await Agent(model).spawn(conversation(30)).result
    assert (len(cuts), cuts[0]["kind"]) == (1, "truncate")
    assert estimate_tokens(up.bodies[0]["messages"]) < 2000 < estimate_tokens(up.bodies[1]["messages"])
    assert len(result.messages) > 60  # nothing is lost


async def sent_message(family: str, message: Any) -> dict[str, Any]:
    """The request with this message, in the words of a family."""
    answers = {"openai": text("A cat."), "anthropic": claude("A cat."), "ollama": ollama({"content": "A."})}
    async with upstream(answers[family]) as up:
        providers: dict[str, Any] = {
            "openai": OpenAIProvider(base_url=f"{up.url}/v1", api_key="sk-0123456789"),
            "anthropic": AnthropicProvider(base_url=up.url, api_key="sk-0123456789"),
            "ollama": OllamaProvider(base_url=up.url),
        }
        async with providers[family] as provider:
            result = await Agent(provider.model("any")).spawn([message]).result
            assert result.exit_reason == "success"
    return dict(up.bodies[0]["messages"][-1])


@pytest.mark.parametrize("way", ["file", "bytes", "base64"])
async def test_an_image_by_file_by_bytes_and_by_base64_reaches_every_provider(
    way: str, tmp_path: Path
) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(PNG)
    source: Any = {"file": path, "bytes": PNG, "base64": DATA}[way]
    message = user_message("What is this?", image(source))
    plain = base64.b64encode(PNG).decode()
    openai_said = (await sent_message("openai", message))["content"][1]
    assert openai_said == {"type": "image_url", "image_url": {"url": DATA}}
    anthropic_said = (await sent_message("anthropic", message))["content"][1]
    assert anthropic_said["source"] == {"type": "base64", "media_type": "image/png", "data": plain}
    assert (await sent_message("ollama", message))["images"] == [plain]


async def test_an_image_by_its_address_with_a_level_of_detail() -> None:
    message = {"role": "user", "content": ["What is this?", image(ADDRESS, detail="low")]}
    part = (await sent_message("openai", message))["content"][1]
    assert part == {"type": "image_url", "image_url": {"url": ADDRESS, "detail": "low"}}
    assert (await sent_message("anthropic", message))["content"][1]["source"] == {
        "type": "url",
        "url": ADDRESS,
    }


async def test_an_image_in_openais_own_words_is_understood() -> None:
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": DATA}}]
    content = (await sent_message("anthropic", {"role": "user", "content": parts}))["content"]
    assert content[1]["source"]["media_type"] == "image/png"


async def test_a_tool_gives_an_image() -> None:
    @operation(namespace="chart", effect="read")
    def draw(title: str) -> dict[str, Any]:
        """Draw a chart."""
        return tool_output(f"The chart {title}:", image(PNG))

    async with openai_model(call("chart_draw", {"title": "sales"}), text("Up.")) as (up, model):
        await Agent(model, operations=[draw]).spawn("Draw.").result
    assert DATA in str(up.bodies[1]["messages"])
