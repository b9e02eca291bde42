"""Streams of each vendor with its quirks: the decoded answer, however the bytes are split."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import events as e
from dragoman.fold import Fold

from .openai_streams import NAMES, decode, recording

OSLO, ROME = '{"city":"Oslo"}', '{"city":"Rome"}'
WEATHER = ({"city": "Oslo"}, {"city": "Rome"})
STOP, CALLS, LENGTH = (("finish", reason, "m-1") for reason in ("stop", "tool-calls", "length"))
OPAQUE: dict[str, Any] = {
    "signed": {
        "openai": {
            "reasoning_details": [
                {
                    "type": "reasoning.text",
                    "text": "Two more.",
                    "format": "anthropic-claude-v1",
                    "index": 0,
                    "signature": "c2ln",
                }
            ]
        }
    },
    "first": {
        "openai": {
            "reasoning_details": [
                {
                    "type": "reasoning.encrypted",
                    "data": "ZW5j",
                    "id": "rs_1",
                    "format": "openai-responses-v1",
                    "index": 0,
                }
            ]
        }
    },
    "late": {
        "openai": {
            "reasoning_details": [{"type": "reasoning.encrypted", "data": "c2Vj", "id": "rs_2", "index": 0}]
        }
    },
    "blocks": {"openai": {"thinking_blocks": [{"type": "thinking", "thinking": "Hm", "signature": "c2ln"}]}},
    "summary": {
        "openai": {"reasoning_summary": [{"type": "summary_text", "text": "Hm", "signature": "c2ln"}]}
    },
    "copilot": {"openai": {"reasoning_opaque": "b3BhcXVl"}},
    "gemini": {"openai": {"extra_content": {"google": {"thought_signature": "c2ln"}}}},
}
NO_JSON = "the arguments are not valid JSON: Input data was truncated; nothing was run"

STORIES: dict[str, list[tuple[Any, ...]]] = {
    "azure": [("text", "Hello"), ("finish", "stop", "gpt-4o-az")],
    "azure_filtered": [("text", "Well, "), ("finish", "content-filter", "m-1")],
    "copilot": [("reasoning", "Hm", OPAQUE["copilot"]), ("text", "Yes"), ("finish", "stop", "cop-1")],
    "dashscope": [("call", "call_q", "weather", OSLO, WEATHER[0]), CALLS],
    "databricks": [("reasoning", "Hm", OPAQUE["summary"]), ("text", "Ja"), STOP],
    "deepseek": [("reasoning", "We add."), ("text", "42"), STOP],
    "detail_error": [("failure", "bad_request")],
    "doubleword": [("reasoning", "Hm!"), ("text", "Ja"), STOP],
    "fresh_ids": [("call", "a1", "weather", OSLO, WEATHER[0]), CALLS],
    "gemini": [
        ("call", "fc-1", "weather", OSLO, WEATHER[0], OPAQUE["gemini"]),
        ("call", "fc-2", "weather", ROME, WEATHER[1]),
        ("finish", "tool-calls", "gemini-3-flash"),
    ],
    "gemini_relay": [
        ("call", "fc-1", "weather", OSLO, WEATHER[0]),
        ("call", "call_1", "weather", ROME, WEATHER[1]),
        CALLS,
    ],
    "google_error": [("failure", "overloaded")],
    "gpustack_error": [("text", "Hel"), ("failure", "api_error")],
    "groq": [("reasoning", "Call it."), ("call", "fc_1", "now", "null", {}), CALLS],
    "groq_error": [("text", "I will"), ("failure", "bad_request")],
    "groq_search": [
        ("reasoning", "Look."),
        ("source", "https://a.example/1", "One"),
        ("text", "Found."),
        STOP,
    ],
    "groq_stopped": [("text", "I"), ("failure", "overloaded")],
    "halves": [
        ("text", "Hi 🦜!"),
        ("call", "call_a", "say", '{"it":"🦜"}', {"it": "🦜"}),
        ("text", "�"),
        CALLS,
    ],
    "kimi": [
        ("call", "0", "weather", OSLO, WEATHER[0]),
        ("call", "call_1", "weather", ROME, WEATHER[1]),
        CALLS,
    ],
    "late_length": [("text", "Hi"), LENGTH],
    "litellm": [("reasoning", "Hm", OPAQUE["blocks"]), ("text", "Ja"), STOP],
    "loose_frames": [("text", "ABCD"), STOP],
    "minimax": [("text", "Hello"), STOP],
    "mistral_calls": [
        ("call", "Ab1Cd2Ef3", "weather", '{"city": "Oslo"}', WEATHER[0]),
        ("call", "Gh4Ij5Kl6", "time", "{}", {}),
        CALLS,
    ],
    "mistral_thinking": [("reasoning", "So what?"), ("text", "This one."), STOP],
    "moonshot": [("reasoning", "Hm"), ("text", "Ja"), STOP],
    "no_ids": [
        ("call", "call_1", "weather", "{}", {}),
        ("call", "call_2", "weather", "{}", {}),
        ("call", "call_3", "time", "", {}),
        CALLS,
    ],
    "ollama": [
        ("text", "Thinking aloud.\n"),
        ("text", "Done."),
        ("call", "call_o", "weather", OSLO, WEATHER[0]),
        CALLS,
    ],
    "openai_calls": [
        ("text", "Let me look."),
        ("call", "call_a", "weather", f"{OSLO} ", WEATHER[0]),
        ("call", "call_b", "time", "{}", {}),
        CALLS,
    ],
    "openai_custom_tool": [("call", "call_c", "shell", "ls -l {tmp}", "ls -l {tmp}"), CALLS],
    "openai_cut_call": [
        (
            "bad call",
            "call_a",
            '{"text":"and th',
            f"the answer was cut off at its length limit, so {NO_JSON}",
        ),
        LENGTH,
    ],
    "openai_error": [("text", "Hel"), ("failure", "api_error")],
    "openai_forced_call": [("call", "call_a", "weather", OSLO, WEATHER[0]), CALLS],
    "openai_function_call": [("call", "call_1", "weather", OSLO, WEATHER[0]), CALLS],
    "openai_moderation": [("text", "Hi"), STOP],
    "openai_refusal": [("refusal", "I can't do that."), STOP],
    "openai_text": [("text", "Héllo 🦜"), STOP],
    "openai_two_choices": [("text", "AB"), STOP],
    "openrouter": [("reasoning", "Two more.", OPAQUE["signed"]), ("text", "Four."), STOP],
    "openrouter_encrypted": [
        ("reasoning", "", OPAQUE["first"]),
        ("text", "Asking."),
        ("call", "call_a", "now", "{}", {}),
        ("reasoning", "", OPAQUE["late"]),
        CALLS,
    ],
    "openrouter_error": [("text", "Once upon"), ("failure", "api_error")],
    "openrouter_image": [
        ("text", "A parrot."),
        ("file", "data:image/webp;base64,UklGRg==", "image/webp"),
        ("source", "https://a.example/p", "P"),
        STOP,
    ],
    "openrouter_truncated_call": [("bad call", "call_a", '{"text":"and', NO_JSON), CALLS],
    "perplexity": [
        ("source", "https://a.example/1", "One"),
        ("source", "https://b.example/2", None),
        ("text", "Paris it is."),
        ("finish", "stop", "sonar"),
    ],
    "quota_error": [("failure", "rate_limit")],
    "snowflake": [("reasoning", "Look up"), ("text", "Done."), STOP],
    "snowflake_call": [
        ("text", "Let me look."),
        ("call", "toolu_1", "weather", OSLO, WEATHER[0]),
        ("finish", "tool-calls", "claude-s"),
    ],
    "split_name": [("call", "call_z", "weather", "{}", {}), CALLS],
    "swallowed": [("text", "Hel"), ("failure", "network")],
    "think_tags": [("reasoning", "Is 1 < 2?</p>"), ("text", "Yes, 1 < 2."), STOP],
    "think_talk": [("text", "Write `</think>` after `<think>` and </think>."), STOP],
    "together": [("text", "Hi!"), STOP],
    "vllm_error": [("text", "Hel"), ("failure", "api_error")],
    "whole_event": [
        ("text", "All"),
        ("call", "0", "now", "{}", {}),
        ("call", "call_1", "now", "{}", {}),
        CALLS,
    ],
    "wrong_types": [("text", "Hi 42"), ("call", "5", "now", "", {}), CALLS],
    "xai": [
        ("reasoning", "Thinking"),
        ("text", "Yes."),
        ("source", "https://x.example/1", None),
        ("finish", "stop", "grok-4"),
    ],
}


def test_every_recording_has_expected_events() -> None:
    assert sorted(STORIES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_vendors_stream_decodes_to_the_models_answer(name: str) -> None:
    answer = decode([recording(name)])
    assert answer.story == STORIES[name]
    Fold().add([e.Start("m"), e.StartStep(), *answer.events])  # the grammar of a run allows it
