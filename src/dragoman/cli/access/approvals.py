"""`dragoman approvals`: list calls and questions that wait for an answer, and answer them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
import typer

from dragoman.cli.access.call_preview import print_items
from dragoman.cli.access.question_prompt import resolve_answer, spell_invisible
from dragoman.cli.hub_client.connect import HubTarget, connect, run_with_client
from dragoman.cli.options import DEFAULT_DATA, AsJson, Data, Hub, Key
from dragoman.cli.terminal import (
    examples,
    format_age,
    print_error,
    print_json,
    print_line,
    print_note,
    print_table,
    truncate,
)
from dragoman.errors import BadRequest, Conflict, Forbidden, NotFound

if TYPE_CHECKING:
    from dragoman.cli.hub_client.client import HubClient

Json: TypeAlias = dict[str, Any]  # an approval, as `GET /api/approvals/{id}` returns it
Status: TypeAlias = Literal["pending", "approved", "denied", "expired", "used", "all"]
Id: TypeAlias = Annotated[str, typer.Argument(help="The approval's id, as `approvals list` shows it.")]
Reason: TypeAlias = Annotated[str | None, typer.Option(help="Why; stored with the answer.")]
MAX_INPUT = 60
APPROVE_PROMPT = "Approve? [y]es, [n]o, [l]ater, [q]uit: "
ANSWER_PROMPT = "Answer (a number, or your words), /no, /later, /quit: "

approvals = typer.Typer(
    no_args_is_help=True,
    help="Approvals: calls that wait for approval, and questions that wait for an answer.",
)


class QuitWatch(Exception):
    """The user wants to leave `approvals watch`."""


@approvals.command(
    "list",
    epilog=examples(
        ("dragoman approvals list", "pending approvals in .dragoman, of all owners"),
        ("dragoman approvals list --status all --hub http://127.0.0.1:8000", "yours, of a running hub"),
    ),
)
def list_approvals(
    *,
    status: Annotated[Status, typer.Option(help="Only approvals with this status.")] = "pending",
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of rows.")] = 50,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """List approvals, the newest first."""
    wanted = None if status == "all" else status
    found = run_with_client(HubTarget(hub, key, data), lambda client: client.approvals(wanted, limit=limit))
    if json:
        print_json({"approvals": found})
        return
    if not found:
        print_note("no approval is pending" if status == "pending" else "there are no approvals")
        return
    rows = [
        (
            approval["id"],
            approval["status"],
            format_age(approval["createdAt"]),
            spell_invisible(approval["owner"]),
            *summary_cells(approval),
        )
        for approval in found
    ]
    print_table(("ID", "STATUS", "ASKED", "OWNER", "OPERATION", "INPUT"), rows)


@approvals.command(
    "show", epilog=examples(("dragoman approvals show apr_3f9a0c1d", "with all its arguments"))
)
def show(
    id: Id, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Show one approval: who asks, for which call, with which arguments."""
    approval = run_with_client(HubTarget(hub, key, data), lambda client: client.approval(id, compare=True))
    if json:
        print_json(approval)
        return
    print_approval(approval)


@approvals.command(
    "approve",
    epilog=examples(
        ("dragoman approvals approve apr_3f9a0c1d", "the call may run once"),
        (
            "dragoman approvals approve apr_3f9a0c1d --always --hub http://127.0.0.1:8000",
            "and is not asked again",
        ),
    ),
)
def approve(
    id: Id,
    *,
    reason: Reason = None,
    always: Annotated[
        bool, typer.Option("--always", help="Allow such calls from now on, whatever their arguments.")
    ] = False,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Approve a call: once, with exactly these arguments."""
    if always:
        run_with_client(HubTarget(hub, key, data), lambda client: client.always_allow(id))
    decide(HubTarget(hub, key, data), id, approved=True, reason=reason, json=json)


@approvals.command(
    "deny", epilog=examples(("dragoman approvals deny apr_3f9a0c1d --reason 'not on a Friday'", "say no"))
)
def deny(
    id: Id,
    *,
    reason: Reason = None,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Deny a call, or decline a question."""
    decide(HubTarget(hub, key, data), id, approved=False, reason=reason, json=json)


@approvals.command(
    "answer",
    epilog=examples(
        ("dragoman approvals answer apr_3f9a0c1d 'in the blue one'", "your own words"),
        ("dragoman approvals answer apr_3f9a0c1d 2", "the second of the options that it shows"),
    ),
)
def answer(
    id: Id,
    text: Annotated[str, typer.Argument(help="The answer, or the number of an option.")],
    *,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Answer a question; the run that waits for it resumes. `deny` declines it."""

    async def resolve_and_send(client: HubClient) -> Json:
        question = (await client.approval(id))["question"]
        return await client.answer(id, text if question is None else resolve_answer(question, text))

    print_answered(run_with_client(HubTarget(hub, key, data), resolve_and_send), json=json)


@approvals.command(
    "watch",
    epilog=examples(
        ("dragoman approvals watch", "asks here about each request in .dragoman as it arrives"),
        ("dragoman approvals watch --hub http://127.0.0.1:8000", "about those that you may answer"),
    ),
)
def watch(
    *,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="The polling interval.")] = 1.0,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
) -> None:
    """Ask at the terminal about each request as it arrives, until Ctrl-C or Ctrl-D."""
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        client = runner.run(stack.enter_async_context(connect(HubTarget(hub, key, data))))
        try:
            runner.run(client.approvals("pending", limit=1))  # fails early without a hub or a valid key
            print_note("waiting for requests; Ctrl-C leaves")
            prompt_for_each(runner, client, every=every)
        except QuitWatch:
            print_note("unanswered requests stay pending")
        finally:
            runner.run(stack.aclose())


def prompt_for_each(runner: asyncio.Runner, client: HubClient, *, every: float) -> None:
    """Prompt for each pending approval once; a postponed one is not shown again."""
    shown: set[str] = set()
    while True:
        pending = runner.run(client.approvals("pending", limit=500))
        for approval in reversed(pending):
            if not approval["mayAnswer"] or approval["id"] in shown:
                continue
            shown.add(approval["id"])
            print_approval(runner.run(client.approval(approval["id"], compare=True)))
            question = approval["question"]
            decision = read_decision() if question is None else read_question_answer(question)
            if decision is None:
                continue
            try:
                print_answered(runner.run(send_answer(client, approval["id"], decision=decision)), json=False)
            except (BadRequest, Conflict, Forbidden, NotFound) as error:
                print_error(error.message, hint=error.hint)
        runner.run(asyncio.sleep(every))


async def send_answer(client: HubClient, id: str, *, decision: bool | str) -> Json:
    """Approve or deny a call, or send the text that answers a question."""
    if isinstance(decision, str):
        return await client.answer(id, decision)
    return await client.decide(id, approved=decision)


def read_typed_line(prompt: str) -> str:
    """Read a line from the terminal. QuitWatch at Ctrl-D."""
    try:
        return input(prompt).strip()
    except EOFError:
        raise QuitWatch from None


def read_question_answer(question: Mapping[str, Any]) -> str | Literal[False] | None:
    """Read the answer to a question: False declines, None is later. QuitWatch at `/quit` and Ctrl-D."""
    while True:
        text = read_typed_line(ANSWER_PROMPT)
        match text.lower():
            case "/no":
                return False
            case "/later":
                return None
            case "/quit":
                raise QuitWatch
            case "":
                pass  # prompt again
            case _:
                return resolve_answer(question, text)


def read_decision() -> bool | None:
    """Read yes or no, or None for later. QuitWatch at `q` and Ctrl-D."""
    while True:
        match read_typed_line(APPROVE_PROMPT).lower():
            case "y" | "yes":
                return True
            case "n" | "no":
                return False
            case "l" | "later":
                return None
            case "q" | "quit":
                raise QuitWatch
            case _:
                pass  # prompt again


def decide(target: HubTarget, id: str, *, approved: bool, reason: str | None, json: bool) -> None:
    """Approve or deny a call, and print the new status."""
    approval = run_with_client(target, lambda client: client.decide(id, approved=approved, reason=reason))
    print_answered(approval, json=json)


def print_answered(approval: Mapping[str, Any], *, json: bool) -> None:
    """Print an approval that was just answered."""
    if json:
        print_json(approval)
        return
    operation, text = operation_names(approval), approval["answer"]
    subject = operation if text is None else f"{operation}, {text}"
    print_note(f"{approval['id']} is {approval['status']}: {spell_invisible(subject)}")


def print_approval(approval: Mapping[str, Any]) -> None:
    """Print an approval with everything needed to decide."""
    agent = f", through the agent {spell_invisible(approval['agent'])}" if approval["agent"] else ""
    print_line(
        f"{approval['id']}  {approval['status']}, asked {format_age(approval['createdAt'])}"
        f"{expiry_note(approval)}"
    )
    print_line(f"  for {spell_invisible(approval['owner'])}{agent}")
    print_items(approval_items(approval), id=approval["id"])
    if approval["answeredBy"]:
        text = approval["answer"] or approval["reason"]
        detail = f": {spell_invisible(text)}" if text else ""
        age, by = format_age(approval["answeredAt"]), spell_invisible(approval["answeredBy"])
        print_line(f"  answered {age} by {by}{detail}")


def expiry_note(approval: Mapping[str, Any]) -> str:
    """Return when a pending approval expires; an empty text for an answered one."""
    remaining = approval["expiresAt"] - time.time()
    if approval["status"] not in ("pending", "approved") or remaining <= 0:
        return ""
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if remaining >= seconds:
            return f", expires in {remaining // seconds:.0f} {unit}"
    return f", expires in {remaining:.0f} s"


def summary_cells(approval: Mapping[str, Any]) -> tuple[str, str]:
    """Return the operations, and the arguments or the question, each on one line."""
    items = approval_items(approval)
    if approval["question"] is not None:
        text = spell_invisible(approval["question"]["text"])
        return spell_invisible(items[0]["operation"]), truncate(text, MAX_INPUT)
    input = items[0]["input"] if len(items) == 1 else [item["input"] for item in items]
    names = operation_names(approval)
    text = spell_invisible(msgspec.json.encode(input).decode())
    return spell_invisible(names), truncate(text, MAX_INPUT)


def operation_names(approval: Mapping[str, Any]) -> str:
    """Return the operations that need the approval: what runs, not `hub.call`."""
    return ", ".join(dict.fromkeys(item["operation"] for item in approval_items(approval)))


def approval_items(approval: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of the call that need approval, or the call as a whole."""
    call = {"operation": approval["operation"], "input": approval["input"], "reason": None}
    return approval["items"] or [{**call, "question": None, "agent": None}]
