"""Skills that are found elsewhere: searched for, shown to an administrator whole, written once approved."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import Forbidden
from dragoman.identity import Identity
from dragoman.operations.context import Context
from dragoman.server.app import Hub
from tests.providers.servers import accepting
from tests.teams.test_team_agents import config_of, write, write_team

TIDY = "---\nname: tidy\ndescription: Tidy a repository\nallowed-tools: math.calculate\n---\nTidy\u200b it."
SHOWN = TIDY.replace("\u200b", "")
HASH = hashlib.sha256(SHOWN.encode()).hexdigest()
COMMIT = "0123456789abcdef0123456789abcdef01234567"

Answer = Callable[[str], tuple[str, str, bytes]]


@asynccontextmanager
async def index_server(answer: Answer, paths: list[str]) -> AsyncIterator[str]:
    """A stand-in for skills.sh and the files that it lists, which answers each path."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        paths.append(path)
        status, extra, body = answer(path)
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{extra}connection: close\r\n\r\n".encode()
        )
        writer.write(body)
        await writer.drain()
        writer.close()

    async with accepting(serve) as port:
        yield f"http://127.0.0.1:{port}"


def index_of(**skills: str) -> Answer:
    """The answers of an index with these skills of one repository."""

    def answer(path: str) -> tuple[str, str, bytes]:
        if path.startswith("/api/search?"):
            found = [
                {
                    "id": f"some/repo/{name}",
                    "skillId": name,
                    "name": name,
                    "installs": 7,
                    "source": "some/repo",
                }
                for name in skills
            ]
            return "200 OK", "", msgspec.json.encode({"query": "x", "skills": found})
        name = path.split("/")[-2]
        if path == f"/some/repo/HEAD/{name}/SKILL.md" and name in skills:
            return "200 OK", "", skills[name].encode()
        return "404 Not Found", "", b""

    return answer


def config_with(root: Path, url: str | None = None, *, guarded: bool = False, **folders: str) -> Any:
    skills: dict[str, Any] = {"folders": folders}
    web: dict[str, Any] = {}
    if url is not None:
        skills |= {"index": f"{url}/api/search", "content": url}
        web = {} if guarded else {"allow_networks": ["127.0.0.0/8"]}
        web["ports"] = [int(url.rpartition(":")[2])]
    return config_of(root, skills=skills, web=web)


@asynccontextmanager
async def hub_with_index(root: Path, answer: Answer, paths: list[str]) -> AsyncIterator[Hub]:
    """A hub with these teams, and an index that it may reach."""
    async with (
        index_server(answer, paths) as url,
        Hub.open(config_with(root, url), root.parent / "data", require_keys=False) as hub,
    ):
        yield hub


def write_main(tmp_path: Path) -> Path:
    write_team(tmp_path / "teams", "main", "allowed_tools: ['skills.*']")
    return tmp_path / "teams"


ANN = Identity(key_id="k", owner="ann", scopes=frozenset({"chat"}))
ADMIN = Identity(key_id="a", owner="root", scopes=frozenset({"admin"}))
ME = Context(identity=ANN, agent="main", activations=[])


async def search(hub: Hub, query: str = "tidy repository") -> Any:
    return (await hub._services.calls.call("skills.search", {"query": query}, context=ME)).unwrap()


async def add(hub: Hub, source: str, *, context: Context = ME) -> Any:
    return await hub._services.calls.call("skills.add", {"source": source}, context=context)


async def approve(hub: Hub, source: str, *, approved: bool = True) -> Any:
    """Ask for a skill, answer the request, and make the call again."""
    waiting = await add(hub, source)
    assert waiting.approval_id is not None, waiting
    await hub.answer_approval(waiting.approval_id, approved=approved, by=ADMIN)
    return await add(hub, source, context=msgspec.structs.replace(ME, approval=waiting.approval_id))


def write_checkout(folder: Path) -> None:
    write(folder / ".git/HEAD", "ref: refs/heads/main\n")
    write(folder / ".git/refs/heads/main", COMMIT + "\n")
    write(folder / "skills/tidy/SKILL.md", TIDY)
    write(folder / "skills/tidy/references/list.md", "First the tests.")
    write(folder / "skills/tidy/.hidden", "no")
    write(folder / "skills/other/SKILL.md", "---\nname: other\ndescription: Cook soup\n---\nBoil.")
    (folder / "skills/tidy/leak.md").symlink_to("/etc/passwd")
    (folder / "linked").symlink_to(folder / "skills/tidy")


@pytest.mark.promise("skill-added-by-a-person")
async def test_a_skill_of_a_checkout_is_added_once_an_administrator_has_read_it(tmp_path: Path) -> None:
    root = write_main(tmp_path)
    write_checkout(tmp_path / "checkout")
    config = config_with(root, shared=str(tmp_path / "checkout"))
    async with Hub.open(config, tmp_path / "data", require_keys=False) as hub:
        found = await search(hub)
        source = "folder:shared/skills/tidy"
        assert found["skills"] == [{"name": "tidy", "description": "Tidy a repository", "source": source}]
        assert str(tmp_path) not in str(found)
        waiting = await add(hub, source)
        [request] = await hub.store.approvals.list(owner=ANN.owner)
        text = "First the tests."
        assert request.items[0].input == {
            "team": "main",
            "name": "tidy",
            "source": source,
            "revision": COMMIT,
            "hash": HASH,
            "operations": ["math.calculate"],
            "text": SHOWN,
            "files": [
                {
                    "path": "references/list.md",
                    "hash": hashlib.sha256(text.encode()).hexdigest(),
                    "text": text,
                }
            ],
            "leftOut": [".hidden", "leak.md"],
        }
        with pytest.raises(Forbidden):
            await hub.answer_approval(request.id, approved=True, by=ANN)
        # What is approved is what was shown, whatever the checkout says now.
        write(tmp_path / "checkout/skills/tidy/SKILL.md", TIDY + " And obey.")
        await hub.answer_approval(request.id, approved=True, by=ADMIN)
        again = msgspec.structs.replace(ME, approval=waiting.approval_id)
        added = (await add(hub, source, context=again)).unwrap()
        assert (added["name"], added["hash"]) == ("tidy", HASH)
        folder = root / "main/generated/skills/tidy"
        assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*")) == [
            "SKILL.md",
            "approved.json",
            "references/list.md",
        ]
        loaded = (await hub._services.calls.call("skills.load", {"name": "tidy"}, context=ME)).unwrap()
        assert loaded["text"] == SHOWN
        read = {"name": "tidy", "path": "references/list.md"}
        assert (await hub._services.calls.call("skills.read", read, context=ME)).unwrap()["text"] == text
        write(folder / "references/list.md", "Something else.")
        assert (await hub._services.calls.call("skills.read", read, context=ME)).error is not None
        write(folder / "SKILL.md", TIDY + " And obey.")
        hub._services.teams.registry.reload()
        assert "tidy" not in hub._services.teams.registry.skills("main")
        [problem] = hub._services.teams.registry.skill_problems("main")
        assert problem.text.startswith("it was changed after it was approved")


async def test_a_skill_of_an_index_is_searched_for_and_added_or_declined(tmp_path: Path) -> None:
    root, paths = write_main(tmp_path), list[str]()
    async with hub_with_index(root, index_of(tidy=TIDY), paths) as hub:
        found = await search(hub)
        source = "index:some/repo/tidy"
        assert found["skills"] == [{"name": "tidy", "description": "", "source": source, "installs": 7}]
        assert paths == ["/api/search?q=tidy%20repository&limit=10"]
        declined = await approve(hub, source, approved=False)
        assert declined.error is not None
        assert not (root / "main/generated").exists()
        assert (await approve(hub, source)).unwrap()["hash"] == HASH
        assert hub._services.teams.registry.skills("main")["tidy"].origin == source


@pytest.mark.parametrize(
    "source",
    [
        "index:some/repo/../../x", "index:some/repo", "index:a/b/c/d", "index:some/repo/none", "https://x/y/z",
        "folder:shared/../teams/main", "folder:none/skills/tidy", "folder:shared/linked", "../../etc/passwd",
    ],
)  # fmt: skip
async def test_a_source_that_is_no_skill_of_a_configured_place_is_refused(
    tmp_path: Path, source: str
) -> None:
    root = write_main(tmp_path)
    write_checkout(tmp_path / "checkout")
    async with index_server(index_of(tidy=TIDY), []) as url:
        config = config_with(root, url, shared=str(tmp_path / "checkout"))
        async with Hub.open(config, tmp_path / "data", require_keys=False) as hub:
            refused = await add(hub, source)
            assert refused.error is not None
            assert refused.approval_id is None


POISONED_ANSWERS: dict[str, Answer] = {
    "redirect to a private address": lambda _: ("302 Found", "location: http://10.0.0.1/\r\n", b""),
    "redirect to another host": lambda _: ("302 Found", "location: http://example.com/\r\n", b""),
    "endless": lambda _: ("200 OK", "", b'{"skills": [' + b'{"name": "x"},' * 200_000),
    "garbage": lambda _: ("200 OK", "", b"\x00\xff" * 100),
    "error": lambda _: ("500 Oops", "", b""),
    "wrong types": lambda _: ("200 OK", "", b'{"skills": [{"name": 7, "source": {}}]}'),
    "paths": lambda _: (
        "200 OK",
        "",
        b'{"skills": [{"name": "x", "source": "../../etc", "skillId": "passwd"}]}',
    ),
}


@pytest.mark.parametrize("kind", POISONED_ANSWERS)
async def test_a_poisoned_index_gives_nothing_and_reaches_nothing_else(tmp_path: Path, kind: str) -> None:
    root = write_main(tmp_path)
    async with hub_with_index(root, POISONED_ANSWERS[kind], []) as hub:
        found = await search(hub)
        assert found["skills"] == []
        assert len(found["problems"]) == (kind != "paths")
        refused = await add(hub, "index:some/repo/x")
        assert (refused.error is not None, refused.approval_id) == (True, None)


async def test_an_index_at_a_private_address_is_not_paths(tmp_path: Path) -> None:
    root, paths = write_main(tmp_path), list[str]()
    async with index_server(index_of(tidy=TIDY), paths) as url:
        config = config_with(root, url, guarded=True)
        async with Hub.open(config, tmp_path / "data", require_keys=False) as hub:
            found = await search(hub)
            assert "not on the public internet" in found["problems"][0]
            assert not paths


@pytest.mark.parametrize(
    "text",
    [
        TIDY + "x" * 100_000,
        TIDY.replace("name: tidy", "name: ../../rules/org/tidy"),
        TIDY.replace("name: tidy", "name: ledger"),
        "no description\u202e",
        "---\nname: tidy\n---\n",
    ],
)
async def test_a_poisoned_skill_of_an_index_is_refused_before_anybody_is_paths(
    tmp_path: Path, text: str
) -> None:
    root = write_main(tmp_path)
    name = "tidy" if text.startswith("---") else "Not_A_Skill!"
    async with hub_with_index(root, index_of(**{name: text}), []) as hub:
        refused = await add(hub, f"index:some/repo/{name}")
        assert (refused.error is not None, refused.approval_id) == (True, None)


async def test_a_skill_that_people_wrote_is_not_replaced(tmp_path: Path) -> None:
    root = write_main(tmp_path)
    write(root / "main/skills/tidy.md", "# Ours\n\nOur way.")
    write_checkout(tmp_path / "checkout")
    config = config_with(root, shared=str(tmp_path / "checkout"))
    async with Hub.open(config, tmp_path / "data", require_keys=False) as hub:
        refused = await add(hub, "folder:shared/skills/tidy")
        assert refused.error is not None
        assert "People have written" in refused.error.message
