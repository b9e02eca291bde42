"""What `dragoman chat` draws in a terminal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from rich.console import Console

from dragoman import events as e
from dragoman.cli.access.call_preview import item_lines
from dragoman.cli.chat.live_renderer import LiveRenderer
from dragoman.cli.chat.markdown import GrowingMarkdown
from dragoman.cli.chat.renderer import MAX_SHOWN, RENDERERS, EventRenderer, describe_answer, format_duration
from dragoman.cli.terminal import make_console, print_json, strip_controls

UNDRAWN = {e.StartStep, e.TextStart, e.ReasoningStart, e.ToolApprovalResponse, e.FinishStep}
CASES: dict[str, tuple[Sequence[e.Event], str, str]] = {
    "text": ([e.TextDelta("t", "Good "), e.TextDelta("t", "day."), e.TextEnd("t")], "Good day.\n", ""),
    "reasoning": ([e.ReasoningDelta("r", "Hm."), e.ReasoningEnd("r")], "", "Hm.\n"),
    "an answer between two thoughts": (
        [e.ReasoningDelta("r", "Hm."), e.TextDelta("t", "Yes."), e.ReasoningDelta("r", "Right.")],
        "Yes.\n",
        "Hm.\nRight.\n",
    ),
    "a call": (
        [
            e.ToolInputStart("c", "look"),
            e.ToolInputDelta("c", '{"at":'),
            e.ToolInputAvailable("c", "look", {"at": 1}),
            e.ToolOutputAvailable("c", ["half"], preliminary=True),
            e.ToolOutputAvailable("c", ["whole"]),
        ],
        "",
        '→ look {"at":1}\n  … ["half"]  look  1.0 s\n  ✓ ["whole"]  look  2.0 s\n',
    ),
    "a call told again": (
        [e.ToolInputStart("c", "look"), e.ToolInputDelta("c", "{}"), e.ToolOutputError("c", "blind")],
        "",
        "→ look {}\n  ✗ blind  look  1.0 s\n",
    ),
    "a call that is none": (
        [e.ToolInputStart("c", "look"), e.ToolInputError("c", "look", "{", "no JSON")],
        "",
        "→ look {\n  ✗ no JSON  look  1.0 s\n",
    ),
    "a call that is not allowed": (
        [e.ToolInputAvailable("c", "rm", {}), e.ToolApprovalRequest("a", "c"), e.ToolOutputDenied("c")],
        "",
        "→ rm {}\n  rm waits for somebody's approval\n  ✗ not allowed, so it was not run  rm  1.0 s\n",
    ),
    "sources and files": (
        [
            e.SourceUrl("s", "http://a.example/"),
            e.SourceUrl("s", "http://a.example/", "A"),
            e.SourceDocument("s", "text/plain", "Notes"),
            e.File("data:text/plain,hi", "text/plain"),
        ],
        "",
        (
            "  source: http://a.example/\n  source: A, http://a.example/\n  source: Notes\n"
            "  file: text/plain data:text/plain,hi\n"
        ),
    ),
    "an error": (
        [e.TextDelta("t", "Half"), e.ErrorEvent("it fell"), e.Finish("error")],
        "Half\n",
        "✗ it fell\n",
    ),
    "a stop": ([e.Abort("stopped by the user"), e.Finish("aborted")], "", "stopped by the user\n"),
    "a stop of the hub's": ([e.Abort("nobody was there"), e.Finish()], "", "stopped: nobody was there\n"),
    "a step taken back": (
        [e.TextDelta("t", "No"), e.ResetStep(), e.TextDelta("t", "Yes"), e.Finish("stop")],
        "No\nYes\n",
        "  this step is taken back, and made once more:\n",
    ),
}


class Ticks:
    """A clock that goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("case", CASES)
def test_what_happens_is_drawn(case: str) -> None:
    events, text, aside = CASES[case]
    streams = io.StringIO(), io.StringIO()
    screen = EventRenderer(make_console(streams[0]), make_console(streams[1]), clock=Ticks())
    screen.render(events)
    screen.end_line()
    assert (streams[0].getvalue(), streams[1].getvalue()) == (text, aside)


def test_every_event_is_drawn_or_known_to_need_no_drawing() -> None:
    assert set(RENDERERS) | UNDRAWN == {*get_args(e.FixedEvent), e.Data}


def test_how_a_run_ended_is_known_afterwards() -> None:
    screen = EventRenderer(make_console(io.StringIO()), make_console(io.StringIO()))
    screen.render([e.Start("m", {"model": "a/b"}), e.MessageMetadata({"x": 1}), e.ErrorEvent("it fell")])
    assert (screen.failed, screen.reason) == (True, None)
    screen.render([e.Finish("error", message_metadata={"steps": 2})])
    assert (screen.reason, screen.metadata) == ("error", {"model": "a/b", "x": 1, "steps": 2})


def test_long_results_are_cut() -> None:
    out = io.StringIO()
    screen = EventRenderer(make_console(out), make_console(out), clock=None)
    screen.render([e.ToolInputAvailable("c", "look", {}), e.ToolOutputAvailable("c", "x" * 10_000)])
    assert "…  look\n" in out.getvalue()
    assert len(out.getvalue()) < MAX_SHOWN + 50


def test_a_run_in_one_line() -> None:
    metadata = {"model": "a/b", "steps": 2, "usage": {"inputTokens": 5, "outputTokens": 0}, "duration": 0.25}
    assert describe_answer(metadata) == "a/b · 2 steps · 5 tokens in · 0 tokens out · 250 ms"
    assert describe_answer({"steps": 1}) == "1 step"
    assert describe_answer({}) == ""
    assert format_duration(61.04) == "61.0 s"


def test_what_would_steer_the_terminal_is_left_out() -> None:
    assert strip_controls("a\x1b[2J\x07b\tc\nd\x9be\ud800é👍") == "a[2Jb\tc\nde" + "é👍"


def test_json_that_commands_print_moves_no_cursor_and_says_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {"task": "a\x1b[2J\x9b2J\u202eb\té👍\n"}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert strip_controls(printed) == printed
    assert "é👍" in printed


ANSWER = (
    "# Trip\n\nIt **goes** to [Lisbon](https://a.example/), <b>soon</b>.\n\n| day | what |\n|---|---|\n"
    "| Mon | tea |\n\n1. one\n2. two\n\n```python\nx = 1\n```\n\n> quoted\n\nDone.\n"
)
DRAWN = """\
Hm.

Trip

It goes to Lisbon (https://a.example/), <b>soon</b>.

 day  what
 ─────────
 Mon  tea

 1 one
 2 two

x = 1

▌ quoted

Done.
→ look {"at":1}
  ✓ ["there"]  look
"""


@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize("colours", [False, True])
def test_markdown_looks_the_same_however_it_arrives(
    size: int, colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not colours:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, highlight=False, markup=False)
    deltas = [e.TextDelta("t", ANSWER[at : at + size]) for at in range(0, len(ANSWER), size)]
    input, output = e.ToolInputAvailable("c", "look", {"at": 1}), e.ToolOutputAvailable("c", ["there"])
    screen = LiveRenderer(console, clock=None)
    batches: list[list[e.Event]] = [
        [e.ReasoningDelta("r", "Hm.")],
        [*deltas, e.TextEnd("t")],
        [input, output],
    ]
    for batch in batches:
        screen.render(batch)
    screen.end_line()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert "\n".join(line.rstrip() for line in plain.splitlines()) == DRAWN.rstrip("\n")
    assert bool(re.search(r"\x1b\[[0-9;]*3[1-7]m", out.getvalue())) == colours


def test_a_long_open_block_shows_its_end_and_costs_little() -> None:
    growing = GrowingMarkdown()
    for number in range(2_000):
        assert growing.add(f"{'```text' if number == 0 else f'line {number}'}\n") == []
    assert growing.tail(3) == "```text\nline 1997\nline 1998\nline 1999\n"
    assert [block[-9:] for block in growing.add("```\n\nafter\n") + growing.finish()] == [
        "999\n```\n\n",
        "after\n",
    ]


PREVIEWS: dict[str, tuple[Any, Any, list[str]]] = {
    "short": ({"disk": "a"}, None, ['  op {"disk":"a"}']),
    "an edit": (
        {"path": "a.py", "edits": [{"old": "x\ny\n", "new": "x\n\tz\u202e\n", "everywhere": True}]},
        None,
        [
            "  op", '    {"everywhere":true}', "    --- a.py", "    +++ a.py", "    @@ -1,2 +1,2 @@",
            "     x", "    -y", "    +⇥   z\\u202e",
        ],
    ),
    "a file": (
        {"path": "a", "text": "1\n2\n", "mode": "w", "why": "y" * 60},
        {"path": "a", "text": "1\n", "mode": "w"},
        [
            "  op", "    {", '      "mode": "w",', f'      "why": "{"y" * 60}"', "    }",
            "    a: what was approved last, and the new text", "    --- a", "    +++ a", "    @@ -1 +1,2 @@",
            "     1", "    +2",
        ],
    ),
    "other arguments than before": (
        {"to": "ann"},
        {"to": "bob"},
        [
            "  op", "    compared with the call that was approved last:",
            "    --- arguments", "    +++ arguments", "    @@ -1,3 +1,3 @@",
            "     {", '    -  "to": "bob"', '    +  "to": "ann"', "     }",
            "    {", '      "to": "ann"', "    }",
        ],
    ),
    "the same as before": (
        {"to": "ann"},
        {"to": "ann"},
        [
            "  op", "    compared with the call that was approved last:", "    the same arguments",
            "    {", '      "to": "ann"', "    }",
        ],
    ),
}  # fmt: skip


@pytest.mark.promise("approval-preview")
@pytest.mark.parametrize("case", PREVIEWS)
def test_an_approval_shows_what_will_change(case: str) -> None:
    input, before, lines = PREVIEWS[case]
    item = {"operation": "op", "input": input, "agent": None, "reason": None, "question": None}
    previous = None if before is None else {"input": before}
    assert [text for text, _ in item_lines({**item, "previous": previous})] == lines
