"""Makes what a run needs: the C programs, and each peer's own installation."""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
BUILD = HERE / "build"
AI_SDK = HERE / "peers" / "ai_sdk"
PYDANTIC_AI = HERE / "peers" / "pydantic_ai"
PEER_PYTHON = PYDANTIC_AI / ".venv" / "bin" / "python"
# Environment variables that keep the bytecode of the sources, as an installation does: compiling them at each
# start would take two thirds of it.
BYTECODE = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(BUILD / "bytecode")}


class Absent(Exception):
    """Something that a server needs is not to be had here; the text says what."""


def compile_programs() -> None:
    """Compile upstream.c and load.c into build/ when they are newer than what lies there."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("benchmarks need a C compiler: install gcc or clang")
    BUILD.mkdir(exist_ok=True)
    for name in ("upstream", "load"):
        sources = [HERE / f"{name}.c", *HERE.glob("*.h")]
        program = BUILD / name
        if is_newer(program, sources):
            continue
        subprocess.run([compiler, "-std=gnu11", "-O2", "-Wall", "-o", program, sources[0]], check=True)


def install_ai_sdk() -> None:
    """Install the AI SDK peer from its lock file; `Absent` when that cannot be done."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Absent("needs node and npm")
    lock = AI_SDK / "package-lock.json"
    if not is_newer(AI_SDK / "node_modules" / ".package-lock.json", [lock]):
        install(["npm", "ci", "--ignore-scripts"], cwd=AI_SDK)


def install_pydantic_ai() -> None:
    """Install the Pydantic AI peer into an environment of its own; `Absent` when that cannot be done."""
    lock, done = PYDANTIC_AI / "requirements.txt", PYDANTIC_AI / ".venv" / "installed"
    if is_newer(done, [lock]):
        return
    install([sys.executable, "-m", "venv", "--clear", str(PYDANTIC_AI / ".venv")], cwd=PYDANTIC_AI)
    install(
        [str(PEER_PYTHON), "-m", "pip", "install", "-q", "--require-hashes", "-r", str(lock)], cwd=PYDANTIC_AI
    )
    done.touch()


def version_of(peer: str) -> str:
    """The version of a peer's main package, as its lock file has it."""
    if peer == "ai_sdk":
        import_line = (AI_SDK / "package.json").read_text()
        return import_line.split('"ai": "', 1)[1].split('"', 1)[0]
    return (PYDANTIC_AI / "requirements.txt").read_text().split("pydantic-ai-slim==", 1)[1].split(" ", 1)[0]


def install(command: list[str], *, cwd: Path) -> None:
    """Run an installer; `Absent` when it fails."""
    print(f"installing: {' '.join(command[:3])} … in {cwd.name}", file=sys.stderr)
    try:
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=600)
    except (subprocess.SubprocessError, OSError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        raise Absent(f"could not be installed: {detail.strip().splitlines()[-1]}") from error


def is_newer(made: Path, sources: list[Path]) -> bool:
    """Whether something was made, and after all that it is made of."""
    return made.exists() and all(made.stat().st_mtime >= source.stat().st_mtime for source in sources)
