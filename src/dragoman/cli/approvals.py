"""`dragoman approvals`: what waits for somebody's word, a yes, a no or an answer, and giving it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import urlencode

import msgspec
import typer

from dragoman.cli.client import HubClient, path_segment
from dragoman.cli.keys import require_data_folder
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
from dragoman.identity import LOCAL, Identity
from dragoman.operations.ledger import CallCompletion
from dragoman.operations.permission.access_control import denied_failure
from dragoman.server.approvals import ApprovalBody, approval_to_json, parse_answer, parse_status
from dragoman.store.store import Store

# ---- The docket: what waits for approval, and the answers; in a data folder or at a running hub.

Case: TypeAlias = dict[str, Any]  # as `GET /api/approvals/{id}` tells it
OPERATOR = Identity(owner=LOCAL.owner, scopes=frozenset({"admin"}))  # whoever can write to the data folder


class Docket(Protocol):
    """Requests for approval."""

    async def list(self, status: str | None, *, limit: int) -> list[Case]:
        """The newest first."""
        ...

    async def get(self, id: str) -> Case:
        """One of them. NotFound."""
        ...

    async def answer(self, id: str, *, approved: bool, reason: str | None) -> Case:
        """Say yes or no. NotFound, Forbidden, Conflict."""
        ...

    async def reply(self, id: str, text: str) -> Case:
        """Answer a question. BadRequest when it is none; and as above."""
        ...


class Remote:
    """What waits at a running hub, for the owner of a key."""

    def __init__(self, client: HubClient) -> None:
        self._client = client

    async def list(self, status: str | None, *, limit: int) -> list[Case]:
        asked = {"limit": str(limit)} | ({"status": status} if status else {})
        found: list[Case] = (await self._client.request("GET", f"/api/approvals?{urlencode(asked)}"))[
            "approvals"
        ]
        return found

    async def get(self, id: str) -> Case:
        found: Case = await self._client.request("GET", f"/api/approvals/{path_segment(id)}")
        return found

    async def answer(self, id: str, *, approved: bool, reason: str | None) -> Case:
        body = {"approved": approved, "reason": reason}
        found: Case = await self._client.request("POST", f"/api/approvals/{path_segment(id)}", body=body)
        return found

    async def reply(self, id: str, text: str) -> Case:
        path = f"/api/approvals/{path_segment(id)}"
        found: Case = await self._client.request("POST", path, body={"answer": text})
        return found


class Folder:
    """What waits in a data folder, of all owners, also while a hub runs there."""

    def __init__(self, store: Store) -> None:
        self._approvals = store.approvals
        self._calls = store.calls

    async def list(self, status: str | None, *, limit: int) -> list[Case]:
        found = await self._approvals.list(status=parse_status(status), limit=limit)
        return [approval_to_json(each, OPERATOR) for each in found]

    async def get(self, id: str) -> Case:
        return approval_to_json(await self._approvals.get(id), OPERATOR)

    async def answer(self, id: str, *, approved: bool, reason: str | None) -> Case:
        found = await self._approvals.answer(id, approved=approved, by=OPERATOR, reason=reason)
        if not approved and found.call_id is not None and found.state is None:
            ended = CallCompletion(status="denied", ended_at=time.time(), error=denied_failure(reason))
            await self._calls.close_pending(found.call_id, ended)
        return approval_to_json(found, OPERATOR)

    async def reply(self, id: str, text: str) -> Case:
        asked = await self._approvals.get(id)
        approved, reason = parse_answer(ApprovalBody(answer=text), asked)
        return await self.answer(id, approved=approved, reason=reason)


@asynccontextmanager
async def opened(hub: str | None, key: str | None, *, data: Path) -> AsyncIterator[Docket]:
    """The docket of a hub when one is named, else that of the data folder."""
    if hub:
        async with HubClient(hub, key) as client:
            yield Remote(client)
    else:
        async with await Store.open(require_data_folder(data), exclusive=False) as store:
            yield Folder(store)


# ---- Questions at the terminal: drawn with their options by number, and what is typed as an answer.

Question: TypeAlias = Mapping[str, Any]  # {text, options}, as doors and streams tell it


def question_lines(question: Question) -> list[str]:
    """The question and its options, a line each; what cannot be seen is spelled out."""
    asked = [spell_invisible(line) for line in question["text"].splitlines()]
    return [
        *asked,
        *(f"  {number}. {spell_invisible(said)}" for number, said in enumerate(question["options"], 1)),
    ]


def resolve_answer(question: Question, typed: str) -> str:
    """The answer that is meant: an option by its number, or the words themselves."""
    options, said = question["options"], typed.strip()
    if said in options or not (said.isascii() and said.isdigit()):
        return typed
    at = int(said[:9]) - 1
    return str(options[at]) if 0 <= at < len(options) else typed


def spell_invisible(text: str) -> str:
    """The text with all that cannot be seen spelled out: nobody shall approve what he does not see."""
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)


T = TypeVar("T")
Status: TypeAlias = Literal["pending", "approved", "denied", "expired", "used", "all"]
Id: TypeAlias = Annotated[str, typer.Argument(help="The approval's id, as `approvals list` shows it.")]
Reason: TypeAlias = Annotated[str | None, typer.Option(help="Why; it is kept with the answer.")]
MAX_INPUT = 60
APPROVE_PROMPT = "Approve? [y]es, [n]o, [l]ater, [q]uit: "
ANSWER_PROMPT = "Answer (a number, or your words), /no, /later, /quit: "

approvals = typer.Typer(
    no_args_is_help=True,
    help="Approvals: calls that wait for somebody's yes or no, and questions for an answer.",
)


class Place(NamedTuple):
    """A running hub, or else a data folder."""

    hub: str | None
    key: str | None
    data: Path


class QuitWatch(Exception):
    """The user wants to go."""


@approvals.command(
    "list",
    epilog=examples(
        ("dragoman approvals list", "what waits in .dragoman, for all owners"),
        ("dragoman approvals list --status all --hub http://127.0.0.1:8000", "yours, of a running hub"),
    ),
)
def list_approvals(
    *,
    status: Annotated[Status, typer.Option(help="Only those of this status.")] = "pending",
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many at most.")] = 50,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """List approvals, the newest first."""
    asked = None if status == "all" else status
    found = with_docket(Place(hub, key, data), lambda docket: docket.list(asked, limit=limit))
    if json:
        print_json({"approvals": found})
        return
    if not found:
        print_note("nothing waits for approval" if status == "pending" else "there are none")
        return
    rows = [
        (
            case["id"],
            case["status"],
            format_age(case["createdAt"]),
            spell_invisible(case["owner"]),
            *summary_cells(case),
        )
        for case in found
    ]
    print_table(("ID", "STATUS", "ASKED", "OWNER", "OPERATION", "INPUT"), rows)


@approvals.command(
    "show", epilog=examples(("dragoman approvals show apr_3f9a0c1d", "with all its arguments"))
)
def show(
    id: Id, *, data: Data = DEFAULT_DATA, hub: Hub = None, key: Key = None, json: AsJson = False
) -> None:
    """Show one: who asks, for which call, with which arguments."""
    case = with_docket(Place(hub, key, data), lambda docket: docket.get(id))
    if json:
        print_json(case)
        return
    print_approval(case)


@approvals.command(
    "approve", epilog=examples(("dragoman approvals approve apr_3f9a0c1d", "the call may run once"))
)
def approve(
    id: Id,
    *,
    reason: Reason = None,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
    json: AsJson = False,
) -> None:
    """Let the call run: once, with these very arguments."""
    print_answered(answer_approval(Place(hub, key, data), id, approved=True, reason=reason), json=json)


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
    """Keep the call from running."""
    print_answered(answer_approval(Place(hub, key, data), id, approved=False, reason=reason), json=json)


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
    """Answer a question: the run that waits for it goes on. `deny` declines it."""

    async def reply(docket: Docket) -> Case:
        question = (await docket.get(id))["question"]
        return await docket.reply(id, text if question is None else resolve_answer(question, text))

    print_answered(with_docket(Place(hub, key, data), reply), json=json)


@approvals.command(
    "watch",
    epilog=examples(
        ("dragoman approvals watch", "asks here about each request in .dragoman as it comes"),
        ("dragoman approvals watch --hub http://127.0.0.1:8000", "about those that you may answer"),
    ),
)
def watch(
    *,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")] = 1.0,
    data: Data = DEFAULT_DATA,
    hub: Hub = None,
    key: Key = None,
) -> None:
    """Ask at the terminal about each request as it comes, until Ctrl-C or Ctrl-D."""

    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        docket = runner.run(stack.enter_async_context(opened(hub, key, data=data)))
        try:
            runner.run(docket.list("pending", limit=1))  # does it let us in?
            print_note("waiting for requests; Ctrl-C leaves")
            prompt_for_each(runner, docket, every=every)
        except QuitWatch:
            print_note("what was not answered still waits")
        finally:
            runner.run(stack.aclose())


def prompt_for_each(runner: asyncio.Runner, docket: Docket, *, every: float) -> None:
    """Ask about each once; what is put off is not asked about again."""
    asked: set[str] = set()
    while True:
        waiting = runner.run(docket.list("pending", limit=500))
        for case in reversed([each for each in waiting if each["mayAnswer"] and each["id"] not in asked]):
            asked.add(case["id"])
            print_approval(case)
            said = read_decision() if case["question"] is None else read_question_answer(case["question"])
            if said is None:
                continue
            try:
                print_answered(runner.run(send_answer(docket, case["id"], said=said)), json=False)
            except (BadRequest, Conflict, Forbidden, NotFound) as error:
                print_error(error.message, hint=error.hint)
        runner.run(asyncio.sleep(every))


async def send_answer(docket: Docket, id: str, *, said: bool | str) -> Case:
    """The request with a yes, a no, or an answer to its question."""
    if isinstance(said, str):
        return await docket.reply(id, said)
    return await docket.answer(id, approved=said, reason=None)


def read_typed_line(prompt: str) -> str:
    """What is typed. Leave at Ctrl-D."""
    try:
        return input(prompt).strip()
    except EOFError:
        raise QuitWatch from None


def read_question_answer(question: Mapping[str, Any]) -> str | Literal[False] | None:
    """The answer, False for none, or None for later. Leave at `/quit` and Ctrl-D."""
    while True:
        said = read_typed_line(ANSWER_PROMPT)
        match said.lower():
            case "/no":
                return False
            case "/later":
                return None
            case "/quit":
                raise QuitWatch
            case "":
                pass  # asked again
            case _:
                return resolve_answer(question, said)


def read_decision() -> bool | None:
    """Yes, no, or None for later. Leave at `q` and Ctrl-D."""
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
                pass  # asked again


def with_docket(place: Place, work: Callable[[Docket], Awaitable[T]]) -> T:
    """What the work gives, done on the docket of a place."""

    async def run() -> T:
        async with opened(place.hub, place.key, data=place.data) as docket:
            return await work(docket)

    return asyncio.run(run())


def answer_approval(place: Place, id: str, *, approved: bool, reason: str | None) -> Case:
    return with_docket(place, lambda docket: docket.answer(id, approved=approved, reason=reason))


def print_answered(case: Mapping[str, Any], *, json: bool) -> None:
    """What was answered."""
    if json:
        print_json(case)
        return
    what = case["operation"] if case["answer"] is None else f"{case['operation']}, {case['answer']}"
    print_note(f"{case['id']} is {case['status']}: {spell_invisible(what)}")


def print_approval(case: Mapping[str, Any]) -> None:
    """All that somebody needs to know who is to decide."""
    agent = f", through the agent {spell_invisible(case['agent'])}" if case["agent"] else ""
    print_line(f"{case['id']}  {case['status']}, asked {format_age(case['createdAt'])}{expiry_note(case)}")
    print_line(f"  for {spell_invisible(case['owner'])}{agent}")
    for item in approval_items(case):
        why = f": {spell_invisible(item['reason'])}" if item["reason"] else ""
        whose = f", for the agent {spell_invisible(item['agent'])}" if item["agent"] else ""
        print_line(f"  {spell_invisible(item['operation'])}{whose}{why}")
        shown = (
            pretty_json_lines(item["input"]) if item["question"] is None else question_lines(item["question"])
        )
        print_line("\n".join(f"    {line}" for line in shown))
    if case["answeredBy"]:
        said = case["answer"] or case["reason"]
        why = f": {spell_invisible(said)}" if said else ""
        print_line(
            f"  answered {format_age(case['answeredAt'])} by {spell_invisible(case['answeredBy'])}{why}"
        )


def expiry_note(case: Mapping[str, Any]) -> str:
    """When it expires, where it still can."""
    left = case["expiresAt"] - time.time()
    if case["status"] not in ("pending", "approved") or left <= 0:
        return ""
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if left >= seconds:
            return f", expires in {left // seconds:.0f} {unit}"
    return f", expires in {left:.0f} s"


def summary_cells(case: Mapping[str, Any]) -> tuple[str, str]:
    """What wants approval, and the arguments, or the question, on one line."""
    items = approval_items(case)
    if case["question"] is not None:
        return spell_invisible(items[0]["operation"]), truncate(
            spell_invisible(case["question"]["text"]), MAX_INPUT
        )
    input = items[0]["input"] if len(items) == 1 else [item["input"] for item in items]
    names = ", ".join(dict.fromkeys(item["operation"] for item in items))
    return spell_invisible(names), truncate(spell_invisible(msgspec.json.encode(input).decode()), MAX_INPUT)


def approval_items(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What wants approval: parts of the call, or the call as a whole."""
    whole = {"operation": case["operation"], "input": case["input"], "reason": None}
    whole |= {"question": None, "agent": None}
    return case["items"] or [whole]


def pretty_json_lines(input: Any) -> list[str]:
    text = msgspec.json.format(msgspec.json.encode(input), indent=2).decode()
    return [spell_invisible(line) for line in text.splitlines()]
